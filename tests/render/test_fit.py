"""One screen: it fits, holds every row and column of what it draws, and its legend explains every mark."""

import re
from dataclasses import replace
from functools import cache

import pytest
from rich.cells import cell_len
from running import plain, printed
from small_checkpoints import minilm_folder

import attncli
from attncli.render.inspect import Layout
from attncli.render.palette import Palette
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
    named, (drawn,) = re.findall(r"^L\d+H\d+\b", above, re.MULTILINE), re.findall(r"^(\w+)(?= of| head)", maps)
    assert set(named) <= set(re.findall(r"\bL\d+H\d+\b", maps))
    assert (f"\n{every - len(named)} more\n" in above) == (0 < len(named) < every)
    assert (f"showing {drawn} of {every} heads" in note) == (drawn != "every")
