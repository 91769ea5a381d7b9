"""Functions of layers, over NumPy arrays `[T, E]`: T tokens, E the width of the model.

Elementwise steps over all of memory cost as much as the products do. So they run a block at a time, which stays in the
processor's cache from the first step to the last.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attncli.engines.cpu import blocks, parallel_for
from attncli.files import to_float32

if TYPE_CHECKING:
    from jaxtyping import Float, Num, Shaped

    Hidden = Float[np.ndarray, "*T E"]

_NEAR = 2**17  # numbers in float32, half a megabyte, which fit into the cache of a core
_BLOCK = 2**15  # numbers of a block, as several are in use at once


def linear(
    x: Float[np.ndarray, "T E"], weight: Shaped[np.ndarray, "F E"], bias: Float[np.ndarray, " F"] | None
) -> Float[np.ndarray, "T F"]:
    """Return x·Wᵀ + b; 16-bit weights are widened a few rows at a time, which stay in the cache."""
    product = np.empty((len(x), len(weight)), np.float32)
    step = max(1, _NEAR // x.shape[-1])

    def of_tokens(rows: slice) -> None:
        np.matmul(x[rows], weight.T, out=product[rows])

    def of_weights(start: int) -> None:
        rows = slice(start, start + step)
        np.matmul(x, to_float32(weight[rows]).T, out=product[:, rows])

    if weight.dtype == np.float32:
        parallel_for(of_tokens, blocks(len(x)))
    else:
        parallel_for(of_weights, range(0, len(weight), step))
    if bias is not None:
        product += bias
    return product


def _blockwise(
    function: Callable[[Float[np.ndarray, "t E"]], Float[np.ndarray, "t E"]], x: Hidden, out: Hidden
) -> None:
    """Write a function of each row, a few rows at a time, which fit into the cache together."""
    rows, written = (array.reshape(-1, x.shape[-1]) for array in (x, out))
    step = max(1, _BLOCK // x.shape[-1])

    def run_block(block: slice) -> None:
        for start in range(block.start, block.stop, step):
            near = slice(start, min(start + step, block.stop))
            written[near] = function(rows[near])

    parallel_for(run_block, blocks(len(rows)))


def layer_norm(x: Hidden, weight: Float[np.ndarray, " E"], bias: Float[np.ndarray, " E"], eps: float) -> Hidden:
    """Return the layer normalization of Ba, Kiros and Hinton 2016."""
    normed, width = np.empty(x.shape, np.float32), np.float32(x.shape[-1])

    def norm(rows: Hidden) -> Hidden:
        centered = rows - rows.sum(axis=-1, keepdims=True) / width
        centered /= np.sqrt(np.vecdot(centered, centered) / width + np.float32(eps))[:, None]
        centered *= weight
        return centered + bias

    _blockwise(norm, x, normed)
    return normed


def rms_norm(x: Hidden, weight: Float[np.ndarray, " E"], eps: float) -> Hidden:
    """Return the root mean square normalization of Zhang and Sennrich 2019."""
    normed, width = np.empty(x.shape, np.float32), np.float32(x.shape[-1])

    def norm(rows: Hidden) -> Hidden:
        return rows / np.sqrt(np.vecdot(rows, rows) / width + np.float32(eps))[:, None] * weight

    _blockwise(norm, x, normed)
    return normed


def rotated_by(
    x: Float[np.ndarray, "H T D"], cos: Float[np.ndarray, "T R"], sin: Float[np.ndarray, "T R"],
    is_interleaved: bool = False,
) -> Float[np.ndarray, "H T D"]:  # fmt: skip
    """Rotate the first 2R dimensions of queries or keys by the cosines and sines of angles.

    Dimensions i and i + R are a pair, in the layout of GPT-NeoX and later models; interleaved, 2i and 2i + 1 are.
    """
    half = cos.shape[-1]
    width = 2 * half
    pairs = (slice(0, width, 2), slice(1, width, 2)) if is_interleaved else (slice(half), slice(half, width))
    first, second = (x[..., part] for part in pairs)
    turned = [first * cos - second * sin, second * cos + first * sin]
    if is_interleaved:
        turned = [np.stack(turned, axis=-1).reshape(*x.shape[:-1], width)]
    return np.concatenate([*turned, x[..., width:]], axis=-1)


class Rope(NamedTuple):
    """Rotation of queries and keys by their positions (rotary embedding, Su et al. 2021)."""

    frequencies: Float[np.ndarray, " R"]  # radians that a position adds, for each pair of dimensions
    is_interleaved: bool = False  # see `rotated_by`
    magnitude: float = 1.0  # factor of rotated dimensions (YaRN)

    def rotate(self, x: Float[np.ndarray, "H T D"], positions: Num[np.ndarray, " T"]) -> Float[np.ndarray, "H T D"]:
        """Return queries or keys, rotated by their positions."""
        angles, width = positions.astype(np.float32)[:, None] * self.frequencies, 2 * len(self.frequencies)
        x = rotated_by(x, np.cos(angles), np.sin(angles), self.is_interleaved)
        if self.magnitude != 1:
            x[..., :width] *= np.float32(self.magnitude)
        return x


def frequencies_of(base: float, count: int) -> Float[np.ndarray, " R"]:
    """Return the frequencies of a rotary base."""
    return (1 / np.float32(base) ** (np.arange(count, dtype=np.float32) / np.float32(count))).astype(np.float32)


def base_of(frequencies: Float[np.ndarray, " R"]) -> float:
    """Return the rotary base of frequencies, from the first two, which no scaling changes against each other."""
    ratio = float(np.float64(frequencies[0]) / frequencies[1]) if len(frequencies) > 1 else 10_000.0
    return float(f"{ratio ** len(frequencies):.5g}")


def yarn(base: float, count: int, factor: float, trained: int) -> Float[np.ndarray, " R"]:
    """Return the frequencies of YaRN (Peng et al. 2023), for a model with the length of its training."""
    turns = (math.log(trained / (turns * 2 * math.pi)) / math.log(base) for turns in (32, 1))
    low, high = (count * turn for turn in turns)
    low, high = max(math.floor(low), 0), min(math.ceil(high), 2 * count - 1)
    ramp, whole = np.clip((np.arange(count) - low) / max(high - low, 1e-3), 0, 1), frequencies_of(base, count)
    return (whole / factor * ramp + whole * (1 - ramp)).astype(np.float32)


def _in_place(function: Callable[[Hidden], Hidden]) -> Callable[[Hidden], Hidden]:
    """Return an activation, which replaces the numbers of an array, and returns it."""

    @wraps(function)
    def activation(x: Hidden) -> Hidden:
        _blockwise(function, x, x)
        return x

    return activation


@_in_place
def gelu(x: Hidden) -> Hidden:
    """Return x·Φ(x), the Gaussian error linear unit (Hendrycks and Gimpel 2016).

    That is max(x, 0) − |x|·erfc(|x|/√2)/2, with erfc by formula 7.1.26 of Abramowitz and Stegun 1964, whose error is at
    most 1.5e-7; rounding in float32 makes that 4e-7 here.
    """
    far = np.abs(x)
    t = 1 / (1 + far * (0.3275911 * math.sqrt(0.5)))
    series = np.full_like(t, 1.061405429)
    for coefficient in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        series *= t
        series += coefficient
    return np.maximum(x, 0) - far * t * series * np.exp(-0.5 * np.square(x)) / 2


@_in_place
def gelu_tanh(x: Hidden) -> Hidden:
    """Return the approximation of `gelu` from the same paper."""
    inner = math.sqrt(2 / math.pi) * x * (1 + 0.044715 * np.square(x))
    return x * (1 + np.tanh(inner)) / 2


@_in_place
def silu(x: Hidden) -> Hidden:
    """Return x·σ(x)."""
    return x / (1 + np.exp(-x))


@_in_place
def relu(x: Hidden) -> Hidden:
    """Return the positive part of x."""
    return np.maximum(x, 0)


# Names in configurations.
ACTIVATIONS: dict[str, Callable[[Hidden], Hidden]] = {
    "gelu": gelu, "gelu_new": gelu_tanh, "gelu_pytorch_tanh": gelu_tanh, "gelu_fast": gelu_tanh, "silu": silu,
    "swish": silu, "relu": relu,
}  # fmt: skip
