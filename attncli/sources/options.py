"""Options of a source, by name: what it does not know is said, never ignored."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from attncli.errors import UsageError

_OF_EVERY_SOURCE = ("layers", "heads", "mask", "special", "model", "pair", "target")


def refuse_unknown(given: Mapping[str, Any], known: Any, place: str) -> None:
    """Refuse options that a source does not have.

    Args:
        given: the options by name.
        known: the dataclass whose fields are the source's options.
        place: what they do not apply to, and what to do.

    Raises:
        UsageError: one of them is not among the fields.
    """
    names = {field.name for field in fields(known)}
    for name in sorted(given.keys() - names):
        near = difflib.get_close_matches(name, [*_OF_EVERY_SOURCE, *names], n=1, cutoff=0.7)
        hint = f" (from Python, did you mean {near[0]}?)" if near else ""
        raise UsageError(f"--{name.replace('_', '-')} does not apply to {place}{hint}")
