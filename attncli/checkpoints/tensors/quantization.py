"""Quantized weights: a recipe for each form, and a store of the dequantized numbers.

A recipe takes a checkpoint's stored tensors and its `quantization_config`, and returns the weights that are quantized.
Numbers are those of the form's definition, in float32, computed on demand. The quantization of hidden states on top
(activations in eight bits) is left out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attncli.checkpoints.tensors import Store, Stored
from attncli.checkpoints.weight_checks import unknown_quantization
from attncli.errors import LoadError
from attncli.files import to_float32
from attncli.text import brief, visible

if TYPE_CHECKING:
    from attncli.checkpoints.snapshot import Snapshot

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
Block = tuple[int, int]  # rows and columns that share a scale

_FLOATS = ("F32", "F16", "BF16")  # types of scales
_FP8 = "F8_E4M3"
_BITS = (4, 8)  # of a packed number


class QuantizedTensor(NamedTuple):
    """A tensor of the model that is stored in parts."""

    shape: Shape  # of its numbers
    parts: tuple[str, ...]  # the tensors of the checkpoint that it is made of
    read: Callable[[], Array]  # makes its numbers, in float32


class QuantizedTensors:
    """The stored tensors of a quantized checkpoint, with checks of their types and shapes.

    Args:
        store: of the tensors.
        folder: of the checkpoint, for messages.
    """

    def __init__(self, store: Store, folder: str) -> None:
        self._store = store
        self._whose = f"the weights of {visible(folder)} are"
        self.read = store.read

    def __contains__(self, name: str) -> bool:
        return name in self._store.names

    def ending(self, end: str) -> Iterator[str]:
        """Yield the prefixes of the tensor names with this suffix."""
        return (name.removesuffix(end) for name in list(self._store.names) if name.endswith(end))

    def expect(self, name: str, types: Iterable[str], *shapes: Shape, axes: int | None = None) -> Shape:
        """Return the shape of a tensor.

        Args:
            name: of the tensor.
            types: the allowed types.
            shapes: the allowed shapes; without any, all are.
            axes: the number of axes; None is any.

        Raises:
            LoadError: it is missing, or has another type or shape.
        """
        if name not in self:
            raise self.misfit(f"{visible(name)} is missing")
        stored, types = self._store.stored(name), tuple(types)
        if stored.type not in types or (axes is not None and len(stored.shape) != axes):
            expected = " or ".join(types) + ("" if axes is None else f" with {axes} axes")
            raise self.misfit(f"{visible(name)} is {stored.type} {list(stored.shape)}, expected {expected}")
        if shapes and stored.shape not in shapes:
            expected = " or ".join(str(list(shape)) for shape in dict.fromkeys(shapes))
            raise self.misfit(f"{visible(name)} has shape {list(stored.shape)}, expected {expected}")
        return stored.shape

    def floats(self, name: str) -> Array:
        """Return a tensor of floats, also of small ones, in float32."""
        array = self.read(name)
        return _E4M3[array] if self._store.stored(name).type == _FP8 else to_float32(array)

    def misfit(self, what: str) -> LoadError:
        """Return the error for tensors that do not fit their form."""
        return LoadError(
            f"{self._whose} not what their quantization needs: {what}; check that the files belong together"
        )

    def unread(self, what: str) -> LoadError:
        """Return the error for a variant of a form that is not supported."""
        return LoadError(
            f"{self._whose} quantized, and attn does not read {visible(what)}; give the original checkpoint"
        )


Recipe = Callable[[QuantizedTensors, Mapping[str, Any]], dict[str, QuantizedTensor]]

# --- bits, small floats, blocks, groups ------------------------------------------------------------------------------


def _e4m3() -> Array:
    """Return the numbers of the 256 codes: a sign, four bits of exponent, three of mantissa; no infinity."""
    codes = np.arange(256)
    exponent, mantissa = codes >> 3 & 15, codes & 7
    size = np.where(exponent > 0, np.ldexp(1 + mantissa / 8, exponent - 7), np.ldexp(mantissa / 8, -6))
    size[codes & 127 == 127] = np.nan
    return np.where(codes < 128, size, -size).astype(np.float32)


_E4M3 = _e4m3()


def unpack_bits(words: Array, bits: int, count: int) -> Array:
    """Return numbers of four or eight bits, which follow each other in the words of a row, the lowest bits first.

    Args:
        words: `[rows, words]`, of 32 bits.
        bits: of a number.
        count: how many numbers there are in a row.
    """
    parts = np.ascontiguousarray(words).view(np.uint8)
    codes = parts if bits == 8 else np.stack([parts & 15, parts >> 4], axis=-1)
    return codes.reshape(len(words), -1)[:, :count]


def _scale_blocks(numbers: Array, scales: Array, block: Block) -> Array:
    """Multiply `[rows, columns]` by a scale for each block, in place; the last blocks may be smaller."""
    if scales.shape[1] == 1 and block[0] in (1, len(numbers)):  # one for all, or for each row
        numbers *= scales
        return numbers
    for index, of_row in enumerate(scales):
        numbers[index * block[0] : (index + 1) * block[0]] *= np.repeat(of_row, block[1])[: numbers.shape[1]]
    return numbers


def _blocks(value: Any) -> list[Block]:
    """Return the only block size that a configuration names; empty where it names none."""
    is_size = isinstance(value, list | tuple) and len(value) == 2
    return [(value[0], value[1])] if is_size and all(type(side) is int and side > 0 for side in value) else []


def _scaled(
    tensors: QuantizedTensors,
    shape: Shape,
    parts: tuple[str, str],
    blocks: Iterable[Block],
) -> QuantizedTensor:
    """Return a tensor of codes with a scale for all of it, for each row, or for each block: `code * scale`.

    Args:
        tensors: of the checkpoint.
        shape: of the tensor.
        parts: the names of the codes and of the scales.
        blocks: the sizes that blocks may have.
    """
    if len(shape) != 2:
        raise tensors.unread(f"{parts[0]} with {len(shape)} axes")
    rows, columns = shape
    grids: dict[Shape, Block] = {
        (-(-rows // height), -(-columns // width)): (height, width) for height, width in blocks
    }
    grids |= {(rows, 1): (1, columns), (1, 1): (rows, columns)}
    grid = stored = tensors.expect(parts[1], _FLOATS)
    if math.prod(stored) == 1:
        grid = (1, 1)
    elif stored == (rows,):
        grid = (rows, 1)
    if grid not in grids:
        tensors.expect(parts[1], _FLOATS, *grids)
    codes, scales = parts

    def numbers() -> Array:
        return _scale_blocks(tensors.floats(codes), tensors.floats(scales).reshape(grid), grids[grid])

    return QuantizedTensor(shape, parts, numbers)


def _by_group(codes: Array, zeros: Array, scales: Array, index: Array, zero_offset: int = 0) -> Array:
    """Return `(code - zero) * scale`, where each input belongs to a group.

    Args:
        codes: `[out, in]`.
        zeros: `[groups, out]`.
        scales: `[groups, out]`.
        index: `[in]`, the group of each input.
        zero_offset: added to the zeros.
    """
    numbers = np.ascontiguousarray(codes, np.float32)
    numbers -= np.take(np.ascontiguousarray(zeros.T, np.float32) + np.float32(zero_offset), index, axis=1)
    numbers *= np.take(np.ascontiguousarray(scales.T), index, axis=1)
    return numbers


# --- FP8: eight bits with a scale for each block (DeepSeek-V3, Qwen3) ------------------------------------------------
# https://github.com/deepseek-ai/DeepSeek-V3/blob/main/inference/kernel.py: each number of `weight` times that of its
# block, mostly of 128 by 128, in `weight_scale_inv`.


def fp8(tensors: QuantizedTensors, config: Mapping[str, Any]) -> dict[str, QuantizedTensor]:
    """Return the weights that are stored as float8 with `weight_scale_inv`."""
    size = config.get("weight_block_size")
    blocks = _blocks(size)
    if size is not None and not blocks:
        raise tensors.unread(f"weight_block_size {size!r}")
    return {
        name: _scaled(tensors, tensors.expect(name, (_FP8,)), (name, name + "_scale_inv"), blocks)
        for name in tensors.ending("_scale_inv")
    }


# --- GPTQ: a few bits with a scale and a zero for each group of inputs -----------------------------------------------
# https://github.com/AutoGPTQ/AutoGPTQ/blob/v0.7.1/auto_gptq/nn_modules/qlinear/qlinear_cuda.py: `qweight` is packed
# along the inputs, `qzeros` along the outputs, from the lowest bit on; `scales` is `[groups, out]`, and `g_idx` says
# which group an input belongs to. A number is `(code - zero) * scale`; the first version stores zeros less 1.

_GPTQ_ZERO_OFFSETS = {"gptq": 1, "gptq_v2": 0}


def gptq(tensors: QuantizedTensors, config: Mapping[str, Any]) -> dict[str, QuantizedTensor]:
    """Return the weights that AutoGPTQ or GPTQModel wrote."""
    bits, group_size = config.get("bits"), config.get("group_size")
    layout = "marlin" if config.get("is_marlin_format") else config.get("checkpoint_format") or "gptq"
    if bits not in _BITS or layout not in _GPTQ_ZERO_OFFSETS or type(group_size) is not int:
        raise tensors.unread(f"GPTQ as {layout} with {bits} bits in groups of {group_size}")
    if config.get("dynamic"):
        raise tensors.unread("GPTQ whose bits differ from module to module (dynamic)")
    how = bits, group_size, _GPTQ_ZERO_OFFSETS[layout]
    return {f"{name}.weight": _gptq_weight(tensors, name, *how) for name in tensors.ending(".qweight")}


def _gptq_weight(tensors: QuantizedTensors, name: str, bits: int, group_size: int, zero_offset: int) -> QuantizedTensor:
    words, columns = tensors.expect(f"{name}.qweight", ("I32",), axes=2)
    inputs = words * 32 // bits
    has_index = f"{name}.g_idx" in tensors
    if has_index:
        tensors.expect(f"{name}.g_idx", ("I32", "I64"), (inputs,))
    groups, _ = tensors.expect(f"{name}.scales", _FLOATS, axes=2)
    tensors.expect(f"{name}.scales", _FLOATS, (groups, columns))
    tensors.expect(f"{name}.qzeros", ("I32",), (groups, -(-columns * bits // 32)))
    group_size = group_size if group_size > 0 else inputs
    if not has_index and groups != -(-inputs // group_size):
        raise tensors.misfit(f"{name}.scales has {groups} groups for {inputs} inputs in groups of {group_size}")

    def numbers() -> Array:
        codes = unpack_bits(tensors.read(f"{name}.qweight").T, bits, inputs)
        zeros = unpack_bits(tensors.read(f"{name}.qzeros"), bits, columns)
        index = tensors.read(f"{name}.g_idx") if has_index else np.arange(inputs) // group_size
        if index.size and (index.min() < 0 or index.max() >= groups):
            raise tensors.misfit(f"{name}.g_idx names groups that {name}.scales does not have")
        return _by_group(codes, zeros, tensors.floats(f"{name}.scales"), index, zero_offset)

    parts = tuple(f"{name}.{part}" for part in ("qweight", "qzeros", "scales", *["g_idx"] * has_index))
    return QuantizedTensor((columns, inputs), parts, numbers)


# --- NF4 of bitsandbytes: four bits with a scale for each block ------------------------------------------------------
# https://github.com/bitsandbytes-foundation/bitsandbytes/blob/main/bitsandbytes/functional.py: two codes are in a byte,
# the higher bits first; each stands for a number of `quant_map`, times the `absmax` of its block, which may be codes
# of eight bits themselves, with a table, blocks and an offset of their own (`nested_…`). Shape and sizes of blocks are
# JSON in the bytes of `quant_state`.

_NF4 = ".quant_state.bitsandbytes__nf4"


def bitsandbytes(tensors: QuantizedTensors, _: Mapping[str, Any]) -> dict[str, QuantizedTensor]:
    """Return the weights that bitsandbytes wrote as NF4."""
    for form, end in {"int8": ".SCB", "FP4": ".quant_state.bitsandbytes__fp4"}.items():
        if any(tensors.ending(end)):
            raise tensors.unread(f"{form} of bitsandbytes")
    return {name: _nf4(tensors, name, name + _NF4) for name in tensors.ending(_NF4)}


def _nf4(tensors: QuantizedTensors, name: str, state_name: str) -> QuantizedTensor:
    tensors.expect(state_name, ("U8",), axes=1)
    try:
        state = json.loads(tensors.read(state_name).tobytes())
        shape, block, nested = tuple(state["shape"]), state["blocksize"], state.get("nested_blocksize", 0)
        offset = np.float32(float(state.get("nested_offset", 0)))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise tensors.misfit(f"{state_name} cannot be read") from None
    counts = [*shape, block, *[nested] * ("nested_blocksize" in state)]
    if not shape or any(type(each) is not int or each < 1 for each in counts):
        raise tensors.misfit(f"{state_name} says that the shape is {shape!r}, in blocks of {block!r} and {nested!r}")
    count = math.prod(shape)
    blocks = -(-count // block)
    parts = [name, state_name, f"{name}.quant_map", f"{name}.absmax"]
    tensors.expect(name, ("U8",), (-(-count // 2), 1))
    tensors.expect(f"{name}.quant_map", _FLOATS, (16,))
    tensors.expect(f"{name}.absmax", ("U8",) if nested else _FLOATS, (blocks,))
    if nested:
        parts += [f"{name}.nested_quant_map", f"{name}.nested_absmax"]
        tensors.expect(parts[-2], _FLOATS, (256,))
        tensors.expect(parts[-1], _FLOATS, (-(-blocks // nested),))

    def scales() -> Array:
        if not nested:
            return tensors.floats(f"{name}.absmax")
        of_scales = np.repeat(tensors.floats(f"{name}.nested_absmax"), nested)[:blocks]
        return tensors.floats(f"{name}.nested_quant_map")[tensors.read(f"{name}.absmax")] * of_scales + offset

    def numbers() -> Array:
        codes = tensors.read(name).reshape(-1)
        both = np.stack([codes >> 4, codes & 15], axis=-1).reshape(-1)[:count]
        values = tensors.floats(f"{name}.quant_map")[both]
        values *= np.repeat(scales(), block)[:count]
        return values.reshape(shape)

    return QuantizedTensor(shape, tuple(parts), numbers)


RECIPES: dict[str, Recipe] = {
    "bitsandbytes": bitsandbytes,
    "fp8": fp8,
    "gptq": gptq,
}


# --- the store -------------------------------------------------------------------------------------------------------

# Types of the fields that are read, whatever the method; lists and tables are checked where they are used.
_TYPES = {"bits": int, "group_size": int, "checkpoint_format": str}
_LARGEST = 2**31


class Dequantized(Store):
    """The tensors of a store, dequantized.

    Args:
        store: with the codes and the scales.
        method: the quantization method.
        quantized: the quantized tensors, by their names in the model.
    """

    def __init__(self, store: Store, method: str, quantized: Mapping[str, QuantizedTensor]) -> None:
        self._store = store
        self._quantized = quantized
        self.form = f"{method}, dequantized"
        parts = {part for tensor in quantized.values() for part in tensor.parts}
        self.names = dict.fromkeys([*(name for name in store.names if name not in parts), *quantized]).keys()

    def stored(self, name: str) -> Stored:
        """See `Store.stored`."""
        quantized = self._quantized.get(name)
        return self._store.stored(name) if quantized is None else Stored("F32", quantized.shape)

    def prepare(self, names: Collection[str]) -> None:
        """See `Store.prepare`."""
        parts = (self._quantized[name].parts if name in self._quantized else (name,) for name in names)
        self._store.prepare([part for each in parts for part in each])

    def read(self, name: str) -> Array:
        """See `Store.read`."""
        quantized = self._quantized.get(name)
        return self._store.read(name) if quantized is None else quantized.read()

    def rows(self, name: str, indices: Sequence[int]) -> Array:
        """See `Store.rows`."""
        return super().rows(name, indices) if name in self._quantized else self._store.rows(name, indices)


def dequantized(store: Store, snapshot: Snapshot, config: Any) -> Store:
    """Return a store of the dequantized tensors of a checkpoint.

    Args:
        store: of its tensors as they are stored.
        snapshot: the checkpoint.
        config: the quantization in its config.json.

    Raises:
        LoadError: the quantization is not supported, or the tensors do not fit their form.
    """
    folder = str(snapshot.folder)
    method = config.get("quant_method") if isinstance(config, Mapping) else None
    if not isinstance(method, str) or method not in RECIPES:
        raise unknown_quantization(folder, "MLX" if method is None and "quantization" in snapshot.config else method)
    if snapshot.is_pickled:
        raise LoadError(
            f"the weights of {visible(folder)} are quantized, and attn reads those from safetensors only; save them "
            "as safetensors"
        )
    tensors = QuantizedTensors(store, folder)
    for field, kind in _TYPES.items():
        value = config.get(field)
        is_fit = value is None or type(value) is kind
        if not is_fit or (isinstance(value, int) and abs(value) >= _LARGEST):
            raise tensors.unread(f"{field} {brief(repr(value))}")
    quantized = RECIPES[method](tensors, config)
    return Dequantized(store, method, quantized) if quantized else store
