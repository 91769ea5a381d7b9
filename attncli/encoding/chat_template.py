"""Chat templates, run as transformers runs them: in Jinja's sandbox, with the same names and no others.

<https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/utils/chat_template_utils.py>
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib.metadata import version
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.utils import Namespace

from attncli.encoding.template_limits import Given, LimitedEnvironment, limited
from attncli.errors import InputError, LoadError
from attncli.text import ADDRESS, visible
from attncli.trace.tokens import brief

_LEAST = (3, 1, 6)  # of Jinja, for a template of an older one can leave the sandbox: CVE-2025-27516
_LONGEST = 1 << 18  # characters of a template; the longest of well-known checkpoints have some 30,000
_LONGEST_TEXT, _EACH = 1 << 20, 16  # characters that one may write, and how many more for each of the messages


class _Generation(Extension):
    """The block that marks what an assistant has written, and adds nothing to it."""

    tags = {"generation"}  # noqa: RUF012  as the class it extends has it

    def parse(self, parser: Parser) -> nodes.Node:
        """See `Extension.parse`."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_written"), [], [], body).set_lineno(line)

    def _written(self, caller: Macro) -> str:
        return caller()


class _Dictionary:
    """`dict`, of which a template sees what it may call alone."""

    def __call__(self, *items: Any, **named: Any) -> dict[Any, Any]:
        return dict(*items, **named)

    def fromkeys(self, keys: Any, value: Any = None) -> dict[Any, Any]:
        """See `dict.fromkeys`."""
        return dict.fromkeys(keys, value)


class _Names(Namespace):
    """`namespace`, whose names may not begin with an underscore."""

    def __init__(*items: Any, **named: Any) -> None:  # a template may call a name `self`
        self, *rest = items
        attributes = dict(*rest, **named)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)

    def __repr__(self) -> str:  # not what it holds, which may be itself
        return "<Namespace>"


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a chat template may not keep the name {name!r}")


def _raise(message: str) -> None:
    raise TemplateError(message)


def _as_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def compiled(source: str, name: str) -> Template:
    """Return a chat template, ready to be rendered.

    Raises:
        LoadError: it is none, or Jinja is too old to run it safely.
    """
    found = version("jinja2")
    if tuple(int(part) for part in found.split(".")[:3] if part.isdigit()) < _LEAST:
        least = ".".join(map(str, _LEAST))
        raise LoadError(f"--chat takes jinja2 {least} or later, and {found} is installed: pip install 'attncli[chat]'")
    environment = LimitedEnvironment(
        {"tojson": _as_json}, trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.globals |= {
        "raise_exception": _raise,
        "strftime_now": lambda form: datetime.now().strftime(form),
        "dict": _Dictionary(),
        "namespace": _Names,
    }
    try:
        if len(source) > _LONGEST:
            raise TemplateError(f"it has {len(source):,} characters; at most {_LONGEST:,} are read")
        return environment.from_string(source)
    except Exception as error:  # of Jinja, or of Python's compiler, of which it makes a program
        raise LoadError(f"the chat template of {visible(name)} cannot be read: {_said(error)}") from None


def rendered(
    template: Template, name: str, messages: Sequence[Mapping[str, Any]], special: Mapping[str, str], asks: bool
) -> str:
    """Return the text that a template makes of messages.

    Args:
        template: from `compiled`.
        name: of the checkpoint.
        messages: each with a role and a content.
        special: the special tokens by their names, such as `bos_token`.
        asks: whether the beginning of an answer follows the messages.

    Raises:
        InputError: the template refuses the messages, or does not run on them.
    """
    given = {"tools": None, "documents": None, "add_generation_prompt": asks}
    said = json.dumps(messages)
    try:
        with limited(len(said), len(messages)):
            text = template.render(messages=[Given(message) for message in messages], **given, **special)
        _check(text, said)
    except Exception as error:  # it is a program, which may go wrong in any way
        raise InputError(f"the chat template of {visible(name)} does not take these messages: {_said(error)}") from None
    return text


def _check(text: str, said: str) -> None:
    """Raise TemplateError for a text that is too long, or tells where in memory something is that is no text."""
    if len(text) > (most := _LONGEST_TEXT + _EACH * len(said)):
        raise TemplateError(f"it writes {len(text):,} characters; at most {most:,} are read")
    if any(found not in said for found in ADDRESS.findall(text)):
        raise TemplateError("it writes a function or another object that is no text")


def _said(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it nests too deeply, or calls itself without end"
    return visible(brief(ADDRESS.sub("", " ".join(str(error).split()) or type(error).__name__)))
