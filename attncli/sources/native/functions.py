"""The functions that layers are made of, over NumPy arrays `[T, E]`: T tokens, E the width of the model."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from attncli.files import widened

if TYPE_CHECKING:
    from jaxtyping import Float, Shaped

    Hidden = Float[np.ndarray, "*T E"]

_NEAR = 2**17  # numbers in float32, half a megabyte: what the cache of a core has room for


def linear(
    x: Float[np.ndarray, "T E"], weight: Shaped[np.ndarray, "F E"], bias: Float[np.ndarray, " F"] | None
) -> Float[np.ndarray, "T F"]:
    """Return x·Wᵀ + b; what is stored in 16 bits is widened a few rows at a time, which stay near the processor."""
    if weight.dtype == np.float32:
        product = x @ weight.T
    else:
        product = np.empty((len(x), len(weight)), np.float32)
        step = max(1, _NEAR // x.shape[-1])
        for start in range(0, len(weight), step):
            rows = slice(start, start + step)
            np.matmul(x, widened(weight[rows]).T, out=product[:, rows])
    return product if bias is None else product + bias


def layer_norm(x: Hidden, weight: Float[np.ndarray, " E"], bias: Float[np.ndarray, " E"], eps: float) -> Hidden:
    """Return the layer normalization of Ba, Kiros and Hinton 2016."""
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = np.square(centred).mean(axis=-1, keepdims=True)
    return centred / np.sqrt(variance + np.float32(eps)) * weight + bias


def rms_norm(x: Hidden, weight: Float[np.ndarray, " E"], eps: float) -> Hidden:
    """Return the root mean square normalization of Zhang and Sennrich 2019."""
    return x / np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + np.float32(eps)) * weight


def rotated(
    x: Float[np.ndarray, "H T D"], angles: Float[np.ndarray, "T R"], length: float
) -> Float[np.ndarray, "H T D"]:
    """Return queries or keys turned by their positions (rotary embedding, Su et al. 2021).

    The first 2R dimensions are turned, dimension i together with i + R, as GPT-NeoX and all who followed lay them
    out; the others stay.

    Args:
        x: queries or keys.
        angles: position times frequency.
        length: what the turned dimensions are multiplied by.
    """
    half = angles.shape[-1]
    cos, sin = np.cos(angles) * np.float32(length), np.sin(angles) * np.float32(length)
    first, second = x[..., :half], x[..., half : 2 * half]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin, x[..., 2 * half :]], axis=-1)


def erf(x: Hidden) -> Hidden:
    """Return the error function, by formula 7.1.26 of Abramowitz and Stegun 1964.

    Its error is at most 1.5e-7; what float32 rounds makes that 6e-7.
    """
    t = 1 / (1 + np.float32(0.3275911) * np.abs(x))
    series = t * (
        np.float32(0.254829592)
        + t * (
            np.float32(-0.284496736)
            + t * (np.float32(1.421413741) + t * (np.float32(-1.453152027) + t * np.float32(1.061405429)))
        )
    )  # fmt: skip
    return np.copysign(1 - series * np.exp(-np.square(x)), x)


def gelu(x: Hidden) -> Hidden:
    """Return x·Φ(x), the Gaussian error linear unit (Hendrycks and Gimpel 2016)."""
    return np.float32(0.5) * x * (1 + erf(x * np.float32(math.sqrt(0.5))))


def gelu_tanh(x: Hidden) -> Hidden:
    """Return the approximation of `gelu` from the same paper."""
    inner = np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x * x * x)
    return np.float32(0.5) * x * (1 + np.tanh(inner))


def silu(x: Hidden) -> Hidden:
    """Return x·σ(x)."""
    return x / (1 + np.exp(-x))


def relu(x: Hidden) -> Hidden:
    """Return the positive part."""
    return np.maximum(x, 0)


# As configurations call them.
ACTIVATIONS: dict[str, Callable[[Hidden], Hidden]] = {
    "gelu": gelu,
    "gelu_new": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "gelu_fast": gelu_tanh,
    "silu": silu,
    "swish": silu,
    "relu": relu,
}
