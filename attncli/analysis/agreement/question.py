"""One layer of two runs: the arrays that differ by more than rounding, and what another step would make of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attncli.analysis.runs import Following, RunLayer, Side
from attncli.analysis.steps import STAGE_OF, STAGES, Array, Arrays, LayerSteps, difference

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

LEAST = 2.0**-21  # a relative difference that float32 hardly shows
_TIMES = 8.0  # times what rounding gives: more is not explained by it, nor by that of arrays which no file shows
NEAR = 2.0  # times what rounding gives: a value that leaves no more is the cause; in 16 bits others agree as well
_FEW_TOKENS = 4
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
        if "scores" in apart and steps.mask is not None:
            centred = (_centred(arrays["scores"], steps.mask) for arrays in (made, written))
            apart["scores"] = np.minimum(apart["scores"], difference(*centred))
        if self.following is not None and "next" in made:
            apart["next"] = self.following.difference(made["next"])
        return {name: np.where(_sees(steps, len(one)), one, 0.0) for name, one in apart.items()}

    def changed(self, **fields: Any) -> LayerQuestion:
        """Return the question with other fields than the steps, without computing anything again."""
        other = replace(self, **fields)
        vars(other).update(made=self.made, apart=self.apart)  # as `cached_property` would
        return other

    def rounded(self, twin: Arrays, before: float | None, count: int) -> LayerQuestion:
        """Return the question with the differences that rounding explains.

        Args:
            twin: arrays of the reference, each of them rounded.
            before: difference of the layer before; None where layers are computed from one another's hidden states.
            count: of these layers, and this one.
        """
        apart = {name: float(difference(twin[name], self.made[name]).max()) for name in self.made}
        if self.following is not None and "next" in apart:
            steps = self.following.variants[0]
            values = [replace(steps, x=arrays["next"]).run({}, "k")["v"] for arrays in (twin, self.made)]
            apart["next"] = float(difference(*values).max())
        if before is not None:  # what q, k and v were rounded by before is in them, and grows from layer to layer
            least = {name: _TIMES * apart[name] for name in apart if name in RECORDED}
            apart |= {name: min(max(value, before), count * value) for name, value in least.items()}
        return self.changed(roundings={name: max(value, 2.0**-24) for name, value in apart.items()})

    def distance(self, steps: LayerSteps) -> float:
        """Return the difference of the array in question with other steps, at an early token where it is large.

        Masks mostly differ at late ones: another fault is solved for without them.
        """
        apart = np.where(_sees(steps, len(self.apart[self.parted])), self.apart[self.parted], 0.0)
        large = np.flatnonzero(apart >= self.apart[self.parted].max() / NEAR**2)
        if not len(large):
            return 0.0
        token = int(large[len(large) // 4])
        if self.parted == "scores" or (self.following is not None and self.parted == "next"):
            return float(self._apart(steps.run(self.layer.arrays), steps)[self.parted][token])
        row, written = slice(token, token + 1), dict(self.layer.arrays)
        written |= {name: written[name][row] for name in ("attention", "next") if name in written}
        apart = difference(steps.run(written, self.parted, rows=row)[self.parted], written[self.parted])
        return float(apart[min(token, len(apart) - 1)])

    def parts(self, name: str, largest: float | None = None) -> bool:
        """Return whether an array differs by more than rounding: by too much, or all of it by one factor."""
        value = float(self.apart[name].max()) if largest is None else largest
        is_near = largest is not None or value <= NEAR * max(LEAST, self.roundings[name]) or not self.is_scaled(name)
        return value > max(LEAST, _TIMES * self.roundings[name]) or not is_near

    def is_scaled(self, name: str) -> bool:
        """Return whether a factor of all tokens is at least half of a difference: rounding gives none."""
        written, made = self.layer.arrays, self.made
        if name not in written or written[name].shape != made[name].shape or written[name].shape[-2] < _FEW_TOKENS:
            return False
        stream = {**made, **written}  # the feed-forward network is a small part of it
        residual: Any = sum(stream[one] for one in ("input", "attention") if name == "next" and one in stream)
        ours, theirs = (np.moveaxis(arrays[name] - residual, -2, 0).astype(np.float64) for arrays in (made, written))
        ours, theirs = ours.reshape(len(ours), -1), theirs.reshape(len(ours), -1)
        with np.errstate(all="ignore"):  # of a token that attends to nothing
            size = np.square(ours).sum(axis=1)
            factors, apart = np.vecdot(ours, theirs) / size - 1, np.sqrt(np.square(theirs - ours).sum(axis=1) / size)
        return bool(abs(np.nanmedian(factors)) > np.nanmedian(apart) / 2)

    def explains(self, left: float) -> bool:
        """Return whether so little is left of the difference that rounding explains it."""
        rounding, apart = self.roundings[self.parted], min(self.most, float(self.apart[self.parted].max()))
        return left <= max(LEAST, min(_TIMES * rounding, max(NEAR * rounding, apart / NEAR**2), apart / NEAR))

    def agreeing(self, steps: LayerSteps) -> tuple[int, float]:
        """Return how many arrays agree with other steps, and what is left of the difference in question.

        0 unless the array in question agrees, and every one before it that did.
        """
        if not self.explains(left := self.distance(steps)):
            return 0, left
        whole, stage = self._apart(steps.run(self.layer.arrays), steps), STAGES.index(STAGE_OF[self.parted])
        agrees = {name: not self.parts(name, float(one.max())) for name, one in whole.items()}
        broken = (name for name in whole if not agrees[name] and not self.parts(name))
        largest = float(whole[self.parted].max())
        if any(STAGES.index(STAGE_OF[name]) <= stage for name in broken) or not self.explains(largest):
            return 0, left
        return sum(agrees.values()), largest

    @property
    def rows(self) -> Array:
        """The tokens whose rows of the array in question differ."""
        apart = self.apart[self.parted]
        return np.flatnonzero(apart > max(LEAST, min(_TIMES * self.roundings[self.parted], apart.max() / NEAR)))

    @property
    def cell(self) -> Cell:
        """The difference of the array in question."""
        apart, agrees = float(self.apart[self.parted].max()), not self.parts(self.parted)
        return Cell(apart, None if apart <= LEAST else self.roundings[self.parted], agrees)

    def is_after(self, stage: str) -> bool:
        """Return whether the array in question is made by a stage, or behind it."""
        return STAGES.index(STAGE_OF[self.parted]) >= STAGES.index(stage)


def _centred(scores: Float[np.ndarray, "H T K"], mask: Bool[np.ndarray, "#H T K"]) -> Float[np.ndarray, "H T K"]:
    """Return the scores of allowed keys less their mean: a softmax sees no number that is added to a whole row."""
    count = np.maximum(mask.sum(axis=-1, keepdims=True), 1)
    return np.where(mask, scores - np.where(mask, scores, 0).sum(axis=-1, keepdims=True) / count, 0)


def _sees(steps: LayerSteps, tokens: int) -> Array:
    """Return the tokens that attend to some key: engines differ in what padding gives that attends to none.

    A mask that leaves fewer than half of the tokens explains nothing, so that all of them count.
    """
    whole = np.ones(tokens, bool)  # also of keys and values, where queries are of another text
    sees: Any = whole if steps.mask is None or steps.mask.shape[1] != tokens else steps.mask.any(axis=(0, 2))
    return sees if 2 * sees.sum() >= tokens else whole
