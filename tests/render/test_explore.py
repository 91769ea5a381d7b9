"""Panes of the explorer: they fit every room, have the numbers of the trace, and mark the cursor."""

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
from attncli.render.block import Block, Bounds
from attncli.render.explore.head import large_head
from attncli.render.explore.heads import layer_map, small_heads
from attncli.render.explore.layer_view import LayerViewCache
from attncli.render.explore.pane import CellCursor, PaneContent
from attncli.render.explore.words import cell_line, status_line, why_box
from attncli.render.explore.words import tokens as token_strip
from attncli.render.palette import Palette
from attncli.trace.trace import Trace

COLOUR, SHADES = Palette("truecolor"), Palette("blocks")
PALETTES = {"truecolor": COLOUR, "256": Palette("256"), "blocks": SHADES}
MARKS = {"◆", "&", "[", "▸", ">"}


@cache
def toy(tokens: int, heads: int = 4, **options: object) -> Trace:
    return attncli.inspect(" ".join(f"w{n % 97}" for n in range(tokens)), num_heads=heads, d_model=2 * heads, **options)


@cache
def sight_of(tokens: int, heads: int = 4) -> LayerViewCache:
    trace = toy(tokens, heads)
    return LayerViewCache(trace, trace.layers[0])


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


def fits(content: PaneContent, room: Bounds) -> None:
    lines = [*content.block.lines, content.title]
    assert len(content.block.lines) <= room.lines
    assert max(sum(segment.cell_length for segment in line) for line in lines) <= room.width


def drawn_head(sight: LayerViewCache, cursor: tuple[int, int, int], palette: Palette, room: Bounds) -> PaneContent:
    return large_head(sight, CellCursor(*cursor), None, palette, "", room)


def entropies(layers: int, heads: int) -> dict[tuple[int, int], float | None]:
    return {(layer, head): head / 7 for layer in range(layers) for head in range(heads)}


@pytest.mark.parametrize(
    ("tokens", "heads", "tier"), [(1, 1, "truecolor"), (12, 12, "truecolor"), (130, 32, "blocks"), (2000, 2, "256")]
)
def test_every_pane_fits_every_room(tokens: int, heads: int, tier: str) -> None:
    palette, sight = PALETTES[tier], sight_of(tokens, heads)
    for number, room in enumerate((Bounds(5, 22), Bounds(8, 39), Bounds(24, 80), Bounds(60, 200)), start=tokens % 7):
        cursor = CellCursor(number % heads, (7 * number) % tokens, (5 * number) % tokens)
        line, chosen = Bounds(1, room.width), (number % 40, cursor.head)
        fits(drawn_head(sight, cursor, palette, room), room)
        fits(small_heads(sight, cursor.head, None, palette, {}, room), room)
        fits(layer_map("entropy", entropies(1, heads), range(40), heads, chosen, palette, room), room)
        fits(token_strip(sight, cursor, None, palette, room), Bounds(4, room.width))
        fits(cell_line(sight, cursor, palette, line), line)
        fits(status_line(sight, ["computing …"], line), line)
        fits(why_box(sight, cursor, palette, room), room)


# --- the large head ---


@pytest.mark.parametrize(("tokens", "room"), [(9, Bounds(10, 40)), (24, Bounds(14, 60))])
def test_colours_are_those_of_the_weights(tokens: int, room: Bounds) -> None:
    trace, sight = toy(tokens), sight_of(tokens)
    weights = softmax_of(trace, 2)
    large = drawn_head(sight, (2, tokens - 1, 0), COLOUR, room)
    assert large.steps == (1, 1)
    ramp = [style.bgcolor for _, style in COLOUR.ramp(1) if style is not None]
    picture, last = painted(large.block), -(-tokens // 2)  # two queries share a line; the last one sees every key
    columns = [at for at, (glyph, style) in enumerate(picture[last]) if glyph in "▀▄" or (style and style.bgcolor)]
    width = len(columns) // tokens
    assert len(columns) == tokens * width
    for query, key in zip(*np.tril_indices(tokens), strict=True):
        glyph, style = picture[1 + query // 2][columns[0] + key * width]
        if key or query // 2 < last - 1:  # not under the cursor
            assert style is not None
            color = style.color if glyph == "▄" or (glyph == "▀" and query % 2 == 0) else style.bgcolor
            step = min(int(math.sqrt(weights[query, key]) * 256), 255)  # the ramp is of square roots
            assert color in ramp[max(step - 1, 0) : step + 2]


def test_a_pooled_cell_is_its_largest_weight_and_says_how_many_it_is_of() -> None:
    large = drawn_head(sight_of(300), (0, 150, 80), COLOUR, Bounds(30, 60))
    step, across = large.steps
    weights = np.where(np.tri(300, dtype=bool), softmax_of(toy(300), 0), -1)
    picture = sight_of(300).pooled(0, large.steps)
    for (place, query), (at, key) in product(enumerate(range(0, 300, step)), enumerate(range(0, 300, across))):
        block = weights[query : query + step, key : key + across]
        assert picture.allowed[place, at] == (block.max() >= 0)
        assert picture.values[place, at] == pytest.approx(max(block.max(), 0), rel=1e-5)
    assert f"largest of {step}×{across}" in "".join(segment.text for segment in large.title)


@pytest.mark.parametrize(("tokens", "tier"), [(9, "truecolor"), (40, "blocks"), (300, "blocks")])
def test_the_cursor_is_marked_in_the_line_of_its_query(tokens: int, tier: str) -> None:
    for query in range(0, tokens, tokens // 5):
        shown = texts(drawn_head(sight_of(tokens), (0, query, query // 2), PALETTES[tier], Bounds(17, 50)).block)
        (line,) = (text for text in shown if text.startswith("▸"))
        assert line[1:].split()[0] == str(query)
        assert MARKS & set(line[4:])


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


# --- words ---


def test_the_status_tells_the_numbers_of_the_cell() -> None:
    trace, sight = toy(9), sight_of(9)
    weights, layer = softmax_of(trace, 1), trace.layers[0]
    (line,) = texts(cell_line(sight, CellCursor(1, 5, 2), SHADES, Bounds(1, 160)).block)
    assert line.startswith("▸ query 5 w5 → ▾ key 2 w2")
    numbers = re.findall(r"weight ([\d.]+) · ([\d.]+) % of its row · rank (\d+) of (\d+) · score ([-\d.]+)", line)[0]
    weight, share, rank, keys, score = map(float, numbers)
    assert weight == pytest.approx(weights[5, 2], abs=5e-5)
    assert share == pytest.approx(100 * weights[5, 2], rel=0.01)
    assert (rank, keys) == (1 + (weights[5] > weights[5, 2]).sum(), 6)
    assert score == pytest.approx(float(layer.q[1, 5] @ layer.k[1, 2]) * layer.scale, abs=1e-4)
    assert "masked" in texts(cell_line(sight, CellCursor(1, 2, 5), SHADES, Bounds(1, 160)).block)[0]
    assert texts(status_line(sight, ["computing …"], Bounds(1, 160)).block)[0].startswith("computing …")
