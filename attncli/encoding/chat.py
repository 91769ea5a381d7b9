"""Chats: a sentence as a user's turn, or a list of messages, as a checkpoint's chat template writes them.

What stands between the messages' own characters is the template's, and its tokens count as special.
"""

from __future__ import annotations

import json
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from attncli.errors import InputError, LoadError, NotExposedError, UsageError, require
from attncli.text import ADDRESS, visible
from attncli.trace.tokens import Token, Tokens, brief

if TYPE_CHECKING:
    from attncli.checkpoints.options import LoadOptions

_DEFAULT = "default"  # of several templates, the one for messages alone
_MARKS = range(0x10FF00, 0x10FFFE)  # of the private-use characters, those that nobody writes
_LEAST = (3, 1, 6)  # of Jinja, for a template of an older one can leave the sandbox: CVE-2025-27516
_SHAPE = 'expected a list of messages: [{"role": "user", "content": "…"}, …]'


class Message(NamedTuple):
    """One turn of a chat.

    Attributes:
        role: whose it is: `system`, `user`, `assistant`, or what else the template knows.
        content: what is said.
    """

    role: str
    content: str


class Conversation(str):
    """A list of messages as JSON, which its type tells from a sentence that looks like one."""

    @classmethod
    def of(cls, content: Any) -> Conversation:
        """Return a conversation of what JSON holds.

        Raises:
            InputError: it is no list of messages.
        """
        if not isinstance(content, list | tuple) or not content:
            raise InputError(f"the conversation is {_kind(content)}; {_SHAPE}")
        for number, message in enumerate(content, 1):
            if not isinstance(message, Mapping):
                raise InputError(f"message {number} of the conversation is {_kind(message)}; {_SHAPE}")
            for field in Message._fields:
                if not isinstance(message.get(field), str):
                    kind = _kind(message[field]) if field in message else "missing"
                    raise InputError(f"message {number} of the conversation: its {field} is {kind}; expected text")
            if odd := sorted(set(message) - set(Message._fields), key=str):
                raise InputError(
                    f"message {number} of the conversation has a member {visible(str(odd[0]))}; expected its role and "
                    "its content alone"
                )
        return cls(json.dumps([{field: message[field] for field in Message._fields} for message in content]))

    @classmethod
    def parsed(cls, text: str) -> Conversation:
        """Return a conversation that a text spells in JSON.

        Raises:
            InputError: it does not.
        """
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"the conversation is no JSON: {visible(str(error))}; {_SHAPE}") from None
        return cls.of(content)

    @property
    def messages(self) -> list[Message]:
        """The messages, in order."""
        return [Message(**message) for message in json.loads(self)]


def _kind(value: Any) -> str:
    empty = "an empty list" if value == [] else "null" if value is None else ""
    return empty or f"a {type(value).__name__}"


def refuse_beside_chat(pair: str | None, target: str | None) -> None:
    """Raise UsageError for a second text, which no chat template has a place for."""
    for option, text in (("--pair", pair), ("--target", target)):
        if text is not None:
            raise UsageError(
                f"{option} does not apply to --chat, which makes one text of all messages; drop one of them"
            )


class RenderedChat(NamedTuple):
    """What a template wrote.

    Attributes:
        text: all of it.
        contents: where the characters of the messages stand in it; None where that cannot be told.
    """

    text: str
    contents: list[tuple[int, int]] | None


class TemplateError(Exception):
    """A chat template cannot be read, or not be rendered; the message says why."""


class TemplateProcess:
    """The process that renders a chat template, started when it is needed; see `attncli.encoding.chat_template`."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._process: subprocess.Popen[str] | None = None

    def render(self, **request: Any) -> str:
        """Return what the template makes of messages; without any, compile it.

        Raises:
            TemplateError: it cannot be read, refuses the messages, or computes too much.
        """
        answer = self._answer(json.dumps({"source": self._source, **request}))
        error = answer.get("error")
        if error is not None:
            raise TemplateError(visible(brief(ADDRESS.sub("", " ".join(error.split())))))
        if any(address not in json.dumps(request) for address in ADDRESS.findall(answer["text"])):
            raise TemplateError("it writes a function or another object that is no text")
        return answer["text"]

    def _answer(self, request: str) -> dict[str, str]:
        if self._process is None:
            script = Path(__file__).with_name("chat_template.py")
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                encoding="ascii",
            )
            self._end = weakref.finalize(self, _end, self._process)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = ""
        with suppress(OSError):
            self._process.stdin.write(request + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        if line:
            return json.loads(line)
        self._end()
        self._process = None
        raise TemplateError("it computes without end, or something far too large")


def _end(process: subprocess.Popen[str]) -> None:
    with suppress(OSError):  # of what was not written before the process ended
        process.communicate()


@dataclass(frozen=True)
class Chat:
    """A checkpoint's chat template, and how it is asked.

    Attributes:
        name: of the checkpoint.
        render: makes a text of messages, as JSON has them.
        avoided: text in which the marks of `write` may not occur.
    """

    name: str
    render: Callable[[Sequence[Mapping[str, Any]]], str]
    avoided: str

    def write(self, text: str, pair: str | None = None, target: str | None = None) -> RenderedChat:
        """Return what the template makes of a sentence, or of a conversation.

        Raises:
            InputError: it refuses the messages.
            UsageError: there is a pair or a target.
        """
        refuse_beside_chat(pair, target)
        messages = text.messages if isinstance(text, Conversation) else [Message("user", text)]
        try:
            rendered = self._render(messages, Message._asdict)
        except TemplateError as error:
            if in_parts := self._render_in_parts(messages):
                return in_parts
            name = visible(self.name)
            raise InputError(f"the chat template of {name} does not take these messages: {error}") from None
        return rendered if rendered.contents != [] else self._render_in_parts(messages) or rendered

    def _render_in_parts(self, messages: list[Message]) -> RenderedChat | None:
        """Return what a template writes that expects contents in parts, of which some may be pictures; None: not it."""
        try:
            rendered = self._render(messages, _in_parts)
        except TemplateError:
            return None
        return rendered if rendered.contents else None

    def _render(self, messages: list[Message], as_json: Callable[[Message], Mapping[str, Any]]) -> RenderedChat:
        """Return what a template writes, and which characters are the messages'.

        It is rendered once more with a mark before and after each content, and what it wrote without the marks has to
        be what it wrote at first. Many templates strip contents: there the marks stand within the blanks.
        """
        text = self.render([as_json(message) for message in messages])
        opening, closing = self._marks(text, messages)
        for marked in (_around, _within):
            some = [message._replace(content=marked(message.content, opening, closing)) for message in messages]
            try:
                again = self.render([as_json(message) for message in some])
            except TemplateError:
                continue
            spans = _spans(again, opening, closing)
            if spans is not None and again.replace(opening, "").replace(closing, "") == text:
                return RenderedChat(text, spans)
        return RenderedChat(text, None)

    def _marks(self, text: str, messages: list[Message]) -> tuple[str, str]:
        """Return two characters that nobody has written."""
        written = {*self.avoided, *text, *(character for message in messages for character in message.content)}
        free = (chr(code) for code in _MARKS if chr(code) not in written)
        return next(free), next(free)

    def mark_special(
        self, tokens: Tokens, rendered: RenderedChat, controls: set[int]
    ) -> tuple[Tokens, tuple[str, ...]]:
        """Return tokens of which the template's are special, with a note where these cannot be told.

        Args:
            tokens: of what was written.
            rendered: from `write`.
            controls: the ids of the special tokens, which are the template's where nothing else is known.
        """
        why = f"the chat template of {visible(self.name)} changes what the messages say"
        if any(token.start is None for token in tokens):
            why = f"the tokenizer of {visible(self.name)} does not say where tokens stand in the text"
        elif rendered.contents is not None:
            spans = rendered.contents
            return Tokens([replace(token, special=not _is_within(token, spans)) for token in tokens]), ()
        note = f"{why}, so that of the template's tokens the control tokens alone count as special"
        return Tokens([replace(token, special=token.id in controls) for token in tokens]), (note,)


def _in_parts(message: Message) -> Mapping[str, Any]:
    return {"role": message.role, "content": [{"type": "text", "text": message.content}]}


def _around(content: str, opening: str, closing: str) -> str:
    return opening + content + closing


def _within(content: str, opening: str, closing: str) -> str:
    bare = content.strip()
    before = content.index(bare) if bare else len(content)
    return content[:before] + opening + bare + closing + content[before + len(bare) :]


def _spans(marked: str, opening: str, closing: str) -> list[tuple[int, int]] | None:
    """Return where the marks stand, in the text without them; None where one has lost its other."""
    spans: list[tuple[int, int]] = []
    position, start = 0, None
    for character in marked:
        if character == opening and start is None:
            start = position
        elif character == closing and start is not None:
            spans.append((start, position))
            start = None
        elif character in (opening, closing):
            return None
        else:
            position += 1
    return spans if start is None else None


def _is_within(token: Token, spans: list[tuple[int, int]]) -> bool:
    """Return whether a token has a character of these spans; one without a character, whether it stands in one."""
    assert token.start is not None
    assert token.end is not None
    last = max(token.end, token.start + 1)
    return any(start < last and token.start < end for start, end in spans)


def open_chat(name: str, tokenizer: Any, options: LoadOptions, *, special: bool, asks: bool) -> Chat | None:
    """Return a checkpoint's chat template; None where no chat is asked for.

    Args:
        name: of the checkpoint.
        tokenizer: has its template and its special tokens.
        options: whether a chat is asked for.
        special: whether special tokens were to be added.
        asks: whether the beginning of an answer follows the messages.

    Raises:
        UsageError: special tokens were not to be added.
        LoadError: the template cannot be read, or no package does.
        NotExposedError: there is none.
    """
    if not options.chat:
        return None
    if not special:
        raise UsageError("--no-special does not apply to --chat, whose template writes the special tokens itself")
    source = _chosen(name, getattr(tokenizer, "chat_template", None))
    require("--chat", "jinja2")
    installed = version("jinja2")
    if tuple(int(part) for part in installed.split(".")[:3] if part.isdigit()) < _LEAST:
        least = ".".join(map(str, _LEAST))
        raise LoadError(
            f"--chat takes jinja2 {least} or later, and {installed} is installed: pip install 'attncli[chat]'"
        )
    process, special_tokens = TemplateProcess(source), dict(tokenizer.special_tokens_map)
    try:
        process.render()
    except TemplateError as error:
        raise LoadError(f"the chat template of {visible(name)} cannot be read: {error}") from None
    return Chat(name, lambda messages: process.render(messages=messages, special=special_tokens, asks=asks), source)


def _chosen(name: str, templates: Any) -> str:
    """Return the template for messages alone, of one, several by their names, or a list of named ones."""
    if isinstance(templates, list | tuple):
        templates = dict(_named(templates))
    if isinstance(templates, Mapping):
        if _DEFAULT not in templates:
            names = ", ".join(visible(str(each)) for each in sorted(templates, key=str)) or "none"
            raise NotExposedError(f"{visible(name)} has several chat templates ({names}), and none that is the default")
        templates = templates[_DEFAULT]
    if templates is None:
        raise NotExposedError(
            f"{visible(name)} has no chat template, so that it is probably no chat model; drop --chat"
        )
    if not isinstance(templates, str):
        raise LoadError(f"the chat template of {visible(name)} is {_kind(templates)}; expected text")
    return templates


def _named(templates: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    for each in templates:
        if isinstance(each, Mapping) and {"name", "template"} <= each.keys():
            yield each["name"], each["template"]
