"""All heads of a layer, small, beside each other: as many as there is room for, with the chosen one among them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from rich.cells import cell_len
from rich.segment import Segment

from attncli.render.axes import titled
from attncli.render.cell_grid import HALF, NARROW, WIDE, GridCell, map_lines
from attncli.render.explore.layer_view import LayerViewCache
from attncli.render.explore.pane import QUERY, PaneContent, pad
from attncli.render.fit import Bounds, crop, join_facts, most_heads
from attncli.render.palette import BOLD, Palette

if TYPE_CHECKING:
    from attncli.trace.view import Ramp

_LEAST = 4  # cells each way of a map, as long as one is that large and fits


class _Tiles(NamedTuple):
    """How the heads are drawn."""

    cell: GridCell
    rows: range
    columns: range
    high: int
    wide: int
    in_a_strip: int
    heads: int


def small_heads(
    sight: LayerViewCache,
    head: int,
    ramp: Ramp | None,
    palette: Palette,
    room: Bounds,
    labels: Mapping[int, str] | None = None,
) -> PaneContent[int]:
    """Return the heads of a layer, each below its number and its label; what lies at a place of it is a head."""
    heads = sight.layer.heads
    names = _names(sight, labels or {})
    layouts = _layouts(
        sight, [max(map(cell_len, each)) + 1 for each in names], palette, room._replace(lines=room.lines - 1)
    )
    tiles = most_heads(layouts, len(heads))
    assert tiles is not None
    first = heads.index(head) // tiles.heads * tiles.heads
    shown = heads[first : first + tiles.heads]
    strips = [shown[start : start + tiles.in_a_strip] for start in range(0, len(shown), tiles.in_a_strip)]
    lattice = sight.lattice(tiles.rows, tiles.columns, tiles.cell)
    blank, scale = partial(sight.blank, tiles.rows, tiles.columns), sight.scale(ramp)
    fitting = next((each for each in names if max(map(cell_len, each)) < tiles.wide), names[-1])
    name_of = dict(zip(heads, fitting, strict=True))

    def lines() -> Iterator[list[Segment]]:
        counted = f"{shown[0]}–{shown[-1]} of {len(heads)} heads" * (len(shown) < len(heads))
        what = f"{sight.layer.measure} − held" if sight.pair else sight.layer.measure
        yield join_facts([counted, what], room.width, palette, titled("layer", sight.layer.label))
        for strip in strips:
            line = []
            for one in strip:
                text, style = (QUERY + name_of[one], BOLD) if one == head else (name_of[one], None)
                line += [pad(text, tiles.wide, style, "left"), Segment(" ")]
            yield line
            pictures = (sight.pooled(one, tiles.rows, tiles.columns) for one in strip)
            maps = [map_lines(own.values, own.allowed, lattice, palette, scale, blank=blank) for own in pictures]
            gap = Segment(" " * (tiles.wide - lattice.width + 1))
            for parts in zip(*maps, strict=True):
                yield [segment for part in parts for segment in (*part, gap)]

    def at(line: int, column: int) -> int | None:
        strip, (place, offset) = (line - 1) // tiles.high, divmod(column, tiles.wide + 1)
        is_there = offset < tiles.wide and 0 <= strip < len(strips) and 0 <= place < len(strips[strip])
        return strips[strip][place] if is_there else None

    return PaneContent(crop(lines(), room), at)


def _names(sight: LayerViewCache, labels: Mapping[int, str]) -> list[list[str]]:
    """Return what the heads may be called, the longest names first."""
    numbers = [(sight.layer.head_label(head), labels.get(head, "")) for head in sight.layer.heads]
    long, short = (
        [f"{form(each)} {label}".rstrip() for each, label in numbers] for form in (partial(titled, "head"), str)
    )
    return [long, short, [str(each) for each, _ in numbers]]


def _layouts(sight: LayerViewCache, titles: Sequence[int], palette: Palette, room: Bounds) -> Iterator[_Tiles]:
    """Yield how heads can be drawn, in ever larger blocks of cells, as long as maps can be told apart.

    Of the widths of `titles`, from the largest on, one is taken if as many heads have room with it.
    """
    sizes, steps = sight.size, sight.steps_of(1, 1)
    # Without halves of characters a cell that is as square as two of them is a block of two rows.
    small, tall = (HALF, 1) if palette.has_color else (NARROW, 2)
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
            high = len(lattice.lines) + 1
            for wide in dict.fromkeys(max(lattice.width, each) for each in titles):
                in_a_strip = (room.width + 1) // (wide + 1)
                tiles = _Tiles(cell, rows, columns, high, wide, in_a_strip, in_a_strip * (room.lines // high))
                has_room |= tiles.heads > 0
                yield tiles
