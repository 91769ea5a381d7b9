"""Chats: a sentence as a user's turn, or a list of messages, as a checkpoint's chat template writes them.

Only special tokens of the vocabulary that the template wrote count as special.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NamedTuple

from attncli.encoding.pictures import PicturedText
from attncli.errors import InputError, LoadError, NotExposedError, UsageError, install_command, require
from attncli.text import ADDRESS, brief, visible

if TYPE_CHECKING:
    from collections.abc import Callable

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


class Chat(NamedTuple):
    """A checkpoint's chat template, with the function that renders it."""

    name: str  # of the checkpoint
    render: Callable[..., str]  # renders `messages`

    def write(self, text: str, pair: str | None = None, target: str | None = None, pictures: int = 0) -> str:
        """Render a sentence, or a conversation, whose first turn shows pictures; InputError if it refuses them."""
        for option, other in (("--pair", pair), ("--target", target)):
            if other is not None:
                raise UsageError(f"{option} does not apply to --chat, which makes one text of all; drop one of them")
        messages = json.loads(text) if isinstance(text, Conversation) else [{"role": "user", "content": text}]
        template = f"the chat template of {visible(self.name)}"
        try:
            rendered = self.render(messages=_with_pictures(messages, pictures))
        except Exception as error:  # a template is a program, which may go wrong in any way
            raise InputError(f"{template} refuses these messages: {_reason(error)}") from None
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
    from attncli.encoding.chat_template import compiled

    try:
        template = compiled(source)
    except Exception as error:  # deeply nested ones exhaust the parser
        raise LoadError(f"the chat template of {visible(name)} cannot be read: {_reason(error)}") from None
    how = {"tools": None, "documents": None, "add_generation_prompt": asks} | dict(tokenizer.special_tokens_map)
    return Chat(name, partial(template.render, **how))


def _reason(error: Exception) -> str:
    return visible(brief(ADDRESS.sub("", " ".join((str(error) or type(error).__name__).split()))))
