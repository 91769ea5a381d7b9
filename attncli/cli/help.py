"""Help pages of commands.

Typer can draw pages of the same parameters, in 1.5 times what importing numpy, typer and rich takes: it renders
Markdown. There a list of choices is broken inside a word.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from inspect import cleandoc
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import typer

from attncli.cli.environment import PAGE_WIDTH, Environment, Terminal, measured_size
from attncli.errors import ExitCode

if TYPE_CHECKING:
    from rich.console import RenderableType

# The panels in their order, by the beginnings of their titles.
_ORDER = (
    "Commands", "Atoms", "Arguments", "Input", "Model", "Toy layer", "Size", "Selection", "Outcome", "Cut",
    "View", "Output", "Options",
)  # fmt: skip


class Page(NamedTuple):
    """A page of help."""

    name: str  # of the command, the program's in front
    usage: str  # after the name
    paragraphs: list[str]  # the purpose, then the rest; one that begins with `Examples:` has a line for each
    tables: dict[str, list[tuple[str, str]]]  # rows of a name and its meaning, by title


def page_of(context: typer.Context, is_whole: bool = True) -> Page:
    """Return the page of a context's command, without `is_whole` only the common options."""
    command: Any = context.command
    tables: dict[str, list[tuple[str, str]]] = dict(command.tables()) if hasattr(command, "tables") else {}
    left_out = 0
    for parameter in command.get_params(context):
        if getattr(parameter, "hidden", False) and not is_whole:
            left_out += not parameter.is_eager
            continue
        title = parameter.rich_help_panel or ("Options" if parameter.param_type_name == "option" else "Arguments")
        tables.setdefault(title, []).append(_row(parameter, context, is_whole))
    if left_out:
        tables["Options"].append(("    --help-all", f"Show every option: there are {left_out} more."))
    if "Output" in tables:
        tables["Output"] += tables.pop("Options")
    ordered = sorted(tables, key=lambda title: [title.startswith(start) for start in _ORDER].index(True))
    usage = " ".join(command.collect_usage_pieces(context))
    # The examples, the last part of a docstring, follow its purpose; python -OO has no docstrings.
    prose, _, examples = cleandoc(command.help or command.get_short_help_str(100)).partition("\n\nExamples:\n")
    purpose, *notes = (" ".join(paragraph.split()) for paragraph in prose.split("\n\n"))
    lines = [line for line in examples.splitlines() if line]
    paragraphs = [purpose, *(["\n".join(["Examples:", *lines])] if lines else []), *notes]
    return Page(context.command_path, usage, paragraphs, {title: tables[title] for title in ordered})


def _row(parameter: Any, context: typer.Context, is_whole: bool) -> tuple[str, str]:
    if parameter.param_type_name == "argument":
        return parameter.metavar + "..." * (parameter.nargs == -1), parameter.help
    parameter = copy(parameter)
    parameter.hidden = False  # or there is no record
    name, text = parameter.get_help_record(context)
    text = " ".join((text if is_whole else parameter.help).split()).replace("[env var: ", "[env:")
    name, _, choices = name.partition(" <")  # <auto|always|never>, which cannot be wrapped
    if not choices:
        return name, text
    return f"{name} {parameter.opts[0].strip('-').upper()}", f"{text} [{choices.rstrip('>').replace('|', ', ')}]"


def commands_of(context: typer.Context) -> Iterator[typer.Context]:
    """Yield the contexts of all commands below a group, each after the group that it belongs to."""
    group: Any = context.command
    for name in group.list_commands(context) if hasattr(group, "list_commands") else ():
        inner = typer.Context(group.get_command(context, name), info_name=name, parent=context)
        yield inner
        yield from commands_of(inner)


def print_help(context: typer.Context, is_whole: bool = False, code: int = ExitCode.OK) -> NoReturn:
    """Print the help of a command in lines of a readable width, in a pipe too, and exit."""
    with Environment().output(None) as stream:
        width = min(measured_size(stream)[0], PAGE_WIDTH)
        Terminal(stream, width=width).show(_drawn(page_of(context, is_whole), width))
    raise typer.Exit(code)


def _drawn(page: Page, width: int) -> Iterator[RenderableType]:
    from rich.console import Group
    from rich.padding import Padding
    from rich.panel import Panel
    from rich.table import Column, Table
    from rich.text import Text

    def panel(title: str, rows: list[tuple[str, str]]) -> Panel:
        is_aligned = any(name.startswith("-") and not name.startswith("--") for name, _ in rows)
        inner = Table.grid(Column(no_wrap=True), Column(ratio=1), padding=(0, 2, 0, 0), expand=True)
        below: list[RenderableType] = []
        for name, role in rows:
            label = Text(" " * 4 * (is_aligned and name.startswith("--")) + name, "bold")
            inner.add_row(label, Text(role))
            below += [label, Padding(Text(role), (0, 0, 0, 6))]
        is_narrow = max(len(name) for name, _ in rows) > width // 2 - 4  # too long for a column
        return Panel(Group(*below) if is_narrow else inner, title=title, title_align="left", border_style="dim")

    yield Text.assemble(("Usage: ", "bold"), f"{page.name} {page.usage}")
    for paragraph in page.paragraphs:
        first, *examples = paragraph.split("\n")
        indented = (Padding(Text(example, "cyan"), (0, 0, 0, 2), expand=False) for example in examples)
        yield Group(Text(first, "bold" if examples else ""), *indented)
    yield Group(*(panel(title, rows) for title, rows in page.tables.items()))
