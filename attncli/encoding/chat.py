"""Chats: a sentence as a user's turn, or a list of messages, as a checkpoint's chat template writes them.

Only special tokens of the vocabulary that the template wrote count as special.
"""

from __future__ import annotations

import json
import subprocess
import sys
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from attncli.encoding.pictures import PicturedText
from attncli.errors import InputError, LoadError, NotExposedError, UsageError, install_command, require
from attncli.text import ADDRESS, brief, visible

if TYPE_CHECKING:
    from attncli.checkpoints.options import LoadOptions

_DEFAULT = "default"  # of several templates, the one for messages alone
_LEAST = (3, 1, 6)  # of Jinja, for a template of an older one can leave the sandbox: CVE-2025-27516
_FIELDS = ("role", "content")
_SHAPE = 'expected a list of messages: [{"role": "user", "content": "…"}, …]'

Messages = list[dict[str, Any]]


class Conversation(str):
    """A list of messages as JSON, which its type tells from a sentence that looks like one."""

    @classmethod
    def of(cls, content: Any) -> Conversation:
        """Parse a conversation from JSON data; InputError if it is no list of messages."""
        if not isinstance(content, list | tuple) or not content:
            raise InputError(f"the conversation is {visible(brief(repr(content)))}; {_SHAPE}")
        for number, message in enumerate(content, 1):
            fields = dict(message) if isinstance(message, Mapping) else {}
            if set(fields) != {*_FIELDS} or not all(isinstance(value, str) for value in fields.values()):
                what = visible(brief(repr(message)))
                raise InputError(f"message {number} of the conversation is {what}; {_SHAPE}")
        return cls(json.dumps([{field: message[field] for field in _FIELDS} for message in content]))

    @classmethod
    def parsed(cls, text: str) -> Conversation:
        """Parse a conversation from a text in JSON; InputError if that is invalid."""
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"the conversation is no JSON: {visible(str(error))}; {_SHAPE}") from None
        return cls.of(content)


class PicturedConversation(PicturedText, Conversation):
    """A conversation with the pictures that its line names."""


class TemplateError(Exception):
    """Raised for a chat template that cannot be read or rendered; the message has the reason."""


class TemplateProcess:
    """The process that renders a chat template, started on first use; see `attncli.encoding.chat_template`."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._process: Any = None  # of Popen

    def render(self, **request: Any) -> str:
        """Render messages; without any, compile the template; TemplateError if it fails, or computes too much."""
        if self._process is None:
            script, pipe = str(Path(__file__).with_name("chat_template.py")), subprocess.PIPE
            self._process = subprocess.Popen(
                [sys.executable, "-P", script], stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, encoding="ascii"
            )
            self._end = weakref.finalize(self, _end, self._process)
        line = ""
        with suppress(OSError):
            self._process.stdin.write(json.dumps({"source": self._source, **request}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        if not line:
            self._end()
            self._process = None
            raise TemplateError("it runs without end, or builds something far too large")
        answer: dict[str, str] = json.loads(line)
        if (error := answer.get("error")) is not None:
            raise TemplateError(visible(brief(ADDRESS.sub("", " ".join(error.split())))))
        return answer["text"]


def _end(process: subprocess.Popen[str]) -> None:
    with suppress(OSError):  # of what was not written before the process ended
        process.communicate()


class Chat(NamedTuple):
    """A checkpoint's chat template, with the function that renders it."""

    name: str  # of the checkpoint
    render: Callable[[Messages], str]  # renders messages

    def write(self, text: str, pair: str | None = None, target: str | None = None, pictures: int = 0) -> str:
        """Render a sentence, or a conversation, whose first turn shows pictures; InputError if it refuses them."""
        for option, other in (("--pair", pair), ("--target", target)):
            if other is not None:
                raise UsageError(f"{option} does not apply to --chat, which makes one text of all; drop one of them")
        messages = json.loads(text) if isinstance(text, Conversation) else [{"role": "user", "content": text}]
        template = f"the chat template of {visible(self.name)}"
        try:
            rendered = self.render(_with_pictures(messages, pictures))
        except TemplateError as error:
            raise InputError(f"{template} refuses these messages: {error}") from None
        # Such as one that takes the parts of a content, of which some are pictures.
        if not any(word in rendered for message in messages for word in message["content"].split()):
            raise InputError(f"{template} leaves out the messages; drop --chat")
        return rendered


def _with_pictures(messages: Messages, count: int) -> Messages:
    """Return messages for templates with pictures: contents have parts, and a user's first one these pictures."""
    if not count:
        return messages
    parts = [[{"type": "text", "text": message["content"]}] for message in messages]
    first = next((index for index, message in enumerate(messages) if message["role"] == "user"), 0)
    parts[first] = [{"type": "image"}] * count + parts[first]
    return [{**message, "content": content} for message, content in zip(messages, parts, strict=True)]


def open_chat(name: str, tokenizer: Any, options: LoadOptions, *, special: bool, asks: bool) -> Chat | None:
    """Return a checkpoint's chat template, or None if the options name no chat; NotExposedError without one."""
    if not options.chat:
        return None
    if not special:
        raise UsageError("--no-special does not apply to --chat, whose template writes the special tokens itself")
    source = getattr(tokenizer, "chat_template", None)  # one, several by their names, or a list of named ones
    if isinstance(source, list | tuple):
        source = {str(entry.get("name")): entry.get("template") for entry in source if isinstance(entry, Mapping)}
    if isinstance(source, Mapping):
        source = source.get(_DEFAULT)
    if source is None:
        raise NotExposedError(f"{visible(name)} has no default chat template; drop --chat")
    if not isinstance(source, str):
        raise LoadError(f"the chat template of {visible(name)} is a {type(source).__name__}; expected text")
    require("--chat", "jinja2")
    installed = version("jinja2")
    if tuple(int(part) for part in installed.split(".")[:3] if part.isdigit()) < _LEAST:
        raise LoadError(f"--chat needs a newer jinja2 than {installed}: {install_command('jinja2')}")
    process, special_tokens = TemplateProcess(source), dict(tokenizer.special_tokens_map)
    try:
        process.render()
    except TemplateError as error:
        raise LoadError(f"the chat template of {visible(name)} cannot be read: {error}") from None
    return Chat(name, lambda messages: process.render(messages=messages, special=special_tokens, asks=asks))
