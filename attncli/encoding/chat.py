"""Chats: a sentence as a user's turn, or a list of messages, as a checkpoint's chat template writes them.

What stands between the messages' own characters is the template's, and its tokens count as special.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from attncli.errors import InputError, LoadError, NotExposedError, UsageError, require
from attncli.text import visible
from attncli.trace.tokens import Token, Tokens

if TYPE_CHECKING:
    from attncli.checkpoints.options import LoadOptions

_DEFAULT = "default"  # of several templates, the one for messages alone
_MARKS = range(0x10FF00, 0x10FFFE)  # of the private-use characters, those that nobody writes
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
                    found = _kind(message[field]) if field in message else "missing"
                    raise InputError(f"message {number} of the conversation: its {field} is {found}; expected text")
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
    for option, given in (("--pair", pair), ("--target", target)):
        if given is not None:
            raise UsageError(
                f"{option} does not apply to --chat, which makes one text of all messages; drop one of them"
            )


class Written(NamedTuple):
    """What a template wrote.

    Attributes:
        text: all of it.
        contents: where the characters of the messages stand in it; None where that cannot be told.
    """

    text: str
    contents: list[tuple[int, int]] | None


@dataclass(frozen=True)
class Chat:
    """A checkpoint's chat template, and how it is asked.

    Attributes:
        name: of the checkpoint.
        render: makes a text of messages, as JSON has them.
        avoided: text in which the marks of `write` may not occur.
        system: what a first turn of the system says.
    """

    name: str
    render: Callable[[Sequence[Mapping[str, Any]]], str]
    avoided: str
    system: str | None

    def write(self, text: str, pair: str | None = None, target: str | None = None) -> Written:
        """Return what the template makes of a sentence, or of a conversation.

        Raises:
            InputError: it refuses the messages.
            UsageError: there is a pair or a target.
        """
        refuse_beside_chat(pair, target)
        messages = text.messages if isinstance(text, Conversation) else [Message("user", text)]
        if self.system is not None:
            if messages[0].role == "system":
                raise InputError("--system says what the conversation's own first turn says already; drop one of them")
            messages.insert(0, Message("system", self.system))
        try:
            written = self._written(messages, _plainly)
        except InputError:
            if found := self._in_parts(messages):
                return found
            raise
        return written if written.contents != [] else self._in_parts(messages) or written

    def _in_parts(self, messages: list[Message]) -> Written | None:
        """Return what a template writes that expects contents in parts, of which some may be pictures; None: not it."""
        try:
            written = self._written(messages, _in_parts)
        except InputError:
            return None
        return written if written.contents else None

    def _written(self, messages: list[Message], form: Callable[[Message], Mapping[str, Any]]) -> Written:
        """Return what a template writes, and which characters are the messages'.

        It is rendered once more with a mark before and after each content, and what it wrote without the marks has to
        be what it wrote at first. Many templates strip contents: there the marks stand within the blanks.
        """
        text = self.render([form(message) for message in messages])
        opening, closing = self._marks(text, messages)
        for marked in (_around, _within):
            some = [message._replace(content=marked(message.content, opening, closing)) for message in messages]
            try:
                found = self.render([form(message) for message in some])
            except InputError:
                continue
            spans = _spans(found, opening, closing)
            if spans is not None and found.replace(opening, "").replace(closing, "") == text:
                return Written(text, spans)
        return Written(text, None)

    def _marks(self, text: str, messages: list[Message]) -> tuple[str, str]:
        """Return two characters that nobody has written."""
        taken = {*self.avoided, *text, *(character for message in messages for character in message.content)}
        free = (chr(code) for code in _MARKS if chr(code) not in taken)
        return next(free), next(free)

    def marked(self, tokens: Tokens, written: Written, controls: set[int]) -> tuple[Tokens, tuple[str, ...]]:
        """Return tokens of which the template's are special, with a note where these cannot be told.

        Args:
            tokens: of what was written.
            written: from `write`.
            controls: the ids of the special tokens, which are the template's where nothing else is known.
        """
        why = f"the chat template of {visible(self.name)} changes what the messages say"
        if any(token.start is None for token in tokens):
            why = f"the tokenizer of {visible(self.name)} does not say where tokens stand in the text"
        elif written.contents is not None:
            spans = written.contents
            return Tokens([replace(token, special=not _is_within(token, spans)) for token in tokens]), ()
        note = f"{why}, so that of the template's tokens the control tokens alone count as special"
        return Tokens([replace(token, special=token.id in controls) for token in tokens]), (note,)


def _plainly(message: Message) -> Mapping[str, Any]:
    return message._asdict()


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
        options: whether a chat is asked for, and what the system says.
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
    from attncli.encoding.chat_template import compiled, rendered

    template, tokens = compiled(source, name), dict(tokenizer.special_tokens_map)
    return Chat(name, lambda messages: rendered(template, name, messages, tokens, asks), source, options.system)


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
