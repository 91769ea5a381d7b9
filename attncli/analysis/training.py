"""Attention over training: the metrics of every head in each measured step, warnings, and what became of heads."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Sequence
from itertools import compress
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attncli.errors import UsageError
from attncli.recording.call import COLUMNS, METRICS, LayerMetrics
from attncli.text import as_ranges, names_in, visible

if TYPE_CHECKING:
    from jaxtyping import Float

_MOST_STEPS = 512  # that are held for the picture; of more, every other one is left out
_RULE = re.compile(r"\s*(\w+)\s*([<>])\s*(-?\d*\.?\d+)\s*")
_COMPARE = {">": (operator.gt, "above"), "<": (operator.lt, "below")}


class WarningRule(NamedTuple):
    """A bound of a metric."""

    metric: str
    sign: str  # `>` or `<`
    limit: float
    start: float | None = None  # that heads must not be beyond in their first step, or a warning would be no news


# Silent about runs that go well.
DEFAULT_RULES = (
    WarningRule("max_score", ">", 100, 50), WarningRule("entropy", "<", 0.1, 0.5), WarningRule("sink", ">", 0.9, 0.45)
)  # fmt: skip
# Values of columns: heads that fell to the first in some step and rose to the second until the last have changed.
_CHANGES = {
    "collapsed onto the first position": ("sink", 0.45, 0.9),
    "went silent, with about the same weight on all keys": ("uniformity", 0.7, 0.95),
    "became copies of another head of their layer": ("similarity", 0.9, 0.99),
    "became NaN": ("is_nan", 0, 1),
}


def parse_rules(text: str) -> tuple[WarningRule, ...]:
    """Parse rules such as `max_score>50, entropy<0.1`; raise UsageError where they are wrong."""
    rules = []
    for part in text.split(","):
        if (matched := _RULE.fullmatch(part)) is None:
            raise UsageError(f"--warn '{visible(part.strip())}': expected METRIC>NUMBER or METRIC<NUMBER, with commas")
        names_in("--warn", matched[1], METRICS)
        rules.append(WarningRule(matched[1], matched[2], float(matched[3])))
    return tuple(rules)


class HeadWarning(NamedTuple):
    """The first step in which heads of a layer are beyond a rule's limit."""

    step: int
    rule: WarningRule
    layer: LayerMetrics
    heads: Sequence[int]

    def __str__(self) -> str:
        metric, sign, limit, _ = self.rule
        values = self.layer.values[COLUMNS.index(metric), self.heads]
        numbers = " to ".join(dict.fromkeys(f"{value:.3g}" for value in (values.min(), values.max())))
        where = ", ".join(filter(None, (self.layer.module, self.layer.place)))
        heads = f"layer {self.layer.layer} head{'s' * (len(self.heads) > 1)} {as_ranges(self.heads)}"
        return f"step {self.step}: {heads} ({where}): {metric} {numbers}, {_COMPARE[sign][1]} {limit:g}"


class TrainingHistory:
    """The metrics of all heads over the measured steps."""

    def __init__(self, rules: Sequence[WarningRule] = DEFAULT_RULES) -> None:
        self.sizes: dict[int, int] = {}  # how many heads each layer has
        self.warnings: list[HeadWarning] = []  # in the order in which they came
        self.measured, self._rules = 0, rules  # how many steps were added
        self.steps: dict[int, Float[np.ndarray, "C N"]] = {}  # the columns of all heads, in steps that are held
        self._first: dict[int, Float[np.ndarray, "C H"]] = {}
        self._warned: set[tuple[WarningRule, int, int]] = set()

    def add(self, step: int, layers: Iterable[LayerMetrics]) -> list[HeadWarning]:
        """Add a step, and return the warnings of heads that had none by the same rule."""
        current = {layer.layer: layer for layer in layers}
        self.sizes |= {number: layer.values.shape[1] for number, layer in current.items() if number not in self.sizes}
        if len(self.steps) >= _MOST_STEPS:
            self.steps = {number: self.steps[number] for number in [*self.steps][::2]}
        values = {number: np.full((len(COLUMNS), size), np.nan, np.float32) for number, size in self.sizes.items()}
        self.steps[step] = np.hstack([*(values | {number: one.values for number, one in current.items()}).values()])
        self.measured += 1
        found = []
        for rule in self._rules:
            column, (compare, _) = COLUMNS.index(rule.metric), _COMPARE[rule.sign]
            for number, layer in current.items():
                beyond = compare(layer.values[column], rule.limit)
                if rule.start is not None:
                    beyond &= ~compare(self._first.setdefault(number, layer.values)[column], rule.start)
                heads = [head for head in np.flatnonzero(beyond).tolist() if (rule, number, head) not in self._warned]
                self._warned |= {(rule, number, head) for head in heads}
                found += [HeadWarning(step, rule, layer, heads)] if heads else []
        self.warnings += found
        return found

    @property
    def names(self) -> list[str]:
        """The names of all heads, layer by layer, such as L0H3."""
        return [f"L{number}H{head}" for number, size in self.sizes.items() for head in range(size)]

    def over_time(self, metric: str) -> Float[np.ndarray, "N S"]:
        """Return a column of all heads in the steps that are held; NaN where a layer did not run."""
        if metric == "is_nan":
            return np.isnan(self.over_time("entropy")).astype(float)
        if metric == "uniformity":
            return self.over_time("effective_keys") / self.over_time("keys")
        values, count = [each[COLUMNS.index(metric)] for each in self.steps.values()], sum(self.sizes.values())
        return np.array([np.pad(each, (0, count - len(each)), constant_values=np.nan) for each in values]).T

    def movement(self, metric: str) -> Float[np.ndarray, " N"]:
        """Return how far each head went, as a share of how far it could."""
        values, keys = self.over_time(metric), float(np.nanmax(self.over_time("keys"), initial=2))
        highest, lowest = np.fmax.reduce(values, axis=1), np.fmin.reduce(values, axis=1)
        most = {"max_score": np.abs(highest), "effective_keys": keys, "distance": keys}.get(metric, 1.0)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.nan_to_num((highest - lowest) / most)

    def changes(self) -> dict[str, list[str]]:
        """Return which heads changed in one of the ways that are reported."""
        found = {}
        for what, (metric, low, high) in _CHANGES.items():
            values = self.over_time(metric)
            found[what] = [*compress(self.names, (np.fmin.reduce(values, axis=1) <= low) & (values[:, -1] >= high))]
        return {what: heads for what, heads in found.items() if heads}
