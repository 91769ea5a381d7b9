"""Quantized forms of weights: for each, which stored tensors make a weight, and the numbers they stand for.

A recipe takes a checkpoint's stored tensors and its `quantization_config`, and returns the weights that are quantized.
Numbers are those of the form's definition, in float32.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from attncli.checkpoints.tensors.bit_packing import (
    FLOATS,
    SMALL_FLOATS,
    Codes,
    Floats,
    QuantizedCheckpoint,
    QuantizedTensor,
    grid,
    scale_blocks,
    unpack_bits,
)
from attncli.files import to_float32

Recipe = Callable[[QuantizedCheckpoint, Mapping[str, Any]], dict[str, QuantizedTensor]]


# --- FP8: eight bits with a scale for each block (DeepSeek-V3, Qwen3) or row (FBGEMM) -------------------------------
# https://github.com/deepseek-ai/DeepSeek-V3/blob/main/inference/kernel.py: each number of `weight` times that of its
# block, mostly of 128 by 128, in `weight_scale_inv`.


def fp8(checkpoint: QuantizedCheckpoint, config: Mapping[str, Any]) -> dict[str, QuantizedTensor]:
    """Return the weights that are stored as float8 with `weight_scale_inv`."""
    block = config.get("weight_block_size")
    sides = (block[0], block[1]) if isinstance(block, list | tuple) and len(block) == 2 else None
    if block is not None and (sides is None or any(type(side) is not int or side < 1 for side in sides)):
        raise checkpoint.unread(f"weight_block_size {block!r}")
    names = checkpoint.ending("_scale_inv")
    return {name: _scaled_fp8(checkpoint, name, name + "_scale_inv", sides) for name in names}


def fbgemm_fp8(checkpoint: QuantizedCheckpoint, _: Mapping[str, Any]) -> dict[str, QuantizedTensor]:
    """Return the weights that are stored as float8 with a `weight_scale` for each row."""
    names = [name for name in checkpoint.ending("_scale") if checkpoint.type(name) in SMALL_FLOATS]
    return {name: _scaled_fp8(checkpoint, name, name + "_scale", None) for name in names}


def _scaled_fp8(
    checkpoint: QuantizedCheckpoint, name: str, scale: str, block: tuple[int, int] | None
) -> QuantizedTensor:
    """Return a float8 tensor that has one scale, or one for each row or block."""
    shape = checkpoint.shape(name, *SMALL_FLOATS)
    found = checkpoint.shape(scale, *FLOATS, "F8_E8M0", "U8")
    if len(shape) < 2:
        raise checkpoint.misfit(f"{name} has shape {list(shape)}, expected two axes or more")
    ones = (1,) * (len(shape) - 2)
    whole: list[tuple[int, ...]] = [(), (1,), (1, 1), (*shape[:-1], 1)]
    if len(shape) == 2:
        whole.append(shape[:1])
    checkpoint.check(scale, *(whole if block is None else [*whole, grid(shape, block)]))
    if block is not None and found == grid(shape, block):
        return QuantizedTensor(
            shape, (name, scale), lambda: scale_blocks(checkpoint.floats(name), checkpoint.floats(scale), block)
        )
    broadcast = (*shape[:-1], 1) if found[:1] == shape[:1] and len(found) else (*ones, 1, 1)
    return QuantizedTensor(
        shape, (name, scale), lambda: checkpoint.floats(name) * checkpoint.floats(scale).reshape(broadcast)
    )


# --- GPTQ: a few bits with a scale and a zero for each group of inputs ----------------------------------------------
# https://github.com/AutoGPTQ/AutoGPTQ/blob/v0.7.1/auto_gptq/nn_modules/qlinear/qlinear_cuda.py: `qweight` is packed
# along the inputs, `qzeros` along the outputs, from the lowest bit on; `scales` is `[groups, out]`, and `g_idx` says
# which group an input belongs to. A number is `(code - zero) * scale`; the first version stores zeros less 1.

_GPTQ_ZERO_OFFSETS = {"gptq": 1, "gptq_v2": 0}
_GPTQ_BITS = (2, 3, 4, 8)


class _GptqFormat(NamedTuple):
    """Bits of a code, inputs of a group, and what is added to the zeros as they are stored."""

    bits: int
    group_size: int
    zero_offset: int


def gptq(checkpoint: QuantizedCheckpoint, config: Mapping[str, Any]) -> dict[str, QuantizedTensor]:
    """Return the weights that AutoGPTQ or GPTQModel wrote."""
    bits, group_size = config.get("bits"), config.get("group_size")
    layout = "marlin" if config.get("is_marlin_format") else config.get("checkpoint_format") or "gptq"
    if bits not in _GPTQ_BITS or layout not in _GPTQ_ZERO_OFFSETS or type(group_size) is not int:
        raise checkpoint.unread(f"GPTQ as {layout} with {bits} bits in groups of {group_size}")
    if config.get("dynamic"):
        raise checkpoint.unread("GPTQ whose bits differ from module to module (dynamic)")
    how = _GptqFormat(bits, group_size, _GPTQ_ZERO_OFFSETS[layout])
    return {f"{name}.weight": _gptq_weight(checkpoint, name, how) for name in checkpoint.ending(".qweight")}


def _gptq_weight(checkpoint: QuantizedCheckpoint, name: str, how: _GptqFormat) -> QuantizedTensor:
    words, columns = checkpoint.shape(f"{name}.qweight", "I32", axes=2)
    inputs = words * 32 // how.bits
    has_index = f"{name}.g_idx" in checkpoint
    if has_index:
        checkpoint.shape(f"{name}.g_idx", "I32", "I64")
        checkpoint.check(f"{name}.g_idx", (inputs,))
    groups, _ = checkpoint.shape(f"{name}.scales", *FLOATS, axes=2)
    checkpoint.check(f"{name}.scales", (groups, columns))
    checkpoint.shape(f"{name}.qzeros", "I32")
    checkpoint.check(f"{name}.qzeros", (groups, -(-columns * how.bits // 32)))
    if not has_index and groups != -(-inputs // how.group_size if how.group_size > 0 else -1):
        raise checkpoint.misfit(f"{name}.scales has {groups} groups for {inputs} inputs in groups of {how.group_size}")
    parts = tuple(f"{name}.{part}" for part in ("qweight", "qzeros", "scales", *["g_idx"] * has_index))
    return QuantizedTensor((columns, inputs), parts, partial(_gptq_numbers, checkpoint, name, how))


def _gptq_numbers(checkpoint: QuantizedCheckpoint, name: str, how: _GptqFormat) -> Floats:
    scales = to_float32(checkpoint.read(f"{name}.scales"))
    words = checkpoint.read(f"{name}.qweight")
    codes = unpack_bits(words.T, how.bits, len(words) * 32 // how.bits)
    zeros = unpack_bits(checkpoint.read(f"{name}.qzeros"), how.bits, scales.shape[1]).astype(np.float32)
    zeros += how.zero_offset
    if f"{name}.g_idx" in checkpoint:
        index = checkpoint.read(f"{name}.g_idx")
        if index.min() < 0 or index.max() >= len(scales):
            raise checkpoint.misfit(f"{name}.g_idx names groups that {name}.scales does not have")
    else:
        inputs = codes.shape[1]
        index = np.arange(inputs) // how.group_size if how.group_size > 0 else np.zeros(inputs, np.int32)
    numbers = codes.astype(np.float32)
    numbers -= np.take(np.ascontiguousarray(zeros.T), index, axis=1)
    numbers *= np.take(np.ascontiguousarray(scales.T), index, axis=1)
    return numbers


# --- AWQ: four bits with a scale and a zero for each group of inputs ------------------------------------------------
# https://github.com/casper-hansen/AutoAWQ/blob/v0.2.9/awq/modules/linear/gemm.py: `qweight` and `qzeros` are packed
# along the outputs, the eight of a word in the order 0 2 4 6 1 3 5 7. A number is `(code - zero) * scale`.

_AWQ_BITS, _AWQ_IN_WORD = 4, 8
_AWQ_ORDER = np.argsort([0, 2, 4, 6, 1, 3, 5, 7])  # where in a word the first output stands, the second, …


def awq(checkpoint: QuantizedCheckpoint, config: Mapping[str, Any]) -> dict[str, QuantizedTensor]:
    """Return the weights that AutoAWQ wrote in its `gemm` layout."""
    version = str(config.get("version", "gemm")).lower()
    bits, zero_point = config.get("bits", config.get("w_bit")), config.get("zero_point", True)
    if version != "gemm" or bits != _AWQ_BITS or zero_point is not True:
        raise checkpoint.unread(f"AWQ as {version} with {bits} bits, zero_point {zero_point}")
    return {f"{name}.weight": _awq_weight(checkpoint, name) for name in checkpoint.ending(".qweight")}


def _awq_weight(checkpoint: QuantizedCheckpoint, name: str) -> QuantizedTensor:
    inputs, words = checkpoint.shape(f"{name}.qweight", "I32", axes=2)
    groups, _ = checkpoint.shape(f"{name}.qzeros", "I32", axes=2)
    checkpoint.check(f"{name}.qzeros", (groups, words))
    checkpoint.shape(f"{name}.scales", *FLOATS)
    checkpoint.check(f"{name}.scales", (groups, words * _AWQ_IN_WORD))
    if not groups or inputs % groups:
        raise checkpoint.misfit(f"{name}.qzeros has {groups} groups for {inputs} inputs")
    parts = tuple(f"{name}.{part}" for part in ("qweight", "qzeros", "scales"))
    return QuantizedTensor((words * _AWQ_IN_WORD, inputs), parts, partial(_awq_numbers, checkpoint, name))


def _awq_numbers(checkpoint: QuantizedCheckpoint, name: str) -> Floats:
    scales = to_float32(checkpoint.read(f"{name}.scales"))
    codes, zeros = (_awq_codes(checkpoint.read(f"{name}.{part}")) for part in ("qweight", "qzeros"))
    group_size = len(codes) // len(zeros)
    numbers = np.ascontiguousarray(codes.T, np.float32)
    numbers -= np.repeat(np.ascontiguousarray(zeros.T), group_size, axis=1)
    numbers *= np.repeat(np.ascontiguousarray(scales.T), group_size, axis=1)
    return numbers


def _awq_codes(words: np.ndarray[Any, Any]) -> Codes:
    codes = unpack_bits(words, _AWQ_BITS, words.shape[1] * _AWQ_IN_WORD)
    return codes.reshape(len(words), -1, _AWQ_IN_WORD)[:, :, _AWQ_ORDER].reshape(len(words), -1)


# --- bitsandbytes: eight bits with a scale for each row, or four (NF4, FP4) with one for each block -----------------
# https://github.com/bitsandbytes-foundation/bitsandbytes/blob/main/bitsandbytes/functional.py: in eight bits, a number
# is `code * SCB / 127`. In four, two codes are in a byte, the higher bits first, and each stands for a number of
# `quant_map`, times the `absmax` of its block; these may be codes of eight bits themselves, with a table, blocks and
# an offset of their own (`nested_…`). Shape and sizes of blocks are JSON in the bytes of `quant_state`.

_QUANT_STATES = (".quant_state.bitsandbytes__nf4", ".quant_state.bitsandbytes__fp4")


class _QuantState(NamedTuple):
    """What the JSON says: the shape, the size of a block, and that of a block of scales with what is added to them."""

    shape: tuple[int, ...]
    block: int
    nested_block: int
    offset: float


def bitsandbytes(checkpoint: QuantizedCheckpoint, _: Mapping[str, Any]) -> dict[str, QuantizedTensor]:
    """Return the weights that bitsandbytes wrote, in eight bits or in four."""
    found = {f"{name}.weight": _bnb_int8(checkpoint, name) for name in checkpoint.ending(".SCB")}
    for end in _QUANT_STATES:
        found |= {name: _bnb_4bit(checkpoint, name, name + end) for name in checkpoint.ending(end)}
    return found


def _bnb_int8(checkpoint: QuantizedCheckpoint, name: str) -> QuantizedTensor:
    shape = checkpoint.shape(f"{name}.weight", "I8", axes=2)
    checkpoint.shape(f"{name}.SCB", *FLOATS)
    checkpoint.check(f"{name}.SCB", shape[:1])
    parts = [f"{name}.weight", f"{name}.SCB"]
    if (layout := f"{name}.weight_format") in checkpoint:
        if (
            checkpoint.shape(layout, "U8") != () or checkpoint.read(layout) != 0
        ):  # others are for kernels of old devices
            raise checkpoint.unread("bitsandbytes weights that are not row by row (weight_format)")
        parts.append(layout)

    def numbers() -> Floats:
        return checkpoint.read(f"{name}.weight") * (checkpoint.floats(f"{name}.SCB") / np.float32(127))[:, None]

    return QuantizedTensor(shape, tuple(parts), numbers)


def _bnb_4bit(checkpoint: QuantizedCheckpoint, name: str, state_name: str) -> QuantizedTensor:
    state = _quant_state(checkpoint, state_name)
    count = math.prod(state.shape)
    checkpoint.shape(name, "U8")
    checkpoint.check(name, (-(-count // 2), 1))
    parts = [name, state_name, f"{name}.quant_map", f"{name}.absmax"]
    checkpoint.shape(f"{name}.quant_map", *FLOATS)
    checkpoint.check(f"{name}.quant_map", (16,))
    checkpoint.shape(f"{name}.absmax", *(["U8"] if state.nested_block else FLOATS))
    blocks = -(-count // state.block)
    checkpoint.check(f"{name}.absmax", (blocks,))
    if state.nested_block:
        parts += [f"{name}.nested_quant_map", f"{name}.nested_absmax"]
        checkpoint.shape(parts[-2], *FLOATS)
        checkpoint.check(parts[-2], (256,))
        checkpoint.shape(parts[-1], *FLOATS)
        checkpoint.check(parts[-1], (-(-blocks // state.nested_block),))
    return QuantizedTensor(state.shape, tuple(parts), partial(_bnb_4bit_numbers, checkpoint, name, state))


def _quant_state(checkpoint: QuantizedCheckpoint, name: str) -> _QuantState:
    checkpoint.shape(name, "U8", axes=1)
    try:
        state = json.loads(checkpoint.read(name).tobytes())
        shape, block, nested = tuple(state["shape"]), state["blocksize"], state.get("nested_blocksize", 0)
        offset = float(state.get("nested_offset", 0))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise checkpoint.misfit(f"{name} cannot be read") from None
    counts = [*shape, block, *[nested] * ("nested_blocksize" in state)]
    if not shape or any(type(each) is not int or each < 1 for each in counts):
        raise checkpoint.misfit(f"{name} says that the shape is {shape!r}, in blocks of {block!r} and {nested!r}")
    return _QuantState(shape, block, nested, offset)


def _bnb_4bit_numbers(checkpoint: QuantizedCheckpoint, name: str, state: _QuantState) -> Floats:
    codes = checkpoint.read(name).reshape(-1)
    both = np.stack([codes >> 4, codes & 15], axis=-1).reshape(-1)[: math.prod(state.shape)]
    numbers = checkpoint.floats(f"{name}.quant_map")[both]
    if state.nested_block:
        scales = checkpoint.read(f"{name}.absmax")
        of_scales = np.repeat(checkpoint.floats(f"{name}.nested_absmax"), state.nested_block)[: len(scales)]
        scales = checkpoint.floats(f"{name}.nested_quant_map")[scales] * of_scales + np.float32(state.offset)
    else:
        scales = checkpoint.floats(f"{name}.absmax")
    numbers *= np.repeat(scales, state.block)[: len(numbers)]
    return numbers.reshape(state.shape)


# --- compressed-tensors: integers in words of 32 bits, or one code for each number, with scales ---------------------
# https://github.com/vllm-project/compressed-tensors/tree/main/src/compressed_tensors/compressors: a number is
# `(code - weight_zero_point) * weight_scale`, with one scale for the tensor, for each row, for each group of a row, or
# for each block. `pack-quantized` packs the codes of `weight_packed`, and zeros along the rows, from the lowest bit on,
# each more by half their range than they are.

_PACK_QUANTIZED = "pack-quantized"
# Groups of modules may have formats of their own: mixed-precision.
_COMPRESSED_FORMATS = {
    _PACK_QUANTIZED,
    "int-quantized",
    "float-quantized",
    "naive-quantized",
    "mixed-precision",
    "dense",
}
_PACKED_BITS = (4, 8)


class _CompressedCodes(NamedTuple):
    """How the codes of a tensor are scaled.

    Attributes:
        shape: of the tensor.
        bits: of a packed code; 0: they are not packed.
        block: rows and columns that share a scale.
        grid: the shape of the scales, an axis for rows and one for columns of blocks.
        zeros: name of the zeros; empty if there are none.
    """

    shape: tuple[int, ...]
    bits: int
    block: tuple[int, int]
    grid: tuple[int, ...]
    zeros: str


def compressed_tensors(checkpoint: QuantizedCheckpoint, config: Mapping[str, Any]) -> dict[str, QuantizedTensor]:
    """Return the weights that compressed-tensors wrote in one of its plain formats."""
    groups = [each for each in _as_mapping(config.get("config_groups")).values() if isinstance(each, Mapping)]
    formats = {str(each.get("format") or config.get("format")) for each in groups} or {str(config.get("format"))}
    formats.add(str(_as_mapping(config.get("sparsity_config")).get("format", "dense")))
    for unknown in sorted(formats - _COMPRESSED_FORMATS):
        raise checkpoint.unread(f"compressed-tensors' {unknown}")
    if _as_mapping(config.get("transform_config")).get("config_groups"):
        raise checkpoint.unread("compressed-tensors' transforms of the hidden states")
    if any(True for _ in checkpoint.ending("_g_idx")):
        raise checkpoint.unread("compressed-tensors' groups in the order of activations (actorder)")
    schemes = [_as_mapping(each.get("weights")) for each in groups]
    found = {name: _packed_integers(checkpoint, name, schemes) for name in checkpoint.ending("_packed")}
    for name in checkpoint.ending("_scale"):
        if checkpoint.type(name) in (*SMALL_FLOATS, "I8"):
            shape = checkpoint.shape(name, *SMALL_FLOATS, "I8")
            if len(shape) < 2:
                raise checkpoint.misfit(f"{name} has shape {list(shape)}, expected two axes or more")
            found[name] = _compressed(checkpoint, name, name, shape, 0, schemes)
    return found


def _as_mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _packed_integers(checkpoint: QuantizedCheckpoint, name: str, schemes: list[Mapping[str, Any]]) -> QuantizedTensor:
    rows, words = checkpoint.shape(name + "_packed", "I32", axes=2)
    checkpoint.shape(name + "_shape", "I32", "I64")
    checkpoint.check(name + "_shape", (2,))
    shape = tuple(int(side) for side in checkpoint.read(name + "_shape"))
    # Which group of modules this one belongs to is in its size.
    possible = {bits for each in schemes if type(bits := each.get("num_bits")) is int and 1 <= bits <= 8}
    fitting = sorted(bits for bits in possible if words == -(-shape[1] * bits // 32))
    if shape[0] != rows or shape[1] < 1 or len(fitting) != 1:
        raise checkpoint.misfit(f"{name}_packed has shape {[rows, words]} for {list(shape)} in {sorted(possible)} bits")
    if fitting[0] not in _PACKED_BITS:
        raise checkpoint.unread(f"compressed-tensors' {_PACK_QUANTIZED} with {fitting[0]} bits")
    return _compressed(checkpoint, name, name + "_packed", shape, fitting[0], schemes)


def _compressed(
    checkpoint: QuantizedCheckpoint,
    name: str,
    codes: str,
    shape: tuple[int, ...],
    bits: int,
    schemes: list[Mapping[str, Any]],
) -> QuantizedTensor:
    scale = name + "_scale"
    found = checkpoint.shape(scale, *FLOATS)
    blocks = _block_sizes(shape, schemes)
    if found in ((), (1,)):
        found = (1,) * len(shape)
    elif found == shape[:1]:
        found = (*found, 1)
    if found not in blocks:
        checkpoint.check(scale, *blocks)
    parts = [codes, scale, *[name + "_shape"] * bool(bits)]
    zeros = name + "_zero_point" if name + "_zero_point" in checkpoint else ""
    if zeros:
        checkpoint.shape(zeros, "I8", *["I32"] * bool(bits), *["F8_E4M3"] * (not bits))
        is_packed = checkpoint.type(zeros) == "I32"
        along = (-(-found[0] * bits // 32), *found[1:]) if is_packed else found
        checkpoint.check(zeros, along, checkpoint.shape(scale, *FLOATS))
        parts.append(zeros)
    how = _CompressedCodes(shape, bits, blocks[found], found, zeros)
    return QuantizedTensor(shape, tuple(parts), partial(_compressed_numbers, checkpoint, codes, scale, how))


def _block_sizes(shape: tuple[int, ...], schemes: list[Mapping[str, Any]]) -> dict[tuple[int, ...], tuple[int, int]]:
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


def _compressed_numbers(checkpoint: QuantizedCheckpoint, codes: str, scale: str, how: _CompressedCodes) -> Floats:
    if how.bits:
        numbers = unpack_bits(checkpoint.read(codes), how.bits, how.shape[1]).astype(np.float32)
        numbers -= 1 << how.bits - 1
    elif checkpoint.type(codes) in SMALL_FLOATS:
        numbers = checkpoint.floats(codes)
    else:
        numbers = checkpoint.read(codes).astype(np.float32)
    if how.zeros:
        numbers -= scale_blocks(np.ones_like(numbers), _compressed_zeros(checkpoint, how), how.block)
    return scale_blocks(numbers, checkpoint.floats(scale).reshape(how.grid), how.block)


def _compressed_zeros(checkpoint: QuantizedCheckpoint, how: _CompressedCodes) -> Floats:
    zeros = checkpoint.read(how.zeros)
    if checkpoint.type(how.zeros) == "I32":
        zeros = unpack_bits(zeros.T, how.bits, how.grid[0]).T.astype(np.float32) - (1 << how.bits - 1)
    elif checkpoint.type(how.zeros) != "I8":
        zeros = checkpoint.floats(how.zeros)
    return np.asarray(zeros, np.float32).reshape(how.grid)


RECIPES: dict[str, Recipe] = {
    "awq": awq,
    "bitsandbytes": bitsandbytes,
    "compressed-tensors": compressed_tensors,
    "fbgemm_fp8": fbgemm_fp8,
    "fp8": fp8,
    "gptq": gptq,
}
