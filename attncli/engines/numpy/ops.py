"""Functions of layers, over NumPy arrays `[T, E]`: T tokens, E the width of the model.

Elementwise steps over all of memory cost as much as the products do. So they run a block at a time, in place, and a
block stays in the processor's cache from the first step to the last.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING

import numpy as np

from attncli.engines.numpy.parallel import blocks, parallel_for
from attncli.files import to_float32

if TYPE_CHECKING:
    from jaxtyping import Float, Shaped

    Hidden = Float[np.ndarray, "*T E"]

_NEAR = 2**17  # numbers in float32, half a megabyte, which fit into the cache of a core
_BLOCK = 2**15  # numbers of a block, as several are in use at once


def linear(
    x: Float[np.ndarray, "T E"], weight: Shaped[np.ndarray, "F E"], bias: Float[np.ndarray, " F"] | None
) -> Float[np.ndarray, "T F"]:
    """Return x·Wᵀ + b; 16-bit weights are widened a few rows at a time, which stay in the cache."""
    product = np.empty((len(x), len(weight)), np.float32)

    def of_tokens(rows: slice) -> None:
        np.matmul(x[rows], weight.T, out=product[rows])

    def of_weights(start: int) -> None:
        rows = slice(start, start + step)
        np.matmul(x, to_float32(weight[rows]).T, out=product[:, rows])

    if weight.dtype == np.float32:
        parallel_for(of_tokens, blocks(len(x)))
    else:
        step = max(1, _NEAR // x.shape[-1])
        parallel_for(of_weights, range(0, len(weight), step))
    if bias is not None:
        product += bias
    return product


def _near(work: Callable[[slice], None], rows: int, width: int) -> None:
    """Call `work` for a few rows at a time, which fit into the cache together."""
    step = max(1, _BLOCK // width)

    def some(block: slice) -> None:
        for start in range(block.start, block.stop, step):
            work(slice(start, min(start + step, block.stop)))

    parallel_for(some, blocks(rows))


def layer_norm(x: Hidden, weight: Float[np.ndarray, " E"], bias: Float[np.ndarray, " E"], eps: float) -> Hidden:
    """Return the layer normalization of Ba, Kiros and Hinton 2016."""
    rows = x.reshape(-1, x.shape[-1])
    normed, width = np.empty_like(rows), np.float32(x.shape[-1])

    def norm(block: slice) -> None:
        centered = np.subtract(rows[block], rows[block].sum(axis=-1, keepdims=True) / width, out=normed[block])
        centered /= np.sqrt(np.vecdot(centered, centered) / width + np.float32(eps))[:, None]
        centered *= weight
        centered += bias

    _near(norm, *rows.shape)
    return normed.reshape(x.shape)


def rms_norm(x: Hidden, weight: Float[np.ndarray, " E"], eps: float) -> Hidden:
    """Return the root mean square normalization of Zhang and Sennrich 2019."""
    rows = x.reshape(-1, x.shape[-1])
    normed, width = np.empty_like(rows), np.float32(x.shape[-1])

    def norm(block: slice) -> None:
        values = rows[block]
        lengths = np.sqrt(np.vecdot(values, values) / width + np.float32(eps))[:, None]
        np.divide(values, lengths, out=normed[block])
        normed[block] *= weight

    _near(norm, *rows.shape)
    return normed.reshape(x.shape)


def rotated(x: Float[np.ndarray, "H T D"], angles: Float[np.ndarray, "T R"]) -> Float[np.ndarray, "H T D"]:
    """Rotate queries or keys by their positions (rotary embedding, Su et al. 2021).

    The first 2R dimensions are rotated, dimension i together with i + R, in the layout of GPT-NeoX and later models;
    the others stay.

    Args:
        x: queries or keys.
        angles: position times frequency.
    """
    half = angles.shape[-1]
    cos, sin = np.cos(angles), np.sin(angles)
    first, second = x[..., :half], x[..., half : 2 * half]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin, x[..., 2 * half :]], axis=-1)


def _in_place(change: Callable[[Hidden], None]) -> Callable[[Hidden], Hidden]:
    """Return an activation, which changes an array `[T, F]` in place block by block, and returns it."""

    @wraps(change)
    def activation(x: Hidden) -> Hidden:
        rows = x.reshape(-1, x.shape[-1])
        _near(lambda block: change(rows[block]), *rows.shape)
        return x

    return activation


@_in_place
def gelu(x: Hidden) -> None:
    """Replace x by x·Φ(x), the Gaussian error linear unit (Hendrycks and Gimpel 2016).

    That is max(x, 0) − |x|·erfc(|x|/√2)/2, with erfc by formula 7.1.26 of Abramowitz and Stegun 1964, whose error is at
    most 1.5e-7; rounding in float32 makes that 4e-7 here.
    """
    far = np.abs(x)
    t = far * np.float32(0.3275911 * math.sqrt(0.5))
    t += np.float32(1)
    np.reciprocal(t, out=t)
    series = t * np.float32(1.061405429 / 2)
    for coefficient in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        series += np.float32(coefficient / 2)
        series *= t
    np.square(x, out=t)
    t *= np.float32(-0.5)
    series *= np.exp(t, out=t)
    series *= far
    x += far  # 2x or 0
    x *= np.float32(0.5)
    x -= series


@_in_place
def gelu_tanh(x: Hidden) -> None:
    """Replace x by the approximation of `gelu` from the same paper."""
    inner = np.square(x)
    inner *= np.float32(0.044715 * math.sqrt(2 / math.pi))
    inner += np.float32(math.sqrt(2 / math.pi))
    inner *= x
    np.tanh(inner, out=inner)
    inner += np.float32(1)
    x *= np.float32(0.5)
    x *= inner


@_in_place
def silu(x: Hidden) -> None:
    """Replace x by x·σ(x)."""
    below = np.negative(x)
    np.exp(below, out=below)
    below += np.float32(1)
    x /= below


@_in_place
def relu(x: Hidden) -> None:
    """Replace x by its positive part."""
    np.maximum(x, 0, out=x)


# Names in configurations.
ACTIVATIONS: dict[str, Callable[[Hidden], Hidden]] = {
    "gelu": gelu, "gelu_new": gelu_tanh, "gelu_pytorch_tanh": gelu_tanh, "gelu_fast": gelu_tanh, "silu": silu,
    "swish": silu, "relu": relu,
}  # fmt: skip
