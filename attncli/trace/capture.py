"""Captures: the arrays of a run that any engine can write, layer by layer, as safetensors files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Bool, Float, Int

SCHEMA = "attncli.capture/1"
Rotated = Literal["before", "after"]  # whether queries and keys were written before or after their rotation


@dataclass(frozen=True, eq=False)
class CapturedLayer:
    """Arrays of one layer; None where the engine wrote none.

    Attributes:
        q: queries, `[H, T, D]`.
        k: keys, `[Hkv, K, D]`.
        v: values, `[Hkv, K, Dv]`.
        input: the hidden states that enter the layer's block, `[T, E]`.
        mask: True where a query may attend to a key, `[T, K]` or `[H, T, K]`.
        scale: what multiplies q·k.
        output: the hidden states that leave the attention, `[T, E]`.
    """

    q: Float[np.ndarray, "H T D"] | None = None
    k: Float[np.ndarray, "Hkv K D"] | None = None
    v: Float[np.ndarray, "Hkv K Dv"] | None = None
    input: Float[np.ndarray, "T E"] | None = None
    mask: Bool[np.ndarray, "T K"] | Bool[np.ndarray, "H T K"] | None = None
    scale: float | None = None
    output: Float[np.ndarray, "T E"] | None = None


@dataclass(frozen=True, eq=False)
class Capture:
    """Captured layers of one sentence.

    Attributes:
        layers: the captured layers, by their index in the model.
        token_ids: the ids that the engine read, `[T]`.
        positions: the positions that it gave them, `[T]`.
        rotated: whether q and k were written before or after their rotation.
        dtype: type of the engine's computation, such as `bfloat16`.
    """

    layers: Mapping[int, CapturedLayer]
    token_ids: Int[np.ndarray, " T"] | None = None
    positions: Int[np.ndarray, " T"] | None = None
    rotated: Rotated = "after"
    dtype: str = "float32"
