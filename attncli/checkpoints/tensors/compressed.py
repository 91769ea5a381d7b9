"""Weights that compressed-tensors wrote: integers in words of 32 bits, or one code for each number, with scales.

<https://github.com/vllm-project/compressed-tensors/tree/main/src/compressed_tensors/compressors>: a number is
`(code - weight_zero_point) * weight_scale`, with one scale for the tensor, for each row, for each group of a row, or
for each block. `pack-quantized` packs the codes of `weight_packed`, and zeros along the rows, from the lowest bit on,
each more by half their range than they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from attncli.checkpoints.tensors.bit_packing import (
    FLOATS,
    SMALL_FLOATS,
    Floats,
    Packed,
    Undone,
    grid,
    scale_blocks,
    unpacked,
)
from attncli.checkpoints.tensors.modelopt import in_four_bits

_PACKED, _OF_NVIDIA = "pack-quantized", "nvfp4-pack-quantized"
_ONE_EACH = {"int-quantized", "float-quantized", "naive-quantized"}
_MIXED = "mixed-precision"  # each group of modules has a format of its own
_BITS = (4, 8)


class _Codes(NamedTuple):
    """How the codes of a tensor are scaled.

    Attributes:
        shape: of the tensor.
        bits: of a packed code; 0: they are not packed.
        block: rows and columns that share a scale.
        grid: the shape of the scales, an axis for rows and one for columns of blocks.
        zeros: name of the zeros; empty if there are none.
        order: name of the group of each input; empty if groups follow each other.
    """

    shape: tuple[int, ...]
    bits: int
    block: tuple[int, int]
    grid: tuple[int, ...]
    zeros: str
    order: str


def compressed(packed: Packed, said: Mapping[str, Any]) -> dict[str, Undone]:
    """Return the tensors that are stored in these forms."""
    groups = [each for each in _object(said.get("config_groups")).values() if isinstance(each, Mapping)]
    formats = {str(each.get("format") or said.get("format")) for each in groups} or {str(said.get("format"))}
    sparse = str(_object(said.get("sparsity_config")).get("format", "dense"))
    for odd in sorted((formats | ({sparse} - {"dense"})) - _ONE_EACH - {_PACKED, _OF_NVIDIA, _MIXED, "dense"}):
        raise packed.unread(f"compressed-tensors' {odd}")
    if _object(said.get("transform_config")).get("config_groups"):
        raise packed.unread("compressed-tensors' transforms of the hidden states")
    schemes = [_object(each.get("weights")) for each in groups]
    found = {}
    for name in packed.ending("_packed"):
        if name + "_global_scale" in packed:
            scales = (name + "_scale", name + "_global_scale")
            found[name] = in_four_bits(packed, name, name + "_packed", scales, divides=True)
        else:
            found[name] = _in_words(packed, name, schemes)
    for name in packed.ending("_scale"):
        if packed.type(name) in (*SMALL_FLOATS, "I8"):
            found[name] = _one_each(packed, name, schemes)
    return found


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _in_words(packed: Packed, name: str, schemes: list[Mapping[str, Any]]) -> Undone:
    rows, words = packed.shape(name + "_packed", "I32", axes=2)
    packed.shape(name + "_shape", "I32", "I64")
    packed.check(name + "_shape", (2,))
    shape = tuple(int(side) for side in packed.read(name + "_shape"))
    # Which group of modules this one belongs to is in its size.
    possible = {bits for each in schemes if type(bits := each.get("num_bits")) is int and 1 <= bits <= 8}
    fitting = sorted(bits for bits in possible if words == -(-shape[1] * bits // 32))
    if shape[0] != rows or shape[1] < 1 or len(fitting) != 1:
        raise packed.misfit(f"{name}_packed has shape {[rows, words]} for {list(shape)} in {sorted(possible)} bits")
    if fitting[0] not in _BITS:
        raise packed.unread(f"compressed-tensors' {_PACKED} with {fitting[0]} bits")
    return _scaled(packed, name, name + "_packed", shape, fitting[0], schemes)


def _one_each(packed: Packed, name: str, schemes: list[Mapping[str, Any]]) -> Undone:
    shape = packed.shape(name, *SMALL_FLOATS, "I8")
    if len(shape) < 2:
        raise packed.misfit(f"{name} has shape {list(shape)}, expected two axes or more")
    return _scaled(packed, name, name, shape, 0, schemes)


def _scaled(
    packed: Packed, name: str, codes: str, shape: tuple[int, ...], bits: int, schemes: list[Mapping[str, Any]]
) -> Undone:
    scale, order = name + "_scale", name + "_g_idx"
    found = packed.shape(scale, *FLOATS)
    sizes = _grids(shape, schemes)
    if found in ((), (1,)):
        found = (1,) * len(shape)
    elif found == shape[:1]:
        found = (*found, 1)
    if found not in sizes:
        packed.check(scale, *sizes)
    parts = [codes, scale, *[name + "_shape"] * bool(bits)]
    zeros = name + "_zero_point" if name + "_zero_point" in packed else ""
    if zeros:
        packed.shape(zeros, "I8", *["I32"] * bool(bits), *["F8_E4M3"] * (not bits))
        is_packed = packed.type(zeros) == "I32"
        along = (-(-found[0] * bits // 32), *found[1:]) if is_packed else found
        packed.check(zeros, along, packed.shape(scale, *FLOATS))
        parts.append(zeros)
    if order in packed:
        packed.shape(order, "I32", "I64")
        packed.check(order, shape[-1:])
        parts.append(order)
    how = _Codes(shape, bits, sizes[found], found, zeros, order if order in packed else "")
    return Undone(shape, tuple(parts), partial(_numbers, packed, codes, scale, how))


def _grids(shape: tuple[int, ...], schemes: list[Mapping[str, Any]]) -> dict[tuple[int, ...], tuple[int, int]]:
    """Return the shapes that the scales of a tensor may have, and the rows and columns of a block in each."""
    rows, columns = shape[-2:]
    blocks = [(rows, columns), (1, columns)]
    for each in schemes:
        size, block = each.get("group_size"), each.get("block_structure")
        if type(size) is int and size > 0:
            blocks.append((1, size))
        if isinstance(block, list) and len(block) == 2 and all(type(side) is int and side > 0 for side in block):
            blocks.append((block[0], block[1]))
    return {(1,) * len(shape): blocks[0]} | {grid(shape, block): block for block in reversed(blocks[1:])}


def _numbers(packed: Packed, codes: str, scale: str, how: _Codes) -> Floats:
    if how.bits:
        numbers = unpacked(packed.read(codes), how.bits, how.shape[1]).astype(np.float32)
        numbers -= 1 << how.bits - 1
    else:
        numbers = packed.floats(codes) if packed.type(codes) in SMALL_FLOATS else packed.read(codes).astype(np.float32)
    scales = packed.floats(scale).reshape(how.grid)
    zeros = _zeros(packed, how) if how.zeros else None
    if how.order:
        index = packed.read(how.order)
        if index.min() < 0 or index.max() >= scales.shape[-1] or len(scales) != len(numbers):
            raise packed.misfit(f"{how.order} names groups that {scale} does not have")
        return (numbers - (0 if zeros is None else zeros[:, index])) * scales[:, index]
    if zeros is not None:
        numbers -= scale_blocks(np.ones_like(numbers), zeros, how.block)
    return scale_blocks(numbers, scales, how.block)


def _zeros(packed: Packed, how: _Codes) -> Floats:
    zeros = packed.read(how.zeros)
    if packed.type(how.zeros) == "I32":
        zeros = unpacked(zeros.T, how.bits, how.grid[0]).T.astype(np.float32) - (1 << how.bits - 1)
    elif packed.type(how.zeros) != "I8":
        zeros = packed.floats(how.zeros)
    return np.asarray(zeros, np.float32).reshape(how.grid)
