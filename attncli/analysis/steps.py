"""Attention of one layer, stage by stage: each stage can start from arrays of another run, and can be replaced."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli import attention as kernel

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    from attncli.engines.numpy.ops import Rope

    Hidden = Float[np.ndarray, "T E"]
    Heads = Float[np.ndarray, "H T D"]
    Rows = Int[np.ndarray, " R"]

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]  # by the names of `STAGE_OF`

STAGES = (
    "tokens", "positions", "input", "projections", "norm", "rotation", "scores", "mask", "sinks", "weights", "output",
)  # fmt: skip
# The stage that makes each array, in the order of computation.
STAGE_OF = {
    "input": "input", "entered": "input", "q_projected": "projections", "k_projected": "projections",
    "v": "projections", "q_normed": "norm", "k_normed": "norm", "q": "rotation", "k": "rotation", "scores": "scores",
    "weights": "weights", "heads": "weights", "attention": "output", "next": "output",
}  # fmt: skip


_PRECISION = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}  # bits of a number, the first one included
# Steps from the least to the largest number. In 8 bits both a tensor and the weights have 255; weights of 4 bits have
# 15 in each block, of about half the range of a row.
LEVELS = {"int8": 127, "int8 static": 127, "int4": 30}
OF_QUERIES = frozenset({"scores", "weights", "heads", "attention", "next"})  # a row is of a query, and not of a key
_OF_WEIGHTS = frozenset(STAGE_OF) - {"scores", "weights", "heads"}  # what quantized weights round


class Rounding:
    """Errors of rounding, drawn at random: as large as those of a type of number."""

    def __init__(self, dtype: str) -> None:
        self.dtype, self.unit = dtype, 1 / LEVELS[dtype] if dtype in LEVELS else 2.0 ** -_PRECISION.get(dtype, 8)
        self._draws = np.random.default_rng(0)
        # Quantized weights round what they make; unless all is quantized, products of queries and keys are of float32.
        self.of_products = Rounding("float32") if dtype in ("int8", "int4") else self

    def __call__(self, array: Float[np.ndarray, "... N"]) -> Float[np.ndarray, "... N"]:
        """Return an array with an error of each number, relative to it and to its row, or to the range if quantized."""
        if self.dtype in LEVELS:
            axis = -1 if self.dtype == "int4" else None
            low, high = (edge(axis=axis, initial=0, keepdims=True) for edge in (array.min, array.max))
            step = (high - low) * self.unit
            return (array + step * self._draws.uniform(-0.5, 0.5, array.shape)).astype(np.float32)
        size = np.maximum(np.sqrt(np.square(array, dtype=np.float64).mean(axis=-1, keepdims=True)), np.abs(array))
        return (array + self.unit / 2 * size * self._draws.standard_normal(array.shape)).astype(np.float32)


@dataclass(frozen=True)
class LayerSteps:
    """Steps of one layer's attention; a candidate replaces one of them. What is not known is None."""

    positions: Int[np.ndarray, " T"]  # of the tokens
    scale: float | None  # factor of q·k
    mask: Bool[np.ndarray, "#H T K"] | None  # True where a query may attend to a key
    key_heads: Int[np.ndarray, " H"]  # the key/value head of each head
    x: Hidden | None = None  # hidden states that enter the layer
    enter: Callable[[Hidden], Hidden] = lambda x: x  # norm of `x`
    project: Callable[[Hidden], tuple[Heads, Heads, Heads]] | None = None  # that → q, k, v before any norm of heads
    biases: Callable[[], tuple[Heads, Heads, Heads]] | None = None  # those of the projections, `[H, 1, D]`
    norm_heads: Callable[[Heads, Heads], tuple[Heads, Heads]] | None = None  # norm of each head's q and k
    recorded: Arrays = field(default_factory=dict)  # arrays of a trace or a capture, in place of `project`
    rope: Rope | None = None  # the rotation
    softcap: float | None = None  # c in c·tanh(scores/c)
    bias: Float[np.ndarray, "#H T K"] | None = None  # added to the scaled products
    sinks: Float[np.ndarray, " H"] | Float[np.ndarray, "H T"] | None = None  # one more logit of each head
    project_output: Callable[[Heads], Hidden] | None = None  # outputs of heads → output of the attention
    finish: Callable[[Hidden, Hidden], Hidden] | None = None  # `x`, that output → hidden states after the layer
    queries: Rows | slice = field(default_factory=lambda: slice(None))  # rows of `OF_QUERIES` that are computed

    def of_queries(self, rows: Rows) -> LayerSteps:
        """Return the steps that compute these rows alone of scores and all behind them."""
        mask, bias = (array if array is None else array[:, rows] for array in (self.mask, self.bias))
        sinks = self.sinks if self.sinks is None or self.sinks.ndim == 1 else self.sinks[:, rows]
        return replace(self, mask=mask, bias=bias, sinks=sinks, queries=rows)

    def seeing(self, tokens: int) -> Bool[np.ndarray, " T"]:
        """Return the tokens that attend to some key, or all where few do: what others give differs between engines."""
        whole = np.ones(tokens, bool)  # also of keys and values, where queries are of another text
        sees: Any = whole if self.mask is None or self.mask.shape[1] != tokens else self.mask.any(axis=(0, 2))
        return sees if 2 * sees.sum() >= tokens else whole

    def run(self, theirs: Arrays, until: str = "", rounding: Rounding | None = None) -> dict[str, Array]:
        """Return the array of each stage, computed from the arrays of another run where it has them.

        A difference of a stage so is its own, and not that of a stage before it. With a `rounding`, every array is
        rounded: a twin that shows how large the differences of rounding are. It ends with the array `until`.
        """
        made: dict[str, Array] = {}

        def stage(**arrays: Array) -> list[Array]:
            if rounding is None:
                made.update(arrays)
                return [theirs.get(name, made[name]) for name in arrays]
            for name, array in arrays.items():
                made[name] = (rounding if name in _OF_WEIGHTS else rounding.of_products)(array)
            return [rounding.of_products(theirs.get(name, made[name])) for name in arrays]

        with np.errstate(all="ignore"):
            if self.x is not None and self.project is not None:
                (x,) = stage(input=self.x)
                (entered,) = stage(entered=self.enter(x))
                q, k, v = stage(**dict(zip(("q_projected", "k_projected", "v"), self.project(entered), strict=True)))
                if until in made:
                    return made
                q, k = (q, k) if self.norm_heads is None else self.norm_heads(q, k)
                q, k = stage(q_normed=q, k_normed=k)
            else:
                arrays: Any = dict(zip(self.recorded, stage(**self.recorded), strict=True))
                q, k, v = (arrays.get(f"{part}_normed", arrays.get(part)) for part in "qkv")
                if q is None or k is None:
                    return made
            if self.rope is not None:
                # Angles are products in float32, whatever the type of the numbers that they rotate.
                positions = self.positions if rounding is None else self.positions * (1 + 2.0**-24)
                q, k = self.rope.rotate(q, positions), self.rope.rotate(k, positions)
            q, k = (q, k) if "q" in made else stage(q=q, k=k)
            if until in made or self.scale is None:
                return made
            q = q[:, self.queries]
            products = kernel.dot_products(q, k[self.key_heads])
            bias = self.bias if self.bias is None or rounding is None else rounding(self.bias)
            (scores,) = stage(scores=kernel.attention_scores(products, self.scale, bias, self.softcap))
            if rounding is not None:  # a run has weights of its own scores; those here may be made of its q and k
                q, k = rounding.of_products(q), rounding.of_products(k)
                rounded = kernel.dot_products(q, k[self.key_heads])
                scores = scores + (rounded - products) * self.scale
            if until in made or self.mask is None or v is None:
                return made
            masked = kernel.masked_scores(scores, self.mask, float(np.finfo(np.float32).min))
            (weights,) = stage(weights=kernel.attention_weights(masked, self.sinks))
            (heads,) = stage(heads=kernel.attention_output(weights, v[self.key_heads]))
            if self.project_output is not None and self.finish is not None and until not in made:
                (attention,) = stage(attention=self.project_output(heads))
                stage(next=self.finish(x[self.queries], attention))
        return made


def difference(first: Float[np.ndarray, "... T N"], second: Float[np.ndarray, "... T N"]) -> Float[np.ndarray, " T"]:
    """Return the distance of two arrays at each token, relative to the second; infinity where shapes differ."""
    if first.shape != second.shape:
        return np.full(second.shape[-2], np.inf)
    axes = tuple(axis for axis in range(second.ndim) if axis != second.ndim - 2)
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.sqrt(np.square(first.astype(np.float64) - second).sum(axis=axes))
        length = np.sqrt(np.square(second.astype(np.float64)).sum(axis=axes))
        apart = np.nan_to_num(apart / np.where(length > 0, length, 1.0), nan=np.inf)
    return np.where(np.isnan(first).any(axis=axes) & np.isnan(second).any(axis=axes), 0.0, apart)


def mixed(
    ours: Callable[..., Any] | None, theirs: Callable[..., Any] | None, parts: Collection[int]
) -> Callable[..., Any]:
    """Return a function that gives some of the arrays of another one; None changes nothing."""
    made: Any = lambda function, arrays: function(*arrays) if function else arrays  # noqa: E731
    both: Any = lambda *arrays: zip(made(ours, arrays), made(theirs, arrays), strict=True)  # noqa: E731
    return lambda *arrays: tuple(pair[part in parts] for part, pair in enumerate(both(*arrays)))


def alibi(heads: int, queries: int, keys: int) -> Float[np.ndarray, "H Q K"]:
    """Return the biases of ALiBi (Press et al. 2022)."""
    power = 2 ** (heads.bit_length() - 1)  # other numbers of heads have every other slope of twice as many behind
    slopes = [2 ** (-8 * (head + 1) / power) for head in range(power)]
    slopes += [2 ** (-4 * (2 * head + 1) / power) for head in range(heads - power)]
    distance = np.arange(keys)[None] - np.arange(keys - queries, keys)[:, None]
    return (np.array(slopes)[:, None, None] * distance).astype(np.float32)


def bias_name(bias: Float[np.ndarray, "#H Q K"] | None, allowed: Bool[np.ndarray, "#H Q K"] | None) -> str:
    """Return the kind of biases that are added to scores: none, ALiBi or relative."""
    if bias is None or allowed is None or not bias.any():
        return "none"
    return "ALiBi" if is_alibi(bias, allowed) else "relative"


def is_alibi(bias: Float[np.ndarray, "#H Q K"], allowed: Bool[np.ndarray, "#H Q K"]) -> bool:
    """Return whether biases are those of ALiBi where a query may attend; a constant of a row changes no weight."""
    apart = bias - alibi(len(bias), *bias.shape[1:])
    spread = np.where(allowed, apart, -np.inf).max(axis=-1) - np.where(allowed, apart, np.inf).min(axis=-1)
    return bool(spread.max() < 1e-2)
