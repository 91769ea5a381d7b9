"""The map of a head in A and in B, on one scale, and that of their difference, on another one around zero."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich.segment import Segment

from attncli.analysis.alignment import NAMES, LayerPair
from attncli.analysis.diff import weights_of
from attncli.render.axes import Axis, mark_note
from attncli.render.block import Block, beside, stack
from attncli.render.heatmap import GAP, Picture, Scale, heatmaps, legend, picture_of, pooling, scale_of
from attncli.render.palette import BOLD, DIM, Palette
from attncli.render.signed import SignedPalette, signed_legend, strongest
from attncli.trace.ranking import drawn_cells
from attncli.trace.tokens import Tokens

if TYPE_CHECKING:
    from jaxtyping import Bool

    Blind = Bool[np.ndarray, "1 R"]

CHANGE = "B − A"
_WEIGHTS = "weights  "
_BETWEEN = 3  # cells between two maps
_TALLEST = 64  # rows of a map that is drawn whole
_SCREEN = 24  # rows of the maps of a longer text, those one above the other together
_FEWEST_COLUMNS = 20  # of a map that stands beside another one

Axes = tuple[Axis, Axis]  # rows and columns


def maps_of(pair: LayerPair, head: int, palette: Palette, room: int) -> Block:
    """Return the three maps under what their cells mean.

    Args:
        pair: the layer in A and in B.
        head: the head.
        palette: how cells look.
        room: cells in a line.
    """
    blind = _blind(pair, head)
    axes = _axes(pair, blind, palette)
    share = _share(axes, room)
    in_a_line = max((room + _BETWEEN) // (share + _BETWEEN), 1)
    pools = [_pool(rows, columns, share, _SCREEN // -(-len(axes) // in_a_line)) for rows, columns in axes]
    sides = (pair.first.head(head, axes[0][0].indices), pair.second.head(head, axes[1][0].indices))
    pictures = [picture_of(side, slice(None), pool) for side, pool in zip(sides, pools[:2], strict=True)]
    common = scale_of(pictures)
    pictures = [each._replace(title=name, scale=common) for each, name in zip(pictures, NAMES, strict=True)]
    change, signed = _change(pair, head, pools[2]), SignedPalette.of(palette)
    shown: list[tuple[Picture, Palette]] = [*((each, palette) for each in pictures), (change, signed)]
    drawn = [
        heatmaps([picture], *axis, pool, colors, share)
        for (picture, colors), axis, pool in zip(shown, axes, pools, strict=True)
    ]
    rows, columns = axes[2]
    cell_width = 2 if drawn[2].width >= rows.width + GAP + 2 * len(columns.pooled(pools[2][1])) else 1
    room_of_scales = room - len(_WEIGHTS)
    scales = [
        _named(_WEIGHTS, legend(pictures, palette, room_of_scales, mark_note(blind[0] | blind[1])), palette),
        _named(CHANGE, signed_legend(change.scale, common.marks, signed, cell_width, room_of_scales), palette),
    ]
    return stack([*scales, *_pooled(pools, palette), _side_by_side(drawn, room)])


def _pool(rows: Axis, columns: Axis, share: int, most: int) -> tuple[int, int]:
    """Return what a cell stands for; a map of a long text has so many rows at most, for all three to fit a screen."""
    pool = pooling(rows, columns, share)
    return pool if len(rows) <= _TALLEST else (max(pool[0], -(-len(rows) // most)), pool[1])


def _named(name: str, scale: Block, palette: Palette) -> Block:
    return beside([Block([[Segment(palette.fit(name), BOLD)]], len(_WEIGHTS)), scale], 0)


def _pooled(pools: Sequence[tuple[int, int]], palette: Palette) -> list[Block]:
    """Return what a cell of the maps stands for, if it is more than one."""
    sizes = dict.fromkeys(f"{rows}×{columns}" for rows, columns in pools)
    if list(sizes) == ["1×1"]:
        return []
    said = palette.fit(f"a cell is the strongest of {' or '.join(sizes)}")
    return [Block([[Segment(said, DIM)]], len(said))]


def _axes(pair: LayerPair, blind: Sequence[Blind], palette: Palette) -> list[Axes]:
    """Return the rows and the columns of A, of B, and of what both share; rows that are blind are marked."""

    def axes(queries: Tokens, rows: Sequence[int], marked: Blind, keys: Tokens, columns: Sequence[int]) -> Axes:
        return Axis.of_tokens(queries, rows, palette).marking(marked), Axis.of_tokens(keys, columns, palette)

    queries, keys = pair.rows, pair.columns
    mine, theirs = zip(*pair.chosen, strict=True)
    shared, _ = zip(*keys.pairs, strict=True)
    return [
        axes(queries.first, mine, blind[0], keys.first, range(len(keys.first))),
        axes(queries.second, theirs, blind[1], keys.second, range(len(keys.second))),
        axes(queries.first, mine, blind[0] | blind[1], keys.first, shared),
    ]


def _blind(pair: LayerPair, head: int) -> list[Blind]:
    """Return which of the compared rows may attend to no key, in A and in B."""
    sides = zip((pair.first, pair.second), zip(*pair.chosen, strict=True), strict=True)
    return [layer.blind(rows)[[layer.heads.index(head)]] for layer, rows in sides]


def _share(axes: Sequence[Axes], room: int) -> int:
    """Return the width of one map with which the most of them stand side by side, if need be pooled.

    Wide cells come before narrow ones, and narrow ones before pooled ones.
    """
    shares = [(room - _BETWEEN * (count - 1)) // count for count in (3, 2, 1)]
    labels = max(rows.width for rows, _ in axes) + 2
    widest = max(len(columns) for _, columns in axes)
    for needed in (2 * widest, widest):
        fitting = [share for share in shares[:2] if labels + needed <= share]
        if fitting:
            return fitting[0]
    return next((share for share in shares if labels + _FEWEST_COLUMNS <= share), shares[-1])


def _change(pair: LayerPair, head: int, pool: tuple[int, int]) -> Picture:
    """Return the difference of a head on the shared tokens; its rows are pooled as they are derived."""
    kept = []
    for blocks in pair.blocks(head):
        first, second = weights_of(pair, blocks)
        drawn = [drawn_cells(block)[:, keys] for block, keys in zip(blocks, pair.keys, strict=True)]
        with np.errstate(invalid="ignore"):
            values = second - first
        allowed = drawn[0] | drawn[1]
        kept.append(strongest(Picture("", values, allowed, Scale.of(np.abs(values), allowed)), 1, pool[1]))
    values, allowed = (np.concatenate([getattr(each, name) for each in kept]) for name in ("values", "allowed"))
    return strongest(Picture(CHANGE, values, allowed, scale_of(kept)), pool[0], 1)


def _side_by_side(blocks: Sequence[Block], room: int) -> Block:
    """Return blocks next to each other as far as the room allows."""
    lines: list[list[Block]] = [[]]
    for one in blocks:
        if lines[-1] and sum(each.width + _BETWEEN for each in lines[-1]) + one.width > room:
            lines.append([])
        lines[-1].append(one)
    return stack([part for line in lines for part in (beside(line, _BETWEEN), Block([[]], 0))][:-1])
