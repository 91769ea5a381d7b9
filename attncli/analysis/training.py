"""Attention over training: the metrics of every head over steps or checkpoints, and warnings of heads."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attncli.errors import UsageError
from attncli.recording.call import COLUMNS, LayerMetrics
from attncli.text import as_ranges, names_in, visible

if TYPE_CHECKING:
    from jaxtyping import Float, Int

_MOST_STEPS = 512  # that are held for the picture; of more, every other one is left out
_RULE = re.compile(r"\s*(\w+)\s*([<>])\s*(-?\d*\.?\d+)\s*")
_KEYS = 1.5  # that a query may attend to in the mean, for a warning by default
_SIGNS = {">": "above", "<": "below"}


class HeadHistory:
    """Numbers of heads over the steps of a training, or over its checkpoints."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = tuple(columns)
        self.names: dict[str, int] = {}  # of the heads, such as L0H3, with their places
        self.steps: dict[int, Float[np.ndarray, "C N"]] = {}  # that are held, of the heads that there were

    def add(self, step: int, names: Iterable[str], values: Float[np.ndarray, "C N"]) -> None:
        """Add a step; heads that it does not have are NaN in it."""
        if len(self.steps) >= _MOST_STEPS:
            self.steps = dict([*self.steps.items()][::2])
        places = [self.names.setdefault(name, len(self.names)) for name in names]
        self.steps[step] = np.full((len(self.columns), len(self.names)), np.nan, np.float32)
        self.steps[step][:, places] = values

    def over_time(self, column: str) -> Float[np.ndarray, "N S"]:
        """Return a column of all heads in the steps that are held."""
        found = np.full((len(self.names), len(self.steps)), np.nan)
        for at, values in enumerate(self.steps.values()):
            found[: values.shape[1], at] = values[self.columns.index(column)]
        return found

    def movement(self, column: str) -> Float[np.ndarray, " N"]:
        """Return how far each head went, as a share of the largest number, or of 1 if that is more."""
        values = self.over_time(column)
        values[~np.isfinite(values)] = np.nan
        most = np.fmax.reduce(np.abs(values), axis=None, initial=1.0)
        return np.nan_to_num((np.fmax.reduce(values, axis=1) - np.fmin.reduce(values, axis=1)) / most)


class WarningRule(NamedTuple):
    """A bound of a metric."""

    metric: str
    sign: str  # `>`, `<`, or `is` of NaN
    limit: float
    start: float | None = None  # within which heads must have been in some step, or a warning would be no news
    meaning: str = ""

    def excess(self, columns: Float[np.ndarray, "C H"], bound: float) -> Float[np.ndarray, " H"]:
        """Return how far heads are beyond a bound, negative within it; NaN where the metric is not defined."""
        values, keys = columns[COLUMNS.index(self.metric)], columns[COLUMNS.index("keys")]
        if self.sign == "is":  # heads that no row counts of have NaN, too
            return (np.isnan(values) & ~np.isnan(keys)).astype(float)
        if self.start is not None:  # a query with one key has no choice
            values = np.where(keys > _KEYS, values, np.nan)
        return values - bound if self.sign == ">" else bound - values


# Silent about runs that go well.
DEFAULT_RULES = (
    WarningRule("max_score", ">", 100, 50),
    WarningRule("entropy", "<", 0.1, 0.5),
    WarningRule("sink", ">", 0.9, 0.45, "collapsed onto the first position"),
    WarningRule("uniformity", ">", 0.95, 0.7, "went silent, with about the same weight on all keys"),
    WarningRule("similarity", ">", 0.99, 0.9, "a copy of another head of the layer"),
)
_NOT_A_NUMBER = WarningRule("entropy", "is", 0, None, "some of its weights are not numbers")  # always a warning


def parse_rules(text: str) -> tuple[WarningRule, ...]:
    """Parse rules such as `max_score>50, entropy<0.1`; raise UsageError where they are wrong."""
    rules = []
    for part in text.split(","):
        if (matched := _RULE.fullmatch(part)) is None:
            raise UsageError(f"--warn '{visible(part.strip())}': expected METRIC>NUMBER or METRIC<NUMBER, with commas")
        names_in("--warn", matched[1], COLUMNS)
        rules.append(WarningRule(matched[1], matched[2], float(matched[3])))
    return tuple(rules)


class HeadWarning(NamedTuple):
    """The first step in which heads of a layer are beyond a rule's limit."""

    step: int
    rule: WarningRule
    layer: LayerMetrics
    heads: Sequence[int]

    def __str__(self) -> str:
        metric, sign, limit, _, meaning = self.rule
        values = self.layer.values[COLUMNS.index(metric), self.heads]
        numbers = " to ".join(dict.fromkeys(f"{value:.3g}" for value in (values.min(), values.max())))
        where = ", ".join(filter(None, (self.layer.module, self.layer.place)))
        heads = f"layer {self.layer.layer} head{'s' * (len(self.heads) > 1)} {as_ranges(self.heads)}"
        why = ": ".join(filter(None, (f"{_SIGNS[sign]} {limit:g}" if sign in _SIGNS else "", meaning)))
        return f"step {self.step}: {heads} ({where}): {metric} {numbers}, {why}"


class TrainingHistory(HeadHistory):
    """The metrics of all heads over the measured steps of a training."""

    def __init__(self, rules: Sequence[WarningRule] = DEFAULT_RULES) -> None:
        super().__init__(COLUMNS)
        self.warnings: list[HeadWarning] = []  # in the order in which they came
        self.measured, self._rules = 0, (*rules, _NOT_A_NUMBER)  # how many steps were added
        self._states: dict[tuple[WarningRule, int], Int[np.ndarray, " H"]] = {}  # 1 may be warned of, 2 was

    def add_layers(self, step: int, layers: Sequence[LayerMetrics]) -> list[HeadWarning]:
        """Add a step, and return the warnings of heads that had none by the same rule."""
        names = [f"L{layer.layer}H{head}" for layer in layers for head in range(layer.values.shape[1])]
        self.add(step, names, np.hstack([layer.values for layer in layers]))
        self.measured += 1
        found = []
        for rule in self._rules:
            for layer in layers:
                states = self._states.setdefault((rule, layer.layer), np.zeros(layer.values.shape[1], int))
                within = rule.start is None or rule.excess(layer.values, rule.start) <= 0
                np.maximum(states, within, out=states)
                heads = np.flatnonzero((states == 1) & (rule.excess(layer.values, rule.limit) > 0)).tolist()
                states[heads] = 2
                found += [HeadWarning(step, rule, layer, heads)] if heads else []
        self.warnings += found
        return found
