"""Tensors of a safetensors file that is not trusted, whoever wrote it."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from attncli.bfloat16 import read_bfloat16
from attncli.errors import InputError
from attncli.tokens import visible

DTYPES = {"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"}
_READABLE = frozenset({"F16", "F32", "F64", "BOOL", "I8", "I16", "I32", "I64", "U8", "U16", "U32", "U64"})


class SavedTensors:
    """The tensors of an open safetensors file, read one by one as NumPy arrays."""

    def __init__(self, path: Path, file: Any) -> None:
        self.path = path
        self.file = file

    @cached_property
    def names(self) -> frozenset[str]:
        """What the file holds."""
        return frozenset(self.file.keys())

    def read(self, name: str) -> np.ndarray[Any, Any]:
        """Return one tensor; bfloat16, which NumPy lacks, is widened to float32, exactly."""
        kind = self.file.get_slice(name).get_dtype()
        if kind == "BF16":
            return read_bfloat16(self.path, name)
        if kind not in _READABLE:
            raise InputError(
                f"tensor {visible(name)} is {kind}; expected floats of 16 bits or more, integers or booleans"
            )
        return self.file.get_tensor(name)


def checked_cells(name: str, array: np.ndarray[Any, Any], cells: tuple[int, int, int]) -> np.ndarray[Any, Any]:
    """Return booleans over all cells, `[1 or H, Q, K]`."""
    heads, queries, keys = cells
    if array.dtype != bool or array.shape not in ((1, queries, keys), (heads, queries, keys)):
        raise InputError(
            f"{name} is {array.dtype} of shape {list(array.shape)}; expected booleans [1 or {heads}, {queries}, {keys}]"
        )
    return array
