"""What True means in a mask file: no mask is read the wrong way round, and none that is right is called wrong."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from safetensors.torch import load_file

from attncli.errors import InputError, UsageError
from attncli.masks.conventions import LEAST, Reader, encode_mask, read_convention
from attncli.masks.files import read_values, write_values
from attncli.masks.mask_grid import GridOptions, MaskSize, materialise, open_pair
from attncli.masks.notation import ENDINGS
from attncli.masks.parser import parse

KEYS = "pad(left=1)", "pad(right=2)", "pad(left=2,right=1)", "keys(1,3)", "full", "~full"
RULES = (
    *KEYS, "causal", "window(2)", "causal & ~window(1)", "window(3) & ~window(1)", "causal & pad(left=2)",
    "causal & pad(right=1)", "band(0,2)", "band(1,1) & ~band(0,0)", "prefix(2)", "chunk(2)", "dilated(2,2)",
    "global(1)", "queries(1,3)", "causal & ~queries(1,2)", "~window(2)", "~prefix(2)",
)  # fmt: skip
UNTYPED = ("bool", "uint8", "int64", "float16", "float32", "float64")


def ruled(text: str, queries: int, past: int) -> np.ndarray:
    return materialise(parse(text), MaskSize(queries, queries + past, past))[0]


def of_sentences(lengths: list[int], longest: int, side: str) -> np.ndarray:
    """The keys of each sentence of a padded batch, `[B, K]`."""
    at = np.arange(longest)
    if side == "left":
        at = at[::-1]
    return at < np.array(lengths)[:, None]


squares = st.builds(ruled, st.sampled_from(RULES), st.integers(1, 7), st.integers(0, 4))
batches = st.integers(1, 6).flatmap(
    lambda longest: st.builds(
        of_sentences,
        st.lists(st.integers(1, longest), min_size=1, max_size=6),
        st.just(longest),
        st.sampled_from(["left", "right"]),
    )
)
noise = arrays(bool, array_shapes(min_dims=2, max_dims=4, max_side=4))
masks = st.one_of(
    squares, squares.map(lambda one: one[None, None]), batches, batches.map(lambda one: one[:, None, None]), noise
)
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


@given(allowed=st.one_of(batches, batches.map(lambda one: one[:, None, None])), way=untyped)
@settings(max_examples=200)
def test_padding_is_never_taken_for_something_else(allowed: np.ndarray, way: tuple[Any, str]) -> None:
    reading = read_convention(written(allowed, way), "m")
    assert reading.is_ambiguous or is_zero_in_floats(written(allowed, way)) or (reading.allowed == allowed).all()


@given(
    text=st.sampled_from(KEYS), queries=st.integers(1, 7), past=st.integers(0, 4), way=untyped, planes=st.integers(1, 3)
)
def test_nor_are_rows_that_are_all_alike(text: str, queries: int, past: int, way: Any, planes: int) -> None:
    values = written(np.stack([ruled(text, queries, past)] * planes), way)
    assert read_convention(values, "m").is_ambiguous or is_zero_in_floats(values)


@st.composite
def arbitrary(draw: st.DrawFn) -> np.ndarray:
    """Any mask, also one that is nearly causal in its wrong reading: some rows and cells of a rule are others."""
    allowed = draw(squares)
    allowed = allowed ^ draw(st.booleans())
    for row in draw(st.sets(st.integers(0, len(allowed) - 1))):
        allowed[row] = draw(st.booleans())
    return allowed ^ draw(arrays(bool, allowed.shape, elements=st.just(True), fill=st.just(False)) | st.just(False))


def attends_to_what_follows_alone(allowed: np.ndarray) -> bool:
    """Whether three queries or more attend to all that follows and not to themselves, those before them to all."""
    queries, keys = allowed.shape
    past = keys - queries
    rows = allowed.tolist()
    while rows and all(rows[0]):
        rows.pop(0)
    first = queries - len(rows)
    return len(rows) > 2 and all(
        not row[past + i] and all(row[past + i + 1 :]) for i, row in enumerate(rows, start=first)
    )


@given(allowed=arbitrary(), way=untyped)
@settings(max_examples=600)
@example(allowed=np.array([[0, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1], [0, 1, 1, 0]], bool), way=("attend", "bool"))
@example(allowed=np.array([[0, 0, 0, 1], [0, 0, 1, 0]], bool), way=("attend", "bool"))
@example(allowed=np.array([[0, 1, 1], [0, 0, 1], [1, 1, 1]], bool), way=("attend", "bool"))
def test_nor_is_an_arbitrary_mask(allowed: np.ndarray, way: Any) -> None:
    values = written(allowed, way)
    if is_zero_in_floats(values) or attends_to_what_follows_alone(allowed):
        return
    reading = read_convention(values, "m")
    assert reading.is_ambiguous or (reading.allowed == allowed).all()


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


DTYPES = ("float16", "bfloat16", "float32", "float64")
WAYS: list[tuple[Reader, str]] = [("sdpa", "bool"), ("mha", "bool"), *(("additive", dtype) for dtype in DTYPES)]


@pytest.mark.parametrize(("to", "dtype"), WAYS)
def test_a_mask_survives_every_convention_and_every_file(tmp_path: Path, to: Reader, dtype: str) -> None:
    allowed = ruled("causal & window(3) | global(1)", 6, 0)
    values = encode_mask(allowed, to, dtype)
    np.testing.assert_array_equal(read_convention(values, "m", to).allowed, allowed)
    if to == "additive":
        assert values.min() == LEAST[dtype] == torch.finfo(getattr(torch, dtype)).min
    for ending in ENDINGS:
        path = tmp_path / f"mask{ending}"
        if dtype == "bfloat16" and ending not in (".safetensors", ".pt"):
            with pytest.raises(UsageError, match="has no bfloat16"):
                write_values(path, values, dtype)
            continue
        write_values(path, values, dtype)
        assert read_values(path).dtype in (dtype, None)
        np.testing.assert_array_equal(read_values(path).values, values)
    theirs = load_file(tmp_path / "mask.safetensors")["mask"]
    assert torch.equal(theirs, torch.load(tmp_path / "mask.pt", weights_only=True))
    assert theirs.dtype == getattr(torch, dtype)


def test_axes_survive_too(tmp_path: Path) -> None:
    values = np.arange(24).reshape(2, 1, 3, 4) % 3 == 0
    for ending in (".npy", ".safetensors", ".pt"):
        write_values(tmp_path / f"m{ending}", values, "bool")
        np.testing.assert_array_equal(read_values(tmp_path / f"m{ending}").values, values)
    with pytest.raises(UsageError, match="holds one matrix"):
        write_values(tmp_path / "m.csv", values, "bool")


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
    with pytest.raises(UsageError, match=r"padding\.npy: nothing .*write 'file\(.*'~file\(.*--for sdpa"):
        parse(bare)
    np.testing.assert_array_equal(allowed(f"file('{bare}')"), padding)
    np.testing.assert_array_equal(allowed(f"~file('{bare}')"), ~padding)
    first, second = open_pair(str(tmp_path / "upper.npy"), "causal", GridOptions())
    np.testing.assert_array_equal(first.allowed, second.allowed)
    with pytest.raises(UsageError, match=r"padding\.npy: nothing .*; say it with --for sdpa or --for mha"):
        open_pair(bare, "pad(right=1)", GridOptions())


def test_zeros_of_a_table_are_numbers_only_where_they_are_written_so(tmp_path: Path) -> None:
    for text, is_ambiguous in (
        ("0,0\n0,0\n", True),
        ("false,False\n", True),
        ("0.0,0.0\n", False),
        ("0,-0.0\n", False),
    ):
        (tmp_path / "mask.csv").write_text(text)
        assert read_convention(read_values(tmp_path / "mask.csv").values, "m").is_ambiguous == is_ambiguous
