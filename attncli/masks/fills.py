"""Checks of the numbers that an additive mask forbids with."""

from __future__ import annotations

import math
from collections.abc import Iterator

from attncli.findings import Finding
from attncli.masks.conventions import LEAST
from attncli.masks.subject import Subject

_CLOSE = 1e-2  # −1e4 is −9984 in bfloat16


def audit_fills(subject: Subject, dtype: str | None) -> Iterator[Finding]:
    """Yield what is wrong with the forbidding values of an additive mask.

    Args:
        subject: the mask.
        dtype: the type that the model computes in; None is the file's own.
    """
    if subject.reading is None or not subject.reading.fills:
        return
    fills = subject.reading.fills
    twice = [(fill, other) for fill in fills for other in fills if _is_twice(other, fill)]
    for fill, other in twice:
        message = f"{other:.5g} beside {fill:.5g} is {fill:.5g} added twice; combine masks before they become numbers"
        yield Finding("double-fill", "error", message, _count(subject, other))
    if len(fills) > 1 and len(twice) < len(fills) - 1:
        listed = ", ".join(f"{fill:.5g} ({_count(subject, fill)})" for fill in fills)
        message = f"forbidden cells hold different values: {listed}; a row of both is not masked evenly"
        yield Finding("mixed-fill", "error", message, len(fills))
    if dtype is None:
        return
    beyond = [fill for fill in fills if math.isfinite(fill) and fill < LEAST[dtype]]
    for fill in beyond:
        message = f"{fill:.5g} is beyond {dtype}, whose least number is {LEAST[dtype]:.5g}: there it becomes -inf"
        yield Finding("overflow", "error", message, _count(subject, fill))


def _is_twice(value: float, fill: float) -> bool:
    """Return whether a value is a fill added to itself, in the type whose least number the fill may be."""
    if math.isinf(value):
        return any(math.isclose(fill, least, rel_tol=1e-6) for least in LEAST.values())
    return math.isclose(value, 2 * fill, rel_tol=_CLOSE)


def _count(subject: Subject, fill: float) -> int:
    assert subject.loaded is not None
    return int((subject.loaded.values == fill).sum())
