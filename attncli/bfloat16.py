"""bfloat16, which NumPy has not: the upper half of a float32, so that float32 holds every bfloat16 exactly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np


def widened(bits: np.ndarray[Any, np.dtype[np.uint16]]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return as float32, in the same shape, what these bits are in bfloat16."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def read_bfloat16(path: Path, name: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return a bfloat16 tensor of a safetensors file as float32.

    The library gives NumPy none, so the bits are taken from the file, whose format is a length (8 bytes), a JSON header
    of that length, and the tensors.
    """
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        entry = json.loads(file.read(length))[name]
        start, stop = entry["data_offsets"]
        file.seek(8 + length + start)
        bits = np.frombuffer(file.read(stop - start), np.dtype("<u2"))
    return widened(bits).reshape(entry["shape"])
