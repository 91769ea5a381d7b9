"""`attn config`: what options are set to where a run does not give them, and where that comes from."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer
from typer import Option

from attncli._version import __version__
from attncli.cli.config import DEFAULTS, FLAGS_ALONE, PROJECT, Setting, dashed, deciding, settings, unfit, user_file
from attncli.cli.config import variable as variable_of
from attncli.cli.environment import Environment

if TYPE_CHECKING:
    from rich.style import Style

    from attncli.render.block import Block
    from attncli.render.palette import Palette

# What the defaults are that depend on the rest.
_DEFAULTS = {
    "model": "the toy layer",
    "dtype": "float32 on the CPU, else its own",
    "device_map": "one device",
    "precision": "4 in the table, else all",
    "width": "the terminal's",
}


class _Line(NamedTuple):
    """What an option is, or could be.

    Attributes:
        name: of the option, in Python; None where there is no such option.
        value: None is a default that depends on the rest.
        place: the environment variable or the file that it comes from, or `default`.
        why: what is in the way of a value that is not in force.
    """

    name: str | None
    value: Any
    place: str
    why: str = ""


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

    Below stands what every machine of a cluster needs for --on, and what this one has of it.

    Examples:
    attn config

    attn config -F json
    """
    root: Any = context.find_root()
    chosen, ignored = _lines(root.command.get_command(root, "inspect").set_value)
    if format_ == "json":
        environment.write([_document(chosen, ignored)])
        return
    with environment.canvas("attn config") as shown:
        how = shown.palette("viridis"), shown.width
        shown.show([_table(("option", "value", "from"), [_row(one) for one in chosen], *how)])
        if ignored:
            rows = [[*_row(one), one.why] for one in ignored]
            shown.show([_table(("not in force", "value", "from", "why"), rows, *how)])
        model = next(_row(one)[1] for one in chosen if one.name == "model")
        shown.show([_table(("--on ray", "each machine of a cluster needs", "here"), _on_ray(model), *how)])


def _lines(value_of: Callable[[Setting], Any]) -> tuple[list[_Line], list[_Line]]:
    """Return what every option is in a run that gives none, and what is set without being in force.

    Args:
        value_of: returns the value of a setting as its option takes it; that of one which is not in force too.
    """
    found = settings()
    first = deciding(found)
    left_out = unfit({name: one for name, one in first.items() if not one.is_default}, {})
    chosen = []
    for name, default in DEFAULTS.items():
        if name in first and name not in left_out:
            one = first[name]
            chosen.append(_Line(name, default if one.is_default else value_of(one), one.place))
        else:
            chosen.append(_Line(name, default, "default"))
    reasons = [(one, _why_not(one, first, left_out)) for values in found.values() for one in values]
    ignored = [
        _Line(one.name, one.value if one.is_default else value_of(one), one.place, why) for one, why in reasons if why
    ]
    return chosen, [*ignored, *_without_option()]


def _why_not(one: Setting, first: Mapping[str, Setting], left_out: Mapping[str, str]) -> str:
    """Return why a setting is not in force; nothing where it is."""
    if one.is_lifting:
        return "a project cannot switch it off"
    if one is not first[one.name]:
        return f"{first[one.name].place} goes before it"
    return left_out.get(one.name, "")


def _without_option() -> Iterator[_Line]:
    """Yield the environment variables that look like ours."""
    from attncli.text import did_you_mean

    names = [variable_of(name) for name in DEFAULTS]
    for name in sorted(os.environ.keys() - {*names, "ATTN_DEBUG"}):
        if name.startswith("ATTN_"):
            flag = dashed(name.removeprefix("ATTN_").lower())
            why = f"it takes a flag, --{flag}, in each run"
            if flag not in FLAGS_ALONE:
                why = f"there is no such variable{did_you_mean(name, names)}"
            yield _Line(None, os.environ[name], name, why)


def _document(chosen: Sequence[_Line], ignored: Sequence[_Line]) -> str:
    import json

    return json.dumps({
        "schema": "attncli.config/1",
        "options": [
            {"option": dashed(name), "variable": variable_of(name), "value": value, "from": place}
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
            "ray": _ray(),
            "python": platform.python_version(),
            "address": os.environ.get("RAY_ADDRESS") or None,
        },
    }) + "\n"  # fmt: skip


def _ray() -> str | None:
    """Return which Ray is installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("ray")
    except PackageNotFoundError:
        return None


def _on_ray(model: str) -> list[list[str]]:
    """Return what the machines of a cluster must have in common, and what this one has of it."""
    return [
        ["attncli", "the same version", __version__],
        ["ray", "the same version", _ray() or "not installed: pip install 'attncli[ray]'"],
        ["python", "the same version", platform.python_version()],
        ["model", "the same path, or name on the hub", model],
        ["--file, -o", "the same path, or URL", "-"],
        ["credentials", "in the environment of ray start", "-"],
        ["RAY_ADDRESS", "only where attn is called", os.environ.get("RAY_ADDRESS") or "not set"],
    ]


def _row(one: _Line) -> list[str]:
    value = _DEFAULTS[one.name] if one.value is None and one.name else one.value
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return [dashed(one.name) if one.name else "-", text or "''", one.place]


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
