"""The functions that layers are made of, over NumPy arrays `[T, E]`: T tokens, E the width of the model.

What is made of each number by itself costs as much as the products do where every step goes over all of memory.
So it is made a block at a time, in place, and a block stays in the processor's cache from the first step to the last.
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

_NEAR = 2**17  # numbers in float32, half a megabyte: what the cache of a core has room for
_BLOCK = 2**15  # of which several are at work at once


def linear(
    x: Float[np.ndarray, "T E"], weight: Shaped[np.ndarray, "F E"], bias: Float[np.ndarray, " F"] | None
) -> Float[np.ndarray, "T F"]:
    """Return x·Wᵀ + b; what is stored in 16 bits is widened a few rows at a time, which stay near the processor."""
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
    """Do some work for a few rows of numbers after the other, which are near the processor together."""
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
        some = np.subtract(rows[block], rows[block].sum(axis=-1, keepdims=True) / width, out=normed[block])
        some /= np.sqrt(np.vecdot(some, some) / width + np.float32(eps))[:, None]
        some *= weight
        some += bias

    _near(norm, *rows.shape)
    return normed.reshape(x.shape)


def rms_norm(x: Hidden, weight: Float[np.ndarray, " E"], eps: float) -> Hidden:
    """Return the root mean square normalization of Zhang and Sennrich 2019."""
    rows = x.reshape(-1, x.shape[-1])
    normed, width = np.empty_like(rows), np.float32(x.shape[-1])

    def norm(block: slice) -> None:
        some = rows[block]
        lengths = np.sqrt(np.vecdot(some, some) / width + np.float32(eps))[:, None]
        np.divide(some, lengths, out=normed[block])
        normed[block] *= weight

    _near(norm, *rows.shape)
    return normed.reshape(x.shape)


def rotated(x: Float[np.ndarray, "H T D"], angles: Float[np.ndarray, "T R"]) -> Float[np.ndarray, "H T D"]:
    """Return queries or keys turned by their positions (rotary embedding, Su et al. 2021).

    The first 2R dimensions are turned, dimension i together with i + R, as GPT-NeoX and all who followed lay them
    out; the others stay.

    Args:
        x: queries or keys.
        angles: position times frequency.
    """
    half = angles.shape[-1]
    cos, sin = np.cos(angles), np.sin(angles)
    first, second = x[..., :half], x[..., half : 2 * half]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin, x[..., 2 * half :]], axis=-1)


def _in_place(change: Callable[[Hidden], None]) -> Callable[[Hidden], Hidden]:
    """Return an activation of what changes a block of numbers: it changes an array `[T, F]`, and returns it."""

    @wraps(change)
    def activation(x: Hidden) -> Hidden:
        rows = x.reshape(-1, x.shape[-1])
        _near(lambda block: change(rows[block]), *rows.shape)
        return x

    return activation


@_in_place
def gelu(x: Hidden) -> None:
    """Make it x·Φ(x), the Gaussian error linear unit (Hendrycks and Gimpel 2016).

    That is max(x, 0) − |x|·erfc(|x|/√2)/2, with erfc by formula 7.1.26 of Abramowitz and Stegun 1964, whose error is at
    most 1.5e-7; what float32 rounds makes that 4e-7 here.
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
    """Make it the approximation of `gelu` from the same paper."""
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
    """Make it x·σ(x)."""
    below = np.negative(x)
    np.exp(below, out=below)
    below += np.float32(1)
    x /= below


@_in_place
def relu(x: Hidden) -> None:
    """Make it the positive part."""
    np.maximum(x, 0, out=x)


# As configurations call them.
ACTIVATIONS: dict[str, Callable[[Hidden], Hidden]] = {
    "gelu": gelu, "gelu_new": gelu_tanh, "gelu_pytorch_tanh": gelu_tanh, "gelu_fast": gelu_tanh, "silu": silu,
    "swish": silu, "relu": relu,
}  # fmt: skip
