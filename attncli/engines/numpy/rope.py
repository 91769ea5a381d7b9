"""Rotary position embeddings as configurations describe them: their frequencies, and how these are stretched.

The frequencies are the radians that a position adds, for each pair of dimensions, `[R]`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.checkpoints.config_reader import ConfigReader, UnsupportedError
from attncli.trace.selection import MOST

if TYPE_CHECKING:
    from jaxtyping import Float

    Frequencies = Float[np.ndarray, " R"]


def read_rope(
    fields: ConfigReader, width: int, positions: int, theta: float = 10_000.0, part: float | None = None
) -> Frequencies:
    """Return the frequencies that a configuration describes, in the spelling of any version of transformers.

    Their base is `theta`, and the share of a head of `width` that is rotated `part`, unless the configuration has them.
    Raises UnsupportedError for a rotation that is not implemented.
    """
    newer = fields.get("rope_parameters", None)
    defaults = {"rope_theta": fields.get("rope_theta", theta)}
    if part is not None:
        defaults["partial_rotary_factor"] = part
    return rope_of(fields.get("rope_scaling", None) or newer or {}, defaults, width, positions)


def rope_of(parameters: Any, defaults: Mapping[str, Any], width: int, positions: int) -> Frequencies:
    """Return the frequencies of some parameters, with defaults for missing ones; see `read_rope`."""
    if not isinstance(parameters, Mapping):
        raise UnsupportedError(f"its rotary parameters are {parameters!r}")
    fields = ConfigReader({**defaults, **parameters})
    kind = fields.get("rope_type", fields.get("type", "default"))
    base = fields.number("rope_theta")
    rotary_width = int(width * fields.number("partial_rotary_factor")) if "partial_rotary_factor" in defaults else width
    if rotary_width < 2 or rotary_width % 2 or rotary_width > min(width, MOST):
        raise UnsupportedError(f"it turns {rotary_width} of {width} dimensions")
    pairs = np.arange(0, rotary_width, 2, dtype=np.float32) / np.float32(rotary_width)
    frequencies = (1 / np.float32(base) ** pairs).astype(np.float32)
    if kind == "linear":  # Chen et al. 2023, "Extending Context Window …"
        frequencies = frequencies / np.float32(fields.number("factor"))
    elif kind == "llama3":
        frequencies = _stretched(fields, frequencies, positions)
    elif kind != "default":
        raise UnsupportedError(f"its rotary embedding is {kind!r}")
    fields.reject_unknown()
    return frequencies


def _stretched(fields: ConfigReader, frequencies: Frequencies, positions: int) -> Frequencies:
    """Stretch long waves, keep short ones, and interpolate between the two (Llama 3.1, 2024)."""
    factor, low, high = (fields.number(name) for name in ("factor", "low_freq_factor", "high_freq_factor"))
    trained = fields.count("original_max_position_embeddings", positions)
    waves = np.float32(2 * math.pi) / frequencies
    smooth = (trained / waves - np.float32(low)) / np.float32(high - low)
    between = (1 - smooth) * frequencies / np.float32(factor) + smooth * frequencies
    stretched = np.where(waves > trained / low, frequencies / np.float32(factor), between)
    return np.where(waves < trained / high, frequencies, stretched).astype(np.float32)
