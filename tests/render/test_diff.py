"""The view of a comparison: what stands where."""

import re
from typing import Any

import numpy as np
from running import printed

import attncli
from attncli.analysis.diff import Difference
from attncli.render.diff import DiffView
from attncli.render.heatmap import Heatmap
from attncli.render.palette import Palette


def drawn(difference: Difference, palette: Palette = Palette(), width: int | None = None, **view: Any) -> str:  # noqa: B008
    return printed(DiffView(difference, palette, width, **view).renderables(), palette, width)


def test_the_view_of_a_small_comparison_is_exactly_this() -> None:
    first, second = (
        attncli.inspect(text, d_model=2, num_heads=1, init="zeros", mask="none") for text in ("a b", "b c d")
    )
    difference = attncli.diff(first, second)
    assert drawn(difference, width=80) == (
        "toy layer · 1 head · mask full · zeros weights, seed 0 (numpy) · 16 parameters\n"
        "random embeddings: shapes and arithmetic are real, patterns mean nothing\n"
        "tokens A  0 a  1 b\n"
        "tokens B       0 b  1 c  2 d\n"
        "shared         =\n"
        "heads that changed most, of 1 · Jensen-Shannon divergence, 0 to 1 bit · query \n"
        "row 1/0 b\n"
        "layer  head  divergence  elsewhere A  elsewhere B\n"
        "    0     0      0.0207       0.5000       0.6667\n"
        "elsewhere: weight on tokens that are not shared; to the divergence it is one\n"
        "more cell\n"
        "cells that changed most\n"
        "layer  head  query  key         A       B    B − A\n"
        "    0     0  1/0 b  1/0 b  0.5000  0.3333  −0.1667\n"
        "layer 0 head 0 · 0.0207 bits\n"
        "weights  ≤.0005  ░░░ .0028 ░▒▒▒ .016 ▒▓▓▓ .089 ▓███ .5\n"
        "B − A    −.1667 -█-▓-▒-░  +░+▒+▓+█ +.1667   − more in A   + more in B\n"
        "    A          B            B − A\n"
        "    0 1        0 1 2        1\n"
        "1 b ████   0 b ██████   1 b -█\n"
    )


def test_of_a_long_sentence_the_maps_are_pooled_and_say_so() -> None:
    long = " ".join(f"w{index}" for index in range(150))
    text = drawn(attncli.diff(attncli.inspect(long), attncli.inspect(f"start {long}")), width=100)
    assert "tokens: 150 shared" in text
    assert "B  151 tokens, only here: 0 start" in text
    assert "a cell is the strongest of " in text
    assert len(text.splitlines()) < 70


def test_equal_traces_have_neither_cells_nor_maps() -> None:
    trace = attncli.inspect("time flies")
    text = drawn(attncli.diff(trace, trace))
    assert "no cell that both have has changed" in text
    assert "tokens  0 time  1 flies\n" in text
    assert "B − A" not in text
    assert re.search(r"^ +0 +0 +0$", text, re.MULTILINE)


def test_two_layers_of_another_make_have_a_headline_each_and_a_mark_is_explained_once() -> None:
    first, second = (attncli.inspect("time flies", seed=seed) for seed in (0, 1))
    text = drawn(attncli.diff(first, second))
    assert re.match(r"A  toy layer .*seed 0.*\nB  toy layer .*seed 1.*\nrandom weights: shapes and", text)
    assert text.count("random weights") == 1
    assert text.count("· masked") == 1


def test_a_row_without_a_key_carries_its_mark() -> None:
    first = attncli.inspect("time flies like", mask="keys(1,3) & causal")
    second = attncli.inspect("time flies like", mask="causal", seed=1)
    text = drawn(attncli.diff(first, second))
    assert "! fully masked" in text
    assert len(re.findall(r"0 time  !", text)) == 2  # in A and in the difference


# --- the scale around zero ---


def test_a_pooled_cell_is_the_one_farthest_from_zero() -> None:
    random = np.random.default_rng(0)
    values = random.uniform(-1, 1, (5, 7))
    allowed = random.uniform(size=(5, 7)) > 0.4
    pooled = Heatmap("", values, allowed).pooled(2, 3, is_signed=True)
    for row in range(3):
        for column in range(3):
            block = np.s_[2 * row : 2 * row + 2, 3 * column : 3 * column + 3]
            found = values[block][allowed[block]].tolist()
            assert bool(pooled.allowed[row, column]) == bool(found)
            if found:
                assert pooled.values[row, column] == max(found, key=abs)


def test_chosen_rows_keep_the_colours_of_all() -> None:
    first, second = (attncli.inspect(text, mask="none", seed=1, num_heads=1) for text in ("a b c d e f", "a b x d e f"))
    part = drawn(attncli.diff(first, second, queries=("d",)))
    head = re.findall(r"^layer 0 head (\d)", part, re.MULTILINE)[0]

    def of_head(text: str) -> str:
        return text[text.index(f"layer 0 head {head} ·") :]

    whole = drawn(attncli.diff(first, second), top=4)
    legends = [re.findall(r"^(?:weights|B − A) .*$", of_head(text), re.MULTILINE)[:2] for text in (whole, part)]
    assert legends[0] == legends[1]
    rows = [re.findall(r"^3 d .*$", of_head(text), re.MULTILINE)[0] for text in (whole, part)]
    assert rows[0] == rows[1]
