"""All heads of a layer, small, beside each other: as many as there is room for, with the chosen one among them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from rich.segment import Segment

from attncli.render.axes import titled
from attncli.render.cell_grid import HALF, NARROW, WIDE, GridCell, map_lines
from attncli.render.explore.layer_view import LayerViewCache
from attncli.render.explore.pane import QUERY, PaneContent, pad
from attncli.render.fit import Bounds, crop, most_heads
from attncli.render.palette import BOLD, DIM, Palette

if TYPE_CHECKING:
    from attncli.trace.view import Ramp

_LEAST = 4  # cells each way of a map, as long as one is that large and fits


class _Tiles(NamedTuple):
    """How the heads are drawn.

    Attributes:
        cell: how large a cell is.
        rows: the first of the rows that each stands for.
        columns: likewise.
        high: lines of a map, its title among them.
        wide: characters of it.
        in_a_strip: how many stand beside each other.
        strips: how many strips there are.
    """

    cell: GridCell
    rows: range
    columns: range
    high: int
    wide: int
    in_a_strip: int
    strips: int

    @property
    def heads(self) -> int:
        """How many there is room for."""
        return self.in_a_strip * self.strips


def small_heads(
    sight: LayerViewCache, head: int, ramp: Ramp | None, palette: Palette, room: Bounds
) -> PaneContent[int]:
    """Return the heads of a layer; what lies at a place of it is a head.

    Args:
        sight: the layer, or its difference.
        head: the one that is chosen.
        ramp: how far along the colours a number stands; None leaves it to the palette.
        palette: how cells look.
        room: at least 3 lines of 10 cells.
    """
    layer = sight.layer
    is_grouped = layer.num_groups < layer.num_heads
    tiles = most_heads(_layouts(sight, palette, room, is_grouped), len(layer.heads))
    assert tiles is not None
    count = tiles.heads
    first = layer.heads.index(head) // count * count
    shown = layer.heads[first : first + count]
    strips = [shown[start : start + tiles.in_a_strip] for start in range(0, len(shown), tiles.in_a_strip)]
    lattice = sight.lattice(tiles.rows, tiles.columns, tiles.cell)
    blank = partial(sight.blank, tiles.rows, tiles.columns)
    scale, names = sight.scale(ramp), _named(sight, tiles.wide)

    def lines() -> Iterator[list[Segment]]:
        for strip in strips:
            if is_grouped:
                yield _groups(sight, strip, tiles.wide, palette)
            yield [segment for one in strip for segment in _title(names[one], one == head, tiles.wide, palette)]
            pictures = ((one, sight.pooled(one, tiles.rows, tiles.columns)) for one in strip)
            maps = [map_lines(own.values, own.allowed, lattice, palette, scale, blank=blank) for one, own in pictures]
            gap = Segment(" " * (tiles.wide - lattice.width + 1))
            for parts in zip(*maps, strict=True):
                yield [segment for part in parts for segment in (*part, gap)]

    def at(line: int, column: int) -> int | None:
        strip, place = line // tiles.high, column // (tiles.wide + 1)
        is_gap = column % (tiles.wide + 1) == tiles.wide
        if is_gap or not 0 <= strip < len(strips) or not 0 <= place < len(strips[strip]):
            return None
        return strips[strip][place]

    return PaneContent(crop(lines(), room), at)


def _layouts(sight: LayerViewCache, palette: Palette, room: Bounds, is_grouped: bool) -> Iterator[_Tiles]:
    """Yield how heads can be drawn, in ever larger blocks of cells, as long as maps can be told apart."""
    sizes, steps = sight.size, sight.steps_of(1, 1)
    titles = len(str(max(sight.layer.heads))) + 1
    small = HALF if palette.has_halves else NARROW
    # Without halves of characters a cell that is as square as two of them is a block of two rows.
    tall = 1 if palette.has_halves else 2
    has_room = False
    for times in range(1, max(sizes) + 1):
        blocks = ((times, times), (times + 1, times), (times, times + 1))
        pooled = [(small, steps[0] * rows * tall, steps[1] * columns) for rows, columns in blocks]
        whole = [(WIDE, 1, 1), (small, 1, 1)] if times == 1 and steps == (1, 1) else []
        for cell, per_row, per_column in (*whole, *pooled):
            rows, columns = range(0, sizes[0], per_row), range(0, sizes[1], per_column)
            if has_room and min(len(rows) * tall, len(columns)) < min(_LEAST, *sizes):
                return
            lattice = sight.lattice(rows, columns, cell)
            high, wide = len(lattice.lines) + 1 + is_grouped, max(lattice.width, titles)
            tiles = _Tiles(cell, rows, columns, high, wide, (room.width + 1) // (wide + 1), room.lines // high)
            has_room |= tiles.heads > 0
            yield tiles


def _named(sight: LayerViewCache, width: int) -> dict[int, str]:
    """Return what stands above each head: the longer names, if there is room for all of them and the mark."""
    names = {head: sight.layer.head_label(head) for head in sight.layer.heads}
    long = {head: titled("head", name) for head, name in names.items()}
    return long if max(map(len, long.values())) < width else {head: str(name) for head, name in names.items()}


def _title(name: str, is_chosen: bool, width: int, palette: Palette) -> list[Segment]:
    """Return the line above a head: the chosen one has the mark of what is looked at."""
    mark = palette.fit(QUERY) if is_chosen else ""
    return [pad(mark + name, width, BOLD if is_chosen else DIM, "left"), Segment(" ")]


def _groups(sight: LayerViewCache, strip: tuple[int, ...], width: int, palette: Palette) -> list[Segment]:
    """Return the line above the heads of a strip that says which of them share a key/value head."""
    line = ""
    groups = [sight.layer.head(head).key_head for head in strip]
    for place, group in enumerate(groups):
        name = f"kv {group} " if place == 0 or groups[place - 1] != group else ""
        is_last = place + 1 == len(groups) or groups[place + 1] != group
        line += name[:width] + palette.fit("─") * (width - len(name[:width])) + (" " if is_last else palette.fit("─"))
    return [Segment(line, DIM)]
