"""`attn config`: the settings of options, and their origins."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from attncli._version import __version__
from attncli.cli import options
from attncli.cli.applicability import CommandLine, leave_out
from attncli.cli.environment import Environment
from attncli.cli.groups import dashed, variable
from attncli.cli.settings import FLAGS_ALONE, PROJECT, deciding, defaults, settings, user_file

if TYPE_CHECKING:
    from rich.style import Style

    from attncli.render.block import Block
    from attncli.render.palette import Palette

# Defaults that depend on other options.
_DEFAULTS = {
    "model": "the toy layer",
    "dtype": "float32 on the CPU, else its own",
    "device_map": "one device",
    "precision": "4 in the table, else all",
    "width": "the terminal's",
}


class _Line(NamedTuple):
    """Value of an option.

    Attributes:
        name: of the option, in Python; None where there is no such option.
        value: None is a default that depends on the rest.
        place: the environment variable or the file that it comes from, or `default`.
        why: the reason that the value is not in force.
    """

    name: str | None
    value: Any
    place: str
    why: str = ""

    def cells(self) -> list[str]:
        """Return the option, its value and its place in words."""
        value = _DEFAULTS[self.name] if self.value is None and self.name else self.value
        text = str(value).lower() if isinstance(value, bool) else str(value)
        return [dashed(self.name) if self.name else "-", text or "''", self.place]


def config(
    context: typer.Context,
    environment: Environment,
    format_: Annotated[
        Literal["table", "json"] | None, options.output_option("Choose the format. Default: table.", letter="-F")
    ] = None,
) -> None:
    """Show current settings and where they come from.

    A flag overrides the environment. The environment overrides [tool.attncli] in the pyproject.toml of the working
    directory. That overrides attncli/attncli.toml in $XDG_CONFIG_HOME, which is ~/.config by default.

    -F json adds the versions that all machines of a cluster must share, for --on.

    Examples:
    attn config

    attn config -F json
    """
    root: Any = context.find_root()
    chosen, ignored = _lines(root.command.get_command(root, "inspect"))
    if format_ == "json":
        environment.write([_document(chosen, ignored)])
        return
    with environment.open_view("attn config") as canvas:
        room = canvas.palette("viridis"), canvas.width
        canvas.show([_table(("option", "value", "from"), [one.cells() for one in chosen], *room)])
        if ignored:
            rows = [[*one.cells(), one.why] for one in ignored]
            canvas.show([_table(("not in force", "value", "from", "why"), rows, *room)])


def _lines(inspect: Any) -> tuple[list[_Line], list[_Line]]:
    """Return the value of every option of `attn inspect`, and the settings that are not in force."""
    found = settings()
    first = deciding(found)
    standing = {name: one for name, one in first.items() if not one.is_default}
    left_out, _ = leave_out(CommandLine("inspect", {one.name for one in inspect.params}, {}, standing))
    chosen, ignored = [], []
    for name, default in defaults().items():
        chosen.append(_Line(name, default, "default"))
        for one in found.get(name, ()):
            value = default if one.is_default else inspect.set_value(one)
            if one.unsets_offline:
                ignored.append(_Line(name, value, one.place, "a project cannot switch it off"))
            elif one is not first[name]:
                ignored.append(_Line(name, value, one.place, f"overridden by {first[name].place}"))
            elif name in left_out:
                ignored.append(_Line(name, value, one.place, left_out[name]))
            else:
                chosen[-1] = _Line(name, value, one.place)
    return chosen, [*ignored, *_without_option()]


def _without_option() -> Iterator[_Line]:
    """Yield the environment variables that look like ours."""
    from attncli.text import did_you_mean

    names = [variable(name) for name in defaults()]
    for name in sorted(os.environ.keys() - {*names, "ATTN_DEBUG"}):
        if name.startswith("ATTN_"):
            flag = dashed(name.removeprefix("ATTN_").lower())
            why = f"a flag only; give --{flag} in each run"
            if flag not in FLAGS_ALONE:
                why = f"there is no such variable{did_you_mean(name, names)}"
            yield _Line(None, os.environ[name], name, why)


def _document(chosen: Sequence[_Line], ignored: Sequence[_Line]) -> str:
    import json
    from importlib.metadata import PackageNotFoundError, version

    try:
        ray = version("ray")
    except PackageNotFoundError:
        ray = None
    return json.dumps({
        "schema": "attncli.config/1",
        "options": [
            {"option": dashed(name), "variable": variable(name), "value": value, "from": place}
            for name, value, place, _ in chosen
            if name
        ],
        "ignored": [
            {"option": name and dashed(name), "value": value, "from": place, "why": why}
            for name, value, place, why in ignored
        ],
        "files": [PROJECT, user_file()],
        "cluster": {
            "attncli": __version__,
            "ray": ray,
            "python": platform.python_version(),
            "address": os.environ.get("RAY_ADDRESS") or None,
        },
    }) + "\n"  # fmt: skip


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]], palette: Palette, width: int | None) -> Block:
    """Return words in columns; a cell that is too wide continues on the next line."""
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
