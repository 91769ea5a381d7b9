"""The header of a safetensors file, held against the library that writes such files: what one refuses, both do."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from attncli.checkpoints.tensors.header import PREFIX, Entry, header_end, read_header

TYPES = "BOOL U8 I8 I16 U16 F16 BF16 I32 U32 F32 I64 U64 F64 C64 F4 F6_E2M3 F6_E3M2".split()
TYPES += "F8_E5M2 F8_E4M3 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ".split()


def ours(path: Path) -> dict[str, Entry] | None:
    """What we read of a file; None if we refuse it."""
    data = path.read_bytes()
    try:
        return read_header(data[: header_end(data[:64], len(data))], len(data))
    except ValueError:
        return None


def theirs(path: Path) -> bool:
    """Whether the library opens it."""
    try:
        safe_open(path, framework="np")
    except Exception:
        return False
    return True


def written(path: Path, header: bytes, count: int) -> Path:
    """A file of a header and so many bytes."""
    path.write_bytes(len(header).to_bytes(PREFIX, "little") + header + bytes(count))
    return path


def tensor(kind: str, shape: Any, begin: Any, end: Any, **more: Any) -> dict[str, Any]:
    return {"dtype": kind, "shape": shape, "data_offsets": [begin, end], **more}


def test_the_places_are_those_where_the_numbers_are(tmp_path: Path) -> None:
    arrays = {
        "b": np.arange(6, dtype=np.float32).reshape(2, 3),
        "a": np.arange(3, dtype=np.int64),
        "none": np.zeros((0, 2)),
    }
    save_file(arrays, tmp_path / "some.safetensors", metadata={"format": "np"})
    found = ours(tmp_path / "some.safetensors")
    assert found is not None
    assert found.keys() == arrays.keys()
    data = (tmp_path / "some.safetensors").read_bytes()
    for name, entry in found.items():
        assert entry.shape == arrays[name].shape
        assert data[entry.begin : entry.end] == arrays[name].tobytes()


def cases() -> Iterator[tuple[str, Any, int]]:
    one = {"a": tensor("F32", [2], 0, 8)}
    yield "usual", one, 8
    yield "a byte too many", one, 9
    yield "a byte too few", one, 7
    yield "a hole", {**one, "b": tensor("F32", [1], 12, 16)}, 16
    yield "an overlap", {**one, "b": tensor("F32", [2], 4, 12)}, 12
    yield "back to front", {"a": tensor("F32", [2], 8, 0)}, 8
    yield "another size", {"a": tensor("F32", [3], 0, 8)}, 8
    yield "before the file", {"a": tensor("F32", [2], -8, 0)}, 0
    yield "an unknown type", {"a": tensor("F128", [1], 0, 16)}, 16
    yield "no type", {"a": {"shape": [2], "data_offsets": [0, 8]}}, 8
    yield "a number as a text", {"a": tensor("F32", ["2"], 0, 8)}, 8
    yield "a number with a point", {"a": tensor("F32", [2.0], 0, 8)}, 8
    yield "a truth as a number", {"a": tensor("F32", [True, 2], 0, 8)}, 8
    yield "a huge shape", {"a": tensor("F32", [2**62, 2**62, 0], 0, 0)}, 0
    yield "three places", {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8, 8]}}, 8
    yield "something more", {"a": tensor("F32", [2], 0, 8, more=1)}, 8
    yield "no tensor", {}, 0
    yield "no tensor in some bytes", {}, 8
    yield "a list", [], 0
    yield "metadata", {"__metadata__": {"a": "b"}, **one}, 8
    yield "no metadata", {"__metadata__": None, **one}, 8
    yield "metadata of numbers", {"__metadata__": {"a": 1}, **one}, 8
    yield "metadata in a list", {"__metadata__": [], **one}, 8
    yield "in another order", {"z": tensor("F32", [1], 0, 4), "a": tensor("F32", [1], 4, 8)}, 8
    yield "nothing, then something", {"z": tensor("F32", [0], 0, 0), "a": tensor("F32", [2], 0, 8)}, 8
    yield "half a byte", {"a": tensor("F4", [3], 0, 1)}, 1
    for kind in TYPES:
        yield kind, {"a": tensor(kind, [8], 0, 32)}, 32


@pytest.mark.parametrize(("said", "count"), [one[1:] for one in cases()], ids=[one[0] for one in cases()])
def test_what_the_library_refuses_is_refused(said: Any, count: int, tmp_path: Path) -> None:
    path = written(tmp_path / "some.safetensors", json.dumps(said).encode(), count)
    assert (ours(path) is not None) == theirs(path)


def test_every_type_has_the_size_that_the_library_gives_it(tmp_path: Path) -> None:
    for kind in TYPES:
        fits = set()
        for count in (4, 6, 8, 16, 32, 64):
            path = written(
                tmp_path / "some.safetensors", json.dumps({"a": tensor(kind, [8], 0, count)}).encode(), count
            )
            assert (ours(path) is not None) == theirs(path), kind
            fits |= {count} if theirs(path) else set()
        assert len(fits) == 1, kind


def test_what_is_no_header_is_refused(tmp_path: Path) -> None:
    for header in (b"", b"{", b"\xff{}", b'{"a": NaN}', b"[" * 100_000, b"{}  ", b"  {}", b'{"__metadata__":{}}'):
        path = written(tmp_path / "some.safetensors", header, 0)
        assert (ours(path) is not None) == theirs(path), header[:20]
    for data in (b"", b"1234567", (2**63).to_bytes(8, "little") + b"{}", (100_000_001).to_bytes(8, "little") + b"{}"):
        path.write_bytes(data)
        assert ours(path) is None
        assert not theirs(path)


def test_bytes_that_changed_are_refused_where_the_library_refuses_them(tmp_path: Path) -> None:
    save_file({"a": np.zeros(3, np.float32), "b": np.zeros((2, 2), np.int8)}, tmp_path / "whole.safetensors")
    whole = (tmp_path / "whole.safetensors").read_bytes()
    path, chance, refused = tmp_path / "some.safetensors", random.Random(0), 0
    for _ in range(400):
        data = bytearray(whole)
        place = chance.randrange(PREFIX, header_end(whole, len(whole)))
        data[place] = chance.randrange(32, 127)
        path.write_bytes(data)
        assert (ours(path) is not None) == theirs(path), bytes(data)
        refused += ours(path) is None
    assert refused > 100
