"""Drift of heads over the checkpoints of a run: each checkpoint is a step."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import PurePath
from typing import NamedTuple

import numpy as np

from attncli.analysis.heads import HeadReport
from attncli.analysis.metrics import WEIGHTS
from attncli.analysis.training import CHANGE, HeadHistory
from attncli.errors import UsageError
from attncli.text import visible

LEAST = 0.05  # that a weight changes by
_NUMBER = re.compile(r"(?<!\d)(\d{1,15})(\.[a-z]+)?$")


def steps_of(models: Sequence[str]) -> tuple[dict[int, str], bool]:
    """Return checkpoints in the order of the numbers at the end of their names, without any last, by step.

    A step is that number, or the place from 1 unless all have a number of their own; and which of both.
    """
    found = [_NUMBER.search(PurePath(model).name) for model in models]
    numbers = [inf if number is None else int(number[1]) for number in found]
    ordered = sorted(zip(numbers, models, strict=True), key=lambda pair: pair[0])
    is_numbered = inf not in numbers and len({*numbers}) == len(models)
    steps = (int(number) if is_numbered else place for place, (number, _) in enumerate(ordered, start=1))
    return {step: model for step, (_, model) in zip(steps, ordered, strict=True)}, is_numbered


class HeadDrift(NamedTuple):
    """A head whose strongest label or weights changed from the first to the last checkpoint."""

    name: str
    labels: tuple[str, str]
    since: int  # the step from which on it has its last label
    changes: list[tuple[float, str]]  # of its weights by the labels that go by them, the largest first


class CheckpointHistory(HeadHistory):
    """The metrics and labels of all heads over the checkpoints of a run."""

    def __init__(self) -> None:
        super().__init__(())
        self.checkpoints: dict[int, tuple[str, HeadReport]] = {}  # by step

    def add(self, step: int, checkpoint: str, report: HeadReport, change: Sequence[float | None] = ()) -> None:
        """Add a checkpoint; `change` is how far each head is from that of the first one, in bits.

        Raises:
            UsageError: its heads are others than those of the first one, or of several kinds of attention.
        """
        names = [f"L{head.layer}H{head.head}" for head in report.heads]
        if len({*names}) < len(names):
            raise UsageError(f"{visible(checkpoint)} has several kinds of attention; choose one with --kind")
        if not self.checkpoints:
            self.columns, self.names = (*[CHANGE] * bool(change), *report.names), names
            self.source = report.source
        if names != self.names:
            heads = f"heads up to {self.names[-1]}, and {visible(checkpoint)} up to {names[-1]}"
            raise UsageError(f"the first checkpoint has {heads}; give checkpoints of one run")
        columns = [[head.metrics[name] for head in report.heads] for name in report.names]
        self.steps[step] = np.array([change, *columns] if change else columns, np.float32)
        self.checkpoints[step] = checkpoint, report

    def drifts(self) -> list[HeadDrift]:
        """Return the heads whose label or weights changed, the largest change of a weight first."""
        drifts = list[HeadDrift]()
        for name, *heads in zip(self.names, *(report.heads for _, report in self.checkpoints.values()), strict=True):
            first, last = heads[0], heads[-1]
            others = [at for at, head in enumerate(heads) if head.label != last.label]
            since = [*self.steps][others[-1] + 1 if others else 0]
            changes = sorted(_changes(first.metrics, last.metrics), key=lambda change: -abs(change[0]))
            if first.label != last.label or abs(changes[0][0]) >= LEAST:
                drifts.append(HeadDrift(name, (first.label, last.label), since, changes))
        return sorted(drifts, key=lambda drift: -abs(drift.changes[0][0]))


def _changes(first: Mapping[str, float | None], last: Mapping[str, float | None]) -> list[tuple[float, str]]:
    """Return how much each weight of a head changed, with its label; 0 where it is not defined in both."""
    both = [(first.get(metric), last.get(metric), label) for label, metric in WEIGHTS.items()]
    return [(0.0 if before is None or after is None else after - before, label) for before, after, label in both]
