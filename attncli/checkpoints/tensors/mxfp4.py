"""Weights in four bits with a power of two for each 32 of them, as GPT-OSS has its experts (`quant_method: mxfp4`).

The OCP Microscaling specification, 1.0: E2M1 times E8M0. `…_blocks` is `[experts, out, groups, 16]`, two numbers in a
byte, the lower bits first, and `…_scales` `[experts, out, groups]`; the model has them as `[experts, in, out]`.
<https://github.com/openai/gpt-oss/blob/main/gpt_oss/torch/weights.py>
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from attncli.checkpoints.tensors.bit_packing import E2M1, Packed, Undone, halves, powers

_BYTES = 16  # of a group


def mxfp4(packed: Packed, _: Mapping[str, Any]) -> dict[str, Undone]:
    """Return the tensors that are stored in this form."""
    return {name: _transposed(packed, name) for name in packed.ending("_blocks")}


def _transposed(packed: Packed, name: str) -> Undone:
    experts, out, groups, width = packed.shape(name + "_blocks", "U8", axes=4)
    packed.check(name + "_blocks", (experts, out, groups, _BYTES))
    packed.shape(name + "_scales", "U8", "F8_E8M0")
    packed.check(name + "_scales", (experts, out, groups))
    shape = (experts, groups * 2 * width, out)
    return Undone(shape, (name + "_blocks", name + "_scales"), partial(_numbers, packed, name, shape), "BF16")


def _numbers(packed: Packed, name: str, shape: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.uint16]]:
    """Return the numbers as the bits of a bfloat16, which holds them exactly: no tensors are larger than these."""
    blocks, scales = packed.read(name + "_blocks"), packed.read(name + "_scales")
    found = np.empty(shape, np.uint16)
    for expert in range(shape[0]):
        with np.errstate(over="ignore"):
            numbers = E2M1[halves(blocks[expert])] * powers(scales[expert])[..., None]
        found[expert] = (numbers.reshape(shape[2], shape[1]).view(np.uint32) >> 16).astype(np.uint16).T
    return found
