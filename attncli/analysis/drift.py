"""Heads over the checkpoints of a run: the steps of checkpoints, and the heads that changed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath
from typing import NamedTuple

from attncli.analysis.heads import HeadReport, HeadSummary
from attncli.analysis.metrics import WEIGHTS

LEAST = 0.05  # that a weight changes by
_NUMBER = re.compile(r"(?<!\d)(\d{1,15})(\.[a-z]+)?$")


def numbered_steps(models: Sequence[str]) -> dict[int, str]:
    """Return checkpoints by the number at the end of each name, in order; none unless all have one of their own."""
    found = [_NUMBER.search(PurePath(model).name) for model in models]
    steps = {int(number[1]): model for number, model in zip(found, models, strict=True) if number}
    return dict(sorted(steps.items())) if len(steps) == len(models) else {}


class HeadDrift(NamedTuple):
    """A head whose label or weights changed from the first to the last checkpoint."""

    name: str
    labels: tuple[str, str]
    change: float  # the largest one of its weights
    metric: str  # the label that goes by that weight


def drifts(first: HeadReport, last: HeadReport) -> list[HeadDrift]:
    """Return the heads whose label or weights changed, the largest change of a weight first."""
    found = []
    for before, after in zip(first.heads, last.heads, strict=True):
        both = [(before.metrics.get(metric), after.metrics.get(metric), label) for label, metric in WEIGHTS.items()]
        changes = [(0.0 if a is None or b is None else b - a, label) for a, b, label in both]
        change, metric = max(changes, key=lambda change: abs(change[0]))
        if before.label != after.label or abs(change) >= LEAST:
            found.append(HeadDrift(head_name(before), (before.label, after.label), change, metric))
    return sorted(found, key=lambda drift: -abs(drift.change))


def head_name(head: HeadSummary) -> str:
    """Return the name of a head, with its kind of attention unless it is self-attention."""
    return f"{head.kind} " * (head.kind != "self") + f"L{head.layer}H{head.head}"
