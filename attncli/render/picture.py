"""Where heads look in a picture: the picture in half-blocks under their weights, or without colours shades."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from rich.segment import Segment
from rich.style import Style

from attncli.render.axes import Axis
from attncli.render.block import Block, flowing, hstack, in_words, stack
from attncli.render.cell_grid import WIDE, CellGrid, map_lines
from attncli.render.explore.pane import PaneContent
from attncli.render.fit import Bounds, crop
from attncli.render.heatmap import GAP, Heatmap
from attncli.render.legend import ramp_line
from attncli.render.palette import BOLD, DIM, Palette, Scale

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    from attncli.trace.layout import ImageGrid, Picture, SideLayout

Positions = np.ndarray[Any, Any]  # of the cells at some places, -1 where none is, `[rows, columns]`
Pixels = np.ndarray[Any, Any]  # red, green and blue, from 0 to 255, `[rows, columns, 3]`

_WIDEST, _NARROWEST = 60, 10  # cells of a picture
DIMMED = 0.5  # of its light, where nothing is looked at
DARK = 0.15  # of its light, where no key lies
COVER = 0.85  # by which the heaviest cell hides it
QUERY = "ff2d95"  # the colour of the cell whose query this is, in figures
_LIGHT = 3 * 110  # of a colour's red, green and blue together, above which black is read on it
OWN, CHOSEN = "▸", "▾"  # on the cell that is the query itself, and on a chosen key
_MEANINGS = {OWN: "the query's own cell", CHOSEN: "the chosen key"}


class HeadLook(NamedTuple):
    """What one head gives to each position, or what each position gives to some keys.

    Attributes:
        name: of the head, such as `L3 H2`.
        weights: of each position.
        allowed: which positions may be attended to, or may attend.
    """

    name: str
    weights: Float[np.ndarray, " N"]
    allowed: Bool[np.ndarray, " N"]

    def sampled(self, own: Positions) -> tuple[Float[np.ndarray, "rows columns"], Bool[np.ndarray, "rows columns"]]:
        """Return the weights of the cells at some places, and where there is one: allowed, and a number."""
        is_there = (own >= 0) & self.allowed[own] & np.isfinite(self.weights[own])
        return np.where(is_there, self.weights[own], 0), is_there

    def heaviest(self, cells: Int[np.ndarray, " C"]) -> int:
        """Return which of some positions has the largest weight."""
        counted = np.where(self.allowed & np.isfinite(self.weights), self.weights, -np.inf)[cells]
        return int(cells[int(np.argmax(counted))])


class Canvas(NamedTuple):
    """One picture, and the grids of its cells that are drawn together.

    Attributes:
        picture: None where its pixels are unknown.
        grids: which positions are its cells.
        number: of the picture.
    """

    picture: Picture | None
    grids: Sequence[ImageGrid]
    number: int

    @property
    def name(self) -> str:
        """What it is called, without the folders of its file."""
        name = f"picture {self.number}" if self.picture is None else self.picture.name.rpartition("/")[2]
        return name + " overview" * self.is_overview

    @property
    def is_overview(self) -> bool:
        """Whether it shows a picture whole whose details others show."""
        return self.grids[0].is_overview

    @property
    def size(self) -> tuple[float, float]:
        """Its width and height, in its pixels, or in cells where those are unknown."""
        if self.picture is not None:
            return self.picture.width, self.picture.height
        boxes = [grid.box or (0, 0, grid.columns, grid.rows) for grid in self.grids]
        return max(box[2] for box in boxes), max(box[3] for box in boxes)

    @property
    def positions(self) -> Int[np.ndarray, " N"]:
        """The positions that are its cells."""
        return np.concatenate([grid.positions.ravel() for grid in self.grids])

    @property
    def cells(self) -> tuple[int, int]:
        """How many rows and columns of the smallest cells it has."""
        boxes = [grid.cell_box(0, 0, *self.size) for grid in self.grids]
        wide, high = min(box[2] - box[0] for box in boxes), min(box[3] - box[1] for box in boxes)
        return max(round(self.size[1] / high), 1), max(round(self.size[0] / wide), 1)

    def placed(self, rows: int, columns: int) -> Positions:
        """Return the position of the cell that lies at each of so many places; -1 where none does."""
        found = np.full((rows, columns), -1)
        width, height = self.size
        for grid in self.grids:
            left, top, right, bottom = grid.box_in(width, height)
            across = ((np.arange(columns) + 0.5) * width / columns - left) / (right - left) * grid.columns
            down = ((np.arange(rows) + 0.5) * height / rows - top) / (bottom - top) * grid.rows
            of_columns, of_rows = (across >= 0) & (across < grid.columns), (down >= 0) & (down < grid.rows)
            own = grid.positions[np.ix_(down[of_rows].astype(int), across[of_columns].astype(int))]
            found[np.ix_(of_rows, of_columns)] = own
        return found


def canvases(layout: SideLayout, has_overview: bool) -> list[Canvas]:
    """Return what is drawn of each picture: its tiles together, and with `has_overview` the overview after them."""
    found = []
    for number in sorted({grid.image for grid in layout.grids}):
        picture = layout.pictures[number] if number < len(layout.pictures) else None
        own = [grid for grid in layout.grids if grid.image == number]
        parts = [[grid for grid in own if grid.is_overview == is_one] for is_one in (False, True)]
        parts = [part for part in parts if part]
        found += [Canvas(picture, part, number) for part in (parts if has_overview else parts[:1])]
    return found


def weight_text(weight: float) -> str:
    """Return a weight in two digits behind the point, or the first digit of a smaller one."""
    return f"{weight:.2f}" if weight >= 0.005 or not weight else f"{weight:.1g}"


def facts_of(grids: Sequence[ImageGrid]) -> list[str]:
    """Return what a reader has to know of cells, in sentences."""
    merged = {grid.patches for grid in grids if grid.patches > 1}
    facts = [f"a cell is {size}×{size} patches, merged" for size in sorted(merged)]
    return facts + list(dict.fromkeys(grid.note for grid in grids if grid.note))


class Tiling(NamedTuple):
    """How panels of one size stand in a room: so many side by side, and at least one in all."""

    size: Bounds
    in_a_strip: int
    capacity: int


def neighbour(layout: SideLayout, position: int, rows: int, columns: int) -> int | None:
    """Return the position so many cells further down and further right; None where there is no cell at `position`.

    Above and below a picture are the positions before and behind its own; beside it is nothing.
    """
    for canvas in canvases(layout, has_overview=True):
        cells = canvas.placed(*canvas.cells)
        for row, column in np.argwhere(cells == position).tolist()[:1]:
            row, column, own = row + rows, min(max(column + columns, 0), cells.shape[1] - 1), cells[cells >= 0]
            if not 0 <= row < len(cells):
                return int(own.min()) + row if row < 0 else int(own.max()) + row - len(cells) + 1
            return int(cells[row, column]) if cells[row, column] >= 0 else position
    return None


class Panel(NamedTuple):
    """A picture under the weights of a head, or without one as it is; behind its name stands a fact that fits."""

    canvas: Canvas
    head: HeadLook | None
    name: str
    facts: Sequence[str] = ()  # the longest first


@dataclass(frozen=True, eq=False)
class PictureView:
    """Where some heads look.

    Attributes:
        title: who looks, and what that is called.
        heads: those that were asked for.
        layout: which positions are cells of pictures.
        marks: what stands on cells, by their positions: `OWN`, and `CHOSEN`.
        palette: how cells look.
        scale: which weight each colour stands for.
        has_shares: whether the weights are of one query, or a mean, so that their sum is a share of all.
        keys: those that were chosen, whose weight stands beside each head; without any its heaviest cell does.
        resized: the pixels of pictures in the sizes that were drawn, by their numbers.
    """

    title: tuple[str, str]
    heads: Sequence[HeadLook]
    layout: SideLayout
    marks: Mapping[int, str]
    palette: Palette
    scale: Scale
    has_shares: bool = True
    keys: Sequence[int] = ()
    resized: dict[tuple[int, Bounds], Pixels] = field(default_factory=dict)

    @property
    def facts(self) -> list[str]:
        """What a reader has to know of the cells and of what is left out."""
        lacks_overviews = len(self.heads) > 1 and any(grid.is_overview for grid in self.layout.grids)
        return ["the overview is drawn for one --head"] * lacks_overviews + facts_of(self.layout.grids)

    def share(self, head: HeadLook, canvas: Canvas) -> str:
        """Return how much of its weight a head gives to the cells, behind a blank; empty where that is no share."""
        return f" {float(head.weights[canvas.positions].sum()):.0%}" * self.has_shares

    def heaviest(self, head: HeadLook, cells: Int[np.ndarray, " C"]) -> str:
        """Return the name and the weight of the keys that were chosen, or of the heaviest of some cells."""
        shown = list(self.keys) or [head.heaviest(cells)]
        name = self.layout.cells.get(shown[0], str(shown[0])) if len(shown) == 1 else f"{len(shown)} keys"
        return f"{name} {weight_text(float(head.weights[shown].sum()))}"

    @property
    def panels(self) -> list[Panel]:
        """What is drawn of each head, and of the only one the overview too."""
        found = []
        for head in self.heads:
            for each in canvases(self.layout, len(self.heads) == 1):
                name, share = head.name + " overview" * each.is_overview, self.share(head, each)
                cell = f" {self.heaviest(head, each.positions).removeprefix('overview ')}"
                found.append(Panel(each, head, name, (cell + share, cell, share, "")))
        return found

    def drawn(self, bounds: Bounds) -> tuple[Block, int]:
        """Return as many heads as there is room for, those first that give most to one cell, and how many they are."""
        header, cells = self._header(bounds.width), [*self.layout.cells]
        room = Bounds(max(bounds.lines - len(header.lines), 1), bounds.width)
        plain = [Panel(each, None, each.name) for each in canvases(self.layout, False) if each.picture is not None]
        plain *= self.palette.has_color
        panels = self.panels
        widths = [max(len(one.name + one.facts[1]), min(one.canvas.cells[1], 2 * _NARROWEST)) for one in panels]
        tiles = self.tiling([*plain, *panels], room, max(*widths, _NARROWEST), _WIDEST)
        each = len(panels) // len(self.heads)
        count = min(max((tiles.capacity - len(plain)) // each, 1), len(self.heads))
        most = [float(np.nan_to_num(head.weights[cells]).max()) for head in self.heads]
        chosen = sorted(np.argsort([-weight for weight in most], kind="stable")[:count].tolist())
        panels = [panel for place in chosen for panel in panels[place * each : (place + 1) * each]]
        return stack([header, self.hung([*plain, *panels], tiles).block]), count

    def _header(self, width: int) -> Block:
        cells = [*self.layout.cells]
        parts = [[Segment(self.title[0], BOLD), Segment(f" {self.title[1]}", DIM)]]
        if self.scale.low < self.scale.high:
            parts.append(ramp_line(self.scale, self.palette, width, 2))
        facts = [f"beside each head: its {'weight on the chosen key' if self.keys else 'heaviest cell'}"]
        facts += ["%: its weight on the picture"] * self.has_shares
        there = dict.fromkeys(mark for place, mark in self.marks.items() if place in cells)
        facts += [f"{mark} {_MEANINGS[mark]}" for mark in there]
        is_dark = self.palette.has_color and not all(one.allowed[cells].all() for one in self.heads)
        facts += ["darkest: masked, or no number"] * is_dark + self.facts
        listed = ([Segment(line, DIM)] for fact in facts for line in in_words(fact, width))
        return stack([flowing(parts, width), flowing(listed, width)])

    # --- panels ---

    def tiling(self, panels: Sequence[Panel], room: Bounds, least: int, widest: int) -> Tiling:
        """Return how all panels fit, as large as they may be; where they do not, as many as do.

        Pictures are from `least` to `widest` columns wide; shades end at the size in which each cell has its own.
        """
        width, height = (max(sizes) for sizes in zip(*(panel.canvas.size for panel in panels), strict=True))
        rows, columns = (max(sizes) for sizes in zip(*(panel.canvas.cells for panel in panels), strict=True))
        margin, named = len(str(rows - 1)) + 1, max(len("".join((panel.name, *panel.facts[:1]))) for panel in panels)

        def of(wide: int) -> Tiling:
            if self.palette.has_color:
                size = Bounds(max(round(wide * height / width / 2), 1), wide)
            else:
                step = -(-columns * WIDE.columns // max(wide - margin, WIDE.columns))
                size = Bounds(-(-rows // step) + 1, max(margin + -(-columns // step) * WIDE.columns, min(wide, named)))
            side_by_side = max((room.width + GAP) // (size.width + GAP), 1)
            return Tiling(size, side_by_side, side_by_side * (room.lines // (size.lines + 1)))

        if not self.palette.has_color:
            widest = max(margin + columns * WIDE.columns, named)
        wide = min(widest, room.width)
        ways = (of(each) for each in range(wide, min(least, wide) - 1, -1))
        found = next((way for way in ways if way.capacity >= len(panels)), of(min(least, wide)))
        if not found.capacity:  # higher than the room
            size = Bounds(max(room.lines - 1, 1), min(found.size.width, room.width))
            return Tiling(size, found.in_a_strip, found.in_a_strip)
        count = min(len(panels), found.capacity)
        return found._replace(in_a_strip=-(-count // -(-count // found.in_a_strip)))  # as many in each of the strips

    def hung(self, panels: Sequence[Panel], tiles: Tiling) -> PaneContent[tuple[int, int | None]]:
        """Return panels side by side; at a place of them is the number of a panel, and a position that it shows."""
        (high, wide), in_a_strip, _ = tiles
        lengths = zip(*([len(one.name + fact) for fact in one.facts] for one in panels if one.facts), strict=True)
        way = next((way for way, longest in enumerate(map(max, lengths)) if longest <= wide), -1)
        draw, blocks, places = self._overlay if self.palette.has_color else self._shaded, [], []
        for panel in panels:
            name = self.palette.shortened(panel.name, wide, keeps_end=True)
            title = [Segment(name, BOLD), Segment(panel.facts[way] if panel.facts else "", DIM)]
            lines, own = draw(panel.canvas, panel.head, tiles.size)
            blocks.append(crop([title, *lines], Bounds(high + 1, wide)))
            places.append(own)
        strips = (blocks[start : start + in_a_strip] for start in range(0, len(blocks), in_a_strip))

        def at(line: int, column: int) -> tuple[int, int | None] | None:
            (strip, line), (place, column) = divmod(line, high + 1), divmod(column, wide + GAP)
            number = strip * in_a_strip + place
            if not (strip >= 0 and 0 <= place < in_a_strip and number < len(panels) and column < wide):
                return None
            found = places[number][line - 1 : line, column : column + 1].tolist() if line else []
            return number, next((position for row in found for position in row if position >= 0), None)

        return PaneContent(stack(hstack(strip, GAP) for strip in strips), at)

    def _overlay(self, canvas: Canvas, head: HeadLook | None, size: Bounds) -> tuple[list[list[Segment]], Positions]:
        """Return a picture in half-blocks, under the weights of a head dark where it may not look, and its cells."""
        rows, columns = 2 * size.lines, size.width
        own = canvas.placed(rows, columns)
        pixels = self.resized.get((canvas.number, size), np.zeros((rows, columns, 3)))
        if canvas.picture is not None and (canvas.number, size) not in self.resized:
            pixels = self.resized[canvas.number, size] = resized(canvas.picture.pixels, rows, columns)
        if head is None:
            return half_blocks(pixels), own[::2]
        weights, is_inside = head.sampled(own)
        place, is_signed = self.scale.placed(weights), self.scale.is_signed
        ramp = [style.bgcolor.triplet for _, style in self.palette.ramp(1, is_signed) if style and style.bgcolor]
        heat = np.array(ramp)[np.minimum(place * len(ramp), len(ramp) - 1).astype(int)]
        cover = COVER * (np.abs(2 * place - 1) if is_signed else place)[..., None] if canvas.picture else 1
        gray = grayed(pixels)
        pixels = np.where(is_inside[..., None], gray * DIMMED * (1 - cover) + heat * cover, gray * DARK)
        lines = half_blocks(pixels)
        for position in (place for place in self.marks if (own == place).any()):
            row, column = np.argwhere(own == position).mean(axis=0).astype(int)
            ink, paper = "#000000" if pixels[row, column].sum() > _LIGHT else "#ffffff", lines[row // 2][column].style
            style = Style(color=ink, bgcolor=paper and paper.color, bold=True)
            lines[row // 2][column] = Segment(self.marks[position], style)
        return lines, own[::2]

    def _shaded(self, canvas: Canvas, head: HeadLook | None, size: Bounds) -> tuple[list[list[Segment]], Positions]:
        """Return the cells as shades with their axes, of many the largest of each block; and which lie there."""
        assert head is not None
        rows, columns = canvas.cells
        digits = len(str(rows - 1))
        wide, high = max((size.width - digits - 1) // WIDE.columns, 1), max(size.lines - 1, 1)
        step = max(-(-rows // high), -(-columns // wide))
        own = canvas.placed(rows, columns)
        drawn = Heatmap("", *head.sampled(own)).pooled(step, step, self.scale.is_signed)
        axes = [Axis(("",) * len(part), tuple(part)) for part in (range(0, rows, step), range(0, columns, step))]
        mark, marked, across = "", None, None  # of the last one, beside the shades, which have no room for it
        for position in (place for place in self.marks if (own == place).any()):
            mark, (marked, across) = self.marks[position], (np.argwhere(own == position)[0] // step).tolist()
        body = map_lines(drawn.values, drawn.allowed, CellGrid(axes[0], axes[1], WIDE), self.palette, self.scale)
        lines = [[Segment(" " * (digits + 1)), *axes[1].ticks(WIDE.columns, self.palette, across)]]
        for place, (index, shades) in enumerate(zip(axes[0].indices, body, strict=True)):
            shown = mark if place == marked else " "
            lines.append([Segment(f"{index:>{digits}}", DIM), Segment(shown, BOLD), *shades])
        first = own[::step, ::step].repeat(WIDE.columns, axis=1)
        return lines, np.pad(first, ((1, 0), (digits + 1, 0)), constant_values=-1)


def grayed(pixels: Pixels) -> Pixels:
    """Return a picture without its colours (relative luminance)."""
    return np.repeat(pixels @ [[0.2126], [0.7152], [0.0722]], 3, axis=2)


def resized(pixels: Pixels, rows: int, columns: int) -> Pixels:
    """Return a picture in so many pixels, each the mean of those that lie in it, or the nearest one."""
    for axis, count in enumerate((rows, columns)):
        starts = np.arange(count) * pixels.shape[axis] // count
        sizes = np.maximum(np.diff(starts, append=pixels.shape[axis]), 1)
        pixels = np.add.reduceat(pixels, starts, axis=axis, dtype=np.float64) / np.expand_dims(sizes, (1 - axis, 2))
    return pixels


def half_blocks(pixels: Pixels) -> list[list[Segment]]:
    """Return lines that show two rows of pixels each."""
    colors = (pixels / 4).round().clip(0, 63).astype(int) * 4  # so that neighbours share a style
    names = [[f"#{min(r, 255):02x}{min(g, 255):02x}{min(b, 255):02x}" for r, g, b in row] for row in colors.tolist()]
    return [
        [Segment("▀", Style(color=top, bgcolor=bottom)) for top, bottom in zip(*pair, strict=True)]
        for pair in zip(names[::2], names[1::2], strict=True)
    ]
