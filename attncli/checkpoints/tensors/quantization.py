"""Quantized weights: a recipe for each form, and a store of the dequantized numbers.

Numbers are those of the form's definition, in float32, computed on demand. The quantization of hidden states on top
(activations in eight bits) is left out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.checkpoints.tensors import Array, ComputedStore, ComputedTensor, Store, unknown_quantization
from attncli.errors import LoadError
from attncli.files import to_float32
from attncli.text import brief, visible

if TYPE_CHECKING:
    from attncli.checkpoints.snapshot import Snapshot

_FLOATS = ("F32", "F16", "BF16")  # types of scales
_FP8 = "F8_E4M3"


class QuantizedTensors:
    """The stored tensors of a quantized checkpoint, with checks of their types and shapes."""

    def __init__(self, store: Store, folder: str) -> None:
        self._store = store
        self._whose = f"the weights of {visible(folder)} are"
        self.read = store.read

    def ending(self, end: str) -> list[str]:
        """Return the prefixes of the tensor names with this suffix."""
        return [name.removesuffix(end) for name in self._store.names if name.endswith(end)]

    def expect(self, name: str, types: Collection[str], shape: Sequence[int | None] | None = None) -> tuple[int, ...]:
        """Return the shape of a tensor; LoadError if its type or shape differs, where None is any size."""
        if name not in self._store.names:
            raise self.misfit(f"{visible(name)} is missing")
        kind, actual = self._store.stored(name)
        shape = actual if shape is None else shape
        if (
            kind not in types
            or len(shape) != len(actual)
            or any(n not in (None, m) for n, m in zip(shape, actual, strict=True))
        ):
            expected = f"{' or '.join(types)} [{', '.join('?' if size is None else str(size) for size in shape)}]"
            raise self.misfit(f"{visible(name)} is {kind} {list(actual)}, expected {expected}")
        return actual

    def floats(self, name: str) -> Array:
        """Return a tensor of floats in float32."""
        return to_float32(self.read(name))

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


# --- FP8: eight bits with a scale for each block (DeepSeek-V3, Qwen3) ------------------------------------------------
# https://github.com/deepseek-ai/DeepSeek-V3/blob/main/inference/kernel.py: each number of `weight` times that of its
# block, mostly of 128 by 128, in `weight_scale_inv`.


def _e4m3() -> Array:
    """Return the numbers of the 256 codes: a sign, four bits of exponent, three of mantissa; no infinity."""
    exponent, mantissa = np.divmod(np.arange(128), 8)
    size = np.where(exponent > 0, np.ldexp(1 + mantissa / 8, exponent - 7), np.ldexp(mantissa / 8, -6))
    size[127] = np.nan
    return np.concatenate([size, -size]).astype(np.float32)


_E4M3 = _e4m3()


def fp8(tensors: QuantizedTensors, config: Mapping[str, Any]) -> dict[str, ComputedTensor]:
    """Return the weights that are stored as float8 with `weight_scale_inv`."""
    block = config.get("weight_block_size")
    is_size = isinstance(block, list) and len(block) == 2 and all(type(side) is int and side > 0 for side in block)
    if block is not None and not is_size:
        raise tensors.unread(f"weight_block_size {block!r}")
    return {name: _fp8_weight(tensors, name, block) for name in tensors.ending("_scale_inv")}


def _fp8_weight(tensors: QuantizedTensors, name: str, block: list[int] | None) -> ComputedTensor:
    rows, columns = tensors.expect(name, (_FP8,), (None, None))
    scale = f"{name}_scale_inv"
    height, width = block or (rows, columns)
    if math.prod(tensors.expect(scale, _FLOATS)) == 1:
        height, width = rows, columns
    else:
        tensors.expect(scale, _FLOATS, (-(-rows // height), -(-columns // width)))

    def numbers() -> Array:
        values = _E4M3[tensors.read(name)]
        for index, scales in enumerate(tensors.floats(scale).reshape(-(-rows // height), -1)):
            values[index * height : (index + 1) * height] *= np.repeat(scales, width)[:columns]
        return values

    return ComputedTensor((rows, columns), (name, scale), numbers)


# --- GPTQ: a few bits with a scale and a zero for each group of inputs -----------------------------------------------
# https://github.com/AutoGPTQ/AutoGPTQ/blob/v0.7.1/auto_gptq/nn_modules/qlinear/qlinear_cuda.py: `qweight` is packed
# along the inputs, `qzeros` along the outputs; `scales` is `[groups, out]`, and `g_idx` the group of each input. A
# number is `(code - zero) * scale`; the first version stores zeros less 1.

_GPTQ_ZERO_OFFSETS = {"gptq": 1, "gptq_v2": 0}


def gptq(tensors: QuantizedTensors, config: Mapping[str, Any]) -> dict[str, ComputedTensor]:
    """Return the weights that AutoGPTQ or GPTQModel wrote."""
    bits = config.get("bits")
    layout = "marlin" if config.get("is_marlin_format") else config.get("checkpoint_format") or "gptq"
    if bits not in (4, 8) or layout not in [*_GPTQ_ZERO_OFFSETS]:
        raise tensors.unread(brief(f"GPTQ as {layout} with {bits} bits"))
    if config.get("dynamic"):
        raise tensors.unread("GPTQ whose bits differ from module to module (dynamic)")
    offset = _GPTQ_ZERO_OFFSETS[layout]
    return {f"{name}.weight": _gptq_weight(tensors, name, bits, offset) for name in tensors.ending(".qweight")}


def _gptq_weight(tensors: QuantizedTensors, name: str, bits: int, zero_offset: int) -> ComputedTensor:
    words, columns = tensors.expect(f"{name}.qweight", ("I32",), (None, None))
    inputs = words * 32 // bits
    tensors.expect(f"{name}.g_idx", ("I32", "I64"), (inputs,))
    groups, _ = tensors.expect(f"{name}.scales", _FLOATS, (None, columns))
    tensors.expect(f"{name}.qzeros", ("I32",), (groups, -(-columns * bits // 32)))

    def numbers() -> Array:
        index = tensors.read(f"{name}.g_idx")
        if index.size and (index.min() < 0 or index.max() >= groups):
            raise tensors.misfit(f"{name}.g_idx names groups that {name}.scales does not have")
        codes = _unpacked(tensors.read(f"{name}.qweight").T, bits, inputs).astype(np.float32)
        zeros = _unpacked(tensors.read(f"{name}.qzeros"), bits, columns).astype(np.float32) + np.float32(zero_offset)
        codes -= np.take(zeros.T, index, axis=1)
        codes *= np.take(tensors.floats(f"{name}.scales").T, index, axis=1)
        return codes

    parts = tuple(f"{name}.{part}" for part in ("qweight", "qzeros", "scales", "g_idx"))
    return ComputedTensor((columns, inputs), parts, numbers)


def _unpacked(words: Array, bits: int, count: int) -> Array:
    """Return the codes of four or eight bits in rows of words of 32 bits, the lowest bits first."""
    parts = np.ascontiguousarray(words).view(np.uint8)
    codes = parts if bits == 8 else np.stack([parts & 15, parts >> 4], axis=-1)
    return codes.reshape(len(words), -1)[:, :count]


# --- NF4 of bitsandbytes: four bits with a scale for each block ------------------------------------------------------
# https://github.com/bitsandbytes-foundation/bitsandbytes/blob/main/bitsandbytes/functional.py: a byte has two codes,
# the higher bits first, of numbers in `quant_map`, times the `absmax` of their block, which may be codes of eight bits
# themselves (`nested_…`). Shape and sizes of blocks are JSON in the bytes of `quant_state`.

_NF4 = ".quant_state.bitsandbytes__nf4"


def bitsandbytes(tensors: QuantizedTensors, _: Mapping[str, Any]) -> dict[str, ComputedTensor]:
    """Return the weights that bitsandbytes wrote as NF4."""
    for form, end in {"int8": ".SCB", "FP4": ".quant_state.bitsandbytes__fp4"}.items():
        if tensors.ending(end):
            raise tensors.unread(f"{form} of bitsandbytes")
    return {name: _nf4(tensors, name) for name in tensors.ending(_NF4)}


def _nf4(tensors: QuantizedTensors, name: str) -> ComputedTensor:
    tensors.expect(name + _NF4, ("U8",), (None,))
    try:
        state = json.loads(tensors.read(name + _NF4).tobytes())
        shape, block, nested = tuple(state["shape"]), state["blocksize"], state.get("nested_blocksize")
        offset = np.float32(float(state.get("nested_offset", 0)))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise tensors.misfit(f"{name + _NF4} cannot be read") from None
    if not shape or any(type(count) is not int or count < 1 for count in (*shape, block, nested or 1)):
        raise tensors.misfit(f"{name + _NF4} has the shape {shape!r}, in blocks of {block!r} and {nested!r}")
    count = math.prod(shape)
    blocks = -(-count // block)
    parts = [name, name + _NF4, f"{name}.quant_map", f"{name}.absmax"]
    tensors.expect(name, ("U8",), (-(-count // 2), 1))
    tensors.expect(f"{name}.quant_map", _FLOATS, (16,))
    tensors.expect(f"{name}.absmax", ("U8",) if nested else _FLOATS, (blocks,))
    if nested:
        parts += [f"{name}.nested_quant_map", f"{name}.nested_absmax"]
        tensors.expect(parts[-2], _FLOATS, (256,))
        tensors.expect(parts[-1], _FLOATS, (-(-blocks // nested),))

    def numbers() -> Array:
        scales = tensors.floats(f"{name}.absmax")
        if nested:
            of_scales = np.repeat(tensors.floats(f"{name}.nested_absmax"), nested)[:blocks]
            codes_of_scales = tensors.read(f"{name}.absmax")
            scales = tensors.floats(f"{name}.nested_quant_map")[codes_of_scales] * of_scales + offset
        codes = tensors.read(name).reshape(-1)
        codes = np.stack([codes >> 4, codes & 15], axis=-1).reshape(-1)[:count]
        values = tensors.floats(f"{name}.quant_map")[codes] * np.repeat(scales, block)[:count]
        return values.reshape(shape)

    return ComputedTensor(shape, tuple(parts), numbers)


Recipe = Callable[[QuantizedTensors, Mapping[str, Any]], dict[str, ComputedTensor]]
RECIPES: dict[str, Recipe] = {"bitsandbytes": bitsandbytes, "fp8": fp8, "gptq": gptq}


def dequantized(store: Store, snapshot: Snapshot, config: Any) -> Store:
    """Return a store of dequantized tensors; LoadError if their quantization is not supported, or damaged."""
    folder = str(snapshot.folder)
    method = config.get("quant_method") if isinstance(config, Mapping) else None
    if not isinstance(method, str) or method not in RECIPES:
        raise unknown_quantization(folder, "MLX" if method is None and "quantization" in snapshot.config else method)
    if snapshot.is_pickled:
        raise LoadError(
            f"the weights of {visible(folder)} are quantized, and attn reads those from safetensors only; save them "
            "as safetensors"
        )
    quantized = RECIPES[method](QuantizedTensors(store, folder), config)
    return ComputedStore(store, quantized, f"{method}, dequantized") if quantized else store
