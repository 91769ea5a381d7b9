"""What a parameter of the command line says of itself, to those who tell of it: help and completion."""

from __future__ import annotations

from typing import Any, get_args


def choices(parameter: Any) -> tuple[str, ...]:
    """Return the values that a parameter takes, where they can be listed."""
    return tuple(value for value in get_args(parameter.type_descriptor.annotation) if isinstance(value, str))


def variables(parameter: Any) -> tuple[str, ...]:
    """Return the environment variables that a parameter is taken from."""
    named = getattr(parameter, "envvar", None)
    return (named,) if isinstance(named, str) else tuple(named or ())
