"""Pictures in half-blocks under the weights of heads, or without colours maps of their cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from rich.segment import Segment
from rich.style import Style

from attncli.render.block import Block, Bounds, crop, flowing, hstack, in_words, shortened, stack
from attncli.render.heatmap import GAP, Heatmap, heatmaps, pooling, ramp_line
from attncli.render.matrix import Axis
from attncli.render.palette import BOLD, DIM, Palette, Scale

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int, UInt8

    from attncli.trace.layout import ImageGrid, Picture, SideLayout

Positions = np.ndarray[Any, Any]  # of the cells at some places, -1 where none is, `[rows, columns]`
Pixels = np.ndarray[Any, Any]  # red, green and blue, from 0 to 255, `[rows, columns, 3]`

_WIDEST, _NARROWEST = 60, 10  # characters of a picture
DIMMED = 0.5  # of its light, where nothing is looked at
DARK = 0.15  # of its light, where no key lies
COVER = 0.85  # by which the heaviest cell hides it
QUERY = "ff2d95"  # the colour of the cell whose query this is, in figures and on the page
_LIGHT = 330  # of a colour's red, green and blue together, above which black is read on it
OWN, CHOSEN = "▸", "▾"  # on the cell that is the query itself, and on a chosen key
_MEANINGS = {OWN: "the query's own cell", CHOSEN: "the chosen key"}


class HeadLook(NamedTuple):
    """Attention of one head's query: its name, such as `L3 H2`, the weight of each key, and which keys are allowed."""

    name: str
    weights: Float[np.ndarray, " N"]
    allowed: Bool[np.ndarray, " N"]

    def sampled(
        self, positions: Positions
    ) -> tuple[Float[np.ndarray, "rows columns"], Bool[np.ndarray, "rows columns"]]:
        """Return the weights of the cells at some places, and where there is one: allowed, and a number."""
        is_there = (positions >= 0) & self.allowed[positions] & np.isfinite(self.weights[positions])
        return np.where(is_there, self.weights[positions], 0), is_there


class Canvas(NamedTuple):
    """One picture, None where its pixels are unknown, and the grids of its cells that are drawn together."""

    picture: Picture | None
    grids: Sequence[ImageGrid]
    number: int

    @property
    def name(self) -> str:
        """Name of its file, without the folders."""
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
        """Return the position of the cell at each place of a raster; -1 for no cell."""
        raster = np.full((rows, columns), -1)
        width, height = self.size
        for grid in self.grids:
            left, top, right, bottom = grid.box_in(width, height)
            across = ((np.arange(columns) + 0.5) * width / columns - left) / (right - left) * grid.columns
            down = ((np.arange(rows) + 0.5) * height / rows - top) / (bottom - top) * grid.rows
            of_columns, of_rows = (across >= 0) & (across < grid.columns), (down >= 0) & (down < grid.rows)
            inside = np.ix_(down[of_rows].astype(int), across[of_columns].astype(int))
            raster[np.ix_(of_rows, of_columns)] = grid.positions[inside]
        return raster

    def pixels(self, rows: int, columns: int) -> Pixels:
        """Return the picture as a raster; black where it is unknown."""
        return np.zeros((rows, columns, 3)) if self.picture is None else resized(self.picture.pixels, rows, columns)


def canvases(layout: SideLayout, has_overview: bool) -> list[Canvas]:
    """Return what is drawn of each picture: its tiles together, and with `has_overview` the overview after them."""
    drawn = []
    for number in sorted({grid.image for grid in layout.grids}):
        picture = layout.pictures[number] if number < len(layout.pictures) else None
        grids = [grid for grid in layout.grids if grid.image == number]
        parts = [[grid for grid in grids if grid.is_overview == is_overview] for is_overview in (False, True)]
        parts = [part for part in parts if part]
        drawn += [Canvas(picture, part, number) for part in (parts if has_overview else parts[:1])]
    return drawn


def facts_of(grids: Sequence[ImageGrid]) -> list[str]:
    """Return what a reader has to know of cells, in sentences."""
    merged = {grid.patches for grid in grids if grid.patches > 1}
    facts = [f"a cell is {size}×{size} patches, merged" for size in sorted(merged)]
    return facts + list(dict.fromkeys(grid.note for grid in grids if grid.note))


class Panel(NamedTuple):
    """A picture under the weights of a head, or without one as it is, and facts behind its name."""

    canvas: Canvas
    head: HeadLook | None
    name: str
    facts: Sequence[str] = ()


@dataclass(frozen=True, eq=False)
class PictureView:
    """Look of some heads' query at pictures, in the columns of a terminal."""

    title: tuple[str, str]  # the query, and what it does
    heads: Sequence[HeadLook]
    layout: SideLayout
    marks: Mapping[int, str]  # `OWN` and `CHOSEN`, by the positions of their cells
    palette: Palette
    scale: Scale
    has_shares: bool = True  # whether the sum of weights is a share of all
    keys: Sequence[int] = ()  # chosen ones, whose weight stands behind each head's name in place of its heaviest cell
    resized: dict[tuple[int, Bounds], Pixels] = field(default_factory=dict)  # pictures in the sizes that were drawn

    @property
    def facts(self) -> list[str]:
        """Sentences on the cells, and on panels that are left out."""
        lacks_overviews = len(self.heads) > 1 and any(grid.is_overview for grid in self.layout.grids)
        return ["the overview is drawn for a single head"] * lacks_overviews + facts_of(self.layout.grids)

    def share(self, head: HeadLook, canvas: Canvas) -> str:
        """Return how much of its weight a head gives to the cells, behind a blank; empty where that is no share."""
        return f" {float(head.weights[canvas.positions].sum()):.0%}" * self.has_shares

    def heaviest(self, head: HeadLook, cells: Int[np.ndarray, " C"]) -> str:
        """Return the name and the weight of the keys that were chosen, or of the heaviest of some cells."""
        counted = np.where(head.allowed & np.isfinite(head.weights), head.weights, -np.inf)[cells]
        shown = list(self.keys) or [int(cells[np.argmax(counted)])]
        name = self.layout.cells.get(shown[0], str(shown[0])) if len(shown) == 1 else f"{len(shown)} keys"
        weight = float(head.weights[shown].sum())
        return f"{name} {weight:.2f}" if weight >= 0.005 or not weight else f"{name} {weight:.1g}"

    @property
    def panels(self) -> list[Panel]:
        """Pictures under each head, and of a single one the overview too."""
        panels = []
        for head in self.heads:
            for canvas in canvases(self.layout, len(self.heads) == 1):
                cell = self.heaviest(head, canvas.positions).removeprefix("overview ")
                name = head.name + " overview" * canvas.is_overview
                panels.append(Panel(canvas, head, name, (f" {cell}", self.share(head, canvas))))
        return panels

    def drawn(self, bounds: Bounds) -> tuple[Block, int]:
        """Return as many heads as there is room for, those first that give most to one cell, and how many they are."""
        header, cells = self._header(bounds.width), [*self.layout.cells]
        room = Bounds(max(bounds.lines - len(header.lines), 1), bounds.width)
        panels, plain = self.panels, [Panel(canvas, None, canvas.name) for canvas in canvases(self.layout, False)]
        step, most = len(panels) // len(self.heads), [-np.nan_to_num(head.weights[cells]).max() for head in self.heads]
        ranked = np.argsort(most, kind="stable").tolist()

        def chosen(count: int) -> list[Panel]:
            return [panel for head in sorted(ranked[:count]) for panel in panels[head * step : (head + 1) * step]]

        if self.palette.has_color:
            plain = [panel for panel in plain if panel.canvas.picture is not None]
            least = max(_NARROWEST, *(len("".join((panel.name, *panel.facts[:1]))) for panel in panels))
            size, in_a_strip, capacity = _tiling([*plain, *panels], room, least)
            count = min(max((capacity - len(plain)) // step, 1), len(self.heads))
            return stack([header, self._tiled([*plain, *chosen(count)], size, in_a_strip)]), count
        for count in range(len(self.heads), 0, -1):
            maps = stack((self._maps(chosen(count)[first::step], room.width) for first in range(step)), gap=1)
            if len(maps.lines) <= room.lines:
                break
        return stack([header, maps]), count

    def _maps(self, panels: Sequence[Panel], width: int) -> Block:
        """Return the cells of one picture under the weights of heads as maps, of many the largest of each block."""
        rows, columns = (Axis(("",) * count, tuple(range(count))) for count in panels[0].canvas.cells)
        positions, pool = panels[0].canvas.placed(len(rows), len(columns)), pooling(rows, columns, width)
        sampled = ((panel, panel.head.sampled(positions)) for panel in panels if panel.head)
        maps = [Heatmap(panel.name, *cells, label="".join(panel.facts).strip()) for panel, cells in sampled]
        maps = [heatmap.pooled(*pool) for heatmap in maps]
        return heatmaps(maps, rows, columns, pool, self.palette, width, self.scale)

    def _header(self, width: int) -> Block:
        cells = [*self.layout.cells]
        parts = [[Segment(self.title[0], BOLD), Segment(f" {self.title[1]}", DIM)]]
        if self.scale.low < self.scale.high:
            parts.append(ramp_line(self.scale, self.palette, width, 2))
        facts = [f"beside each head: its {'weight on the chosen key' if self.keys else 'heaviest cell'}"]
        facts += ["%: share of its weight on the picture"] * self.has_shares
        if self.palette.has_color:
            there = dict.fromkeys(mark for position, mark in self.marks.items() if position in cells)
            facts += [f"{mark} {_MEANINGS[mark]}" for mark in there]
            facts += ["darkest: masked, or no number"] * (not all(one.allowed[cells].all() for one in self.heads))
        facts += self.facts
        listed = ([Segment(line, DIM)] for fact in facts for line in in_words(fact, width))
        return stack([flowing(parts, width), flowing(listed, width)])

    def _tiled(self, panels: Sequence[Panel], size: Bounds, in_a_strip: int) -> Block:
        """Return panels side by side."""
        blocks, wide = [], size.width
        for panel in panels:
            name, forms = shortened(panel.name, wide, keeps_end=True), ("".join(panel.facts), *panel.facts)
            fact = next((text for text in forms if len(name + text) <= wide), "")
            title = [Segment(name, BOLD), Segment(fact, DIM)]
            blocks.append(crop([title, *self._lines(panel, size)], Bounds(size.lines + 1, wide)))
        strips = (blocks[start : start + in_a_strip] for start in range(0, len(blocks), in_a_strip))
        return stack(hstack(strip, GAP) for strip in strips)

    def _lines(self, panel: Panel, size: Bounds) -> list[list[Segment]]:
        """Return a picture in half-blocks, under the weights of a head."""
        canvas, head, _, _ = panel
        positions = canvas.placed(2 * size.lines, size.width)
        if (canvas.number, size) not in self.resized:
            self.resized[canvas.number, size] = canvas.pixels(*positions.shape)
        pixels = self.resized[canvas.number, size]
        if head is not None:
            cells, has_picture = head.sampled(positions), canvas.picture is not None
            pixels = overlay(pixels, *cells, self.scale, self.palette.rgb(), has_picture)
        lines = half_blocks(pixels)
        for mark, where in ((mark, positions == key) for key, mark in self.marks.items() if head is not None):
            if where.any():
                row, column = np.argwhere(where).mean(axis=0).astype(int)
                under = lines[row // 2][column].style
                paper = under and under.color
                ink = "#000000" if paper and sum(paper.get_truecolor()) > _LIGHT else "#ffffff"
                lines[row // 2][column] = Segment(mark, Style(color=ink, bgcolor=paper, bold=True))
        return lines


def _tiling(panels: Sequence[Panel], room: Bounds, least: int) -> tuple[Bounds, int, int]:
    """Return the size of panels at least so wide, how many are side by side, and how many the room holds."""
    width, height = (max(sizes) for sizes in zip(*(panel.canvas.size for panel in panels), strict=True))
    widest = min(_WIDEST, room.width)
    for wide in range(widest, min(least, widest) - 1, -1):
        size = Bounds(min(max(round(wide * height / width / 2), 1), max(room.lines - 1, 1)), wide)
        side_by_side = max((room.width + GAP) // (wide + GAP), 1)
        capacity = side_by_side * max(room.lines // (size.lines + 1), 1)
        if capacity >= len(panels):
            break
    count = min(len(panels), capacity)
    return size, -(-count // -(-count // side_by_side)), capacity  # as many in each of the strips


def overlay(
    pixels: Pixels,
    weights: Float[np.ndarray, "rows columns"],
    is_lit: Bool[np.ndarray, "rows columns"],
    scale: Scale,
    colors: UInt8[np.ndarray, "N 3"],
    has_picture: bool = True,
) -> Pixels:
    """Return a picture without its colours under those of weights, and dark where no key is lit."""
    gray = grayed(pixels)
    cover = COVER * scale.placed(weights)[..., None] if has_picture else 1
    heat = colors[scale.steps(weights, len(colors))]
    return np.where(is_lit[..., None], gray * DIMMED * (1 - cover) + heat * cover, gray * DARK)


def grayed(pixels: Pixels) -> Pixels:
    """Return a picture without its colours (relative luminance)."""
    return np.repeat(pixels @ [[0.2126], [0.7152], [0.0722]], 3, axis=2)


def resized(pixels: Pixels, rows: int, columns: int) -> Pixels:
    """Return a picture as a raster of another size, each pixel the mean of those in it, or the nearest one."""
    for axis, count in enumerate((rows, columns)):
        starts = np.arange(count) * pixels.shape[axis] // count
        sizes = np.maximum(np.diff(starts, append=pixels.shape[axis]), 1)
        pixels = np.add.reduceat(pixels, starts, axis=axis, dtype=np.float64) / np.expand_dims(sizes, (1 - axis, 2))
    return pixels


def half_blocks(pixels: Pixels) -> list[list[Segment]]:
    """Return lines that show two rows of pixels each."""
    colors = (pixels / 4).round().clip(0, 63).astype(int) * 4  # so that neighbours share a style
    names = [[f"#{r:02x}{g:02x}{b:02x}" for r, g, b in row] for row in colors.tolist()]
    return [
        [Segment("▀", Style(color=top, bgcolor=bottom)) for top, bottom in zip(*pair, strict=True)]
        for pair in zip(names[::2], names[1::2], strict=True)
    ]
