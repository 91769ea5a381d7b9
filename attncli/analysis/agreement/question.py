"""One layer of two runs: the arrays that differ by more than rounding, and what another step would make of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from attncli.analysis.runs import Following, RunLayer, Side
from attncli.analysis.steps import OF_QUERIES, STAGE_OF, STAGES, Array, Arrays, LayerSteps, difference

LEAST = 2.0**-16  # a relative difference that sums of float32 in another order give
TIMES = 8.0  # times what rounding gives: more is not explained by it, nor by that of arrays which no file shows
NEAR = 2.0  # times what rounding gives: a value that leaves no more is the cause; in 16 bits others agree as well
_TRIED = 16  # tokens at which a cause is tried, before it is tried at all
RECORDED = {"q", "k", "v", "q_normed", "k_normed", "input", "attention", "next"}  # what files hold


class Cell(NamedTuple):
    """Difference at one stage of a layer."""

    difference: float  # the largest of a token, relative to what is compared
    rounding: float | None  # that of the rounded twin; None where the difference is smaller than float32 shows
    agrees: bool


@dataclass(frozen=True)
class LayerQuestion:
    """One layer of both runs, and the array in question."""

    layer: RunLayer  # of the other run
    reference: Side  # that is computed
    steps: LayerSteps  # of the reference
    following: Following | None = None  # where its arrays are all that shows the output
    roundings: Mapping[str, float] = field(default_factory=dict)  # the difference of each array that rounding gives
    parted: str = ""  # name of the array
    most: float = math.inf  # its difference before a first change, where a second is tried

    @cached_property
    def made(self) -> dict[str, Array]:
        """The arrays of the reference."""
        return self.steps.run(self.layer.arrays)

    @cached_property
    def apart(self) -> dict[str, Array]:
        """The difference of each array that both have, in the order of computation."""
        return self._apart(self.made, self.steps)

    def _apart(self, made: dict[str, Array], steps: LayerSteps) -> dict[str, Array]:
        written = self.layer.arrays
        apart = {name: difference(made[name], written[name]) for name in STAGE_OF if name in made.keys() & written}
        if self.following is not None and "next" in made:
            apart["next"] = self.following.difference(made["next"])
        return {name: np.where(steps.seeing(len(one)), one, 0.0) for name, one in apart.items()}

    def changed(self, **fields: Any) -> LayerQuestion:
        """Return the question with other fields than the steps, without computing anything again."""
        other = replace(self, **fields)
        vars(other).update(made=self.made, apart=self.apart)  # as `cached_property` would
        return other

    def rounded(self, twin: Arrays, before: float | None, count: int) -> LayerQuestion:
        """Return the question with the differences that rounding explains, from a twin whose arrays are rounded.

        Where no hidden states are known, they grow over `count` layers from `before`, the difference of the last one.
        """
        apart = {name: float(difference(twin[name], self.made[name]).max()) for name in self.made}
        if before is not None:  # what q, k and v were rounded by before is in them, and grows from layer to layer
            least = {name: 8 * apart[name] for name in apart if name in RECORDED}
            apart |= {name: min(max(value, before), count * value) for name, value in least.items()}
        return self.changed(roundings={name: max(value, 2.0**-24) for name, value in apart.items()})

    @cached_property
    def _some(self) -> tuple[Array, Arrays]:
        """Some of the tokens that differ most, and the arrays of the other run there: all have the same cause."""
        apart = self.apart[self.parted]
        most = np.flatnonzero(apart >= apart.max() / NEAR**2)
        rows = most[np.unique(np.linspace(0, len(most) - 1, _TRIED).astype(int))]
        arrays = self.layer.arrays.items()
        return rows, {name: array[..., rows, :] if name in OF_QUERIES else array for name, array in arrays}

    def distance(self, steps: LayerSteps) -> float:
        """Return the lower quartile of the difference with other steps over some tokens: masks differ at late ones."""
        (rows, written), name = self._some, self.parted
        made = steps.of_queries(rows).run(written, name)[name]
        following = self.following if name == "next" else None
        apart = difference(made, written[name]) if following is None else following.difference(made, rows)
        apart = apart if name in OF_QUERIES else apart[rows]
        with np.errstate(invalid="ignore"):
            return float(np.quantile(np.where(steps.seeing(len(self.apart[name]))[rows], apart, 0.0), 0.25))

    def parts(self, name: str, largest: float | None = None) -> bool:
        """Return whether an array differs by more than rounding."""
        value = float(self.apart[name].max()) if largest is None else largest
        return value > max(LEAST, TIMES * self.roundings[name])

    def explains(self, left: float) -> bool:
        """Return whether so little is left of the difference that rounding explains it."""
        rounding, apart = self.roundings[self.parted], min(self.most, float(self.apart[self.parted].max()))
        return left <= max(LEAST, min(TIMES * rounding, max(NEAR * rounding, apart / NEAR**4), apart / NEAR))

    def agreeing(self, steps: LayerSteps) -> tuple[int, float]:
        """Return how many arrays agree with other steps, 0 if one in question or before does not, and what is left."""
        if not self.explains(left := self.distance(steps)):
            return 0, left
        whole, stage = self._apart(steps.run(self.layer.arrays), steps), STAGES.index(STAGE_OF[self.parted])
        agrees = {name: not self.parts(name, float(one.max())) for name, one in whole.items()}
        broken = (name for name in whole if not agrees[name] and not self.parts(name))
        largest = float(whole[self.parted].max())
        if not self.explains(largest) or any(STAGES.index(STAGE_OF[name]) <= stage for name in broken):
            return 0, left
        return sum(agrees.values()), largest

    @property
    def rows(self) -> Array:
        """The tokens whose rows of the array in question differ."""
        apart = self.apart[self.parted]
        return np.flatnonzero(apart > max(LEAST, min(TIMES * self.roundings[self.parted], apart.max() / NEAR)))

    @property
    def cell(self) -> Cell:
        """The difference of the array in question."""
        apart, agrees = float(self.apart[self.parted].max()), not self.parts(self.parted)
        return Cell(apart, None if apart <= LEAST else self.roundings[self.parted], agrees)

    def is_after(self, stage: str) -> bool:
        """Return whether the array in question is made by a stage, or behind it."""
        return STAGES.index(STAGE_OF[self.parted]) >= STAGES.index(stage)
