"""The mask inside `attn inspect`, and the rows that it leaves without a key, as a user meets them."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

SENTENCE = "time flies like an arrow"
WARNING = "attn: warning: layer 0: the mask leaves no key to query"
Run = Callable[..., Any]


@pytest.fixture
def heads_mask(tmp_path: Path) -> str:
    """A causal mask for four heads, in which head 2 lets `an` see nothing."""
    allowed = np.tile(np.tri(5, dtype=bool), (4, 1, 1))
    allowed[2, 3] = False
    np.save(tmp_path / "heads.npy", allowed)
    return f'file("{tmp_path / "heads.npy"}")'


def test_inspect_draws_a_mask_as_mask_show_does(attn: Run) -> None:
    expression = "causal & window(3) & pad(left=1)"
    inspected = attn("inspect", SENTENCE, "--mask", expression, "--show", "mask")
    shown = attn("mask", "show", expression, SENTENCE)
    head, *parts = inspected.out.split("\n\n")
    assert head.startswith("toy layer · 4 heads")
    titled, facts = parts
    picture, expected = titled.split("\n", 1)[1], shown.out.split("\n\n")[1]
    assert picture == expected
    assert facts == shown.out.split("\n\n")[2]
    assert "0 time  !  · · · · ·" in picture


def test_the_mask_of_a_long_text_is_pooled_and_says_so(attn: Run) -> None:
    words = " ".join(f"w{index}" for index in range(300))
    ran = attn("inspect", words, "--show", "mask", "--mask", "causal & window(40)")
    assert len(ran.out.splitlines()) < 80
    assert "shade: share of 5×5 cells" in ran.out
    assert "keys per row       1..40, the first one visible 0..260" in ran.out
    assert ran.err == "attn: each cell drawn of the mask stands for 5×5; --query or -F json has all of them\n"


def test_a_row_without_a_key_is_marked_by_default_and_warned_about(attn: Run) -> None:
    ran = attn("inspect", SENTENCE, "--mask", "causal & pad(left=1)")
    assert ran.err == f"{WARNING} 0 'time'; the softmax of such a row is NaN\n"
    assert len(re.findall(r"^0 time  ! ", ran.out, re.MULTILINE)) == 2  # in the matrices and the maps
    assert ran.out.count("! fully masked") == 2
    unseen = attn("inspect", SENTENCE, "--mask", "causal & pad(left=1)", "--query", "like")
    assert unseen.err == ""
    assert "fully masked" not in unseen.out


def test_a_row_without_a_key_in_some_heads_names_them(attn: Run, heads_mask: str) -> None:
    ran = attn("inspect", SENTENCE, "--mask", heads_mask, "--show", "weights")
    assert ran.err == f"{WARNING} 3 'an' in head 2; the softmax of such a row is NaN\n"
    assert re.findall(r"^head (\d).*fully masked$", ran.out, re.MULTILINE) == ["2"]
    assert attn("inspect", SENTENCE, "--mask", heads_mask, "--head", "0,1").err == ""
    assert attn("inspect", SENTENCE, "--mask", heads_mask, "--head", "2").err == (
        f"{WARNING} 3 'an'; the softmax of such a row is NaN\n"
    )


def test_layers_with_the_same_rows_share_a_sentence(attn: Run, tiny_llama: str, tmp_path: Path) -> None:
    said = "the mask leaves no key to query 1 'flies'; the softmax of such a row is spread over masked keys\n"
    saved = tmp_path / "trace.safetensors"
    arguments = ("inspect", SENTENCE, "-m", tiny_llama, "--mask", "causal & ~queries(1,2)")
    ran = attn(*arguments, "--layer", "all", "--show", "mask,heatmap", "--save", saved)
    assert ran.err == f"attn: warning: layers 0-2: {said}"
    assert len(re.findall(r"^1 flies ! ", ran.out, re.MULTILINE)) == 2 * 3
    assert attn(*arguments, "--layer", "0,2").err == f"attn: warning: layers 0,2: {said}"
    again = attn("inspect", "--from", saved, "--show", "mask,heatmap")
    assert (again.out, again.err) == (ran.out, ran.err)
    assert attn("inspect", "--from", saved, "--layer", "1").err == f"attn: warning: layer 1: {said}"


def test_a_dump_of_the_last_queries_is_drawn_over_the_keys_before_them(attn: Run, tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    allowed = np.tri(2, 5, 3, dtype=bool)
    save_file({"q": vectors[:2], "k": vectors, "mask": allowed}, tmp_path / "cache.safetensors")
    out = attn("inspect", "--from", tmp_path / "cache.safetensors", "--show", "mask").out
    assert "causal             yes" in out
    allowed[1] = False
    save_file({"q": vectors[:2], "k": vectors, "mask": allowed}, tmp_path / "cache.safetensors")
    ran = attn("inspect", "--from", tmp_path / "cache.safetensors", "--show", "mask")
    assert "causal             yes" in ran.out
    assert "fully masked rows  1: 1" in ran.out
    assert ran.err.startswith(f"{WARNING} 1 ")
