"""Attention over training: numbers of every head over steps or checkpoints, warnings, and heads that changed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import product
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attncli.analysis.heads import HeadReport
from attncli.analysis.metrics import WEIGHTS
from attncli.errors import UsageError
from attncli.recording.call import COLUMNS, LayerMetrics
from attncli.text import as_ranges, names_in, visible

if TYPE_CHECKING:
    from jaxtyping import Float, Int

_MOST_STEPS = 512  # that are held for the picture; of more, every other one is left out
_RULE = re.compile(r"\s*(\w+)\s*([<>])\s*(-?\d*\.?\d+)\s*")
_NUMBER = re.compile(r"(?<!\d)(\d{1,15})(\.[a-z]+)?$")  # at the end of a checkpoint's name
_BOUNDS = {">": "above {:g}", "<": "below {:g}", "=": "as some of its weights are no numbers"}
_LEAST = 0.05  # that a weight of a head changes by


class WarningRule(NamedTuple):
    """A bound of a metric."""

    metric: str
    sign: str  # `>` or `<`, or `=` of a number that is none
    limit: float
    start: float | None = None  # within which heads must have been in some step, or a warning would be no news
    meaning: str = ""
    keys: float = 1.5  # that queries must have more of in the mean, as one with one key has no choice

    def excess(self, layer: LayerMetrics, bound: float) -> Float[np.ndarray, " H"]:
        """Return how far heads are beyond a bound, negative within it; NaN where the metric is not defined."""
        values, keys = (layer.values[COLUMNS.index(name)] for name in (self.metric, "keys"))
        values = np.where(keys > self.keys, np.isnan(values) if self.sign == "=" else values, np.nan)
        return bound - values if self.sign == "<" else values - bound

    def warning(self, step: int, layer: LayerMetrics, heads: Sequence[int]) -> str:
        """Return the warning of heads of a layer that are beyond the limit in a step."""
        values = layer.values[COLUMNS.index(self.metric), heads]
        numbers = " to ".join(dict.fromkeys(f"{value:.3g}" for value in (values.min(), values.max())))
        where = ", ".join(filter(None, (layer.module, layer.place)))
        named = f"step {step}: layer {layer.layer} head{'s' * (len(heads) > 1)} {as_ranges(heads)}: {self.metric}"
        return f"{named} {numbers}, {_BOUNDS[self.sign].format(self.limit)}{self.meaning} ({where})"


_NAN = WarningRule("entropy", "=", 0, keys=0)  # which no choice of rules leaves out
# Silent about runs that go well.
DEFAULT_RULES = (
    WarningRule("max_score", ">", 100, 50),
    WarningRule("entropy", "<", 0.1, 0.5),
    WarningRule("sink", ">", 0.9, 0.45, ": collapsed onto the first position"),
    WarningRule("uniformity", ">", 0.95, 0.7, ": went silent, about the same weight on all keys", 4),
    WarningRule("similarity", ">", 0.99, 0.9, ": a copy of another head of the layer", 4),
)


def parse_rules(text: str) -> tuple[WarningRule, ...]:
    """Parse rules such as `max_score>50, entropy<0.1`; raise UsageError where they are wrong."""
    rules = []
    for part in text.split(","):
        if (matched := _RULE.fullmatch(part)) is None:
            raise UsageError(f"--warn '{visible(part.strip())}': expected METRIC>NUMBER or METRIC<NUMBER, with commas")
        names_in("--warn", matched[1], COLUMNS)
        rules.append(WarningRule(matched[1], matched[2], float(matched[3])))
    return tuple(rules)


class HeadHistory:
    """Numbers of heads over the steps of a training, with warnings by rules, or over its checkpoints."""

    def __init__(self, columns: Sequence[str] = COLUMNS, rules: Sequence[WarningRule] = ()) -> None:
        self.columns, self.measured, self._rules = tuple(columns), 0, (_NAN, *rules)  # and how many steps were added
        self.names: dict[str, int] = {}  # of the heads, such as L0H3, with their places
        self.steps: dict[int, Float[np.ndarray, "C N"]] = {}  # that are held, of the heads that there were
        self.warnings: list[str] = []  # in the order in which they came
        self._states: dict[tuple[WarningRule, int], Int[np.ndarray, " H"]] = {}  # 1 may be warned of, 2 was

    def add(self, step: int, names: Sequence[str], values: Any) -> None:
        """Add the numbers `[N, C]` of heads in a step; None is NaN."""
        if len(self.steps) >= _MOST_STEPS:
            self.steps = dict([*self.steps.items()][::2])
        places = [self.names.setdefault(name, len(self.names)) for name in names]
        self.steps[step] = np.full((len(self.columns), len(self.names)), np.nan, np.float32)
        self.steps[step][:, places] = np.array(values, np.float32).T
        self.measured += 1

    def add_layers(self, step: int, layers: Sequence[LayerMetrics]) -> list[str]:
        """Add a step of training, and return the warnings of heads that had none by the same rule."""
        names = [f"L{layer.layer}H{head}" for layer in layers for head in range(layer.values.shape[1])]
        self.add(step, names, np.hstack([layer.values for layer in layers]).T)
        before = len(self.warnings)
        for rule, layer in product(self._rules, layers):
            states = self._states.setdefault((rule, layer.layer), np.zeros(layer.values.shape[1], int))
            np.maximum(states, rule.start is None or rule.excess(layer, rule.start) <= 0, out=states)
            heads = np.flatnonzero((states == 1) & (rule.excess(layer, rule.limit) > 0)).tolist()
            states[heads] = 2
            self.warnings += [rule.warning(step, layer, heads)] if heads else []
        return self.warnings[before:]

    def over_time(self, column: str) -> Float[np.ndarray, "N S"]:
        """Return a column of all heads in the steps that are held; NaN is one that ran in none."""
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


def steps_of(models: Sequence[str]) -> dict[int, str]:
    """Return checkpoints by the numbers at the end of their names, or by their places, unless each has its own."""
    numbers = {model: int(found[1]) for model in models if (found := _NUMBER.search(PurePath(model).name))}
    ordered = sorted(models, key=lambda model: numbers.get(model, 10**15))  # `final` is last
    has_steps = len({*numbers.values()}) == len(models)
    return {numbers[model] if has_steps else place: model for place, model in enumerate(ordered, start=1)}


def names_of(report: HeadReport) -> list[str]:
    """Return the names of heads, such as L0H3, with the kind of attention unless it is self-attention."""
    return [f"{head.kind} " * (head.kind != "self") + f"L{head.layer}H{head.head}" for head in report.heads]


def changed_heads(first: HeadReport, last: HeadReport) -> list[tuple[str, str, str]]:
    """Return heads whose label or weights changed: name, labels, and the largest change of a weight, which ranks."""
    found = []
    for head, *ends in zip(names_of(first), first.heads, last.heads, strict=True):
        labels = ["NaN" if each.metrics.get("entropy") is None else each.label for each in ends]
        values = np.array([[each.metrics.get(metric) for metric in WEIGHTS.values()] for each in ends], float)
        changes = values[1] - values[0]
        largest = int(np.nan_to_num(abs(changes)).argmax())
        if labels[0] != labels[1] or abs(changes[largest]) >= _LEAST:
            named = f"{[*WEIGHTS][largest]} {changes[largest]:+.2f}"
            found.append((changes[largest], (head, " → ".join(dict.fromkeys(labels)), named)))
    return [row for _, row in sorted(found, key=lambda pair: -np.nan_to_num(abs(pair[0]), nan=np.inf))]
