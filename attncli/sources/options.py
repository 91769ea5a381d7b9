"""Options of a source, by name: what it does not know is said, never ignored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from attncli.errors import UsageError
from attncli.text import visible

_OF_EVERY_SOURCE = ("layers", "heads", "mask", "special", "model", "pair", "target")


def refuse_unknown(given: Mapping[str, Any], known: Any, place: str) -> None:
    """Refuse options that a source does not have.

    Args:
        given: the options by name.
        known: the dataclass whose fields are the source's options.
        place: what those of another source do not apply to, and what to do.

    Raises:
        UsageError: one of them is not among the fields.
    """
    names = {field.name for field in fields(known)}
    for name in sorted(given.keys() - names):
        # Needed for an error alone.
        from attncli.sources.load_options import EngineOptions
        from attncli.sources.toy import ToyOptions
        from attncli.text import did_you_mean

        if name in {field.name for options in (ToyOptions, EngineOptions) for field in fields(options)}:
            raise UsageError(f"--{name.replace('_', '-')} does not apply to {place}")
        # The command line has none that is unknown here.
        possible = {*_OF_EVERY_SOURCE, *names} - {name}
        raise UsageError(f"no such option: {visible(name)}{did_you_mean(name, sorted(possible))}")
