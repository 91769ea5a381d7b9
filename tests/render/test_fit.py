"""One screen: it fits, holds every row and column of what it draws, and its legend explains every mark."""

import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from rich.cells import cell_len
from running import plain, printed
from small_checkpoints import minilm_folder
from traces import layer_of, trace_of

import attncli
from attncli.render.inspect import Layout
from attncli.render.palette import Palette, Scale
from attncli.trace.trace import Trace
from attncli.trace.view import View

COLOUR, SHADES = Palette("truecolor"), Palette("blocks")
SCREENS = ((COLOUR, 40, 39), (SHADES, 100, 49), (SHADES, 200, 79))


@cache
def subject(tokens: int, heads: int, layers: int) -> Trace:
    """A toy layer, in as many copies as there are layers."""
    text = " ".join(f"w{number % 97}" for number in range(tokens))
    trace = attncli.inspect(text, num_heads=heads, d_model=2 * heads)
    copies = tuple(replace(trace.layers[0], layer=layer) for layer in range(layers))
    return replace(trace, source=trace.source._replace(layers=layers), layers=copies)


def screen(trace: Trace, palette: Palette, width: int, lines: int, view: View | None = None) -> tuple[str, str]:
    """The screen without its colours, and the note below it; both together have no more lines than there are."""
    layout = Layout(trace, view or View(), palette, width, lines)
    shown = plain("\n".join(printed([part], palette, width) for part in layout.renderables()))
    note = "".join(layout.notes())
    assert shown.count("\n") + (-(-len(f"attn: {note}") // width) if note else 0) <= lines
    assert max(map(cell_len, shown.splitlines())) <= width
    assert set(shown) <= {"\n", *filter(str.isprintable, shown)}
    return shown, note


def maps_of(shown: str) -> list[list[str]]:
    """The strips of maps of a screen, each from its ticks on: lines of a row label and of cells.

    A cell that is high has more lines, below the one with its label.
    """
    lines = re.split(r"^(?:weights |.* weights of )", shown, flags=re.MULTILINE)[-1].splitlines()
    starts = [place for place, line in enumerate(lines) if re.fullmatch(r" +(0[ 0-9]*|(w0|time|a) .*)", line)]
    ends = [next((end for end in range(start, len(lines)) if not lines[end]), len(lines)) for start in starts]
    return [
        [lines[start], *(line for line in lines[start + 1 : end] if line[:4].strip())]
        for start, end in zip(starts, ends, strict=True)
    ]


@pytest.mark.parametrize(  # from one of each to a long text and a deep model
    ("tokens", "heads", "layers"),
    [(1, 144, 1), (2, 4, 1), (5, 12, 12), (20, 144, 1), (41, 1, 1), (64, 16, 2), (113, 12, 1), (2000, 2, 1)],
)
def test_whatever_there_is_fits_whatever_screen(tokens: int, heads: int, layers: int) -> None:
    for palette, width, lines in SCREENS:
        shown, note = screen(subject(tokens, heads, layers), palette, width, lines)
        if tokens == 1:
            continue
        pool = re.search(r"largest of (\d+)[×x](\d+)", " ".join(shown.split()))
        per_row, per_column = map(int, pool.groups()) if pool else (1, 1)
        assert maps_of(shown)
        for ticks, *rows in maps_of(shown):
            # Every row: a line each, or one for two, from 0 on in equal steps.
            firsts = [int(row.split()[0]) for row in rows]
            step = firsts[1] - firsts[0] if len(firsts) > 1 else tokens
            assert step % per_row == 0
            assert firsts == list(range(0, tokens, step))
            assert step <= 2 * per_row or len(firsts) == 1
            # Every column: as many cells as there are blocks of keys, or two characters for each.
            assert width - len(ticks) + len(ticks.strip()) >= -(-tokens // per_column)
        drawn = shown.split("weights of ")[-1]
        assert "·" not in drawn.split("\n", 3)[-1] or "masked" in drawn
        shown_heads = len(re.findall(r"head \d+|H\d+", "\n".join(drawn.splitlines()[1:])))
        if shown_heads and shown_heads < heads * layers:
            assert f"showing {shown_heads} of {heads * layers} heads" in " ".join(note.split())
            assert "--all shows everything" in note


def test_the_default_view_names_every_token_beside_the_maps_of_every_head() -> None:
    trace = attncli.inspect("the cat did not cross the street because it was tired", model=minilm_folder())
    shown, note = screen(trace, COLOUR, 120, 39)
    assert "heads" not in note
    strips = maps_of(shown)
    for strip in strips:
        assert [row.split()[1] for row in strip[1:]] == [token.label for token in trace.query_tokens]
        assert "▀" not in "".join(strip)
    assert all(re.search(rf"\bhead {head}\b", shown) for head in range(12))
    assert "head 2 previous" in shown


@pytest.mark.parametrize(("width", "lines"), [(80, 23), (80, 30), (100, 40), (120, 50)])
@pytest.mark.parametrize(("heads", "layers"), [(4, 2), (9, 4), (12, 6), (16, 30)])
def test_the_sentence_counts_its_heads_and_has_none_whose_map_is_left_out(
    heads: int, layers: int, width: int, lines: int
) -> None:
    every = heads * layers
    shown, note = screen(subject(9, heads, layers), SHADES, width, lines)
    above, _, maps = shown.partition(" · weights of ")
    named, (drawn,) = re.findall(r"^L\d+ H\d+\b", above, re.MULTILINE), re.findall(r"^(\w+)(?= of| head)", maps)
    assert set(named) <= set(re.findall(r"\bL\d+ H\d+\b", maps))
    assert (f"attends to   {len(named)} of {every} heads" in above) == (0 < len(named) < every)
    assert (f"showing {drawn} of {every} heads" in note) == (drawn != "every")


# --- two cells in a character ---


def test_each_half_has_the_colour_of_its_own_cell_and_a_masked_one_none() -> None:
    ramp = [style.bgcolor for _, style in COLOUR.ramp(1) if style]
    values, allowed = np.ones((3, 4)), np.ones((3, 4), bool)
    values[1, 0] = 0.001
    allowed[0, 2:] = allowed[1, 1] = allowed[1, 3] = False
    rows = COLOUR.halves(values, allowed, Scale(0, 1))
    drawn = [[(glyph, style and style.color, style and style.bgcolor) for glyph, style in row] for row in rows]
    assert drawn[0][:3] == [("▀", ramp[-1], ramp[0]), ("▀", ramp[-1], None), ("▄", ramp[-1], None)]
    assert drawn[0][3][0] == " "
    assert drawn[1][0] == ("▀", ramp[-1], None)  # below the last of an odd number of rows


def test_the_legend_says_each_mark_of_the_halves_that_there_is() -> None:
    weights = np.full((12, 12, 12), 1 / 12, np.float32)
    weights[0, 0, 0], weights[0, 1, 1], weights[0, 2, 2] = np.nan, 0, np.inf
    mask = np.ones((12, 12, 12), bool)
    mask[:, 3, 4] = False
    weights[:, 3, 4] = 0
    vectors = np.zeros((12, 12, 2), np.float32)
    trace = trace_of(layer_of(vectors, vectors, mask=mask, recorded_scores=weights, recorded_weights=weights))
    shown, _ = screen(trace, COLOUR, 80, 34)
    assert all(words in shown for words in ("▀", "blank masked", "0 exactly zero", "X NaN", "I infinite"))


# --- what is chosen ---


def test_what_was_asked_for_in_so_many_words_is_printed_whole() -> None:
    trace = subject(27, 12, 1)
    layout = Layout(trace, View(show=frozenset({"weights"})), SHADES, 80, 39)
    assert all(f"head {head} of 12" in printed(layout.renderables(), SHADES, 80) for head in range(12))
    whole = printed(Layout(trace, View(), SHADES, 80, None, is_all=True).renderables(), SHADES, 80)
    assert all(f"head {head}" in whole for head in range(12))
    assert "scores, before the mask" in whole
