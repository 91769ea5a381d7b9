"""Drift of heads over the checkpoints of a run: each checkpoint is a step."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import NamedTuple

import numpy as np

from attncli.analysis.heads import HeadReport
from attncli.analysis.metrics import WEIGHTS, by_name
from attncli.analysis.training import CHANGE, HeadHistory
from attncli.errors import UsageError
from attncli.text import visible
from attncli.trace.trace import Provenance

LEAST = 0.05  # of a weight that is gained or lost
_NUMBER = re.compile(r"(?<!\d)\d{1,15}$")


def steps_of(models: Sequence[str]) -> tuple[dict[int, str], bool]:
    """Return checkpoints by the numbers at the end of their names, else by their places from 1; and which of both."""
    numbers = [_NUMBER.search(PurePath(model).name) for model in models]
    stems = {PurePath(model).name[: number.start()] for model, number in zip(models, numbers, strict=True) if number}
    steps = {int(number[0]): model for model, number in zip(models, numbers, strict=True) if number}
    is_numbered = len(steps) == len(models) and len(stems) == 1
    return dict(sorted(steps.items()) if is_numbered else enumerate(models, start=1)), is_numbered


class HeadDrift(NamedTuple):
    """A head at the first and at the last checkpoint."""

    name: str
    first: str  # its strongest label
    last: str
    since: int  # the step from which on it has its last label
    gained: tuple[str, float]  # the label that goes by the weight that grew most, and by how much
    lost: tuple[str, float]

    @property
    def size(self) -> float:
        """The larger change of a weight."""
        return max(self.gained[1], -self.lost[1])


class CheckpointHistory(HeadHistory):
    """The metrics and labels of all heads over the checkpoints of a run."""

    def __init__(self) -> None:
        super().__init__(())
        self.checkpoints: dict[int, tuple[str, HeadReport]] = {}  # by step

    @property
    def source(self) -> Provenance:
        """The source of the first checkpoint."""
        return next(iter(self.checkpoints.values()))[1].source

    def add(self, step: int, checkpoint: str, report: HeadReport, change: Sequence[float | None] = ()) -> None:
        """Add a checkpoint; `change` is how far each head is from that of the first one, in bits.

        Raises:
            UsageError: its heads are others than those of the first one, or of several kinds of attention.
        """
        names = [f"L{head.layer}H{head.head}" for head in report.heads]
        if len({head.kind for head in report.heads}) > 1:
            raise UsageError(f"{visible(checkpoint)} has several kinds of attention; choose one with --kind")
        if not self.checkpoints:
            self.columns, self.names = (*[CHANGE] * bool(change), *report.names), names
        elif names != self.names:
            (first, _), *_ = self.checkpoints.values()
            sizes = (
                f"{len(self.names)} heads to {self.names[-1]}, and {visible(checkpoint)} {len(names)} to {names[-1]}"
            )
            raise UsageError(f"{visible(first)} has {sizes}; give checkpoints of one run, whose heads are the same")
        rows = [[head.metrics[name] for name in report.names] for head in report.heads]
        columns = [*[change] * bool(change), *np.array(rows, np.float32).T]
        self.steps[step], self.checkpoints[step] = np.array(columns, np.float32), (checkpoint, report)

    def change(self, step: int) -> dict[str, list[float | None]]:
        """Return the column of changes at a step by its name, or nothing."""
        return {
            name: [*by_name(self.names, self.steps[step][0]).values()] for name in self.columns[:1] if name == CHANGE
        }

    def drifts(self) -> list[HeadDrift]:
        """Return the heads whose label or weights changed, the largest change of a weight first."""
        reports, drifts = {step: report for step, (_, report) in self.checkpoints.items()}, []
        for index, name in enumerate(self.names):
            heads = {step: report.heads[index] for step, report in reports.items()}
            first, *_, last = heads.values()
            others = [number for number, head in enumerate(heads.values()) if head.label != last.label]
            since = [*heads][others[-1] + 1 if others else 0]
            (lost, loser), *_, (gained, gainer) = sorted(_moves(first.metrics, last.metrics))
            drift = HeadDrift(name, first.label, last.label, since, (gainer, gained), (loser, lost))
            drifts += [drift] * (first.label != last.label or drift.size >= LEAST)
        return sorted(drifts, key=lambda drift: -drift.size)


def _moves(first: Mapping[str, float | None], last: Mapping[str, float | None]) -> Iterator[tuple[float, str]]:
    """Yield how far each weight of a head moved, and the label that goes by it; 0 where it is not defined in both."""
    for label, metric in WEIGHTS.items():
        before, after = first.get(metric), last.get(metric)
        yield (0.0 if before is None or after is None else after - before), label
