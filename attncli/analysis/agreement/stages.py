"""Attention of one layer, stage by stage: each stage can start from arrays of another run, and can be replaced."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attncli import attention as kernel
from attncli.engines.numpy.ops import rotated

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    Hidden = Float[np.ndarray, "T E"]
    Heads = Float[np.ndarray, "H T D"]

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]  # by the names of `STAGE_OF`

STAGES = (
    "tokens", "positions", "input", "projections", "norm", "rotation", "scores", "mask", "sinks", "weights", "output",
)  # fmt: skip
# The stage that makes each array, in the order of computation.
STAGE_OF = {
    "input": "input", "q_projected": "projections", "k_projected": "projections", "v": "projections",
    "q_normed": "norm", "k_normed": "norm", "q": "rotation", "k": "rotation", "scores": "scores",
    "weights": "weights", "heads": "weights", "attention": "output", "next": "output",
}  # fmt: skip


_PRECISION = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}  # bits of a number, the first one included


class Rounding:
    """Errors of rounding, drawn at random: as large as those of a type of number."""

    def __init__(self, dtype: str) -> None:
        self.dtype, self.unit = dtype, 2.0 ** -_PRECISION.get(dtype, 8)
        self._draws = np.random.default_rng(0)

    def __call__(self, array: Array) -> Array:
        """Return an array with an error of each number, relative to its row."""
        size = np.sqrt(np.square(array, dtype=np.float64).mean(axis=-1, keepdims=True))
        return (array + self.unit / 2 * size * self._draws.standard_normal(array.shape)).astype(np.float32)


class Rope(NamedTuple):
    """Rotation of queries and keys."""

    frequencies: Float[np.ndarray, " R"]
    is_interleaved: bool = False  # whether dimensions 2i and 2i + 1 are a pair, not i and i + R
    magnitude: float = 1.0  # factor of rotated dimensions (YaRN)

    def rotate(self, x: Heads, positions: Int[np.ndarray, " T"]) -> Heads:
        """Return queries or keys, rotated by their positions."""
        angles = positions[:, None].astype(np.float32) * self.frequencies
        width = 2 * len(self.frequencies)
        if self.is_interleaved:
            x = np.concatenate([x[..., :width:2], x[..., 1:width:2], x[..., width:]], axis=-1)
        x = rotated(x, angles)
        x[..., :width] *= np.float32(self.magnitude)
        if self.is_interleaved:
            halves = x[..., :width].reshape(*x.shape[:-1], 2, -1)
            x[..., :width] = halves.swapaxes(-1, -2).reshape(*x.shape[:-1], width)
        return x


@dataclass(frozen=True)
class Steps:
    """Steps of one layer's attention; a candidate replaces one of them.

    Attributes:
        x: hidden states that enter the layer; None where arrays are all that is known.
        project: `x` → queries, keys and values before any norm of heads; None likewise.
        norm_heads: norm of each head's queries and keys.
        recorded: arrays that stand in for `project`.
        rope: the rotation; None is none.
        positions: of the tokens, `[T]`.
        scale: factor of q·k; None likewise.
        softcap: c in c·tanh(scores/c).
        bias: added to the scaled products.
        key_heads: the key/value head of each head, `[H]`.
        mask: True where a query may attend to a key; None where it is not known.
        sinks: one more logit for each head.
        biases: those of the projections, `[H, 1, D]` each.
        project_output: outputs of heads → output of the attention.
        finish: `x` and the output of the attention → hidden states after the layer.
    """

    positions: Int[np.ndarray, " T"]
    scale: float | None
    mask: Bool[np.ndarray, "#H T K"] | None
    key_heads: Int[np.ndarray, " H"]
    x: Hidden | None = None
    project: Callable[[Hidden], tuple[Heads, Heads, Heads]] | None = None
    norm_heads: Callable[[Heads, Heads], tuple[Heads, Heads]] | None = None
    recorded: Arrays | None = None
    rope: Rope | None = None
    softcap: float | None = None
    bias: Float[np.ndarray, "#H T K"] | None = None
    sinks: Float[np.ndarray, " H"] | Float[np.ndarray, "H T"] | None = None
    project_output: Callable[[Heads], Hidden] | None = None
    finish: Callable[[Hidden, Hidden], Hidden] | None = None
    biases: Callable[[], tuple[Heads, Heads, Heads]] | None = None

    def run(self, given: Arrays, until: str = "next", rounding: Rounding | None = None) -> dict[str, Array]:
        """Return the array of each stage, computed from the arrays of another run where these are given.

        A difference of a stage so is its own, and not that of a stage before it. With a `rounding`, every array is
        rounded: a twin that shows how large the differences of rounding are.
        """
        made: dict[str, Array] = {}

        def stage(**arrays: Array) -> list[Array]:
            made.update({name: array if rounding is None else rounding(array) for name, array in arrays.items()})
            following = [given.get(name, made[name]) for name in arrays]
            return following if rounding is None else [*map(rounding, following)]

        if self.x is not None and self.project is not None:
            (x,) = stage(input=self.x)
            raw_q, raw_k, v = self.project(x)
            q, k, v = stage(q_projected=raw_q, k_projected=raw_k, v=v)
            q, k = stage(**dict(zip(("q_normed", "k_normed"), self._normed(q, k), strict=True)))
        else:
            q, k, v = stage(**self._before_rotation())
        if self.rope is not None:
            # Angles are products in float32, whatever the type of the numbers that they rotate.
            positions = self.positions if rounding is None else self.positions * (1 + 2.0**-24)
            q, k = self.rope.rotate(q, positions), self.rope.rotate(k, positions)
        q, k = stage(q=q, k=k)
        if until in ("q", "k") or self.scale is None:
            return made
        (scores,) = stage(scores=self._scores(q, k))
        if self.mask is None:
            return made
        masked = kernel.masked_scores(scores, self.mask, float(np.finfo(np.float32).min))
        (weights,) = stage(weights=kernel.attention_weights(masked, self.sinks))
        (heads,) = stage(heads=kernel.attention_output(weights, v[self.key_heads]))
        if self.project_output is not None and self.finish is not None and until not in ("weights", "heads"):
            (attention,) = stage(attention=self.project_output(heads))
            stage(next=self.finish(x, attention))
        return made

    def _normed(self, q: Heads, k: Heads) -> tuple[Heads, Heads]:
        return (q, k) if self.norm_heads is None else self.norm_heads(q, k)

    def _before_rotation(self) -> dict[str, Array]:
        assert self.recorded is not None
        return {name: self.recorded[name] for name in ("q_normed", "k_normed", "v")}

    def _scores(self, q: Heads, k: Heads) -> Float[np.ndarray, "H T K"]:
        assert self.scale is not None
        products = kernel.dot_products(q, k[self.key_heads])
        return kernel.attention_scores(products, self.scale, self.bias, self.softcap)


def difference(first: Array, second: Array) -> Float[np.ndarray, " T"]:
    """Return the distance of two arrays at each token, relative to the second; infinity where shapes differ."""
    if first.shape != second.shape:
        return np.full(second.shape[-2], np.inf)
    axes = tuple(axis for axis in range(second.ndim) if axis != second.ndim - 2)
    with np.errstate(all="ignore"):
        apart = np.sqrt(np.square(first.astype(np.float64) - second).sum(axis=axes))
        length = np.sqrt(np.square(second.astype(np.float64)).sum(axis=axes))
        relative = apart / np.where(length > 0, length, 1.0)
    both_odd = np.isnan(first).any(axis=axes) & np.isnan(second).any(axis=axes)
    return np.where(both_odd, 0.0, np.nan_to_num(relative, nan=np.inf))
