"""Weights that NVIDIA's ModelOpt wrote: in eight bits with a scale, or in four with two (NVFP4).

<https://github.com/NVIDIA/Model-Optimizer/blob/main/modelopt/torch/export/quant_utils.py>: FP8 is `weight` times
`weight_scale`, which is one number, one for each row, or one for each block of 128 by 128 (with two axes of length 1
between). NVFP4 is four bits of E2M1, two in a byte, times the number in `weight_scale` (E4M3) of each 16 in a row,
times `weight_scale_2`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from attncli.checkpoints.tensors.bit_packing import (
    E2M1,
    FLOATS,
    SMALL_FLOATS,
    Floats,
    Packed,
    Undone,
    halves,
    scale_blocks,
)
from attncli.checkpoints.tensors.fp8 import scaled

_ALGORITHMS = {None, "FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "NVFP4", "MIXED_PRECISION"}
_BLOCK = (128, 128)
GROUP = 16  # numbers that share a scale in NVFP4


def modelopt(packed: Packed, said: Mapping[str, Any]) -> dict[str, Undone]:
    """Return the tensors that are stored in these forms."""
    algorithm = said.get("quant_algo")
    if (algorithm.upper() if isinstance(algorithm, str) else algorithm) not in _ALGORITHMS:
        raise packed.unread(f"ModelOpt's {algorithm}")
    found = {}
    for name in packed.ending("_scale"):
        if packed.type(name) in SMALL_FLOATS:
            found[name] = _in_eight_bits(packed, name)
        elif packed.type(name) == "U8" and name + "_scale_2" in packed:
            found[name] = in_four_bits(packed, name, name, (name + "_scale", name + "_scale_2"), divides=False)
    return found


def _in_eight_bits(packed: Packed, name: str) -> Undone:
    scale = packed.shape(name + "_scale", *FLOATS)
    if len(scale) != 4:
        return scaled(packed, name, name + "_scale", _BLOCK)
    rows, columns = packed.shape(name, *SMALL_FLOATS, axes=2)
    packed.check(name + "_scale", (-(-rows // _BLOCK[0]), 1, -(-columns // _BLOCK[1]), 1))
    return Undone((rows, columns), (name, name + "_scale"), partial(_by_long_grid, packed, name))


def _by_long_grid(packed: Packed, name: str) -> Floats:
    return scale_blocks(packed.floats(name), packed.floats(name + "_scale")[:, 0, :, 0], _BLOCK)


def in_four_bits(packed: Packed, name: str, stored: str, scales: tuple[str, str], divides: bool) -> Undone:
    """Return a tensor in NVFP4.

    Args:
        packed: the checkpoint.
        name: of the tensor in the model.
        stored: of its codes.
        scales: names of those of its groups, and of the one of all.
        divides: whether the one of all divides, as compressed-tensors has it.
    """
    *ahead, width = packed.shape(stored, "U8")
    groups, whole = scales
    packed.shape(groups, "F8_E4M3")
    packed.check(groups, (*ahead, 2 * width // GROUP))
    packed.shape(whole, *FLOATS)
    packed.check(whole, (), (1,))
    shape = (*ahead, 2 * width)
    return Undone(shape, (stored, *scales), partial(_by_group, packed, stored, scales, divides))


def _by_group(packed: Packed, stored: str, scales: tuple[str, str], divides: bool) -> Floats:
    numbers = E2M1[halves(packed.read(stored))]
    of_all = packed.floats(scales[1]).reshape(())
    of_groups = packed.floats(scales[0])
    return scale_blocks(numbers, of_groups / of_all if divides else of_groups * of_all, (1, GROUP))
