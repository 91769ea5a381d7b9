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


def test_whole_maps_of_some_heads_stand_there_rather_than_blocks_of_all() -> None:
    text = (
        "the quick brown fox jumps over the lazy dog while the cat sleeps on the warm red mat near the old stone house"
    )
    trace = attncli.inspect(f"{text} today now", model=minilm_folder())
    assert len(trace.key_tokens) == 27
    shown, note = screen(trace, COLOUR, 80, 39)
    assert "largest of" not in shown
    assert "4 of 12 heads (one of each label first)" in note
    assert "head 2 previous" in shown


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


def test_maps_grow_with_the_terminal_and_have_their_numbers_in_them() -> None:
    trace = attncli.inspect("time flies like an arrow")
    widths = []
    for width, lines in ((80, 23), (120, 39), (200, 59)):
        ((*_, last),) = maps_of(screen(trace, COLOUR, width, lines)[0])
        widths.append(len(last))
    assert widths[0] < widths[1] < widths[2]
    assert widths[2] > 180
    ((ticks, *rows),) = maps_of(screen(trace, COLOUR, 200, 59)[0])
    assert ticks.split()[:5] == "time flies like an arrow".split()
    weights = trace.layer(0).head(0).weights
    for query, row in enumerate(rows):
        assert row.split()[2 : 3 + query] == [f"{weight:.2f}" for weight in weights[query, : query + 1]]


@pytest.mark.parametrize(("width", "lines"), [(80, 23), (120, 39)])
def test_a_causal_model_has_the_sentence_of_its_last_token_above_the_maps(width: int, lines: int) -> None:
    trace = attncli.inspect("time flies like an arrow", model="demo", layer="2")
    shown, _ = screen(trace, COLOUR, width, lines)
    above = shown.split("weights of every head")[0]
    assert re.search(
        r"^7 ##ow attends to\n(L2 H\d .*\n)*L2 H3  previous   <s> time flies like an arr▸ow$", above, re.MULTILINE
    )
    bert = attncli.inspect("time flies like an arrow", model=minilm_folder())
    assert "attends to" not in screen(bert, COLOUR, width, lines)[0]
    assert "attends to" in screen(bert, COLOUR, width, lines, View(queries=("flies",)))[0]


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


def test_every_odd_half_has_a_colour_of_its_own_that_no_weight_has() -> None:
    odd = [0.0, np.nan, np.inf, 2.0, -1.0]
    for tier, name in (("truecolor", "viridis"), ("256", "cividis"), ("truecolor", "gray")):
        palette = Palette(tier, colormap=name)
        ramp = {str(style.bgcolor) for _, style in palette.ramp(1) if style}
        pairs = (np.array([odd, other]) for other in ([0.5] * len(odd), odd))
        (mixed,), (both,) = (palette.halves(each, np.ones(each.shape, bool), Scale(0.001, 1)) for each in pairs)
        colors = [str(style.color) for _, style in mixed if style]
        assert len(set(colors)) == len(odd)
        assert not ramp & set(colors)
        assert [glyph for glyph, _ in both] == ["0", "X", "I", "+", "-"]


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


def test_weights_beyond_the_colours_have_a_mark_that_the_legend_explains() -> None:
    weights = np.full((1, 3, 3), 0.4, np.float32)
    vectors = np.zeros((1, 3, 2), np.float32)
    notes = "+ more than 1", "- less than 0", "0 exactly zero"
    for place, value in enumerate((1.5, -0.2, 0.0)):
        weights[0, 2, :] = 0.4
        weights[0, 2, place] = value
        trace = trace_of(layer_of(vectors, vectors, recorded_scores=weights, recorded_weights=weights))
        for palette, view in ((COLOUR, View()), (SHADES, View()), (COLOUR, View(queries=("2",)))):
            shown, _ = screen(trace, palette, 100, 34, view)
            assert [note in shown for note in notes] == [note == notes[place] for note in notes]


def test_a_pair_of_texts_is_parted_between_characters_and_not_within_one() -> None:
    trace = attncli.inspect("a b c", pair="d e f g", num_heads=32, d_model=64, mask="none")
    (strip, *_) = maps_of(screen(trace, COLOUR, 80, 39)[0])
    assert [line.split()[0] for line in strip[1:] if line[0] != "─"] == ["0", "2", "3", "5"]
    assert [place for place, line in enumerate(strip[1:]) if line[0] == "─"] == [2]


# --- what is chosen ---


def test_chosen_rows_stand_for_themselves_as_long_as_they_fit() -> None:
    for palette, *_ in SCREENS:
        shown, _ = screen(subject(300, 32, 1), palette, 100, 39, View(queries=("100:120",)))
        assert re.search(r"largest of 1[×x]\d+", shown)


@pytest.mark.parametrize(("view", "width"), [(View(top_keys=9), 80), (View(top_keys=200), 200)])
def test_lists_of_heaviest_keys_fit_too(view: View, width: int) -> None:
    shown, note = screen(subject(300, 32, 2), SHADES, width, 39, view)
    assert "heaviest keys of each query" in shown
    assert "layer 0 · self, one of 2 layers" in note


@pytest.mark.parametrize(("palette", "width", "heads"), [(COLOUR, 40, 5), (COLOUR, 120, 32), (SHADES, 120, 16)])
def test_one_query_has_the_sentence_of_as_many_heads_as_fit(palette: Palette, width: int, heads: int) -> None:
    shown, note = screen(subject(27, 32, 1), palette, width, 39, View(queries=("20",)))
    names = [line[:6] for line in shown.splitlines() if re.match(r"L0 H\d+ ", line)]
    assert len(set(names)) == heads
    assert ("showing" in note) == (heads < 32)
    assert "20 w20 attends to" in shown
    few, _ = screen(subject(9, 4, 1), palette, 120, 39, View(queries=("8",)))
    assert "heaviest keys of each query" in few


def test_what_was_asked_for_in_so_many_words_is_printed_whole() -> None:
    trace = subject(27, 12, 1)
    layout = Layout(trace, View(show=frozenset({"weights"})), SHADES, 80, 39)
    assert all(f"head {head} of 12" in printed(layout.renderables(), SHADES, 80) for head in range(12))
    whole = printed(Layout(trace, View(), SHADES, 80, None, is_all=True).renderables(), SHADES, 80)
    assert all(f"head {head}" in whole for head in range(12))
    assert "scores, before the mask" in whole
