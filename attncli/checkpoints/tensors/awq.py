"""Weights in four bits with a scale and a zero for each group of inputs, as AutoAWQ writes them (`version: gemm`).

<https://github.com/casper-hansen/AutoAWQ/blob/v0.2.9/awq/modules/linear/gemm.py>: `qweight` and `qzeros` are packed
along the outputs, the eight of a word in the order 0 2 4 6 1 3 5 7. A number is `(code - zero) * scale`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from attncli.checkpoints.tensors.bit_packing import FLOATS, Codes, Floats, Packed, Undone, unpacked
from attncli.files import widened

_BITS, _IN_WORD = 4, 8
_PLACES = np.argsort([0, 2, 4, 6, 1, 3, 5, 7])  # where in a word the first output stands, the second, …


def awq(packed: Packed, said: Mapping[str, Any]) -> dict[str, Undone]:
    """Return the tensors that are stored in this form."""
    version = str(said.get("version", "gemm")).lower()
    bits = said.get("bits", said.get("w_bit"))
    if version != "gemm" or bits != _BITS or said.get("zero_point", True) is not True:
        raise packed.unread(f"AWQ as {version} with {bits} bits, zero_point {said.get('zero_point', True)}")
    return {f"{name}.weight": _linear(packed, name) for name in packed.ending(".qweight")}


def _linear(packed: Packed, name: str) -> Undone:
    inputs, words = packed.shape(f"{name}.qweight", "I32", axes=2)
    groups, _ = packed.shape(f"{name}.qzeros", "I32", axes=2)
    packed.check(f"{name}.qzeros", (groups, words))
    packed.shape(f"{name}.scales", *FLOATS)
    packed.check(f"{name}.scales", (groups, words * _IN_WORD))
    if not groups or inputs % groups:
        raise packed.misfit(f"{name}.qzeros has {groups} groups for {inputs} inputs")
    parts = tuple(f"{name}.{part}" for part in ("qweight", "qzeros", "scales"))
    return Undone((words * _IN_WORD, inputs), parts, partial(_numbers, packed, name))


def _numbers(packed: Packed, name: str) -> Floats:
    scales = widened(packed.read(f"{name}.scales"))
    codes, zeros = (_in_order(packed.read(f"{name}.{part}")) for part in ("qweight", "qzeros"))
    size = len(codes) // len(zeros)
    numbers = np.ascontiguousarray(codes.T, np.float32)
    numbers -= np.repeat(np.ascontiguousarray(zeros.T), size, axis=1)
    numbers *= np.repeat(np.ascontiguousarray(scales.T), size, axis=1)
    return numbers


def _in_order(words: np.ndarray[Any, Any]) -> Codes:
    codes = unpacked(words, _BITS, words.shape[1] * _IN_WORD)
    return codes.reshape(len(words), -1, _IN_WORD)[:, :, _PLACES].reshape(len(words), -1)
