"""Masks in files: read as what they hold, and written whole. Nothing in a file is ever executed."""

from __future__ import annotations

import json
import warnings
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from attncli.errors import InputError, LoadError, UsageError, require
from attncli.files import MOST_PACKED, MOST_TEXT, Tensors, atomic_write, check_file, to_numpy
from attncli.masks.notation import ENDINGS
from attncli.text import visible

_NAMES = ("mask", "attention_mask", "attn_mask")  # of the mask, in a file that holds several arrays
_WITH_BFLOAT16 = (".safetensors", ".pt")
_MOST = {".csv": MOST_TEXT, ".pt": MOST_PACKED}  # the others are mapped
_LARGEST = 2**28  # bytes that a mask may take which takes more than its file, as a small file can ask for any


class StoredMask(NamedTuple):
    """What a mask file holds.

    Attributes:
        values: booleans or numbers, two to four axes; bfloat16 comes as float32, which holds it exactly.
        dtype: what the file calls their type; None where it has no types.
    """

    values: np.ndarray[Any, Any]
    dtype: str | None


def read_values(path: Path, most_axes: int = 4) -> StoredMask:
    """Read a mask file as it is.

    Args:
        path: a file with one of `ENDINGS`.
        most_axes: how many axes it may have; two are the least.

    Raises:
        InputError: there is no such file, or it cannot hold a mask.
    """
    name, loaded = visible(str(path)), read_array(path)
    values = loaded.values
    if not 2 <= values.ndim <= most_axes or not values.size or values.dtype.kind not in "biuf":
        axes = ", [batch, heads, queries, keys]" if most_axes == 4 else ""
        raise InputError(
            f"mask file {name} holds {loaded.dtype or values.dtype} of shape {list(values.shape)}; expected booleans, "
            f"0/1 or additive floats of shape [queries, keys] or [heads, queries, keys]{axes}"
        )
    return loaded


def read_array(path: Path) -> StoredMask:
    """Read the array of a file with one of `ENDINGS`, whatever it is.

    Raises:
        InputError: there is no such file, or it cannot be read.
    """
    name = visible(str(path))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NumPy's, about what a damaged header looks like
            return _read(path)
    except FileNotFoundError:
        raise InputError(f"mask file {name} does not exist") from None
    except LoadError:  # what reads it is not installed
        raise
    except Exception as error:  # a damaged header is read as Python literals, which raises nearly anything
        raise InputError(f"mask file {name} cannot be read: {visible(str(error))[:200]}") from None


def _read(path: Path) -> StoredMask:
    check_file(path, _MOST.get(path.suffix.lower()))
    match path.suffix.lower():
        case ".npy":
            # Mapped, so that a header that claims more than the file holds is refused before memory is taken.
            values = np.array(np.load(path, mmap_mode="r", allow_pickle=False))
            return StoredMask(values, values.dtype.name)
        case ".csv":
            lines = [line.split(",") for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
            return StoredMask(np.array([[_csv_number(cell) for cell in line] for line in lines]), None)
        case ".safetensors":
            tensors = Tensors(path)
            name = _the_mask(list(tensors.types))
            values = tensors.read(name)
            return StoredMask(values, "bfloat16" if tensors.types[name] == "BF16" else values.dtype.name)
        case ".pt":
            return _read_torch(path)
    raise ValueError(f"its ending is none of {', '.join(ENDINGS)}")


def _the_mask(names: list[str]) -> str:
    """Return which of several arrays is the mask: the only one, or the one that is called so."""
    named = names if len(names) == 1 else [name for name in _NAMES if name in names]
    if not named:
        raise ValueError(f"it holds {', '.join(names[:8]) or 'no array'}; expected one array, or one called mask")
    return named[0]


def _csv_number(cell: str) -> float:
    word = cell.strip().lower()
    whole = {"true": 1, "false": 0, "1": 1, "0": 0}.get(word)  # 0.0 is the number, which forbids nothing
    return float(word) if whole is None else whole


def _read_torch(path: Path) -> StoredMask:
    if zipfile.is_zipfile(path):  # torch writes its parts as they are, and unpacks those that are not
        with zipfile.ZipFile(path) as archive:
            _check_size(sum(member.file_size for member in archive.infolist()), path)
    require(visible(str(path)), "torch")
    import torch

    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # torch's own advice is to switch the protection off
        raise ValueError("it holds no tensors, or more than tensors, and nothing else is unpickled") from None
    if isinstance(loaded, dict):
        loaded = loaded[_the_mask([name for name, value in loaded.items() if isinstance(value, torch.Tensor)])]
    if not isinstance(loaded, torch.Tensor):
        raise ValueError(f"it holds a {type(loaded).__name__}, not a tensor")
    _check_size(loaded.nbytes, path)  # one value can stand in many places
    return StoredMask(to_numpy(loaded), str(loaded.dtype).removeprefix("torch."))


def _check_size(size: int, path: Path) -> None:
    """Raise ValueError for a huge array in a small file, before it takes memory."""
    if size > max(path.stat().st_size, _LARGEST):
        raise ValueError(f"it unpacks to {size} bytes; give a mask of this size as .npy")


# --- writing -----------------------------------------------------------------------------------------------


def write_values(path: Path, values: np.ndarray[Any, Any], dtype: str) -> None:
    """Write a mask into a file that appears when it is whole.

    Args:
        path: a file with one of `ENDINGS`.
        values: two to four axes; bfloat16 as float32.
        dtype: what the file is to hold.

    Raises:
        UsageError: the format cannot hold such a mask.
        InputError: the file cannot be written.
    """
    ending, name = path.suffix.lower(), visible(str(path))
    if ending not in ENDINGS:
        raise UsageError(f"--output {name}: expected a file ending in {', '.join(ENDINGS)}")
    if dtype == "bfloat16" and ending not in _WITH_BFLOAT16:
        raise UsageError(f"--output {name}: {ending} has no bfloat16; {' and '.join(_WITH_BFLOAT16)} have")
    if ending == ".csv" and values.ndim != 2:
        raise UsageError(f"--output {name}: .csv holds one matrix, the mask has {values.ndim} axes; use .npy")
    with atomic_write(path) as aside:
        # Through bytes: the libraries' own errors about a file do not say what the system said.
        aside.write_bytes(_encode(ending, values, dtype))


def _encode(ending: str, values: np.ndarray[Any, Any], dtype: str) -> bytes | memoryview:
    """Return what a file of the values holds."""
    stream = BytesIO()
    match ending:
        case ".npy":
            np.save(stream, values)
        case ".pt":
            require("a .pt file", "torch")
            import torch

            tensor = torch.from_numpy(np.array(values))
            torch.save(tensor.bfloat16() if dtype == "bfloat16" else tensor, stream)
        case ".safetensors":
            return _safetensors(values, dtype)
        case ".csv":
            numbers = values.astype(int) if dtype == "bool" else values
            stream.writelines((",".join(map(str, row)) + "\n").encode() for row in numbers.tolist())
    return stream.getbuffer()


def _safetensors(values: np.ndarray[Any, Any], dtype: str) -> bytes:
    """Return a safetensors file: a length, a JSON header of that length, the tensor; NumPy has no bfloat16."""
    if dtype == "bfloat16":
        values = (values.astype("<f4").view(np.uint32) >> 16).astype("<u2")
    data = np.ascontiguousarray(values).tobytes()
    kind = {"bool": "BOOL", "bfloat16": "BF16"}.get(dtype, f"F{8 * values.itemsize}")
    header = json.dumps({"mask": {"dtype": kind, "shape": values.shape, "data_offsets": [0, len(data)]}}).encode()
    header += b" " * (-len(header) % 8)  # tensors are aligned
    return len(header).to_bytes(8, "little") + header + data
