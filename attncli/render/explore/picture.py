"""Where heads look in a picture: the one that is looked at, large, and all heads of the layer, small."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from rich.cells import cell_len
from rich.segment import Segment

from attncli.render.axes import Axis, titled
from attncli.render.block import hstack, stack
from attncli.render.cell_grid import WIDE, CellGrid, map_lines
from attncli.render.explore.head import CellCursor
from attncli.render.explore.layer_view import LayerViewCache
from attncli.render.explore.pane import QUERY, PaneContent, pad
from attncli.render.fit import Bounds, crop, join_facts
from attncli.render.heatmap import GAP, Extent, Heatmap
from attncli.render.legend import legend_line
from attncli.render.palette import BOLD, DIM, Palette, Scale
from attncli.render.picture import CHOSEN, OWN, Canvas, HeadLook, canvases, overlay, tiling, weight_text
from attncli.trace.layout import SideLayout

if TYPE_CHECKING:
    from attncli.trace.view import Ramp

_LEAST = 6  # columns of a small picture
_LEAST_WITH_LEGEND = 8  # lines of a room


@dataclass(frozen=True)
class PictureOfHeads:
    """Where the heads of a layer look in the pictures, from one query.

    Attributes:
        sight: the layer, or its difference.
        cursor: the cell that is looked at.
        ramp: how far along the colours a number stands; None leaves it to the palette.
        palette: how cells look.
    """

    sight: LayerViewCache
    cursor: CellCursor
    ramp: Ramp | None
    palette: Palette

    @property
    def layout(self) -> SideLayout:
        """Which keys are cells of pictures."""
        assert self.sight.layout is not None
        return self.sight.layout

    @cached_property
    def looks(self) -> dict[int, HeadLook]:
        """What the query gives to each key in each head."""
        query = self.cursor.query
        found = {head: self.sight.cells(head, range(query, query + 1)) for head in self.sight.layer.heads}
        return {head: HeadLook(str(head), own.values[0], own.allowed[0]) for head, own in found.items()}

    @cached_property
    def scale(self) -> Scale:
        """Which number each colour stands for: up to the largest one of a cell in any head."""
        cells = [*self.layout.cells]
        sizes = [np.abs(np.nan_to_num(look.weights[cells] * look.allowed[cells])) for look in self.looks.values()]
        scaled = Scale.up_to if self.sight.pair is None else Scale.around_zero
        return scaled(float(np.max(sizes)), self.ramp)

    @property
    def marks(self) -> dict[int, str]:
        """What stands on the cell that is the key, and on the one that is the query."""
        return {self.cursor.key: CHOSEN, self.cursor.query: OWN}

    def panel(self, canvas: Canvas, head: int, size: Bounds) -> PaneContent[int]:
        """Return a picture under the weights of a head; what lies at a place of it is a position."""
        look = self.looks[head]
        if not self.palette.has_halves:
            return self._shaded(canvas, look, size)
        own, grays, name = canvas.placed(2 * size.lines, size.width), self.sight.grays, (canvas.number, size)
        if name not in grays:
            grays[name] = canvas.grayed(size)

        def at(line: int, column: int) -> int | None:
            is_there = 0 <= line < size.lines and 0 <= column < size.width
            return int(own[2 * line, column]) if is_there and own[2 * line, column] >= 0 else None

        return PaneContent(crop(overlay(canvas, grays[name], look, self.palette, self.scale, self.marks), size), at)

    def _shaded(self, canvas: Canvas, look: HeadLook, size: Bounds) -> PaneContent[int]:
        """Return the cells as shades with their axes; of many, each is the largest of a block."""
        rows, columns = canvas.cells
        digits = len(str(rows - 1))
        margin = digits + 2  # a mark and a blank
        wide, high = max((size.width - margin) // WIDE.columns, 1), max(size.lines - 1, 1)
        step = max(-(-rows // high), -(-columns // wide))
        values, allowed = canvas.sampled(look, rows, columns)
        drawn = Heatmap("", values, allowed).pooled(step, step, self.scale.is_signed)
        axes = [Axis(("",) * len(part), tuple(part)) for part in (range(0, rows, step), range(0, columns, step))]
        own, marked = canvas.placed(rows, columns), None
        for position in self.marks:
            for row, column in np.argwhere(own == position).tolist():
                marked = row // step, column // step
        lattice = CellGrid(axes[0], axes[1], WIDE)
        body = map_lines(drawn.values, drawn.allowed, lattice, self.palette, self.scale)
        # Beside it, for there is no room for a mark on a shade.
        ticks = axes[1].ticks(WIDE.columns, self.palette, marked[1] if marked else None)
        lines: list[list[Segment]] = [[Segment(" " * margin), *ticks]]
        for index, shades in zip(axes[0].indices, body, strict=True):
            is_marked = marked is not None and marked[0] * step == index
            mark, style = (self.palette.fit(QUERY), BOLD) if is_marked else (" ", DIM)
            lines.append([Segment(f"{mark}{index:>{digits}} ", style), *shades])

        def at(line: int, column: int) -> int | None:
            down, across = line - 1, (column - margin) // WIDE.columns
            if not (0 <= down < len(axes[0]) and 0 <= across < len(axes[1])):
                return None
            block = own[down * step : (down + 1) * step, across * step : (across + 1) * step]
            cells = block[block >= 0].tolist()
            return max(cells, key=lambda cell: look.weights[cell]) if cells else None

        return PaneContent(crop(lines, size), at)

    def heaviest(self, canvas: Canvas, head: int) -> list[str]:
        """Return the name of the cell with the largest weight, and that."""
        place = canvas.heaviest(self.looks[head])
        return [self.layout.cells[place], weight_text(float(self.looks[head].weights[place]))]


def large_picture(heads: PictureOfHeads, room: Bounds, label: str = "") -> PaneContent[int]:
    """Return the pictures under the weights of the head that is looked at; what lies at a place of it is a position."""
    sight, head, layer = heads.sight, heads.cursor.head, heads.sight.layer
    drawn, grids = canvases(heads.layout, has_overview=True), heads.layout.grids
    has_legend = room.lines >= _LEAST_WITH_LEGEND
    body = Bounds(max(room.lines - 1 - has_legend, 1), room.width)
    width, height = (max(sizes) for sizes in zip(*(each.size for each in drawn), strict=True))
    above = int(len(drawn) > 1)  # lines with their names
    tiles = tiling((width, height), len(drawn), body, _LEAST, above, widest=room.width)
    panels = [heads.panel(each, head, tiles.size) for each in drawn[: tiles.capacity]]
    strips = range(0, len(panels), tiles.in_a_strip)
    names = [[Segment(heads.palette.fit(_name(each, tiles.size.width, heads.palette)), DIM)] for each in drawn]
    blocks = [
        each.block._replace(lines=[*[name][:above], *each.block.lines])
        for name, each in zip(names, panels, strict=False)
    ]
    whole = stack(hstack(blocks[start : start + tiles.in_a_strip], GAP) for start in strips)
    share = sum(float(heads.looks[head].weights[grid.positions].sum()) for grid in grids)
    facts = [
        label,
        f"{layer.measure} − held" if sight.pair else layer.measure,
        " ".join(heads.heaviest(Canvas(None, grids, 0), head)),
        f"{share:.0%} on the picture" * (sight.pair is None and layer.derived is None),
        titled("layer", layer.label),
    ]
    lines = [join_facts(facts, room.width, heads.palette, titled("head", layer.head_label(head))), *whole.lines]
    if has_legend:
        cells = [*heads.layout.cells]
        values, allowed = (getattr(heads.looks[head], name)[None, cells] for name in ("weights", "allowed"))
        notes = [each for each in Extent.of(values, allowed).notes_on(heads.scale) if not each.startswith("·")]
        lines += [[]] * (room.lines - 1 - len(lines))
        lines.append(legend_line(heads.scale, notes, heads.palette, room.width, 2, heads.palette.has_halves))

    def at(line: int, column: int) -> int | None:
        strip, line = divmod(line - 1, tiles.size.lines + above)
        place, column = divmod(column, tiles.size.width + GAP)
        number = strip * tiles.in_a_strip + place
        is_there = line >= 0 and place < tiles.in_a_strip and 0 <= number < len(panels)
        return panels[number].at(line - above, column) if is_there else None

    return PaneContent(crop(lines, room), at)


def _name(canvas: Canvas, width: int, palette: Palette) -> str:
    """Return what one of several pictures is called."""
    name = f"picture {canvas.number}" if canvas.picture is None else canvas.picture.name
    return palette.shortened(name + " overview" * canvas.is_overview, width, keeps_end=True)


def small_pictures(heads: PictureOfHeads, room: Bounds) -> PaneContent[int]:
    """Return the heads of the layer, each below its number and its heaviest cell; what lies at a place is a head."""
    layer, chosen, palette = heads.sight.layer, heads.cursor.head, heads.palette
    canvas = next(iter(canvases(heads.layout, has_overview=False)))
    names = {head: [str(layer.head_label(head)), *heads.heaviest(canvas, head)] for head in layer.heads}
    body = Bounds(max(room.lines - 1, 1), room.width)
    tiles = tiling(canvas.size, len(layer.heads), body, _LEAST, above=1, widest=room.width)
    first = layer.heads.index(chosen) // tiles.capacity * tiles.capacity
    shown = layer.heads[first : first + tiles.capacity]
    strips = [shown[start : start + tiles.in_a_strip] for start in range(0, len(shown), tiles.in_a_strip)]
    wide = tiles.size.width

    def lines() -> Iterator[list[Segment]]:
        counted = f"{shown[0]}–{shown[-1]} of {len(layer.heads)} heads" * (len(shown) < len(layer.heads))
        facts = [counted, f"{layer.measure} − held" if heads.sight.pair else layer.measure]
        yield join_facts(facts, room.width, palette, titled("layer", layer.label))
        for strip in strips:
            line = []
            for head in strip:
                mark, style = (palette.fit(QUERY), BOLD) if head == chosen else ("", None)
                ways = (mark + " ".join(names[head][:count]) for count in (3, 2))
                name = next((each for each in ways if cell_len(each) <= wide), mark + names[head][0])
                line += [pad(name, wide, style, "left"), Segment(" " * GAP)]
            yield line
            yield from map(list, hstack([heads.panel(canvas, head, tiles.size).block for head in strip], GAP).lines)

    def at(line: int, column: int) -> int | None:
        strip, (place, offset) = (line - 1) // (tiles.size.lines + 1), divmod(column, wide + GAP)
        is_there = offset < wide and 0 <= strip < len(strips) and 0 <= place < len(strips[strip])
        return strips[strip][place] if is_there else None

    return PaneContent(crop(lines(), room), at)
