"""What a head does, in a word: the metrics in which it is far from the head that weighs every allowed key alike.

A label has a gain: how much of the way from that uniform head to the best that there could be a head has gone. For a
share of weight it is Cohen's κ, (observed − expected) / (1 − expected), where what is expected of chance is the uniform
head (Cohen 1960, "A coefficient of agreement for nominal scales").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

from attncli.analysis.metric_names import Metric

LEAST = 0.4
"""The gain from which a head has a label; the threshold of the detectors of ARENA's chapter on induction heads."""

MIXED = "mixed"
"""What is said of a head that has no label."""


_Head = TypeVar("_Head")


class Label(NamedTuple):
    """One thing that a head does.

    Attributes:
        name: one of `LABELS`.
        score: the head's metric: a weight; of `local` a distance in positions, of `broad` a number of keys.
        baseline: the same of the uniform head under the same mask.
        gain: from 0, which is the uniform head (of `broad` a head that attends to one key), to 1.
    """

    name: str
    score: float
    baseline: float
    gain: float


WEIGHTS: dict[str, Metric] = {
    "previous": "previous",
    "next": "next",
    "self": "self",
    "first": "sink",
    "same token": "duplicate",
    "induction": "induction",
    "separator": "separator",
}
LABELS = (*WEIGHTS, "local", "broad")
_NEIGHBOURS = {"previous", "next", "self"}


_TRIVIAL = {"self", "first", "separator", "broad"}  # what heads do whatever the sentence is


def strongest(heads: Mapping[_Head, Sequence[Label]]) -> _Head | None:
    """Return the head whose first label has the highest gain; None where no head has a label.

    Heads that attend to themselves, the first token, separators or everything come after the others.
    """
    labelled = [(labels[0].name not in _TRIVIAL, labels[0].gain, head) for head, labels in heads.items() if labels]
    return max(labelled, key=lambda each: each[:2], default=(False, 0.0, None))[2]


def labels_of(metrics: Mapping[str, float | None], baselines: Mapping[str, float | None]) -> tuple[Label, ...]:
    """Return the labels of a head, the highest gain first; none is a head that does nothing in particular.

    A wide label is given where no narrower one says the same: `local` beside no neighbour, `broad` beside nothing.

    Args:
        metrics: of the head.
        baselines: those of the uniform head under the same mask.
    """

    def label(name: str, metric: Metric, best: float | None) -> list[Label]:
        """Return the label if the head has it; the best of `broad` is the baseline, and one key the least."""
        score, baseline = metrics[metric], baselines[metric]
        if score is None or baseline is None:
            return []
        start, end = (1.0, baseline) if best is None else (baseline, best)
        gain = round((score - start) / (end - start), 7) if start != end else 0.0  # the digits of a float32
        return [Label(name, score, baseline, gain)] if gain >= LEAST else []

    found = [found for name, metric in WEIGHTS.items() for found in label(name, metric, 1.0)]
    if not _NEIGHBOURS & {one.name for one in found}:
        found += label("local", "distance", 0.0)
    return tuple(sorted(found or label("broad", "effective_keys", None), key=lambda one: -one.gain))
