"""All heads of a layer as small maps, or as many as fit, with the chosen one among them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.segment import Segment

from attncli.render.block import Bounds, crop, join_facts
from attncli.render.explore.layer_view import LayerViewCache
from attncli.render.explore.pane import QUERY, PaneContent, pad
from attncli.render.matrix import HALF, NARROW, WIDE, GridCell, map_lines, titled
from attncli.render.palette import BOLD, Palette

if TYPE_CHECKING:
    from attncli.trace.view import Ramp

_LEAST = 4  # rows and columns of a map, as long as one of that size fits


def small_heads(
    sight: LayerViewCache, head: int, ramp: Ramp | None, palette: Palette, labels: Mapping[int, str], room: Bounds
) -> PaneContent[int]:
    """Return the heads of a layer, each below its number and its label; the value at a place is a head."""
    heads = sight.layer.heads
    steps, cell = _layout(sight, palette, room)
    grid, scale = sight.grid(steps, cell), sight.scale(ramp)
    forms = [
        [f"{form(sight.layer.head_label(each))} {labels.get(each, '')}".rstrip() for each in heads]
        for form in (partial(titled, "head"), str)
    ]
    titles = next((each for each in forms if max(map(cell_len, each)) < grid.width), forms[-1])
    wide = max(grid.width, min(max(map(cell_len, titles)) + 1, room.width))
    high, in_a_strip = len(grid.lines) + 1, max((room.width + 1) // (wide + 1), 1)
    count = in_a_strip * max(room.lines // high, 1)
    first = heads.index(head) // count * count
    shown = heads[first : first + count]
    strips = [shown[start : start + in_a_strip] for start in range(0, len(shown), in_a_strip)]
    name_of = dict(zip(heads, titles, strict=True))

    def lines() -> Iterator[list[Segment]]:
        for strip in strips:
            line = []
            for one in strip:
                text, style = (QUERY + name_of[one], BOLD) if one == head else (name_of[one], None)
                line += [pad(text, wide, style, "left"), Segment(" ")]
            yield line
            pictures = (sight.pooled(one, steps) for one in strip)
            maps = [map_lines(own.values, own.allowed, grid, palette, scale) for own in pictures]
            gap = Segment(" " * (wide - grid.width + 1))
            for parts in zip(*maps, strict=True):
                yield [segment for part in parts for segment in (*part, gap)]

    def at(line: int, column: int) -> int | None:
        strip, (place, offset) = line // high, divmod(column, wide + 1)
        is_there = offset < wide and 0 <= strip < len(strips) and 0 <= place < len(strips[strip])
        return strips[strip][place] if is_there else None

    counted = f"{shown[0]}–{shown[-1]} of {len(heads)} heads" * (len(shown) < len(heads))
    facts = [counted, sight.layer.measure]
    title = join_facts(facts, room.width, palette, titled("layer", sight.layer.label))
    return PaneContent(crop(lines(), room), at, title)


def _layout(sight: LayerViewCache, palette: Palette, room: Bounds) -> tuple[tuple[int, int], GridCell]:
    """Return the smallest blocks, and their cells, with which all heads fit, or else most of them.

    Blocks grow as long as maps can be told apart.
    """
    # Without half characters a cell as square as two of them is a block of two rows.
    small, tall = (HALF, 1) if palette.has_color else (NARROW, 2)
    whole = sight.steps_of(1, 1)
    layouts = [(whole, WIDE), (whole, small)] if whole == (1, 1) else []
    layouts += [(sight.steps_of(times * tall, times), small) for times in range(1, max(sight.size) + 1)]
    best, most = layouts[0], 0
    for steps, cell in layouts:
        grid = sight.grid(steps, cell)
        is_small = min(len(grid.rows) * tall, len(grid.columns)) < min(_LEAST, *sight.size)
        count = ((room.width + 1) // (grid.width + 1)) * (room.lines // (len(grid.lines) + 1))
        if count > most and not (most and is_small):
            best, most = (steps, cell), count
        if most >= len(sight.layer.heads) or (most and is_small):
            break
    return best if most else layouts[-1]
