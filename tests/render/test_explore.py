"""What the explorer draws: it fits every room, says the numbers of the trace, and knows what lies where."""

import math
import re
from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest
from rich.style import Style
from traces import layer_of, trace_of

import attncli
from attncli.render.block import Block
from attncli.render.explore.cell import cell_line, status_lines, why_box
from attncli.render.explore.head import CellCursor, LargeHead
from attncli.render.explore.heads import small_heads
from attncli.render.explore.layer_view import LayerViewCache
from attncli.render.explore.layers import layer_map
from attncli.render.explore.tokens import token_strip
from attncli.render.fit import Bounds
from attncli.render.palette import Palette
from attncli.trace.trace import Trace

COLOUR, SHADES = Palette("truecolor"), Palette("blocks")
PALETTES = {"truecolor": COLOUR, "256": Palette("256"), "blocks": SHADES}
MARKS = {"◆", "&", "[", "▸", ">"}
WHOLE = (0, 0, 0)


@cache
def toy(tokens: int, heads: int = 4, **options: object) -> Trace:
    return attncli.inspect(" ".join(f"w{n % 97}" for n in range(tokens)), num_heads=heads, d_model=2 * heads, **options)


@cache
def sight_of(tokens: int, heads: int = 4) -> LayerViewCache:
    trace = toy(tokens, heads)
    return LayerViewCache(trace, trace.layers[0]).prepare()


def softmax_of(trace: Trace, head: int) -> np.ndarray:
    """The weights under a causal mask, by the formula."""
    layer = trace.layers[0]
    scores = layer.q[head].astype(np.float64) @ layer.k[head].astype(np.float64).T * layer.scale
    scores[~np.tri(len(scores), dtype=bool)] = -np.inf
    exponentials = np.exp(scores - scores.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def painted(block: Block) -> list[list[tuple[str, Style | None]]]:
    """Each character of a block and its style."""
    return [[(letter, style) for text, style, _ in line for letter in text] for line in block.lines]


def texts(block: Block) -> list[str]:
    return ["".join(text for text, _, _ in line) for line in block.lines]


def fits(block: Block, room: Bounds) -> Block:
    assert len(block.lines) <= room.lines
    assert max((sum(segment.cell_length for segment in line) for line in block.lines), default=0) <= room.width
    return block


def drawn_head(
    sight: LayerViewCache,
    cursor: tuple[int, int, int],
    palette: Palette,
    room: Bounds,
    port: tuple[int, int, int] = WHOLE,
) -> LargeHead:
    return LargeHead(sight, CellCursor(*cursor), port, None, palette, room)


def entropies(layers: int, heads: int) -> dict[tuple[int, int], float | None]:
    survey = attncli.heads("a b c d", num_heads=heads, d_model=2 * heads)
    return {(layer, each.head): each.metrics["entropy"] for layer in range(layers) for each in survey.heads}


@pytest.mark.parametrize(
    ("tokens", "heads", "tier"), [(1, 1, "blocks"), (12, 12, "truecolor"), (130, 32, "blocks"), (2000, 2, "256")]
)
def test_every_pane_fits_every_room(tokens: int, heads: int, tier: str) -> None:
    palette, sight = PALETTES[tier], sight_of(tokens, heads)
    for number, room in enumerate((Bounds(3, 10), Bounds(8, 39), Bounds(24, 80), Bounds(60, 200)), start=tokens % 7):
        cursor = CellCursor(number % heads, (7 * number) % tokens, (5 * number) % tokens)
        port = (number % tokens, (3 * number) % tokens, number % 5)
        large = drawn_head(sight, cursor, palette, room, port)
        for place, shown in zip(cursor[1:], large.window, strict=False):
            assert place in range(shown.start, shown[-1] + shown.step)
        small = small_heads(sight, cursor.head, None, palette, room).block
        chosen = number % 40, cursor.head
        strip, line = Bounds(1 + number % 3, room.width), Bounds(1, room.width)
        fits(large.block, room)
        fits(small, room)
        fits(layer_map("entropy", entropies(1, heads), range(40), ("self", heads), chosen, palette, room).block, room)
        fits(token_strip(sight.tokens, *cursor[1:], (None, None), palette, strip).block, strip)
        fits(cell_line(sight, cursor, palette, line), line)
        fits(status_lines(sight, "", ["computing …"], palette, line), line)
        fits(why_box(sight.trace, sight.layer, cursor, palette, room), room)


# --- the large head ---


@pytest.mark.parametrize(("tokens", "room"), [(9, Bounds(11, 40)), (24, Bounds(15, 60))])
def test_colours_are_those_of_the_weights(tokens: int, room: Bounds) -> None:
    trace, sight = toy(tokens), sight_of(tokens)
    weights = softmax_of(trace, 2)
    large = drawn_head(sight, (2, tokens - 1, 0), COLOUR, room)
    cell = large.window.cell
    assert (len(large.window.rows), len(large.window.columns)) == (tokens, tokens)
    ramp = [style.bgcolor for _, style in COLOUR.ramp(1) if style is not None]
    picture, lines, read = painted(large.block), texts(large.block), 0
    for line, column in product(range(len(picture)), range(room.width)):
        if large.at(line, column) is None:
            continue
        glyph, style = picture[line][column]
        row = int(lines[line][1:].split()[0])
        key = (column - (len(lines[line]) - tokens * cell.columns)) // cell.columns
        if row == tokens - 1 and (key == 0 or row % 2):
            continue  # the cursor, and a line of two rows that is labelled with the lower one
        if cell.rows == 1:
            expected = {row: style.bgcolor if style else None}
        else:
            both = glyph == " " and style is not None
            bottom = None if style is None else style.bgcolor if glyph == "▀" or both else style.color
            top = None if style is None or glyph == "▄" else style.bgcolor if both else style.color
            expected = {row: top, row + 1: bottom}
        for query, colour in expected.items():
            if query < tokens and key <= query:  # the ramp is of square roots
                step = min(int(math.sqrt(weights[query, key]) * 256), 255)
                assert colour in ramp[max(step - 1, 0) : step + 2]
                read += 1
            elif cell.rows == 2:
                assert colour is None
    assert read > (tokens - 2) * (tokens - 3) // 2


def test_a_pooled_cell_is_its_largest_weight_and_says_how_many_it_is_of() -> None:
    large = drawn_head(sight_of(300), (0, 150, 80), COLOUR, Bounds(30, 60))
    rows, columns, *_ = large.window
    weights = np.where(np.tri(300, dtype=bool), softmax_of(toy(300), 0), -1)
    picture = sight_of(300).pooled(0, rows, columns)
    for (place, query), (at, key) in product(enumerate(rows), enumerate(columns)):
        block = weights[query : query + rows.step, key : key + columns.step]
        assert picture.allowed[place, at] == (block.max() >= 0)
        assert picture.values[place, at] == pytest.approx(max(block.max(), 0), rel=1e-5)
    assert f"largest of {rows.step}×{columns.step}" in texts(large.block)[0]


@pytest.mark.parametrize(("tokens", "zoom", "tier"), [(9, 0, "truecolor"), (40, 0, "blocks"), (300, 2, "blocks")])
def test_what_lies_at_a_place_is_marked_there_when_the_cursor_goes_to_it(tokens: int, zoom: int, tier: str) -> None:
    sight, palette, room = sight_of(tokens), PALETTES[tier], Bounds(17, 50)
    before = drawn_head(sight, (0, tokens // 2, tokens // 3), palette, room, (tokens // 3, tokens // 4, zoom))
    rows, columns, cell, _ = before.window
    found = {place: before.at(*place) for place in product(range(-1, 20), range(-1, 60))}
    cells = {place: pair for place, pair in found.items() if pair is not None}
    assert len(set(cells.values())) >= len(rows) * len(columns) // cell.rows // 2
    for (line, column), (query, key) in list(cells.items())[:: max(len(cells) // 25, 1)]:
        shown = texts(drawn_head(sight, (0, query, key), palette, room, (rows.start, columns.start, zoom)).block)
        width = cell.columns
        assert MARKS & set(shown[line][max(column - width + 1, 0) : column + width])
        assert shown[line].startswith("▸")
        assert shown[line][1:].split()[0] == str(query)
        assert width > 4 or abs(shown[1].index("▾") - column) < width


def odd() -> LayerViewCache:
    """A query that may see no key, a NaN, an infinity, a zero and a masked cell."""
    allowed = np.ones((4, 5), bool)
    allowed[2], allowed[0, 4] = False, False
    weights = np.full((1, 4, 5), 0.2, np.float32)
    weights[0, 0, 4], weights[0, 1, :3], weights[0, 2] = 0, (np.nan, np.inf, 0), 0
    layer = layer_of(
        np.ones((1, 4, 2), np.float32), np.ones((1, 5, 2), np.float32), mask=allowed[None], recorded_weights=weights
    )
    return LayerViewCache(trace_of(replace(layer, recorded_scores=np.zeros((1, 4, 5), np.float32))), layer)


@pytest.mark.parametrize("palette", [SHADES, COLOUR], ids=["blocks", "truecolor"])
def test_odd_cells_and_blind_rows_keep_their_marks(palette: Palette) -> None:
    shown = texts(drawn_head(odd(), (0, 3, 3), palette, Bounds(12, 110)).block)
    rows = {line[1]: line for line in shown if re.match(r".\d", line)}
    assert re.search(r"X +I +0", rows["1"])
    assert " ! " in rows["2"]
    assert rows["0"].rstrip().endswith("·")
    for words in ("· masked", "0 exactly zero", "X NaN", "I infinite", "! fully masked"):
        assert words in shown[-1]


# --- tokens ---


@pytest.mark.parametrize(("tokens", "room"), [(5, Bounds(1, 60)), (2000, Bounds(2, 90)), (300, Bounds(1, 30))])
def test_tokens_that_are_left_out_are_counted_and_the_marked_ones_never_are(tokens: int, room: Bounds) -> None:
    of = sight_of(tokens, 2 if tokens == 2000 else 4).tokens
    for query, key in ((0, tokens - 1), (tokens // 2, tokens // 2), (tokens // 3, tokens // 2)):
        drawn = token_strip(of, query, key, (None, None), SHADES, room)
        lines, hits = texts(drawn.block), {}
        for place in product(range(3), range(100)):
            if (hit := drawn.at(*place)) is not None:
                hits.setdefault(hit.position, place)
        left_out = sum(int(count.replace(",", "")) for count in re.findall(r"…([\d,]+)…", " ".join(lines)))
        assert len(hits) + left_out == tokens
        assert {query, key} <= set(hits)
        for position, (line, column) in hits.items():
            assert of[0][position].label in lines[line][column:][:20]
        marks = [f"◆{of[0][query].label}"] if query == key else [f"▸{of[0][query].label}", f"▾{of[1][key].label}"]
        assert all(mark in "".join(lines) for mark in marks)


# --- words ---


def test_the_status_tells_the_numbers_of_the_cell() -> None:
    trace, sight = toy(9), sight_of(9)
    weights, layer = softmax_of(trace, 1), trace.layers[0]
    (line,) = texts(cell_line(sight, CellCursor(1, 5, 2), SHADES, Bounds(1, 160)))
    assert line.startswith("▸ query 5 w5 → ▾ key 2 w2")
    numbers = re.findall(r"weight ([\d.]+) · ([\d.]+) % of its row · rank (\d+) of (\d+) · score ([-\d.]+)", line)[0]
    weight, share, rank, keys, score = map(float, numbers)
    assert weight == pytest.approx(weights[5, 2], abs=5e-5)
    assert share == pytest.approx(100 * weights[5, 2], rel=0.01)
    assert (rank, keys) == (1 + (weights[5] > weights[5, 2]).sum(), 6)
    assert score == pytest.approx(float(layer.q[1, 5] @ layer.k[1, 2]) * layer.scale, abs=1e-4)
    assert "masked" in texts(cell_line(sight, CellCursor(1, 2, 5), SHADES, Bounds(1, 160)))[0]
    assert "computing layer 3 …" in texts(status_lines(sight, "", ["computing layer 3 …"], SHADES, Bounds(1, 160)))[0]
