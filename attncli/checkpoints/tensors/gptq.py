"""Weights in a few bits with a scale and a zero for each group of inputs, as AutoGPTQ and GPTQModel write them.

<https://github.com/AutoGPTQ/AutoGPTQ/blob/v0.7.1/auto_gptq/nn_modules/qlinear/qlinear_cuda.py>: `qweight` is packed
along the inputs, `qzeros` along the outputs, from the lowest bit on; `scales` is `[groups, out]`, and `g_idx` says
which group an input belongs to. A number is `(code - zero) * scale`; the first version of the form stores zeros less 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from attncli.checkpoints.tensors.bit_packing import FLOATS, Floats, Packed, Undone, unpacked
from attncli.files import widened

_ZEROS_LESS = {"gptq": 1, "gptq_v2": 0}
_BITS = (2, 3, 4, 8)


class _Form(NamedTuple):
    """What the configuration says: bits of a code, inputs of a group, and what the zeros are stored less."""

    bits: int
    group: int
    less: int


def gptq(packed: Packed, said: Mapping[str, Any]) -> dict[str, Undone]:
    """Return the tensors that are stored in this form."""
    bits, group, layout = said.get("bits"), said.get("group_size"), said.get("checkpoint_format") or "gptq"
    if bits not in _BITS or layout not in _ZEROS_LESS or type(group) is not int or said.get("is_marlin_format"):
        layout = "marlin" if said.get("is_marlin_format") else layout
        raise packed.unread(f"GPTQ as {layout} with {bits} bits in groups of {group}")
    if said.get("dynamic"):
        raise packed.unread("GPTQ whose bits differ from module to module (dynamic)")
    form = _Form(bits, group, _ZEROS_LESS[layout])
    return {f"{name}.weight": _linear(packed, name, form) for name in packed.ending(".qweight")}


def _linear(packed: Packed, name: str, form: _Form) -> Undone:
    words, columns = packed.shape(f"{name}.qweight", "I32", axes=2)
    inputs = words * 32 // form.bits
    has_index = f"{name}.g_idx" in packed
    if has_index:
        packed.shape(f"{name}.g_idx", "I32", "I64")
        packed.check(f"{name}.g_idx", (inputs,))
    groups, _ = packed.shape(f"{name}.scales", *FLOATS, axes=2)
    packed.check(f"{name}.scales", (groups, columns))
    packed.shape(f"{name}.qzeros", "I32")
    packed.check(f"{name}.qzeros", (groups, -(-columns * form.bits // 32)))
    if not has_index and groups != -(-inputs // form.group if form.group > 0 else -1):
        raise packed.misfit(f"{name}.scales has {groups} groups for {inputs} inputs in groups of {form.group}")
    parts = ["qweight", "qzeros", "scales", *["g_idx"] * has_index]
    return Undone((columns, inputs), tuple(f"{name}.{part}" for part in parts), partial(_numbers, packed, name, form))


def _numbers(packed: Packed, name: str, form: _Form) -> Floats:
    scales = widened(packed.read(f"{name}.scales"))
    words = packed.read(f"{name}.qweight")
    codes = unpacked(words.T, form.bits, len(words) * 32 // form.bits)
    zeros = unpacked(packed.read(f"{name}.qzeros"), form.bits, scales.shape[1]).astype(np.float32) + form.less
    if f"{name}.g_idx" in packed:
        index = packed.read(f"{name}.g_idx")
        if index.min() < 0 or index.max() >= len(scales):
            raise packed.misfit(f"{name}.g_idx names groups that {name}.scales does not have")
    else:
        index = np.arange(codes.shape[1]) // form.group if form.group > 0 else np.zeros(codes.shape[1], np.int32)
    numbers = codes.astype(np.float32)
    numbers -= np.take(np.ascontiguousarray(zeros.T), index, axis=1)
    numbers *= np.take(np.ascontiguousarray(scales.T), index, axis=1)
    return numbers
