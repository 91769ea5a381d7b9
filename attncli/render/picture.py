"""Where heads look in a picture: the picture in half-blocks under their weights, or without colours shades."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    from jaxtyping import Bool, Float, Int

    from attncli.trace.layout import ImageGrid, Picture, SideLayout

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

    def middle_of(self, position: int) -> tuple[float, float] | None:
        """Return how far down and right, as shares, the middle of a cell lies; None where it is none of these."""
        width, height = self.size
        for grid in self.grids:
            for row, column in np.argwhere(grid.positions == position).tolist():
                left, top, right, bottom = grid.cell_box(row, column, width, height)
                across, down = (left + right) / 2 / width, (top + bottom) / 2 / height
                if 0 <= across < 1 and 0 <= down < 1:
                    return down, across
        return None

    @property
    def cells(self) -> tuple[int, int]:
        """How many rows and columns of the smallest cells it has."""
        boxes = [grid.cell_box(0, 0, *self.size) for grid in self.grids]
        wide, high = min(box[2] - box[0] for box in boxes), min(box[3] - box[1] for box in boxes)
        return max(round(self.size[1] / high), 1), max(round(self.size[0] / wide), 1)

    def share(self, head: HeadLook) -> float:
        """Return how much of its weight a head gives to the cells."""
        return sum(float(head.weights[grid.positions].sum()) for grid in self.grids)

    def grayed(self, size: Bounds) -> Pixels:
        """Return its pixels without colours, two of them in a character; black where they are unknown."""
        if self.picture is None:
            return np.zeros((2 * size.lines, size.width, 3))
        return grayed(resized(self.picture.pixels, 2 * size.lines, size.width))

    def placed(self, rows: int, columns: int) -> Int[np.ndarray, "rows columns"]:
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

    def sampled(
        self, head: HeadLook, rows: int, columns: int
    ) -> tuple[Float[np.ndarray, "rows columns"], Bool[np.ndarray, "rows columns"]]:
        """Return the weight of the cell that lies at each of so many places, and where there is one that is allowed."""
        own = self.placed(rows, columns)
        return np.where(own >= 0, head.weights[own], 0), (own >= 0) & head.allowed[own]

    def heaviest(self, head: HeadLook) -> int:
        """Return the position of the cell with the largest weight."""
        cells = np.concatenate([grid.positions.ravel() for grid in self.grids])
        counted = np.where(head.allowed & np.isfinite(head.weights), head.weights, -np.inf)[cells]
        return int(cells[int(np.argmax(counted))])


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
    """How pictures of one shape stand in a room.

    Attributes:
        size: of each.
        in_a_strip: how many stand side by side.
        capacity: how many there is room for, at least one.
    """

    size: Bounds
    in_a_strip: int
    capacity: int


def tiling(
    size: tuple[float, float], count: int, room: Bounds, least: int, above: int = 1, widest: int = _WIDEST
) -> Tiling:
    """Return how so many pictures fit, as large as they may be, or as many as do.

    Args:
        size: width and height of a picture, in any unit.
        count: how many there are.
        room: for all of them.
        least: columns of one.
        above: lines above each.
        widest: columns of one.
    """

    def of(wide: int) -> Tiling:
        high = max(round(wide * size[1] / size[0] / 2), 1)
        side_by_side = max((room.width + GAP) // (wide + GAP), 1)
        return Tiling(Bounds(high, wide), side_by_side, side_by_side * (room.lines // (high + above)))

    wide = min(widest, room.width)
    while wide > least and of(wide).capacity < count:
        wide -= 1
    found = of(wide)
    if not found.capacity:  # higher than the room
        return Tiling(Bounds(max(room.lines - above, 1), wide), found.in_a_strip, found.in_a_strip)
    strips = -(-min(count, found.capacity) // found.in_a_strip)
    return found._replace(in_a_strip=-(-min(count, found.capacity) // strips))  # as many in each of them


def neighbour(layout: SideLayout, position: int, rows: int, columns: int) -> int | None:
    """Return the position so many cells further down and further right; None where there is no cell at `position`.

    Above and below a picture are the positions before and behind its own; beside it is nothing.
    """
    for canvas in canvases(layout, has_overview=True):
        cells = canvas.placed(*canvas.cells)
        for row, column in np.argwhere(cells == position).tolist()[:1]:
            own = cells[cells >= 0]
            row, column = row + rows, min(max(column + columns, 0), cells.shape[1] - 1)
            if row < 0:
                return int(own.min()) + row
            if row >= len(cells):
                return int(own.max()) + row - len(cells) + 1
            return int(cells[row, column]) if cells[row, column] >= 0 else position
    return None


def overlay(
    canvas: Canvas, gray: Pixels, head: HeadLook, palette: Palette, scale: Scale, marks: Mapping[int, str]
) -> list[list[Segment]]:
    """Return a picture in half-blocks under the weights of a head, dark where it may not look.

    Args:
        canvas: the picture.
        gray: its pixels without colours, two of them in a character.
        head: the weights.
        palette: how weights look.
        scale: which weight each colour stands for.
        marks: what stands on cells, by their positions.
    """
    rows, columns = gray.shape[:2]
    weights, is_inside = canvas.sampled(head, rows, columns)
    place = scale.placed(np.where(np.isfinite(weights), weights, 0))
    ramp = np.array([style.bgcolor.triplet for _, style in palette.ramp(1, scale.is_signed) if style and style.bgcolor])
    heat = ramp[np.minimum(place * len(ramp), len(ramp) - 1).astype(int)]
    cover = COVER * (np.abs(2 * place - 1) if scale.is_signed else place)[..., None]
    for mark, where in scale.odd(weights).items():
        if mark[-1] in "IX" and (style := palette.swatch(mark[-1])) and style.bgcolor and style.bgcolor.triplet:
            heat[where], cover[where] = style.bgcolor.triplet, 1
    if canvas.picture is None:
        cover = np.ones_like(cover)
    lines = half_blocks(np.where(is_inside[..., None], gray * DIMMED * (1 - cover) + heat * cover, gray * DARK))
    for position, mark in marks.items():
        if (at := canvas.middle_of(position)) is not None:
            line, column = (
                min(int(share * most), most - 1) for share, most in zip(at, (rows // 2, columns), strict=True)
            )
            lines[line][column] = _written(lines[line][column], palette.fit(mark))
    return lines


def _written(halves: Segment, mark: str) -> Segment:
    """Return a mark in the place of two halves, on the colour of the upper one."""
    color = halves.style.color if halves.style is not None else None
    triplet = color.get_truecolor() if color is not None else (0, 0, 0)
    is_light = sum(triplet) > _LIGHT
    return Segment(mark, Style(color="#000000" if is_light else "#ffffff", bgcolor=color, bold=True))


class PictureView(NamedTuple):
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
    """

    title: tuple[str, str]
    heads: Sequence[HeadLook]
    layout: SideLayout
    marks: Mapping[int, str]
    palette: Palette
    scale: Scale
    has_shares: bool = True
    keys: Sequence[int] = ()

    @property
    def lacks_overviews(self) -> bool:
        """Whether overviews are left out, for there are several heads."""
        return len(self.heads) > 1 and any(grid.is_overview for grid in self.layout.grids)

    @property
    def query(self) -> int | None:
        """The position of the one query, if that is a cell itself."""
        own = (place for place, mark in self.marks.items() if mark == OWN)
        return next((place for place in own if place in self.layout.cells), None)

    def drawn(self, bounds: Bounds) -> tuple[Block, int]:
        """Return as many heads as there is room for, those first that give most to one cell, and how many they are."""
        ranked = sorted(self.heads, key=lambda head: -self._most(head))
        header = self._header(bounds.width)
        room = Bounds(max(bounds.lines - len(header.lines), 1), bounds.width)
        draw = self._colored if self.palette.has_halves else self._shaded
        drawn, count = draw(ranked, room)
        return stack([header, drawn]), count

    def _facts(self, head: HeadLook, canvas: Canvas) -> list[str]:
        """Return what may stand beside a head, the longest first: its heaviest cell, and its weight on all of them."""
        name, listed = " overview" * canvas.is_overview, [f" {canvas.share(head):.0%}"] * self.has_shares
        shown = self.keys or [canvas.heaviest(head)]
        place = self.layout.cells.get(shown[0], str(shown[0])).removeprefix("overview ")
        place = f"{len(shown)} keys" if len(shown) > 1 else place
        cell = f" {place} {weight_text(float(head.weights[[*shown]].sum()))}"
        return [name + cell + "".join(listed), name + cell, *(name + each for each in listed), name]

    def _widths(self, heads: Sequence[HeadLook], drawn: Sequence[Canvas]) -> list[int]:
        """Return how wide the longest name of a head is with each of these."""
        names = [[len(head.name + each) for each in self._facts(head, one)] for head in heads for one in drawn]
        return [max(each) for each in zip(*names, strict=True)]

    def _most(self, head: HeadLook) -> float:
        return float(max(np.nan_to_num(head.weights[grid.positions]).max() for grid in self.layout.grids))

    def _in_order(self, heads: Sequence[HeadLook]) -> list[HeadLook]:
        return [head for head in self.heads if any(head is each for each in heads)]

    def _header(self, width: int) -> Block:
        fit, grids = self.palette.fit, self.layout.grids
        parts = [[Segment(fit(self.title[0]), BOLD), Segment(fit(f" {self.title[1]}"), DIM)]]
        if self.scale.low < self.scale.high:
            parts.append(ramp_line(self.scale, self.palette, width, 2))
        facts = [f"beside each head: its {'weight on the chosen key' if self.keys else 'heaviest cell'}"]
        facts += ["%: its weight on the picture"] * self.has_shares
        cells = [*self.layout.cells]
        if self.palette.has_halves:
            there = dict.fromkeys(mark for place, mark in self.marks.items() if place in cells)
            facts += [f"{mark} {_MEANINGS[mark]}" for mark in there]
            facts += ["darkest: masked"] * (not all(one.allowed[cells].all() for one in self.heads))
        facts += facts_of(grids)
        facts += ["the overview is drawn for one --head"] * self.lacks_overviews
        return stack([flowing(parts, width), flowing([[Segment(fit(fact), DIM)] for fact in facts], width)])

    # --- colours ---

    def _colored(self, heads: Sequence[HeadLook], bounds: Bounds) -> tuple[Block, int]:
        drawn = canvases(self.layout, len(self.heads) == 1)
        plain = [each for each in canvases(self.layout, False) if each.picture is not None]
        width, height = (max(sizes) for sizes in zip(*(each.size for each in drawn), strict=True))
        widths = self._widths(heads, drawn)
        least = max(_NARROWEST, widths[-2], min(max(each.cells[1] for each in drawn), 2 * _NARROWEST))

        tiles = tiling((width, height), len(plain) + len(heads) * len(drawn), bounds, least)
        chosen = self._in_order(heads[: max((tiles.capacity - len(plain)) // len(drawn), 1)])
        wide, strip = tiles.size.width, tiles.in_a_strip
        way = next((way for way, longest in enumerate(widths) if longest <= wide), -1)
        looks = (self.palette, self.scale, self.marks)
        panels = [self._plain(each, tiles.size) for each in plain]
        grays = [each.grayed(tiles.size) for each in drawn]
        for head in chosen:
            for each, gray in zip(drawn, grays, strict=True):
                title = [Segment(head.name, BOLD), Segment(self._facts(head, each)[way], DIM)]
                panels.append(Block([title, *overlay(each, gray, head, *looks)], wide))
        rows = (panels[start : start + strip] for start in range(0, len(panels), strip))
        return stack(hstack(row, GAP) for row in rows), len(chosen)

    def _plain(self, canvas: Canvas, size: Bounds) -> Block:
        """Return a picture as it is, below its name."""
        assert canvas.picture is not None
        name = self.palette.shortened(canvas.picture.name, size.width, keeps_end=True)
        pixels = resized(canvas.picture.pixels, 2 * size.lines, size.width)
        return Block([[Segment(name, BOLD)], *half_blocks(pixels)], size.width)

    # --- shades ---

    def _shaded(self, heads: Sequence[HeadLook], bounds: Bounds) -> tuple[Block, int]:
        drawn = canvases(self.layout, len(self.heads) == 1)
        lines = bounds.lines // len(drawn)
        maps, count = [], len(heads)
        for canvas in drawn:
            rows, columns = canvas.cells
            step = max(-(-rows // max(lines - 2, 1)), -(-columns * 2 // max(bounds.width - 5, 1)))
            high, least = -(-rows // step) + 3, -(-columns // step) * 2
            widths = [max(longest, least) + GAP for longest in self._widths(heads, [canvas])]
            fitting = [max(bounds.width // wide, 1) * max((lines + 1) // high, 1) for wide in widths]
            way = next((way for way, most in enumerate(fitting) if most >= count), len(fitting) - 2)
            count = min(count, fitting[way])
            chosen = self._in_order(heads[:count])
            pictures = []
            for head in chosen:
                values, is_inside = canvas.sampled(head, rows, columns)
                title = head.name + self._facts(head, canvas)[way]
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
