"""What every option with standing values is in a run that gives no flag, and what is set without being in force."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from attncli.cli.standing import (
    DEFAULTS,
    FLAGS_ALONE,
    Standing,
    decisive,
    in_force,
    option,
    standing_values,
    unfit,
    variable,
)

_DEBUG = "ATTN_DEBUG"  # stands for no option


class Setting(NamedTuple):
    """What an option is.

    Attributes:
        name: of its parameter.
        value: in force; None is a default that depends on the rest.
        place: the environment variable or the file that it comes from, or `default`.
    """

    name: str
    value: str | int | bool | None
    place: str


class Ignored(NamedTuple):
    """A value that is set, and not in force.

    Attributes:
        name: of the option's parameter; None where there is no such option.
        value: that stands there.
        place: the environment variable or the file.
        why: what is in its way.
    """

    name: str | None
    value: Any
    place: str
    why: str


def settings(convert: Callable[[Standing], Any]) -> tuple[list[Setting], list[Ignored]]:
    """Return what is in force, an entry for each option, and what is set beside it.

    Args:
        convert: returns a standing value as its option would have it.

    Raises:
        UsageError: a file cannot be read, is no TOML, or says what no file can.
        typer.BadParameter: a value is none that the option takes, in force or not.
    """
    found = standing_values()
    deciding, left_out = decisive(found), unfit(in_force(found), {})
    chosen = []
    for name, default in DEFAULTS.items():
        one = deciding.get(name)
        if one is None or name in left_out:
            chosen.append(Setting(name, default, "default"))
        else:
            chosen.append(Setting(name, default if one.is_default else convert(one), one.place))
    return chosen, [*_beside(found, deciding, left_out, convert), *_without_option()]


def _beside(
    found: Mapping[str, list[Standing]],
    deciding: Mapping[str, Standing],
    left_out: Mapping[str, str],
    convert: Callable[[Standing], Any],
) -> Iterator[Ignored]:
    for name, values in found.items():
        for one in values:
            if one.is_lifting:
                why = "a project cannot switch it off"
            elif one is not deciding[name]:
                why = f"{deciding[name].place} goes before it"
            elif name in left_out:
                why = left_out[name]
            else:
                continue
            yield Ignored(name, one.value if one.is_default else convert(one), one.place, why)


def _without_option() -> Iterator[Ignored]:
    """Yield the environment variables that look like ours."""
    known = {variable(name): name for name in DEFAULTS}
    for name in sorted(os.environ.keys() - known.keys() - {_DEBUG}):
        if not name.startswith("ATTN_"):
            continue
        if (flag := option(name.removeprefix("ATTN_").lower())) in FLAGS_ALONE:
            why = f"it takes a flag, --{flag}, in each run"
        else:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
            why = "there is no such variable" + (f"; did you mean {near[0]}?" if near else "")
        yield Ignored(None, os.environ[name], name, why)
