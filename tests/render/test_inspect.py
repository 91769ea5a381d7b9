"""The view of a trace: exact text, what is marked, and nothing cut without saying so."""

import re
from dataclasses import replace

import pytest
from running import printed
from views import of_heads

import attncli
from attncli.render.inspect import Layout
from attncli.render.palette import Palette
from attncli.trace.trace import Trace
from attncli.trace.view import View

SENTENCE = "time flies like an arrow"

DEFAULT, PLAIN = View(), Palette()


def drawn(trace: Trace, view: View = DEFAULT, palette: Palette = PLAIN, width: int | None = None) -> str:
    return printed(Layout(trace, view, palette, width).renderables(), palette, width)


@pytest.mark.parametrize("width", [40, 200])
def test_numbers_are_never_split_and_columns_that_do_not_fit_go_on_below(width: int) -> None:
    words = " ".join(f"word{index}" for index in range(12))
    trace = attncli.inspect(words)
    shown = drawn(trace, View(show=frozenset({"weights"})), width=width)
    numbers = re.findall(r"\d\.\d+", shown)
    assert len(numbers) == 4 * (12 * 13 // 2)  # of every head, the ones below the diagonal and on it
    assert len({len(number) for number in numbers}) == 1
    rows = [line.split()[2:] for line in shown.splitlines() if line.startswith(" 7 word7 ")]
    assert (len(rows) > 4) == (width < 90)
    pieces = len(rows) // 4
    for head in range(4):
        row = [text for piece in rows[head * pieces : (head + 1) * pieces] for text in piece]
        expected = [f"{weight:.{len(numbers[0]) - 2}f}" for weight in trace.layer(0).head(head).weights[7, :8]]
        assert row == [*expected, *"····"]


def test_a_row_that_is_fully_masked_in_one_head_carries_its_mark_there_and_in_what_heads_share() -> None:
    matrices, maps = (drawn(of_heads(2), View(show=frozenset({part}))) for part in ("weights", "heatmap"))
    first, second, third = matrices.split("head ")[1:]
    assert "1 ! 0." in first  # a token that is called so carries no mark
    assert "1 ! 0." in second
    assert "· ! fully masked\n" in third
    assert re.search(r"1 ! ! +nan", third)
    assert re.search(r"0 a +1.0000", third)
    assert "! fully masked in some of them\n" in maps
    assert re.search(r"1 ! ! .* X X X", maps)
    assert "fully masked" not in drawn(of_heads())
    assert "! fully masked\n" in drawn(of_heads(0, 1, 2), View(show=frozenset({"heatmap"})))


def test_a_mask_is_drawn_once_for_heads_that_are_alike() -> None:
    mask = View(show=frozenset({"mask"}))
    alike = drawn(of_heads(), mask)
    assert "mask of every head · 3 queries × 3 keys · cell by cell\n" in alike
    assert "head 1" not in alike
    differing = drawn(of_heads(1), mask)
    assert re.search(r" +head 0 and 1 more head 1\n +0 1 2 +0 1 2\n", differing)
    assert differing.count("keys per query") == 2
    assert "1 ! ! ██▓▓ ·             · · ·" in differing
    assert re.findall(r"fully masked rows: (.*)\n", differing) == ["1"]
    one = replace(of_heads(1).layers[0], heads=(1,))
    assert "mask of head 1 · 3 queries" in drawn(replace(of_heads(1), layers=(one,)), mask)


def test_a_single_query_row_is_walked_through_in_digits() -> None:
    trace = attncli.inspect(SENTENCE, num_heads=1, d_k=3, d_v=2)
    shown = drawn(trace, View(queries=("arrow",)))
    for title in ("embeddings", "q\n", "scores, before the mask", "weights", "output: weights·V"):
        assert title in shown.replace("   q   ", "\n q\n") or title in shown
    head = trace.layer(0).head(0, [4])
    for number in (*head.q[0], *head.scores[0], *head.weights[0], *head.output[0]):
        assert f"{number:.4f}" in shown
