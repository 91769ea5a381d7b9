"""Weights that bitsandbytes stored: eight bits with a scale for each row, or four (NF4, FP4) with one for each block.

<https://github.com/bitsandbytes-foundation/bitsandbytes/blob/main/bitsandbytes/functional.py>: in eight bits, a number
is `code * SCB / 127`. In four, two codes are in a byte, the higher bits first, and each stands for a number of
`quant_map`, times the `absmax` of its block; these may be codes of eight bits themselves, with a table, blocks and an
offset of their own (`nested_…`). Shape and sizes of blocks are JSON in the bytes of `quant_state`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from attncli.checkpoints.tensors.bit_packing import FLOATS, Floats, Packed, Undone

_STATES = (".quant_state.bitsandbytes__nf4", ".quant_state.bitsandbytes__fp4")


class _State(NamedTuple):
    """What the JSON says: the shape, the size of a block, and that of a block of scales with what is added to them."""

    shape: tuple[int, ...]
    block: int
    nested_block: int
    offset: float


def bitsandbytes(packed: Packed, _: Mapping[str, Any]) -> dict[str, Undone]:
    """Return the tensors that are stored in these forms."""
    found = {f"{name}.weight": _in_eight_bits(packed, name) for name in packed.ending(".SCB")}
    for end in _STATES:
        found |= {name: _in_four_bits(packed, name, name + end) for name in packed.ending(end)}
    return found


def _in_eight_bits(packed: Packed, name: str) -> Undone:
    shape = packed.shape(f"{name}.weight", "I8", axes=2)
    packed.shape(f"{name}.SCB", *FLOATS)
    packed.check(f"{name}.SCB", shape[:1])
    parts = [f"{name}.weight", f"{name}.SCB"]
    if (layout := f"{name}.weight_format") in packed:
        if packed.shape(layout, "U8") != () or packed.read(layout) != 0:  # others are for kernels of old devices
            raise packed.unread("bitsandbytes weights that are not row by row (weight_format)")
        parts.append(layout)
    return Undone(shape, tuple(parts), partial(_rows, packed, name))


def _rows(packed: Packed, name: str) -> Floats:
    return packed.read(f"{name}.weight") * (packed.floats(f"{name}.SCB") / np.float32(127))[:, None]


def _in_four_bits(packed: Packed, name: str, where: str) -> Undone:
    state = _state(packed, where)
    count = math.prod(state.shape)
    packed.shape(name, "U8")
    packed.check(name, (-(-count // 2), 1))
    parts = [name, where, f"{name}.quant_map", f"{name}.absmax"]
    packed.shape(f"{name}.quant_map", *FLOATS)
    packed.check(f"{name}.quant_map", (16,))
    packed.shape(f"{name}.absmax", *(["U8"] if state.nested_block else FLOATS))
    blocks = -(-count // state.block)
    packed.check(f"{name}.absmax", (blocks,))
    if state.nested_block:
        parts += [f"{name}.nested_quant_map", f"{name}.nested_absmax"]
        packed.shape(parts[-2], *FLOATS)
        packed.check(parts[-2], (256,))
        packed.shape(parts[-1], *FLOATS)
        packed.check(parts[-1], (-(-blocks // state.nested_block),))
    return Undone(state.shape, tuple(parts), partial(_numbers, packed, name, state))


def _state(packed: Packed, where: str) -> _State:
    packed.shape(where, "U8", axes=1)
    try:
        said = json.loads(packed.read(where).tobytes())
        shape, block, nested = tuple(said["shape"]), said["blocksize"], said.get("nested_blocksize", 0)
        offset = float(said.get("nested_offset", 0))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise packed.misfit(f"{where} cannot be read") from None
    counts = [*shape, block, *[nested] * ("nested_blocksize" in said)]
    if not shape or any(type(each) is not int or each < 1 for each in counts):
        raise packed.misfit(f"{where} says that the shape is {shape!r}, in blocks of {block!r} and {nested!r}")
    return _State(shape, block, nested, offset)


def _numbers(packed: Packed, name: str, state: _State) -> Floats:
    codes = packed.read(name).reshape(-1)
    both = np.stack([codes >> 4, codes & 15], axis=-1).reshape(-1)[: math.prod(state.shape)]
    numbers = packed.floats(f"{name}.quant_map")[both]
    scales = packed.read(f"{name}.absmax")
    if state.nested_block:
        of_scales = np.repeat(packed.floats(f"{name}.nested_absmax"), state.nested_block)[: len(scales)]
        scales = packed.floats(f"{name}.nested_quant_map")[scales] * of_scales + np.float32(state.offset)
    else:
        scales = packed.floats(f"{name}.absmax")
    numbers *= np.repeat(scales, state.block)[: len(numbers)]
    return numbers.reshape(state.shape)
