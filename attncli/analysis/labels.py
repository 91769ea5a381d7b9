"""Labels of heads: the metrics in which a head is far from one that weighs every allowed key alike.

A label has a gain: how much of the way from that uniform head to the best that there could be a head has gone. For a
share of weight it is Cohen's κ, (observed − expected) / (1 − expected), where what is expected of chance is the uniform
head (Cohen 1960, "A coefficient of agreement for nominal scales").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from attncli.analysis.metric_names import NAMES, Metric
from attncli.analysis.metrics import by_name, trace_metrics
from attncli.trace.trace import Trace

# The gain from which a head has a label: the threshold of the detectors of ARENA's chapter on induction heads.
LEAST = 0.4
LEAST_OF_PLACE = 0.6  # of `localization`: on small grids chance alone puts half of the weight into one place
# Query rows times the keys that uniform attention gives each; on no more than these a label may be chance. Of heads
# with random scores one in ten is a `sink` on 3 tokens under a causal mask, and fewer than one in a hundred on 5.
CHANCE_CELLS = 10
MIXED = "mixed"  # in place of a label

HeadKey = tuple[int, str, int]  # its layer, the kind of attention, and its index


class Label(NamedTuple):
    """One thing that a head does."""

    name: str  # one of `LABELS`
    score: float  # the head's metric: a weight; of `local` a distance in positions, of `broad` a number of keys
    baseline: float  # the same of the uniform head under the same mask
    gain: float  # from 0, which is the uniform head (of `broad` a head that attends to one key), to 1


# Labels that go by a weight, and their metrics.
WEIGHTS: dict[str, Metric] = {
    name: name for name in ("previous", "next", "self", "sink", "duplicate", "induction", "separator")
} | {"localization": "region", "visual sink": "visual_sink"}

LABELS = {
    "previous": "the token before",
    "next": "the token after",
    "self": "itself",
    "sink": "the first token",
    "duplicate": "earlier copies of the same token",
    "induction": "the token after an earlier copy",
    "separator": "special tokens but the first",
    "localization": "one place in a picture",
    "visual sink": "the same cell of a picture in every row",
    "local": "tokens close by",
    "broad": "most tokens, about equally",
}
"""The keys that a head with each label attends to."""

SAY_LITTLE = {"self", "sink", "separator", "visual sink", "broad"}  # of heads that attend so in every sentence
_MOST_CELLS = 2**26
_NEIGHBOURS = {"previous", "next", "self"}
_HABIT = 0.75  # of the gain of `localization`, from which `visual sink` explains it


def labels_of(
    metrics: Mapping[str, float | None], baselines: Mapping[str, float | None], rows: Mapping[str, float | None]
) -> tuple[Label, ...]:
    """Return the labels of a head by its metrics and those of the uniform head, the highest gain first.

    `local` is given without a neighbour, `broad` without any, and `localization` where the head does not always attend
    there. On `CHANCE_CELLS` rows × keys or fewer there is no label.
    """

    def label(name: str, metric: Metric, best: float | None) -> list[Label]:
        """Return the label if the head has it; the best of `broad` is the baseline, and one key the least."""
        score, baseline = metrics.get(metric), baselines.get(metric)
        if score is None or baseline is None:
            return []
        start, end = (1.0, baseline) if best is None else (baseline, best)
        gain = round((score - start) / (end - start), 7) if start != end else 0.0  # the digits of a float32
        least = LEAST_OF_PLACE if name == "localization" else LEAST
        # Uniform attention gives each of n keys 1/n, so that its weight tells n.
        keys = baseline and 1 / baseline if name in WEIGHTS else baselines.get("effective_keys")
        count = rows.get(metric)
        is_chance = keys and count and round(count * keys) <= CHANCE_CELLS
        return [Label(name, score, baseline, gain)] if gain >= least and not is_chance else []

    labels = [item for name, metric in WEIGHTS.items() for item in label(name, metric, 1.0)]
    names = {item.name for item in labels}
    if not _NEIGHBOURS & names:
        labels += label("local", "distance", 0.0)
    sink = max((item.gain for item in labels if item.name == "visual sink"), default=0.0)
    labels = [item for item in labels if item.name != "localization" or sink < _HABIT * item.gain]
    return tuple(sorted(labels or label("broad", "effective_keys", None), key=lambda each_label: -each_label.gain))


def labels_of_heads(trace: Trace) -> dict[HeadKey, tuple[Label, ...]]:
    """Return the labels of the heads of a sentence; derived weights have none, nor have texts of many cells."""
    cells = sum(len(layer.heads) * layer.num_queries * layer.num_keys for layer in trace.layers)
    if cells > _MOST_CELLS or any(layer.derived is not None for layer in trace.layers):
        return {}
    heads = [(layer.layer, layer.kind, head) for layer in trace.layers for head in layer.heads]
    with np.errstate(invalid="ignore"):  # of weights that are infinite or NaN
        metrics = trace_metrics(trace)
    return {
        head: labels_of(*(by_name(NAMES, values) for values in of_head))
        for head, *of_head in zip(heads, *metrics, strict=True)
    }


def strongest(labels: Mapping[HeadKey, Sequence[Label]], head: HeadKey) -> str:
    """Return the first label of a head, or `mixed`; empty where labels are unknown."""
    return next((label.name for label in labels[head]), MIXED) if head in labels else ""


def most_telling(heads: Sequence[HeadKey], labels: Mapping[HeadKey, Sequence[Label]], count: int) -> set[HeadKey]:
    """Return this number of heads: the strongest of each label, then others, and last those of `SAY_LITTLE`."""
    names = {head: next((label.name for label in labels.get(head, ())), "") for head in heads}
    by_gain = sorted(heads, key=lambda head: -max((label.gain for label in labels.get(head, ())), default=0))
    firsts = {name: head for head in reversed(by_gain) if (name := names[head])}

    def rank(head: HeadKey) -> tuple[int, int]:
        says_little = names[head] in SAY_LITTLE
        if head in firsts.values():
            return 0, says_little
        return 1, 2 if says_little else int(not names[head])

    return {*sorted(by_gain, key=rank)[:count]}
