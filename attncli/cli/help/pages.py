"""A page of help: what a command's docstring and its parameters say, before it is drawn anywhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from inspect import cleandoc
from typing import Any, NamedTuple

import typer

from attncli.cli.options import choices, variables

# Where options go that name no group: `--help` among them.
_REST = "Options"
# The order of the groups; a group that is not here stands before the rest.
_ORDER = ("Arguments", "Input", "Model", "Toy layer", "Size", "What to look at", "Numbers", "View", "Output")


class Entry(NamedTuple):
    """A line of a group: a name, what follows it on the command line, and what it means."""

    name: str
    form: str
    text: str


class Group(NamedTuple):
    """Entries that belong together."""

    title: str
    entries: tuple[Entry, ...]


class HelpPage(NamedTuple):
    """A page of help.

    Attributes:
        name: of the command, the program's in front, or of the topic.
        purpose: one line.
        usage: what follows the name; None for a topic.
        examples: command lines.
        notes: paragraphs that follow them.
        groups: options, or what else there is a list of, in their order.
    """

    name: str
    purpose: str
    usage: str | None = None
    examples: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    groups: tuple[Group, ...] = ()


def page_of(context: typer.Context) -> HelpPage:
    """Return the page of a context's command."""
    command: Any = context.command
    said = cleandoc(command.help or command.get_short_help_str(100))  # python -OO has no docstrings
    # The lines after "Examples:" are examples; what stands before it is prose.
    prose, *after = re.split(r"^Examples?:$", said, maxsplit=1, flags=re.MULTILINE)
    purpose, *notes = (" ".join(paragraph.split()) for paragraph in prose.strip().split("\n\n"))
    examples = (line.strip() for text in after for line in text.splitlines())
    return HelpPage(
        context.command_path,
        purpose,
        " ".join(command.collect_usage_pieces(context)),
        tuple(filter(None, examples)),
        tuple(notes),
        (*_commands(context), *_groups(command.get_params(context))),
    )


def names_within(context: typer.Context) -> list[str]:
    """Return the names of a group's commands; a command has none."""
    group: Any = context.command
    return group.list_commands(context) if hasattr(group, "list_commands") else []


def within(context: typer.Context, name: str) -> typer.Context | None:
    """Return the context of a command of the context's group; None where there is none of that name."""
    group: Any = context.command
    if name not in names_within(context):
        return None
    command = group.get_command(context, name)
    return typer.Context(command, info_name=name, parent=context)


def commands_of(context: typer.Context) -> Iterator[typer.Context]:
    """Yield the contexts of all commands below a group, each after the group that it belongs to."""
    for name in names_within(context):
        inner = within(context, name)
        assert inner is not None
        yield inner
        yield from commands_of(inner)


def _commands(context: typer.Context) -> Iterator[Group]:
    group: Any = context.command
    if names := names_within(context):
        yield Group("Commands", tuple(Entry(name, "", group.purpose(name)) for name in names))


def _groups(parameters: list[Any]) -> list[Group]:
    found: dict[str, list[Entry]] = {}
    for parameter in parameters:
        rest = "Arguments" if parameter.param_type_name == "argument" else _REST
        found.setdefault(getattr(parameter, "rich_help_panel", None) or rest, []).append(_entry(parameter))
    return [Group(title, tuple(found[title])) for title in sorted(found, key=_place)]


def _place(title: str) -> int:
    places = [place for place, start in enumerate(_ORDER) if title.startswith(start)]
    return places[0] if places else len(_ORDER) + (title == _REST)


def _entry(parameter: Any) -> Entry:
    is_argument = parameter.param_type_name == "argument"
    is_needed = "required" if parameter.required and not is_argument else ""  # of arguments, the usage says it
    notes = [is_needed, _range(parameter), *(f"env:{name}" for name in variables(parameter))]
    text = " ".join([parameter.help or "", *(f"[{note}]" for note in notes if note)])
    form = parameter.metavar or "|".join(choices(parameter))
    if is_argument:
        return Entry(form + "..." * (parameter.nargs == -1), "", text)
    names = sorted((*parameter.opts, *parameter.secondary_opts), key=lambda name: name.startswith("--"))
    return Entry(", ".join(names), "" if parameter.is_flag else form, text)


def _range(parameter: Any) -> str:
    low, high = getattr(parameter, "min", None), getattr(parameter, "max", None)
    if low is None:
        return "" if high is None else f"at most {high}"
    return f"at least {low}" if high is None else f"{low} to {high}"
