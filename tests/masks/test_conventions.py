"""What True means in a mask file: no mask is read the wrong way round, and none that is right is called wrong."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from attncli.errors import UsageError
from attncli.masks.audit import audit, audit_fills
from attncli.masks.conventions import Reading, read_convention
from attncli.masks.files import read_values
from attncli.masks.mask_grid import GridOptions, MaskSize, materialise, open_masks, open_pair, read_grid
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
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=5), side=st.sampled_from(["left", "right"]), way=untyped
)
@settings(max_examples=200)
def test_key_padding_is_read_by_its_longest_row_or_called_ambiguous(lengths: list[int], side: str, way: Any) -> None:
    tokens = np.array([[key < n if side == "right" else key >= 6 - n for key in range(6)] for n in lengths])
    values = written(tokens, way)
    reading = read_convention(values[:, None, None], "m", is_padding=True)
    if is_zero_in_floats(values):
        return
    # A batch has no row without a token, and mostly one without padding.
    if 6 in lengths and 0 not in lengths:
        assert (reading.is_ambiguous, reading.why) == (False, "only so has every row a key")
        np.testing.assert_array_equal(reading.allowed[:, 0, 0], tokens)
    elif not {0, 6} & set(lengths):
        assert reading.is_ambiguous


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


# --- with an expectation: no false alarm, and no wrong cell that is missed -----------------------------------------


def codes_against(folder: Path, values: np.ndarray, wanted: np.ndarray) -> tuple[dict[str, str], Reading]:
    np.save(folder / "mask.npy", values)
    np.save(folder / "wanted.npy", wanted)
    expected = parse(f"file('{folder / 'wanted.npy'}')")
    size = MaskSize(*values.shape[-2:])
    subject = read_grid(str(folder / "mask.npy"), expected=expected)
    assert subject.reading is not None
    findings = [*audit(subject, expected, size), *audit_fills(subject, None)]
    return {finding.code: finding.severity for finding in findings}, subject.reading


@given(allowed=masks, way=st.one_of(untyped, additive))
@settings(max_examples=250)
@example(allowed=np.array([[1, 1, 1, 1, 1, 1, 0, 0]], bool), way=("attend", "int64"))
@example(allowed=np.array([[1, 1, 1, 1, 1, 1, 0, 0]], bool), way=("masked", "bool"))
@example(allowed=np.array([[[[1, 1, 1, 1, 1, 1, 0, 0]]]], bool), way=("attend", "bool"))
@example(allowed=ruled("pad(left=1)", 6, 0), way=("attend", "bool"))
@example(allowed=ruled("causal & ~window(1)", 6, 0), way=("masked", "bool"))
def test_a_right_mask_is_right_however_it_is_written(
    tmp_path_factory: pytest.TempPathFactory, allowed: np.ndarray, way: tuple[Any, str]
) -> None:
    wanted = allowed.reshape(-1, *allowed.shape[-2:])
    if allowed.ndim == 4 and len(allowed) > 1:  # a file of an expectation has heads and no batch
        wanted, allowed = wanted[:1], np.broadcast_to(wanted[:1], allowed.shape)
    codes, reading = codes_against(tmp_path_factory.mktemp("mask"), written(allowed, way), wanted)
    assert "error" not in codes.values()
    assert set(codes) <= {"varies", "dead-row"}
    np.testing.assert_array_equal(reading.allowed, allowed)


@given(
    allowed=masks.filter(lambda one: one.ndim == 2 and one.size > 2), way=st.one_of(untyped, additive), data=st.data()
)
@settings(max_examples=200)
def test_a_wrong_cell_is_found_where_it_is(
    tmp_path_factory: pytest.TempPathFactory, allowed: np.ndarray, way: tuple[Any, str], data: st.DataObject
) -> None:
    place = tuple(data.draw(st.integers(0, side - 1)) for side in allowed.shape)
    values = allowed.copy()
    values[place] ^= True
    codes, reading = codes_against(tmp_path_factory.mktemp("mask"), written(values, way), allowed)
    if is_zero_in_floats(written(values, way)):  # which are additive, whatever was meant
        assert "error" in codes.values()
        return
    assert codes["leak" if values[place] else "missing"] == "error"
    np.testing.assert_array_equal(reading.allowed, values)
    if not isinstance(way[0], float):
        assert (codes["ambiguous"], reading.convention) == ("note", way[0])


def test_where_both_readings_are_as_near_it_is_ambiguous_and_wrong(tmp_path: Path) -> None:
    codes, reading = codes_against(tmp_path, np.array([[1, 1, 0, 0]]), np.array([[1, 0, 1, 0]], bool))
    assert reading.is_ambiguous
    assert codes == dict.fromkeys(("ambiguous", "missing", "leak"), "error")


def test_what_is_wrong_whatever_true_means_is_said_of_an_ambiguous_mask(tmp_path: Path) -> None:
    values = np.stack([ruled("pad(right=2)", 4, 0), ruled("pad(right=1)", 4, 0)])
    values[0, 2] = False
    np.save(tmp_path / "mask.npy", values)
    findings = audit(read_grid(str(tmp_path / "mask.npy")), None, MaskSize(5, 5))
    assert [finding.code for finding in findings] == ["shape", "ambiguous", "varies"]


# --- the other ways to name a file ------------------------------------------------------------------------------


def test_the_bare_name_of_a_file_states_nothing_and_an_expression_does(tmp_path: Path) -> None:
    lower, padding = np.tri(4, dtype=bool), ruled("pad(right=1)", 4, 0)
    for name, values in (("lower", lower), ("upper", ~lower), ("padding", padding), ("zeros", np.zeros((4, 4)))):
        np.save(tmp_path / f"{name}.npy", values)

    def allowed(text: str, **how: Any) -> np.ndarray:
        return materialise(parse(text, **how), MaskSize(4, 4, 0))[0]

    for name in ("lower", "upper"):
        bare = str(tmp_path / f"{name}.npy")
        np.testing.assert_array_equal(allowed(bare, states_true=False), lower)
        np.testing.assert_array_equal(allowed(str(parse(bare, states_true=False))), lower)
    assert allowed(str(tmp_path / "zeros.npy"), states_true=False).all()
    bare = str(tmp_path / "padding.npy")
    with pytest.raises(UsageError, match=r"padding\.npy: nothing .*write 'file\(.*'~file\(.*--for sdpa"):
        allowed(bare, states_true=False)
    np.testing.assert_array_equal(allowed(f"file('{bare}')", states_true=False), padding)
    np.testing.assert_array_equal(allowed(f"~file('{bare}')", states_true=False), ~padding)


def test_two_masks_tell_each_other_what_true_means(tmp_path: Path) -> None:
    padding = ruled("pad(right=1)", 4, 0)
    names = [str(tmp_path / name) for name in ("attend.npy", "masked.npy", "additive.npy")]
    for name, values in zip(names, (padding, ~padding, np.where(padding, 0, -np.inf)), strict=True):
        np.save(name, values)
    for other in ("pad(right=1)", names[2]):
        for name in names:
            for pair in ((name, other), (other, name)):
                first, second = open_pair(*pair, GridOptions())
                np.testing.assert_array_equal(first.allowed, second.allowed)
    for pair in ((names[0], names[1]), (names[0], "keys(0,2) & queries(0,2) | keys(2,4) & queries(2,4)")):
        with pytest.raises(UsageError, match="say it with --for sdpa or --for mha"):
            open_pair(*pair, GridOptions())
    first, second = open_pair(names[0], names[0], GridOptions())
    assert first == second
    (subject,) = open_masks(names[0], GridOptions())
    with pytest.raises(UsageError, match="say it with --for sdpa or --for mha"):
        subject.check_read()


def test_zeros_of_a_table_are_numbers_only_where_they_are_written_so(tmp_path: Path) -> None:
    for text, is_ambiguous in (
        ("0,0\n0,0\n", True),
        ("false,False\n", True),
        ("0.0,0.0\n", False),
        ("0,-0.0\n", False),
    ):
        (tmp_path / "mask.csv").write_text(text)
        assert read_convention(read_values(tmp_path / "mask.csv").values, "m").is_ambiguous == is_ambiguous
