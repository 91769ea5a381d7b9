"""Candidates for values of options in a shell, by the option's metavar.

Files are left to the shell, which completes them where nothing is offered here. Typer's scripts hand candidates to the
shell as they are, so that a name which the shell could expand is never offered.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from typing import Any

from typer import Context

_PLAIN = re.compile(r"[\w@%+:,./-]+")


def completer(metavar: str) -> Callable[[Context, str], list[Any]]:
    """Return a completer of a value by the parts of its metavar: those in lower case are values themselves."""

    def complete(ctx: Context, incomplete: str) -> list[Any]:
        values: list[Any] = []
        for part in metavar.split("|"):
            values += _VALUES[part](ctx, incomplete) if part in _VALUES else [part] if part.islower() else []
        return values

    return complete


def _names(module: str, name: str) -> Callable[[Context, str], Iterable[str]]:
    """Return a completer of a list with commas, of the names in a table of a module, each once."""

    def complete(_: Context, typed: str) -> Iterator[str]:
        before, comma, _last = typed.rpartition(",")
        names = getattr(import_module(module), name)
        yield from (before + comma + word for word in names if word not in before.split(","))

    return complete


def _models(_: Context, typed: str) -> Iterator[tuple[str, str]]:
    """Yield the models in the box, and those in the hub's local cache; folders are left to the shell."""
    from attncli.checkpoints.checkpoint_folder import DEMOS, cached_models

    yield from (DEMOS | {"toy": "a layer with random weights"}).items()
    yield from ((name, "in the local cache") for name in cached_models() if _PLAIN.fullmatch(name))


_VALUES: dict[str, Callable[[Context, str], Iterable[Any]]] = {
    "CODES": _names("attncli.masks.findings", "CODES"),
    "METRIC": _names("attncli.analysis", "NAMES"),
    "METRICS": _names("attncli.analysis", "NAMES"),
    "MODEL": _models,
    "PARTS": _names("attncli.trace.view", "PARTS"),
}
