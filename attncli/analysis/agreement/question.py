"""One layer of two runs: the arrays that differ by more than rounding, and what another step would make of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attncli.analysis.runs import Following, RunLayer, Side
from attncli.analysis.steps import STAGE_OF, STAGES, Array, Arrays, LayerSteps, difference

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

Apart = Array  # difference at each token
_LEAST = 2.0**-21  # a relative difference that float32 hardly shows
_UNSEEN = 8.0  # times a rounding: those of an embedding, a norm and a projection that no array shows
RECORDED = {"q", "k", "v", "q_normed", "k_normed", "input", "attention", "next"}  # what files hold
_TIMES = 8.0  # times the difference of the rounded twin: more is not explained by rounding


class Cell(NamedTuple):
    """Difference at one stage of a layer."""

    difference: float  # the largest of a token, relative to what is compared
    rounding: float | None  # that of the rounded twin; None where the difference is smaller than float32 shows
    agrees: bool


@dataclass(frozen=True)
class Floors:
    """Largest differences that rounding explains, measured when they are needed."""

    make: Callable[[], Arrays]  # the arrays of the reference
    make_twin: Callable[[], Arrays]  # those of its rounded twin
    following: Following | None
    before: float | None = None  # difference of the layer before; None where layers are computed from one another's

    @cached_property
    def twin(self) -> Arrays:
        """The arrays of the rounded twin."""
        return self.make_twin()

    @cached_property
    def roundings(self) -> dict[str, float]:
        """The difference of each array from the rounded twin."""
        twin, made = self.twin, self.make()
        apart = {name: float(difference(twin[name], made[name]).max()) for name in made}
        if self.following is not None and "next" in apart:
            steps = self.following.variants[0]
            values = [replace(steps, x=arrays["next"]).run({}, "k")["v"] for arrays in (twin, made)]
            apart["next"] = float(difference(*values).max())
        if self.before is not None:  # what q, k and v were rounded by before is in them, and grows from layer to layer
            apart |= {name: max(_UNSEEN * apart[name], self.before) for name in apart if name in RECORDED}
        return {name: max(value, 2.0**-24) for name, value in apart.items()}


@dataclass(frozen=True)
class LayerQuestion:
    """One layer of both runs, and the array in question."""

    layer: RunLayer  # of the other run
    reference: Side  # that is computed
    steps: LayerSteps  # of the reference
    floors: Floors
    following: Following | None = None  # where its arrays are all that shows the output
    parted: str = ""  # name of the array

    @cached_property
    def made(self) -> dict[str, Array]:
        """The arrays of the reference."""
        return self.steps.run(self.layer.arrays)

    @cached_property
    def apart(self) -> dict[str, Apart]:
        """The difference of each array that both have, in the order of computation."""
        return self._apart(self.made)

    def _apart(self, made: dict[str, Array]) -> dict[str, Apart]:
        written = self.layer.arrays
        apart = {name: difference(made[name], written[name]) for name in STAGE_OF if name in made.keys() & written}
        if "scores" in apart and self.steps.mask is not None:
            centred = (_centred(arrays["scores"], self.steps.mask) for arrays in (made, written))
            apart["scores"] = np.minimum(apart["scores"], difference(*centred))
        if self.following is not None and "next" in made:
            apart["next"] = self.following.difference(made["next"])
        return apart

    def about(self, name: str) -> LayerQuestion:
        """Return the question about another array, without computing anything again."""
        other = replace(self, parted=name)
        vars(other).update(made=self.made, apart=self.apart)  # as `cached_property` would
        return other

    def distance(self, steps: LayerSteps) -> float:
        """Return the difference of the array in question with other steps."""
        return float(np.linalg.norm(self._apart(steps.run(self.layer.arrays, self.parted))[self.parted]))

    def parts(self, name: str, apart: Apart | None = None) -> bool:
        """Return whether an array differs by more than rounding."""
        largest = float((self.apart[name] if apart is None else apart).max())
        return largest > _LEAST and largest > _TIMES * self.floors.roundings[name]

    def agrees(self, steps: LayerSteps) -> bool:
        """Return whether the array in question agrees with other steps, and every one before it that did."""
        apart, stage = self._apart(steps.run(self.layer.arrays, self.parted)), STAGES.index(STAGE_OF[self.parted])
        before = [name for name in apart if STAGES.index(STAGE_OF[name]) < stage and not self.parts(name)]
        return not any(self.parts(name, apart[name]) for name in (self.parted, *before))

    def agreeing(self, steps: LayerSteps) -> tuple[int, float]:
        """Return how many arrays agree with other steps, 0 unless the one in question does, and its difference."""
        if not self.agrees(steps):
            return 0, math.inf
        whole = self._apart(steps.run(self.layer.arrays))
        return sum(not self.parts(name, one) for name, one in whole.items()), float(whole[self.parted].max())

    @property
    def rows(self) -> Array:
        """The tokens whose rows of the array in question differ."""
        return np.flatnonzero([self.parts(self.parted, one) for one in self.apart[self.parted]])

    @property
    def cell(self) -> Cell:
        """The difference of the array in question."""
        apart, agrees = float(self.apart[self.parted].max()), not self.parts(self.parted)
        return Cell(apart, None if apart <= _LEAST else self.floors.roundings[self.parted], agrees)

    def is_after(self, stage: str) -> bool:
        """Return whether the array in question is made by a stage, or behind it."""
        return STAGES.index(STAGE_OF[self.parted]) >= STAGES.index(stage)


def _centred(scores: Float[np.ndarray, "H T K"], mask: Bool[np.ndarray, "#H T K"]) -> Float[np.ndarray, "H T K"]:
    """Return the scores of allowed keys less their mean: a softmax sees no number that is added to a whole row."""
    count = np.maximum(mask.sum(axis=-1, keepdims=True), 1)
    return np.where(mask, scores - np.where(mask, scores, 0).sum(axis=-1, keepdims=True) / count, 0)
