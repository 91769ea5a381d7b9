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
NEAR = 2.0  # times what rounding gives: a value that leaves no more is the cause; in 16 bits others agree as well
_FEW_TOKENS = 4
_FAR = 1000.0  # times what rounding gives, which is far enough to solve for a value
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
    before: float | None = None  # difference of the layers before; None where layers are computed from one another's
    count: int = 1  # of these layers, and this one

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
            least = {name: _UNSEEN * apart[name] for name in apart if name in RECORDED}
            apart |= {name: min(max(value, self.before), self.count * value) for name, value in least.items()}
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
    most: float = math.inf  # its difference before a first change, where a second is tried

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
        """Return the difference of the array in question with other steps, at an early token where it is large.

        Masks mostly differ at late ones: another fault is solved for without them.
        """
        apart = self.apart[self.parted]
        large = np.flatnonzero(apart >= min(_FAR * self.floors.roundings[self.parted], apart.max() / NEAR**2))
        token = int(large[len(large) // 4])
        if self.parted == "scores" or (self.following is not None and self.parted == "next"):
            return float(self._apart(steps.run(self.layer.arrays))[self.parted][token])
        row, written = slice(token, token + 1), dict(self.layer.arrays)
        written |= {name: written[name][row] for name in ("attention", "next") if name in written}
        apart = difference(steps.run(written, self.parted, rows=row)[self.parted], written[self.parted])
        return float(apart[min(token, len(apart) - 1)])

    def parts(self, name: str, largest: float | None = None) -> bool:
        """Return whether an array differs by more than rounding: by too much, or all of it by one factor."""
        rounding = self.floors.roundings[name]
        value = float(self.apart[name].max()) if largest is None else largest
        if largest is None and value > max(_LEAST, NEAR * rounding) and self.is_scaled(name):
            return True
        return value > max(_LEAST, _TIMES * rounding)

    def is_scaled(self, name: str) -> bool:
        """Return whether a factor of all tokens is at least half of a difference: rounding gives none."""
        written = self.layer.arrays.get(name)
        if written is None or written.shape != self.made[name].shape or written.shape[-2] < _FEW_TOKENS:
            return False
        ours, theirs = (
            np.moveaxis(a, -2, 0).reshape(a.shape[-2], -1).astype(np.float64) for a in (self.made[name], written)
        )
        size = np.maximum(np.square(ours).sum(axis=1), np.finfo(np.float64).tiny)
        factors = np.vecdot(ours, theirs) / size - 1
        apart = np.sqrt(np.square(theirs - ours).sum(axis=1) / size)
        return bool(abs(np.median(factors)) > np.median(apart) / 2)

    def explains(self, left: float) -> bool:
        """Return whether so little is left of the difference that rounding explains it."""
        rounding, apart = self.floors.roundings[self.parted], min(self.most, float(self.apart[self.parted].max()))
        return left <= max(_LEAST, min(_TIMES * rounding, max(NEAR * rounding, apart / NEAR**2), apart / NEAR))

    def agrees(self, steps: LayerSteps) -> bool:
        """Return whether the array in question agrees with other steps, and every one before it that did."""
        return self.agreeing(steps)[0] > 0

    def agreeing(self, steps: LayerSteps) -> tuple[int, float]:
        """Return how many arrays agree with other steps, and what is left of the difference in question.

        0 unless the array in question agrees, and every one before it that did.
        """
        if not self.explains(left := self.distance(steps)):
            return 0, left
        whole, stage = self._apart(steps.run(self.layer.arrays)), STAGES.index(STAGE_OF[self.parted])
        agrees = {name: not self.parts(name, float(one.max())) for name, one in whole.items()}
        broken = (name for name in whole if not agrees[name] and not self.parts(name))
        largest = float(whole[self.parted].max())
        if any(STAGES.index(STAGE_OF[name]) < stage for name in broken) or not self.explains(largest):
            return 0, left
        return sum(agrees.values()), largest

    @property
    def rows(self) -> Array:
        """The tokens whose rows of the array in question differ."""
        apart = self.apart[self.parted]
        return np.flatnonzero(apart > max(_LEAST, min(_TIMES * self.floors.roundings[self.parted], apart.max() / NEAR)))

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
