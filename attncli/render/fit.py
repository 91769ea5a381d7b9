"""How large the maps of a layer are drawn: as large as is legible, or all of them on one screen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from attncli.render.axes import Axis
from attncli.render.heatmap import GAP, MOST, STRIPS, pooling
from attncli.trace.layer import LayerTrace

_LEAST = 8  # rows and columns of a map; smaller ones tell heads no longer apart
_HEADER_LINES = 2  # of a map: its title and its ticks

Size = tuple[int, int]  # rows and columns of a map


class Fit(NamedTuple):
    """How the maps of one layer are drawn.

    Attributes:
        pool: how many rows and columns a cell of a map stands for.
        heads: the heads that are drawn.
        strips: the maps stand in so many strips one below the other before their cells are narrowed.
    """

    pool: tuple[int, int]
    heads: tuple[int, ...]
    strips: int = STRIPS


def freely(layer: LayerTrace, rows: Axis, columns: Axis, width: int) -> Fit:
    """Return the fit of maps that take as many lines as they need."""
    return Fit(pooling(rows, columns, width), layer.heads)


def fitted(layer: LayerTrace, rows: Axis, columns: Axis, width: int, lines: int, keeps_rows: bool) -> Fit:
    """Return the fit of the largest maps, of as many heads as can be, that take so many lines at the most.

    Args:
        layer: whose heads are drawn.
        rows: the query axis.
        columns: the key axis.
        width: cells in a line.
        lines: how many there are.
        keeps_rows: whether a row stands for itself as long as one strip of maps has lines for all of them.
    """
    most = max(lines - _HEADER_LINES - bool(rows.boundary), 1)  # the words alone may fill the screen
    least = min(len(rows), most if keeps_rows else _LEAST), min(len(columns), _LEAST)
    for heads in range(len(layer.heads), 0, -1):
        sizes = [found for found in _sizes(heads, rows, columns, width, lines) if _is_legible(found[0], least)]
        if sizes:
            size, strips = max(sizes, key=lambda found: (min(found[0]), found[0][0] * found[0][1]))
            return Fit(_pool(rows, columns, size), layer.heads[:heads], strips)
    return Fit(_pool(rows, columns, (most, least[1])), layer.heads[:1], 1)


def _sizes(heads: int, rows: Axis, columns: Axis, width: int, lines: int) -> Iterator[tuple[Size, int]]:
    """Yield what size the maps have room for in every number of strips."""
    for strips in range(1, heads + 1):
        per_strip = -(-heads // strips)
        high = (lines + 1) // strips - 1 - _HEADER_LINES - bool(rows.boundary)  # a blank line below each but the last
        wide = (width - rows.width) // per_strip - GAP - bool(columns.boundary)
        yield (min(high, MOST, len(rows)), min(wide, MOST, len(columns))), strips


def _is_legible(size: Size, least: Size) -> bool:
    return size[0] >= least[0] and size[1] >= least[1]


def _pool(rows: Axis, columns: Axis, size: Size) -> tuple[int, int]:
    return -(-len(rows) // size[0]), -(-len(columns) // size[1])
