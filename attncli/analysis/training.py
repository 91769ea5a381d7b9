"""Attention over training: the metrics of every head in each measured step, warnings, and what became of heads."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Sequence
from itertools import compress
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attncli.errors import UsageError
from attncli.recording.head_metrics import COLUMNS, METRICS, LayerMetrics
from attncli.text import as_ranges, did_you_mean, visible

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

_MOST_STEPS = 512  # that are held for the picture; of more, every other one is left out
_RULE = re.compile(r"\s*(\w+)\s*([<>])\s*([-+.\d]+(?:e[-+]?\d+)?)\s*", re.IGNORECASE)
_SINK, _UNIFORM, _COPY = (0.45, 0.9), (0.7, 0.95), (0.9, 0.99)  # before and after a change that is reported
TrainedHead = tuple[int, int]  # its layer, and its index


class WarningRule(NamedTuple):
    """A bound of a metric."""

    metric: str
    sign: str  # `>` or `<`
    limit: float
    start: float | None = None  # the bound that heads had to keep in their first step, to be warned of

    def __str__(self) -> str:
        return f"{self.metric}{self.sign}{self.limit:g}"

    def applies(self, values: Float[np.ndarray, " H"], first: Float[np.ndarray, " H"]) -> list[int]:
        """Return the heads whose metric is beyond the limit now, and was not beyond the start in their first step."""
        compare = operator.gt if self.sign == ">" else operator.lt
        beyond = compare(values, self.limit)
        return np.flatnonzero(beyond if self.start is None else beyond & ~compare(first, self.start)).tolist()


# Silent about runs that go well: pretrained heads that attend so from the start are no news.
DEFAULT_RULES = (
    WarningRule("max_score", ">", 100, 50), WarningRule("entropy", "<", 0.1, 0.5), WarningRule("sink", ">", 0.9, 0.45)
)  # fmt: skip


def parse_rules(text: str) -> tuple[WarningRule, ...]:
    """Return the rules of an expression such as `max_score>50, entropy<0.1`.

    Raises:
        UsageError: it is none.
    """
    rules = []
    for part in text.split(","):
        matched = _RULE.fullmatch(part)
        if matched is None:
            raise UsageError(f"--warn '{visible(part.strip())}': expected METRIC>NUMBER or METRIC<NUMBER, with commas")
        metric, sign, limit = matched.groups()
        if metric not in METRICS:
            raise UsageError(f"--warn '{metric}': expected one of {', '.join(METRICS)}{did_you_mean(metric, METRICS)}")
        try:
            rules.append(WarningRule(metric, sign, float(limit)))
        except ValueError:
            raise UsageError(f"--warn {metric}{sign}{limit}: {limit} is no number") from None
    return tuple(rules)


class HeadWarning(NamedTuple):
    """The first step in which heads of a layer are beyond a rule's limit."""

    step: int
    rule: WarningRule
    layer: LayerMetrics
    heads: tuple[int, ...]

    def __str__(self) -> str:
        values = self.layer.values[COLUMNS.index(self.rule.metric), list(self.heads)]
        numbers = " to ".join(dict.fromkeys(f"{value:.3g}" for value in (values.min(), values.max())))
        where = ", ".join(filter(None, (self.layer.module, self.layer.place)))
        heads = f"head{'s' * (len(self.heads) > 1)} {as_ranges(self.heads)}"
        than = "above" if self.rule.sign == ">" else "below"
        return (
            f"step {self.step}: layer {self.layer.layer} {heads}{f' ({where})' if where else ''}: "
            f"{self.rule.metric} {numbers}, {than} {self.rule.limit:g}"
        )


class HeadChange(NamedTuple):
    """Heads that went wrong in one way."""

    what: str
    heads: list[str]


class TrainingHistory:
    """The metrics of all heads over the measured steps.

    Attributes:
        layers: the last metrics of each layer, by its number.
        warnings: in the order in which they came.
        measured: how many steps were added.
    """

    def __init__(self, rules: Sequence[WarningRule] = DEFAULT_RULES) -> None:
        self.layers: dict[int, LayerMetrics] = {}
        self.warnings: list[HeadWarning] = []
        self.measured = 0
        self._rules = rules
        self._first: dict[int, LayerMetrics] = {}
        self._warned: set[tuple[WarningRule, int, int]] = set()
        self._steps: list[tuple[int, dict[int, Float[np.ndarray, "C H"]]]] = []

    def add(self, step: int, layers: Iterable[LayerMetrics]) -> list[HeadWarning]:
        """Add a step, and return the warnings of heads that had none of the same rule."""
        current = {layer.layer: layer for layer in layers}
        if len(self._steps) >= _MOST_STEPS:
            self._steps = self._steps[::2]
        self._steps.append((step, {number: layer.values for number, layer in current.items()}))
        self.measured += 1
        self.layers |= current
        self._first = {**current, **self._first}
        found = [
            HeadWarning(step, rule, layer, heads)
            for rule in self._rules
            for layer in current.values()
            if (heads := self._newly(rule, layer))
        ]
        self.warnings += found
        return found

    def _newly(self, rule: WarningRule, layer: LayerMetrics) -> tuple[int, ...]:
        column = COLUMNS.index(rule.metric)
        heads = rule.applies(layer.values[column], self._first[layer.layer].values[column])
        fresh = [head for head in heads if (rule, layer.layer, head) not in self._warned]
        self._warned |= {(rule, layer.layer, head) for head in fresh}
        return tuple(fresh)

    @property
    def steps(self) -> list[int]:
        """The numbers of the steps that are held."""
        return [step for step, _ in self._steps]

    @property
    def heads(self) -> list[TrainedHead]:
        """All heads, layer by layer."""
        sizes = sorted((number, layer.values.shape[1]) for number, layer in self.layers.items())
        return [(layer, head) for layer, count in sizes for head in range(count)]

    def over_time(self, metric: str) -> Float[np.ndarray, "N S"]:
        """Return a column of all heads in the steps that are held; NaN where a layer did not run."""
        column = COLUMNS.index(metric)
        rows = [
            np.concatenate([
                values[number][column] if number in values else np.full(layer.values.shape[1], np.nan)
                for number, layer in sorted(self.layers.items())
            ])
            for _, values in self._steps
        ]  # fmt: skip
        return np.array(rows, float).T

    def movement(self, metric: str) -> Float[np.ndarray, " N"]:
        """Return the largest change of each head since its first step, as a share of what the metric can change by."""
        values = self.over_time(metric)
        first = np.array([next(iter(row[~np.isnan(row)]), np.nan) for row in values])[:, None]
        keys = np.nanmax(self.over_time("keys"), axis=1, initial=2.0)[:, None]
        if metric == "max_score":
            span = np.maximum(np.abs(values), np.abs(first))
        else:
            span = {"entropy": np.log(keys), "effective_keys": keys, "distance": keys}.get(metric, np.ones_like(keys))
        with np.errstate(invalid="ignore", divide="ignore"):
            change = np.nan_to_num(np.abs(values - first) / span)
        return change.max(axis=1, initial=0.0)

    def moved(self) -> list[str]:
        """Return the metrics, those first in which some head moved most."""
        return sorted(METRICS, key=lambda metric: -self.movement(metric).max(initial=0.0))

    def changes(self) -> list[HeadChange]:
        """Return which heads collapsed onto the first token, went silent, or became copies of another."""
        keys, names = self.over_time("keys"), [f"L{layer}H{head}" for layer, head in self.heads]
        share, similarity = self.over_time("effective_keys") / keys, self.over_time("similarity")
        silent = _rose(share, _UNIFORM)
        twins = self.over_time("twin")[:, -1]
        pairs = []
        for index in np.flatnonzero(_rose(similarity, _COPY) & ~silent).tolist():
            layer, head = self.heads[index]
            pair = sorted((head, int(twins[index])))
            pairs.append(" and ".join(f"L{layer}H{each}" for each in pair))
        found = [
            HeadChange("collapsed onto the first position", [*compress(names, _rose(self.over_time("sink"), _SINK))]),
            HeadChange("went silent: all keys of a row have about the same weight", [*compress(names, silent)]),
            HeadChange("became copies of each other", [*dict.fromkeys(pairs)]),
        ]
        return [change for change in found if change.heads]


def _rose(values: Float[np.ndarray, "N S"], bounds: tuple[float, float]) -> Bool[np.ndarray, " N"]:
    """Return which heads were at most at the lower bound in some step, and are at least at the upper one at last."""
    return (np.nanmin(values, axis=1, initial=np.inf) <= bounds[0]) & (values[:, -1] >= bounds[1])
