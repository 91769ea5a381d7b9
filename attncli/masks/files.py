"""Masks as they are stored: in files, which are read and written whole, and as the arrays of a program.

Nothing in a file is ever executed.
"""

from __future__ import annotations

import sys
import warnings
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from attncli.errors import InputError, LoadError, UsageError, require
from attncli.files import MOST_PACKED, Tensors, atomic_write, check_file, to_numpy
from attncli.masks import ENDINGS
from attncli.text import visible

_NAMES = ("mask", "attention_mask", "attn_mask")  # of the mask among several arrays of a file
_LARGEST = 2**28  # bytes of a mask that is larger than its file, as a small file can claim any size


class StoredMask(NamedTuple):
    """The values of a mask in a file or an array."""

    values: np.ndarray[Any, Any]  # booleans or numbers; bfloat16 comes as float32, which holds it exactly
    dtype: str | None  # the name of their type in the file; None where it is not known


def as_stored(array: Any, name: str) -> StoredMask:
    """Convert an array, a tensor or nested lists to an array and the name of its type.

    Raises:
        InputError: it holds no numbers.
    """
    torch = sys.modules.get("torch")  # imported already where there are tensors
    if torch is not None and isinstance(array, torch.Tensor):
        return StoredMask(to_numpy(array), str(array.dtype).removeprefix("torch."))
    try:
        values = np.asarray(array)
    except ValueError:
        raise InputError(f"{name} is not an array: its rows differ in length") from None
    if values.dtype.kind not in "biuf":
        raise InputError(f"{name} holds {values.dtype}; expected booleans or numbers")
    return StoredMask(values, values.dtype.name)


def read_values(path: Path, most_axes: int = 4) -> StoredMask:
    """Read a mask file with one of `ENDINGS` as it is, of two axes at least.

    Raises:
        InputError: there is no such file, or it cannot hold a mask.
    """
    name = visible(str(path))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NumPy's, about a damaged header
            loaded = _read(path)
    except FileNotFoundError:
        raise InputError(f"mask file {name} does not exist") from None
    except LoadError:  # the library that reads it is not installed
        raise
    except Exception as error:  # a damaged header is read as Python literals, which raises nearly anything
        raise InputError(f"mask file {name} cannot be read: {visible(str(error))[:200]}") from None
    values = loaded.values
    if not 2 <= values.ndim <= most_axes or not values.size or values.dtype.kind not in "biuf":
        axes = ", [batch, heads, queries, keys]" if most_axes == 4 else ""
        raise InputError(
            f"mask file {name} holds {loaded.dtype} of shape {list(values.shape)}; expected booleans, "
            f"0/1 or additive floats of shape [queries, keys] or [heads, queries, keys]{axes}"
        )
    return loaded


def _read(path: Path) -> StoredMask:
    ending = path.suffix.lower()
    check_file(path, MOST_PACKED if ending == ".pt" else None)  # the others are mapped
    if ending == ".npy":  # mapped: a header that claims more than the file holds takes no memory
        values = np.array(np.load(path, mmap_mode="r", allow_pickle=False))
        return StoredMask(values, values.dtype.name)
    if ending == ".safetensors":
        tensors = Tensors(path)
        name = _the_mask(list(tensors.types))
        values = tensors.read(name)
        return StoredMask(values, "bfloat16" if tensors.types[name] == "BF16" else values.dtype.name)
    if ending != ".pt":
        raise ValueError(f"its ending is not one of {', '.join(ENDINGS)}")
    require(visible(str(path)), "torch")
    import torch

    if zipfile.is_zipfile(path):  # torch leaves its parts uncompressed, but unpacks compressed ones
        with zipfile.ZipFile(path) as archive:
            _check_size(sum(member.file_size for member in archive.infolist()), path)
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # torch's own advice is to switch the protection off
        raise ValueError("it holds something other than tensors; attn unpickles nothing else") from None
    if isinstance(loaded, dict):
        loaded = loaded[_the_mask([name for name, value in loaded.items() if isinstance(value, torch.Tensor)])]
    if not isinstance(loaded, torch.Tensor):
        raise ValueError(f"it holds a {type(loaded).__name__}, not a tensor")
    _check_size(loaded.nbytes, path)  # a broadcast tensor stores one value for many cells
    return as_stored(loaded, "the file")


def _the_mask(names: list[str]) -> str:
    """Return the name of the mask among several arrays: the only one, or a usual one."""
    named = names if len(names) == 1 else [name for name in _NAMES if name in names]
    if not named:
        raise ValueError(f"it holds {', '.join(names[:8]) or 'no array'}; expected one array, or one called mask")
    return named[0]


def _check_size(size: int, path: Path) -> None:
    if size > max(path.stat().st_size, _LARGEST):  # refused before it takes memory
        raise ValueError(f"it unpacks to {size} bytes; give a mask of this size as .npy")


def write_values(path: Path, values: np.ndarray[Any, Any]) -> None:
    """Write a mask into a file that appears when it is whole.

    Raises:
        UsageError: the format cannot hold such a mask.
    """
    stream, name = BytesIO(), visible(str(path))
    match path.suffix.lower():
        case ".npy":
            np.save(stream, values)
        case ".pt":
            require("a .pt file", "torch")
            import torch

            torch.save(torch.from_numpy(np.array(values)), stream)
        case ".safetensors":
            from safetensors.numpy import save

            stream.write(save({"mask": np.ascontiguousarray(values)}))
        case _:
            raise UsageError(f"--output {name}: expected a file ending in {', '.join(ENDINGS)}")
    with atomic_write(path) as aside:
        aside.write_bytes(stream.getbuffer())  # the libraries' own errors about a file leave out the system's reason
