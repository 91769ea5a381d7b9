"""Where heads look in a picture: the picture in half-blocks under their weights, or without colours shades."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from rich.segment import Segment
from rich.style import Style

from attncli.render.axes import Axis
from attncli.render.block import Block, flowing, hstack, stack
from attncli.render.fit import Bounds
from attncli.render.heatmap import GAP, Extent, Heatmap, heatmaps
from attncli.render.legend import ramp_line
from attncli.render.palette import BOLD, DIM, Palette, Scale

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

    from attncli.trace.layout import ImageGrid, Picture, SideLayout

Pixels = np.ndarray[Any, Any]  # red, green and blue, from 0 to 255, `[rows, columns, 3]`

_WIDEST, _NARROWEST = 60, 10  # cells of a picture
DIMMED = 0.5  # of its light, where nothing is looked at
DARK = 0.15  # of its light, where no key lies
COVER = 0.85  # by which the heaviest cell hides it
QUERY = "ff2d95"  # the colour of the cell whose query this is


class HeadLook(NamedTuple):
    """What one head gives to each key.

    Attributes:
        name: of the head, such as `L3 H2`.
        weights: of each key.
        allowed: which keys the query may attend to.
        total: all that it gives; of norms it is no 1.
    """

    name: str
    weights: Float[np.ndarray, " K"]
    allowed: Bool[np.ndarray, " K"]
    total: float = 1.0


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
    def is_overview(self) -> bool:
        """Whether it shows a picture whole whose details others show."""
        return self.grids[0].is_overview

    @property
    def size(self) -> tuple[float, float]:
        """Its width and height, in its pixels, or in cells where those are unknown."""
        if self.picture is not None:
            return self.picture.width, self.picture.height
        placed = [grid.box for grid in self.grids if grid.box is not None]
        if placed:
            return max(box[2] for box in placed), max(box[3] for box in placed)
        return self.grids[0].columns, self.grids[0].rows

    @property
    def cells(self) -> tuple[int, int]:
        """How many rows and columns of the smallest cells it has."""
        boxes = [grid.cell_box(0, 0, *self.size) for grid in self.grids]
        wide, high = min(box[2] - box[0] for box in boxes), min(box[3] - box[1] for box in boxes)
        return max(round(self.size[1] / high), 1), max(round(self.size[0] / wide), 1)

    def share(self, head: HeadLook) -> float:
        """Return how much of its weight a head gives to the cells."""
        return sum(float(head.weights[grid.positions].sum()) for grid in self.grids) / head.total

    def sampled(
        self, head: HeadLook, rows: int, columns: int
    ) -> tuple[Float[np.ndarray, "rows columns"], Bool[np.ndarray, "rows columns"]]:
        """Return the weight of the cell that lies at each of so many places, and where there is one that is allowed."""
        found, is_inside = np.zeros((rows, columns)), np.zeros((rows, columns), bool)
        width, height = self.size
        for grid in self.grids:
            left, top, right, bottom = grid.box_in(width, height)
            across = ((np.arange(columns) + 0.5) * width / columns - left) / (right - left) * grid.columns
            down = ((np.arange(rows) + 0.5) * height / rows - top) / (bottom - top) * grid.rows
            of_columns, of_rows = (across >= 0) & (across < grid.columns), (down >= 0) & (down < grid.rows)
            own = grid.positions[np.ix_(down[of_rows].astype(int), across[of_columns].astype(int))]
            found[np.ix_(of_rows, of_columns)] = head.weights[own]
            is_inside[np.ix_(of_rows, of_columns)] = head.allowed[own]
        return found, is_inside


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


def cell_names(grids: Sequence[ImageGrid]) -> dict[int, str]:
    """Return the name of each position that is a cell, by its row and column."""
    return {
        int(position): "overview " * grid.is_overview + f"r{row}c{column}"
        for grid in reversed(grids)
        for (row, column), position in np.ndenumerate(grid.positions)
    }


def facts_of(grids: Sequence[ImageGrid]) -> list[str]:
    """Return what a reader has to know of cells, in sentences."""
    merged = {grid.patches for grid in grids if grid.patches > 1}
    facts = [f"a cell is {size}×{size} patches, merged" for size in sorted(merged)]
    return facts + list(dict.fromkeys(grid.note for grid in grids if grid.note))


class PictureView(NamedTuple):
    """Where some heads look.

    Attributes:
        title: who looks, and what that is called.
        heads: those that were asked for.
        layout: which keys are cells of pictures.
        query: the position of the one query, if that is a cell itself.
        palette: how cells look.
        scale: which weight each colour stands for.
    """

    title: tuple[str, str]
    heads: Sequence[HeadLook]
    layout: SideLayout
    query: int | None
    palette: Palette
    scale: Scale

    @property
    def lacks_overviews(self) -> bool:
        """Whether overviews are left out, for there are several heads."""
        return len(self.heads) > 1 and any(grid.is_overview for grid in self.layout.grids)

    def drawn(self, bounds: Bounds) -> tuple[Block, int]:
        """Return as many heads as there is room for, those first that give most to one cell, and how many they are."""
        ranked = sorted(self.heads, key=lambda head: -self._most(head))
        header = self._header(bounds.width)
        room = Bounds(max(bounds.lines - len(header.lines), 1), bounds.width)
        draw = self._colored if self.palette.has_halves else self._shaded
        drawn, count = draw(ranked, room)
        return stack([header, drawn]), count

    def _named(self, head: HeadLook, canvas: Canvas) -> tuple[str, str]:
        """Return the name of a head, and how much of its weight it gives to cells."""
        return head.name, " overview" * canvas.is_overview + f" {canvas.share(head):.0%}"

    def _most(self, head: HeadLook) -> float:
        return float(max(np.nan_to_num(head.weights[grid.positions]).max() for grid in self.layout.grids))

    def _in_order(self, heads: Sequence[HeadLook]) -> list[HeadLook]:
        return [head for head in self.heads if any(head is each for each in heads)]

    def _header(self, width: int) -> Block:
        fit, grids = self.palette.fit, self.layout.grids
        parts = [[Segment(fit(self.title[0]), BOLD), Segment(fit(f" {self.title[1]}"), DIM)]]
        if self.scale.low < self.scale.high:
            parts.append(ramp_line(self.scale, self.palette, width, 2))
        facts = ["beside each head: its share on the picture"]
        facts += ["the overview is drawn for one --head"] * self.lacks_overviews
        facts += facts_of(grids)
        listed = [[Segment(fit(fact), DIM)] for fact in facts]
        if self.query is not None and self.palette.has_halves:
            listed.insert(0, [Segment("■", Style(color=f"#{QUERY}")), Segment(" the query's own cell", DIM)])
        return stack([flowing(parts, width), flowing(listed, width)])

    # --- colours ---

    def _colored(self, heads: Sequence[HeadLook], bounds: Bounds) -> tuple[Block, int]:
        drawn = canvases(self.layout, len(self.heads) == 1)
        plain = [each for each in canvases(self.layout, False) if each.picture is not None]
        width, height = (max(sizes) for sizes in zip(*(each.size for each in drawn), strict=True))
        longest = max(len("".join(self._named(head, each))) for head in heads for each in drawn)
        least = max(_NARROWEST, longest, min(max(each.cells[1] for each in drawn), 2 * _NARROWEST))

        def layout(wide: int) -> tuple[int, int, int]:
            """Return how high panels of a width are, how many stand side by side, and how many heads fit."""
            high = max(round(wide * height / width / 2), 1)
            side_by_side = max((bounds.width + GAP) // (wide + GAP), 1)
            panels = side_by_side * (bounds.lines // (high + 1))
            return high, side_by_side, max((panels - len(plain)) // len(drawn), 0)

        wide = min(_WIDEST, bounds.width)
        while wide > least and layout(wide)[2] < len(heads):
            wide -= 1
        high, side_by_side, count = layout(wide)
        chosen = self._in_order(heads[: max(count, 1)])
        panels = [self._panel(each, None, high, wide) for each in plain]
        panels += [self._panel(each, head, high, wide) for head in chosen for each in drawn]
        strips = [
            hstack(list(panels[start : start + side_by_side]), GAP) for start in range(0, len(panels), side_by_side)
        ]
        return stack(strips), len(chosen)

    def _panel(self, canvas: Canvas, head: HeadLook | None, high: int, wide: int) -> Block:
        """Return a picture under the weights of a head, or as it is, below its name."""
        rows = 2 * high
        pixels = np.zeros((rows, wide, 3)) if canvas.picture is None else resized(canvas.picture.pixels, rows, wide)
        if head is None:
            assert canvas.picture is not None
            name, facts = self.palette.shortened(canvas.picture.name, wide, keeps_end=True), ""
        else:
            name, facts = self._named(head, canvas)
            weights, is_inside = canvas.sampled(head, rows, wide)
            place = self.scale.placed(np.where(np.isfinite(weights), weights, 0))
            ramp = np.array([style.bgcolor.triplet for _, style in self.palette.ramp(1) if style and style.bgcolor])
            heat = ramp[np.minimum(place * len(ramp), len(ramp) - 1).astype(int)]
            cover = np.ones_like(place)[..., None] if canvas.picture is None else COVER * place[..., None]
            gray = grayed(pixels)
            pixels = np.where(is_inside[..., None], gray * DIMMED * (1 - cover) + heat * cover, gray * DARK)
            if self.query is not None:
                self._mark(canvas, pixels)
        title = [Segment(name, BOLD), Segment(facts, DIM)]
        return Block([title, *half_blocks(pixels)], wide)

    def _mark(self, canvas: Canvas, pixels: Pixels) -> None:
        """Mark the middle of the cell that is the query itself."""
        rows, columns = pixels.shape[:2]
        for grid in canvas.grids:
            for row, column in np.argwhere(grid.positions == self.query).tolist():
                left, top, right, bottom = grid.cell_box(row, column, *canvas.size)
                x = int((left + right) / 2 / canvas.size[0] * columns)
                y = int((top + bottom) / 2 / canvas.size[1] * rows)
                if 0 <= x < columns and 0 <= y < rows:
                    pixels[y, x] = [int(QUERY[place : place + 2], 16) for place in (0, 2, 4)]

    # --- shades ---

    def _shaded(self, heads: Sequence[HeadLook], bounds: Bounds) -> tuple[Block, int]:
        drawn = canvases(self.layout, len(self.heads) == 1)
        lines = bounds.lines // len(drawn)
        maps, count = [], len(heads)
        for canvas in drawn:
            rows, columns = canvas.cells
            step = max(-(-rows // max(lines - 2, 1)), -(-columns * 2 // max(bounds.width - 5, 1)))
            high, wide = -(-rows // step) + 3, max(-(-columns // step) * 2, len("H00 100%")) + GAP
            count = min(count, max(bounds.width // wide, 1) * max((lines + 1) // high, 1))
            chosen = self._in_order(heads[:count])
            pictures = []
            for head in chosen:
                values, is_inside = canvas.sampled(head, rows, columns)
                title = "".join(self._named(head, canvas))
                pictures.append(Heatmap(title, values, is_inside, Extent.of(values, is_inside)).pooled(step, step))
            axes = [Axis(("",) * size, tuple(range(size))) for size in (rows, columns)]
            maps.append(heatmaps(pictures, axes[0], axes[1], (step, step), self.palette, bounds.width, self.scale))
        return stack(maps, gap=1), count


def grayed(pixels: Pixels) -> Pixels:
    """Return a picture without its colours (relative luminance)."""
    return np.repeat(pixels @ [[0.2126], [0.7152], [0.0722]], 3, axis=2)


def resized(pixels: Pixels, rows: int, columns: int) -> Pixels:
    """Return a picture in so many pixels, each the mean of those that lie in it, or the nearest one."""
    for axis, count in enumerate((rows, columns)):
        size = pixels.shape[axis]
        starts = np.arange(count) * size // count
        if count >= size:
            pixels = np.take(pixels, starts, axis=axis)
            continue
        sums = np.add.reduceat(pixels.astype(np.float64), starts, axis=axis)
        shape = [1, 1, 1]
        shape[axis] = count
        pixels = sums / np.diff(np.append(starts, size)).reshape(shape)
    return pixels.astype(np.float64)


def half_blocks(pixels: Pixels) -> list[list[Segment]]:
    """Return lines that show two rows of pixels each."""
    colors = (pixels / 4).round().clip(0, 63).astype(int) * 4  # so that neighbours share a style
    names = [[f"#{min(r, 255):02x}{min(g, 255):02x}{min(b, 255):02x}" for r, g, b in row] for row in colors.tolist()]
    return [
        [Segment("▀", Style(color=top, bgcolor=bottom)) for top, bottom in zip(*pair, strict=True)]
        for pair in zip(names[::2], names[1::2], strict=True)
    ]
