"""Chats: a sentence as a user's turn, or a list of messages, as a checkpoint's chat template writes them.

What stands between the messages' own characters is the template's, and its tokens count as special.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
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
_MARKS = "\U0010ff5a\U0010ff5b"  # private-use characters, which nobody writes
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
            fields = dict(message) if isinstance(message, Mapping) else {}
            if set(fields) != {*Message._fields} or not all(isinstance(value, str) for value in fields.values()):
                what = visible(brief(repr(message)))
                raise InputError(f"message {number} of the conversation is {what}; {_SHAPE}")
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
    """

    name: str
    render: Callable[[Sequence[Mapping[str, Any]]], str]

    def write(self, text: str, pair: str | None = None, target: str | None = None) -> RenderedChat:
        """Return what the template makes of a sentence, or of a conversation.

        Raises:
            InputError: it refuses the messages.
            UsageError: there is a pair or a target.
        """
        refuse_beside_chat(pair, target)
        messages = text.messages if isinstance(text, Conversation) else [Message("user", text)]
        name = visible(self.name)
        try:
            rendered = self._render(messages)
        except TemplateError as error:
            raise InputError(f"the chat template of {name} does not take these messages: {error}") from None
        if rendered.contents == []:  # such as one that takes the parts of a content, of which some are pictures
            raise InputError(f"the chat template of {name} writes nothing of what the messages say; drop --chat")
        return rendered

    def _render(self, messages: list[Message]) -> RenderedChat:
        """Return what a template writes, and which characters are the messages'.

        It is rendered once more with a mark before and after each content, and what it wrote without the marks has to
        be what it wrote at first. Many templates strip contents: there the marks stand within the blanks.
        """
        text = self.render([message._asdict() for message in messages])
        if not any(mark in written for mark in _MARKS for written in (text, *(each.content for each in messages))):
            for strips in (False, True):
                marked = [message._replace(content=_marked(message.content, strips)) for message in messages]
                with suppress(TemplateError):
                    again = self.render([message._asdict() for message in marked])
                    spans = _spans(again)
                    if spans is not None and again.translate(dict.fromkeys(map(ord, _MARKS))) == text:
                        return RenderedChat(text, spans)
        return RenderedChat(text, None)

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


def _marked(content: str, strips: bool) -> str:
    bare = content.strip() if strips else content
    before = content.index(bare) if bare else len(content)
    return content[:before] + _MARKS[0] + bare + _MARKS[1] + content[before + len(bare) :]


def _spans(marked: str) -> list[tuple[int, int]] | None:
    """Return where the marks stand, in the text without them; None where one has lost its other."""
    opening, closing = (
        [found.start() - 2 * index - place for index, found in enumerate(re.finditer(mark, marked))]
        for place, mark in enumerate(_MARKS)
    )
    order = [character for character in marked if character in _MARKS]
    is_paired = order == [*_MARKS] * len(opening)
    return list(zip(opening, closing, strict=True)) if is_paired else None


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
    return Chat(name, lambda messages: process.render(messages=messages, special=special_tokens, asks=asks))


def _chosen(name: str, templates: Any) -> str:
    """Return the template for messages alone, of one, several by their names, or a list of named ones."""
    if isinstance(templates, list | tuple):
        templates = {str(each.get("name")): each.get("template") for each in templates if isinstance(each, Mapping)}
    if isinstance(templates, Mapping):
        templates = templates.get(_DEFAULT)
    if templates is None:
        raise NotExposedError(
            f"{visible(name)} has no chat template, or none that is the default, so that it is probably no chat model; "
            "drop --chat"
        )
    if not isinstance(templates, str):
        raise LoadError(f"the chat template of {visible(name)} is {_kind(templates)}; expected text")
    return templates
