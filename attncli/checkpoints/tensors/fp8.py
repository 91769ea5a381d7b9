"""Weights in eight bits with a scale for each block, as DeepSeek-V3 and Qwen3 are published (`quant_method: fp8`).

<https://github.com/deepseek-ai/DeepSeek-V3/blob/main/inference/kernel.py>: each number of `weight` times the number of
its block, mostly of 128 by 128, in `weight_scale_inv`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from attncli.checkpoints.tensors.bit_packing import FLOATS, SMALL_FLOATS, Floats, Packed, Undone, grid, scale_blocks


def fp8(packed: Packed, said: Mapping[str, Any]) -> dict[str, Undone]:
    """Return the tensors that are stored in this form."""
    block = said.get("weight_block_size")
    sides = (block[0], block[1]) if isinstance(block, list | tuple) and len(block) == 2 else None
    if block is not None and (sides is None or any(type(side) is not int or side < 1 for side in sides)):
        raise packed.unread(f"weight_block_size {block!r}")
    ends = packed.ending("_scale_inv")
    return {name: scaled(packed, name, name + "_scale_inv", sides) for name in ends}


def scaled(packed: Packed, name: str, scale: str, block: tuple[int, int] | None) -> Undone:
    """Return a tensor in eight bits, which has one scale, or one for each row or block.

    Args:
        packed: the checkpoint.
        name: of the tensor.
        scale: name of its scales.
        block: rows and columns of a block; None: there are no blocks.

    Raises:
        LoadError: the scales are of another shape.
    """
    shape = packed.shape(name, *SMALL_FLOATS)
    found = packed.shape(scale, *FLOATS, "F8_E8M0", "U8")
    if len(shape) < 2:
        raise packed.misfit(f"{name} has shape {list(shape)}, expected two axes or more")
    ones = (1,) * (len(shape) - 2)
    wholes: list[tuple[int, ...]] = [(), (1,), (1, 1), (*shape[:-1], 1)]
    if len(shape) == 2:
        wholes.append(shape[:1])
    wanted = wholes if block is None else [*wholes, grid(shape, block)]
    packed.check(scale, *wanted)
    if block is not None and found == grid(shape, block):
        return Undone(shape, (name, scale), partial(_by_block, packed, name, scale, block))
    spread = (*shape[:-1], 1) if found[:1] == shape[:1] and len(found) else (*ones, 1, 1)
    return Undone(shape, (name, scale), partial(_by_row, packed, name, scale, spread))


def _by_block(packed: Packed, name: str, scale: str, block: tuple[int, int]) -> Floats:
    return scale_blocks(packed.floats(name), packed.floats(scale), block)


def _by_row(packed: Packed, name: str, scale: str, spread: tuple[int, ...]) -> Floats:
    numbers = packed.floats(name)
    numbers *= packed.floats(scale).reshape(spread)
    return numbers
