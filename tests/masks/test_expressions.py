"""Mask expressions: how they combine and are written, the parser against hostile text, and masks in files."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attncli.errors import InputError, UsageError
from attncli.masks.expressions import RuleMask, batch_rows, with_lengths
from attncli.masks.mask_grid import MaskSize, materialise
from attncli.masks.parser import MaskError, mistake_in, parse

quickly = settings(max_examples=100)


def cells(text: str, queries: int, keys: int, past: int = 0) -> list[list[bool]]:
    mask = RuleMask(parse(text), queries, keys, heads=1, past=past)
    (allowed,) = mask.rows([0], np.arange(queries))
    assert allowed.shape == (queries, keys)
    assert allowed.dtype == bool
    return allowed.tolist()


def refusal(text: str) -> str:
    with pytest.raises(UsageError) as refused:
        parse(text)
    return str(refused.value)


# --- the atoms (each against torch and transformers: tests/oracles/test_mask_atoms.py) ------------------------


@pytest.mark.parametrize("text", ["docs(2,2)", "docs(999999999)", "causal & ~docs(4)"])
def test_documents_that_do_not_add_up_are_refused_with_both_lengths(text: str) -> None:
    with pytest.raises(InputError, match=r"docs\([\d,]+\) covers \d+ positions, the sequence has 5; make the lengths"):
        cells(text, 5, 5)


@pytest.mark.parametrize(("text", "written"), [
    ("~(causal|full)", "~(causal | full)"), ("none", "full"), ("pad(right=2,left=1)", "pad(left=1,right=2)"),
    ("global( 0 , 05)", "global(0,5)"),
])  # fmt: skip
def test_masks_are_written_in_one_spelling(text: str, written: str) -> None:
    assert str(parse(text)) == written
    assert parse(written) == parse(text)


# --- what the parser says ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "wrong", "reason"), [
    ("caussal", "caussal", "unknown mask 'caussal'; did you mean 'causal'?"),
    ("causal window(4)", "window", "expected & or | here"),
    ("causal && full", "&", "expected a mask such as causal or window(4)"),
    ("window(1,2)", "window(1,2)", "window is written window(w)"),
    ("causal(3)", "causal(3)", "causal takes no number"),
    ("pad(left=1,left=2)", "left", "expected a number: pad(left=n) or pad(right=n)"),
    ("window(four)", "four", "expected a number: window(w)"),
    ("band(1 2)", "2", "expected ','"),
    ("window( 0 )", "0", "expected a number from 1 to 999999999, got 0"),
    ("global(-1)", "-1", "expected a number from 0 to 999999999, got -1"),
    ("file(mask.npy)", "file(", 'file is written file("mask.npy")'),
    ("(causal", "", "expected ')'"),
])  # fmt: skip
def test_a_mistake_is_pointed_at(text: str, wrong: str, reason: str) -> None:
    at = text.rindex(wrong) if wrong else len(text)
    place = f"at character {at + 1}" if wrong else "at the end"
    with pytest.raises(MaskError) as raised:
        parse(text)
    assert str(raised.value) == f"mask '{text}', {place}: {reason}"
    assert mistake_in(text) == (reason, at, at + len(wrong))
    again = pickle.loads(pickle.dumps(raised.value))  # as it comes from another process
    assert (str(again), again.mistake) == (str(raised.value), raised.value.mistake)


@pytest.mark.parametrize("text", ["pad", "causal & pad(left) | pad", "~pad(left)", "pad & pad(right=2)"])
def test_padding_of_rows_is_written_back_and_has_to_be_allowed(text: str) -> None:
    assert str(parse(text, allow_rows=True)) == text
    assert "pad is written pad(left=n) or pad(right=n)" in refusal(text.replace("(left)", ""))
    assert parse("pad ( right )", allow_rows=True) == parse("pad", allow_rows=True)
    for wrong in ("pad(3)", "pad()", "pad(top)", "pad(left,right)", "pad(left"):
        with pytest.raises(UsageError, match=r"pad\(left=n\)|expected"):
            parse(wrong, allow_rows=True)


@given(data=st.data(), queries=st.integers(1, 5), past=st.integers(0, 3), side=st.sampled_from(["left", "right"]))
@quickly
def test_each_row_of_a_batch_has_its_own_padding(data: st.DataObject, queries: int, past: int, side: str) -> None:
    keys = queries + past
    lengths = data.draw(st.lists(st.integers(0, keys), min_size=1, max_size=4))
    text = "causal & pad" if side == "right" else "causal & pad(left)"
    expression = with_lengths(parse(text, allow_rows=True), np.array(lengths))
    assert batch_rows(expression) == len(lengths)
    laid = materialise(expression, MaskSize(queries, keys, past))
    assert laid.shape == (len(lengths), 1, queries, keys)
    for plane, length in zip(laid[:, 0], lengths, strict=True):
        numbers = f"pad(right={keys - length})" if side == "right" else f"pad(left={keys - length})"
        assert plane.tolist() == cells(f"causal & {numbers}", queries, keys, past)
    tokens = np.array([[key < n if side == "right" else key >= keys - n for key in range(keys)] for n in lengths])
    again = with_lengths(parse(text, allow_rows=True), tokens)
    np.testing.assert_array_equal(materialise(again, MaskSize(queries, keys, past)), laid)


def test_padding_of_rows_needs_lengths_that_fit() -> None:
    pad = parse("causal & pad", allow_rows=True)
    with pytest.raises(UsageError, match=r"pad needs the lengths of the rows; give --lengths 5,2"):
        materialise(pad, MaskSize(3, 3, 0))
    with pytest.raises(InputError, match="a row of 4 tokens does not fit into 3 keys"):
        materialise(with_lengths(pad, np.array([2, 4])), MaskSize(3, 3, 0))
    with pytest.raises(InputError, match="a mask of 2 keys, and the mask has 3"):
        materialise(with_lengths(pad, np.ones((1, 2), bool)), MaskSize(3, 3, 0))
    assert batch_rows(parse("causal & pad(left=1)")) is None


# --- hostile text --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["window({})", "window(-{})", "pad(left={})"])
def test_huge_numbers_are_refused_and_the_largest_do_not_overflow(text: str) -> None:
    for digits in (10, 50_000):
        assert "expected a number from" in refusal(text.format("9" * digits))
    largest = 999_999_999
    assert cells(f"dilated({largest},{largest})", 2, 2) == [[True, False], [False, True]]
    assert cells(f"band({largest},{largest}) & prefix({largest}) & chunk({largest})", 2, 2) == [[True, True]] * 2
    assert cells(f"pad(left={largest}) | keys({largest},{largest})", 2, 2) == [[False] * 2] * 2


# --- masks in files ------------------------------------------------------------------------------------------


def written(path: Path, values: Any) -> Path:
    np.save(path, values)
    return path


def test_a_mask_file_may_hold_a_mask_for_each_head(tmp_path: Path) -> None:
    per_head = np.arange(3 * 2 * 4).reshape(3, 2, 4) % 3 == 0
    path = written(tmp_path / "mask.npy", per_head)
    mask = RuleMask(parse(f'file("{path}")'), 2, 4, heads=3)
    np.testing.assert_array_equal(mask.rows([2, 0], np.array([1, 0])), per_head[[2, 0]][:, [1, 0]])
    both = RuleMask(parse(f'~file("{path}") | keys(0,1)'), 2, 4, heads=3)
    expected = ~per_head | (np.arange(4) < 1)
    np.testing.assert_array_equal(both.rows([0, 1, 2], np.arange(2)), expected)
    shared = RuleMask(parse(f'file("{written(tmp_path / "shared.npy", per_head[1:2])}")'), 2, 4, heads=3)
    np.testing.assert_array_equal(shared.rows([2], np.arange(2)), per_head[1:2])


def test_a_file_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    for name in ("gone.npy", "gone.pt"):
        with pytest.raises(InputError, match=f"mask file .*{name} does not exist"):
            cells(str(tmp_path / name), 2, 2)
    (tmp_path / "folder.npy").mkdir()
    with pytest.raises(InputError, match=r"folder\.npy cannot be read: is a folder"):
        cells(str(tmp_path / "folder.npy"), 2, 2)
    (tmp_path / "mask.txt").write_text("1")
    with pytest.raises(InputError, match=r"mask.txt cannot be read: its ending is not one of .npy, .safetensors"):
        cells(f'file("{tmp_path}/mask.txt")', 2, 2)
