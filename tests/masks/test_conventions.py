"""What True means in a mask file: no mask is read the wrong way round, and none that is right is called wrong."""

from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from safetensors.torch import load_file

from attncli.errors import InputError, UsageError
from attncli.masks import ENDINGS, files
from attncli.masks.conventions import LEAST, Reader, encode_mask, read_convention
from attncli.masks.files import read_values, write_values
from attncli.masks.mask_grid import GridOptions, MaskSize, materialise, open_masks
from attncli.masks.parser import parse

KEYS = "pad(left=1)", "pad(right=2)", "pad(left=2,right=1)", "keys(1,3)", "full", "~full"
RULES = (
    *KEYS, "causal", "window(2)", "window(3) & ~window(1)", "causal & pad(left=2)", "causal & pad(right=1)",
    "band(0,2)", "prefix(2)", "dilated(2,2)", "queries(1,3)", "causal & ~queries(1,2)", "~window(2)",
)  # fmt: skip
UNTYPED = ("bool", "uint8", "int64", "float16", "float32", "float64")


def ruled(text: str, queries: int, past: int) -> np.ndarray:
    return materialise(parse(text), MaskSize(queries, queries + past, past))[0]


squares = st.builds(ruled, st.sampled_from(RULES), st.integers(1, 7), st.integers(0, 4))
noise = arrays(bool, array_shapes(min_dims=2, max_dims=4, max_side=4))
masks = st.one_of(squares, squares.map(lambda one: one[None, None]), noise)
untyped = st.tuples(st.sampled_from(["attend", "masked"]), st.sampled_from(UNTYPED))
additive = st.tuples(st.sampled_from([-np.inf, -1e4, -65504.0]), st.sampled_from(["float16", "float32", "float64"]))


def written(allowed: np.ndarray, way: tuple[Any, str]) -> np.ndarray:
    meaning, dtype = way
    if isinstance(meaning, float):
        return np.where(allowed, 0, meaning).astype(dtype)
    return (allowed if meaning == "attend" else ~allowed).astype(dtype)


def is_causal(allowed: np.ndarray) -> bool:
    """The definition of causal structure, cell by cell."""
    *_, queries, keys = allowed.shape
    past = keys - queries
    if past < 0 or queries < 2:
        return False
    planes = allowed.reshape(-1, queries, keys).tolist()
    if any(plane[i][j] for plane in planes for i in range(queries) for j in range(past + i + 1, keys)):
        return False
    for plane in planes:
        own = [plane[i][past + i] for i in range(queries)]
        reaches = any(plane[i][j] for i in range(queries) for j in range(past + i))
        first = own.index(True) if any(own) else queries
        if all(own[first:]) and not any(map(any, plane[:first])) and queries - first > 2 and reaches:
            return True
    return False


def is_zero_in_floats(values: np.ndarray) -> bool:
    return values.dtype.kind == "f" and not values.any()


# --- nothing is read the wrong way round -----------------------------------------------------------------------


@given(allowed=masks, way=st.one_of(untyped, additive))
@settings(max_examples=600)
def test_a_mask_is_read_as_it_is_or_called_ambiguous(allowed: np.ndarray, way: tuple[Any, str]) -> None:
    values = written(allowed, way)
    reading = read_convention(values, "m")
    if is_zero_in_floats(values):
        assert (reading.convention, reading.allowed.all()) == ("additive", True)
    elif isinstance(way[0], float) or is_causal(allowed):
        assert not reading.is_ambiguous
        np.testing.assert_array_equal(reading.allowed, allowed)
    else:
        assert reading.is_ambiguous != is_causal(~allowed)  # what nobody has, and a causal one in the other convention


# --- what was stated ---------------------------------------------------------------------------------------------


def test_who_reads_it_decides_and_numbers_tell_themselves() -> None:
    lower = np.tri(4, dtype=bool)
    for values in (lower, ~lower, lower.astype(int), np.eye(4, dtype=np.float32)):
        is_true = values.astype(bool)
        np.testing.assert_array_equal(read_convention(values, "m", "sdpa").allowed, is_true)
        np.testing.assert_array_equal(read_convention(values, "m", "mha").allowed, ~is_true)
        with pytest.raises(UsageError, match="--for additive does not apply to m, whose values are booleans, or 0"):
            read_convention(values, "m", "additive")
    for reader in (None, "sdpa", "mha", "additive"):  # all three add numbers
        assert read_convention(np.where(lower, 0, -np.inf), "m", reader).convention == "additive"
        zeros = read_convention(np.zeros((2, 2), np.float16), "m", reader)
        assert (zeros.convention, zeros.allowed.all(), zeros.fills) == ("additive", True, ())
    assert read_convention(np.zeros((2, 2), int), "m").is_ambiguous
    for values in ([[0, 0.5]], [[1, 2]], [[np.nan, 0]], [[-5.0, 0]], [[1, -np.inf]]):
        with pytest.raises(InputError, match=r"m holds the values .*; expected booleans, 0/1 \(1 = attend\)"):
            read_convention(np.array(values), "m")


DTYPES = ("float16", "float32", "float64")
WAYS: list[tuple[Reader, str]] = [("sdpa", "bool"), ("mha", "bool"), *(("additive", dtype) for dtype in DTYPES)]


@pytest.mark.parametrize(("to", "dtype"), WAYS)
def test_a_mask_survives_every_convention_and_every_file(tmp_path: Path, to: Reader, dtype: str) -> None:
    allowed = ruled("causal & window(3) | global(1)", 6, 0)
    values = encode_mask(allowed, to, dtype)
    np.testing.assert_array_equal(read_convention(values, "m", to).allowed, allowed)
    if to == "additive":
        assert values.min() == LEAST[dtype] == torch.finfo(getattr(torch, dtype)).min
    for ending in ENDINGS:
        for written in (values, values[None, None]):
            path = tmp_path / f"mask{ending}"
            write_values(path, written)
            assert read_values(path).dtype == dtype
            np.testing.assert_array_equal(read_values(path).values, written)
    theirs = load_file(tmp_path / "mask.safetensors")["mask"]
    assert torch.equal(theirs, torch.load(tmp_path / "mask.pt", weights_only=True))
    assert theirs.dtype == getattr(torch, dtype)


def test_a_compressed_file_is_refused_before_it_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save(torch.zeros(512, 512), tmp_path / "plain.pt")
    with ZipFile(tmp_path / "plain.pt") as plain, ZipFile(tmp_path / "m.pt", "w", ZIP_DEFLATED) as packed:
        for member in plain.namelist():
            packed.writestr(member, plain.read(member))
    monkeypatch.setattr(files, "_LARGEST", 2**19)
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("it was unpacked"))
    with pytest.raises(InputError, match=r"m\.pt cannot be read: it unpacks to 10\d+ bytes"):
        read_values(tmp_path / "m.pt")


# --- the other ways to name a file ------------------------------------------------------------------------------


def test_the_bare_name_of_a_file_states_nothing_and_an_expression_does(tmp_path: Path) -> None:
    lower, padding = np.tri(4, dtype=bool), ruled("pad(right=1)", 4, 0)
    for name, values in (("lower", lower), ("upper", ~lower), ("padding", padding), ("zeros", np.zeros((4, 4)))):
        np.save(tmp_path / f"{name}.npy", values)

    def allowed(text: str) -> np.ndarray:
        return materialise(parse(text), MaskSize(4, 4, 0))[0]

    for name in ("lower", "upper"):
        bare = str(tmp_path / f"{name}.npy")
        np.testing.assert_array_equal(allowed(bare), lower)
        np.testing.assert_array_equal(allowed(str(parse(bare))), lower)
    assert allowed(str(tmp_path / "zeros.npy")).all()
    bare = str(tmp_path / "padding.npy")
    with pytest.raises(UsageError, match=r"padding\.npy: the cells .*write 'file\(.*'~file\(.*--for sdpa"):
        parse(bare)
    np.testing.assert_array_equal(allowed(f"file('{bare}')"), padding)
    np.testing.assert_array_equal(allowed(f"~file('{bare}')"), ~padding)
    first, second = open_masks([str(tmp_path / "upper.npy"), "causal"], GridOptions())
    np.testing.assert_array_equal(first.allowed, second.allowed)
    with pytest.raises(UsageError, match=r"padding\.npy: the cells do not tell .*; give --for sdpa or --for mha"):
        open_masks([bare], GridOptions())[0].check_read()
