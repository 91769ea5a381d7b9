"""`attn config`: what options are set to where a run does not give them, and where that comes from."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Option

from attncli.cli.environment import Environment

if TYPE_CHECKING:
    from rich.style import Style

    from attncli.cli.settings import Ignored, Setting
    from attncli.cli.standing import Standing
    from attncli.render.block import Block
    from attncli.render.palette import Palette

# What the defaults are that depend on the rest.
_DEFAULTS = {
    "model": "the toy layer",
    "revision": "the main branch",
    "dtype": "float32 on the CPU, else its own",
    "device_map": "one device",
    "precision": "4 in the table, else all",
    "width": "the terminal's",
}


def config(
    context: typer.Context,
    environment: Environment,
    format_: Annotated[
        Literal["table", "json"] | None, Option("--format", "-F", help="Default: table.", rich_help_panel="Output")
    ] = None,
) -> None:
    """Say what the options are set to where a run does not give them.

    A flag goes before the environment, that before the table [tool.attncli] of the working directory's pyproject.toml,
    that before attncli/attncli.toml in $XDG_CONFIG_HOME (else ~/.config), that before the default.

    Examples:
    attn config

    attn config -F json
    """
    from attncli.cli.settings import settings
    from attncli.cli.standing import converted

    root = context.find_root()
    every = root.command.get_command(root, "inspect").get_params(root)  # type: ignore[attr-defined]
    parameters = {parameter.name: parameter for parameter in every}

    def convert(one: Standing) -> Any:
        return converted(one, parameters[one.name], context)

    chosen, ignored = settings(convert)
    if format_ == "json":
        environment.write([_document(chosen, ignored)])
        return
    with environment.canvas("attn config") as shown:
        how = shown.palette("viridis"), shown.width
        shown.show([_table(("option", "value", "from"), [_row(one) for one in chosen], *how)])
        if ignored:
            rows = [[*_row(one), one.why] for one in ignored]
            shown.show([_table(("not in force", "value", "from", "why"), rows, *how)])


def _document(chosen: Sequence[Setting], ignored: Sequence[Ignored]) -> str:
    import json

    from attncli.cli.configuration import PROJECT, user_file
    from attncli.cli.standing import option, variable

    return json.dumps({
        "schema": "attncli.config/1",
        "options": [
            {"option": option(one.name), "variable": variable(one.name), "value": one.value, "from": one.place}
            for one in chosen
        ],
        "ignored": [
            {"option": one.name and option(one.name), "value": one.value, "from": one.place, "why": one.why}
            for one in ignored
        ],
        "files": [PROJECT, user_file()],
    }) + "\n"  # fmt: skip


def _row(one: Setting | Ignored) -> list[str]:
    from attncli.cli.standing import option

    value = _DEFAULTS[one.name] if one.value is None and one.name else one.value
    said = str(value).lower() if isinstance(value, bool) else str(value)
    return [option(one.name) if one.name else "-", said or "''", one.place]


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]], palette: Palette, width: int | None) -> Block:
    """Return words in columns; a cell that no line has room for goes on in the next."""
    from itertools import zip_longest
    from textwrap import wrap

    from attncli.render.block import grid
    from attncli.render.palette import DIM

    room = sys.maxsize if width is None else max(width - 2 - max(len(row[0]) for row in [titles, *rows]), 20)
    lines: list[list[tuple[str, Style | None]]] = [[(title, DIM) for title in titles]]
    for row in rows:
        folded = [wrap(palette.label(cell), room, break_on_hyphens=False) for cell in row]
        lines += [[(cell, None) for cell in cells] for cells in zip_longest(*folded, fillvalue="")]
    return grid(lines, "<" * len(titles), width)
