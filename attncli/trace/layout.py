"""Positions with a layout: a run of positions is a grid of cells, which lie in a picture.

A Trace has `pictures`, and `grids` that say which positions of its queries and its keys stand for which cells of them.
What is in no grid, such as CLS, registers, marks of newlines and tiles, and all text, has no place in a picture.
A grid comes from a checkpoint's processor (`engines/torch/pictures.py`), from `--grid` (`parse_grids`), or from the
metadata of a file. `SideLayout.positions_of` reads `@120,80`, a pixel, and `@r3c5`, a cell.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from attncli.errors import InputMismatchError, UsageError
from attncli.text import visible

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Int, UInt8

Side = Literal["both", "query", "key"]
Box = tuple[float, float, float, float]  # left, top, right and bottom, in pixels

MOST_CELLS = 1_000_000
MOST_PIXELS = 64_000_000  # of a picture
MOST_SIDE = 1024  # pixels of it in a trace
MOST_RATIO = 200  # of its sides
_FARTHEST = 1e9  # pixels
_FINEST = 1000  # cells along a side of a picture
_GRID = re.compile(r"(\d{1,4})[x×](\d{1,4})")
_PIXEL = re.compile(r"@(?:(\d{1,4}):)?(\d{1,6}),(\d{1,6})")
_CELL = re.compile(r"@(?:(\d{1,4}):)?r(\d{1,4})c(\d{1,4})")


class Picture(NamedTuple):
    """A picture that a model looked at.

    Attributes:
        name: the file.
        width: its pixels in a row, as it is seen: turned by its orientation tag.
        height: its rows of pixels.
        pixels: the picture, perhaps made smaller, in red, green and blue.
    """

    name: str
    width: int
    height: int
    pixels: UInt8[np.ndarray, "h w 3"]

    @property
    def is_sensible(self) -> bool:
        """Whether it has as many pixels as attn reads, and no side is far longer than the other."""
        short, long = sorted(self[1:3])
        return 0 < short <= long <= short * MOST_RATIO and short * long <= MOST_PIXELS

    def as_dict(self) -> dict[str, Any]:
        """Return what is known of it besides its pixels, for JSON."""
        return {"name": self.name, "width": self.width, "height": self.height}


@dataclass(frozen=True)
class ImageGrid:
    """Which positions stand for which cells of a picture.

    Attributes:
        start: the first position.
        rows: of cells.
        columns: of cells.
        image: which picture, from 0; it need not be there.
        box: where the whole grid lies in the picture, in its pixels, as it is seen; None is all of it. It reaches
            beyond the picture where a processor padded it.
        side: of which tokens these are positions: the queries, the keys, or both.
        order: how far behind `start` each cell's position stands, row by row; empty is one after the other.
        patches: how many patches along a side one position stands for, where the model merged neighbours.
        is_overview: whether it shows a picture whole that other grids show in detail: a thumbnail.
        note: what a reader has to know of it, in a sentence.
    """

    start: int
    rows: int
    columns: int
    image: int = 0
    box: Box | None = None
    side: Side = "both"
    order: tuple[int, ...] = ()
    patches: int = 1
    is_overview: bool = False
    note: str = ""

    def __post_init__(self) -> None:
        """Refuse what is no grid."""
        whole = (self.start, self.rows - 1, self.columns - 1, self.image, self.patches - 1)
        if min(whole) < 0 or self.rows * self.columns > MOST_CELLS or self.side not in get_args(Side):
            raise ValueError(f"a grid of {self.rows} × {self.columns} cells from position {self.start} is none")
        if self.order and (len(set(self.order)) != self.size or len(self.order) != self.size or min(self.order) < 0):
            raise ValueError(f"the order of a grid names {len(set(self.order))} positions for {self.size} cells")
        if self.box is not None:
            left, top, right, bottom = self.box
            if not (all(abs(edge) <= _FARTHEST for edge in self.box) and left < right and top < bottom):
                raise ValueError(f"a grid lies in no box: {list(self.box)}")

    def is_fine(self, pictures: Sequence[Picture]) -> bool:
        """Whether its cells are too small to be drawn in its picture."""
        if self.box is None or self.image >= len(pictures):
            return False
        left, top, right, bottom = self.box
        _, width, height, _ = pictures[self.image]
        return (right - left) / self.columns * _FINEST < width or (bottom - top) / self.rows * _FINEST < height

    @property
    def size(self) -> int:
        """How many cells it has."""
        return self.rows * self.columns

    @property
    def stop(self) -> int:
        """One past its last position."""
        return self.start + (max(self.order) + 1 if self.order else self.size)

    @property
    def positions(self) -> Int[np.ndarray, "rows columns"]:
        """The position of each cell."""
        import numpy as np

        steps = np.array(self.order) if self.order else np.arange(self.size)
        return self.start + steps.reshape(self.rows, self.columns)

    def box_in(self, width: float, height: float) -> Box:
        """Return where it lies in its picture, whose size counts where it is all of it."""
        return self.box or (0, 0, width, height)

    def cell_box(self, row: int, column: int, width: float, height: float) -> Box:
        """Return where one cell lies in a picture of that size, in pixels."""
        left, top, right, bottom = self.box_in(width, height)
        wide, high = (right - left) / self.columns, (bottom - top) / self.rows
        return left + column * wide, top + row * high, left + (column + 1) * wide, top + (row + 1) * high

    def position_at(self, x: int, y: int, picture: Picture) -> int | None:
        """Return the position of the cell that a pixel's middle lies in; None where there is none."""
        left, top, right, bottom = self.box_in(picture.width, picture.height)
        column, row = (x + 0.5 - left) / (right - left) * self.columns, (y + 0.5 - top) / (bottom - top) * self.rows
        if not (0 <= column < self.columns and 0 <= row < self.rows and x < picture.width and y < picture.height):
            return None
        return int(self.positions[int(row), int(column)])

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON spells it."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def of(cls, found: Any) -> ImageGrid:
        """Return the grid that JSON spells; TypeError or ValueError if it does not."""
        types = {"image": int, "patches": int, "is_overview": bool, "note": str, "side": str}
        types |= dict.fromkeys(("start", "rows", "columns"), int)
        if not isinstance(found, dict) or not {"start", "rows", "columns"} <= found.keys() <= {*types, "box", "order"}:
            raise TypeError("a grid is not spelled as attn does")
        box, order = found.get("box"), found.get("order") or ()
        if any(type(found[name]) is not kind for name, kind in types.items() if name in found):
            raise TypeError("a grid has a field of the wrong type")
        if box is not None and not (len(box) == 4 and all(type(each) in (int, float) for each in box)):
            raise TypeError("the box of a grid is not four numbers")
        if not all(type(each) is int for each in order):
            raise TypeError("the order of a grid is not whole numbers")
        own = {name: visible(value) if isinstance(value, str) else value for name, value in found.items()}
        return cls(**own | {"box": None if box is None else tuple(box), "order": tuple(order)})


def parse_grids(
    grid: str, prefix: int, images: int, queries: int, keys: int, where: str = "--grid"
) -> tuple[ImageGrid, ...]:
    """Return the grids that a user writes, `14x14` for each picture, the first one behind `prefix` positions.

    They are of queries and keys where there are as many of both, else of the side on which they fit, keys first.

    Raises:
        UsageError: it is no grid.
        InputMismatchError: there are not as many positions.
    """
    match = _GRID.fullmatch(grid.strip())
    if match is None or not (int(match[1]) and int(match[2])):
        raise UsageError(f"{where} '{visible(grid)}': expected rows and columns, such as 14x14")
    rows, columns = int(match[1]), int(match[2])
    needed = prefix + rows * columns * max(images, 1)
    side: Side = "both" if queries == keys else "key" if needed <= keys else "query"
    most = queries if side == "query" else keys
    if needed > most:
        behind = f"{prefix} and " if prefix else ""
        raise InputMismatchError(
            f"{where} {rows}x{columns} needs {behind}{needed - prefix} positions, and the trace has {most}; give "
            "another grid or prefix"
        )
    starts = range(prefix, needed, rows * columns)
    return tuple(ImageGrid(start, rows, columns, number, side=side) for number, start in enumerate(starts))


@dataclass(frozen=True)
class SideLayout:
    """The pictures and grids of one side of a trace."""

    pictures: tuple[Picture, ...]
    grids: tuple[ImageGrid, ...]
    role: str  # query or key, for the errors

    def positions_in(self, box: Sequence[int]) -> list[int]:
        """Return the cells of the first picture that have pixels in a box: left, top, right, bottom.

        Raises:
            InputMismatchError: no cell has.
        """
        found: list[int] = []
        picture = self.pictures[0] if self.pictures else None
        for grid in self.grids:
            if grid.image or (picture is None and grid.box is None):
                continue
            width, height = (picture.width, picture.height) if picture else (0, 0)
            for row, column in product(range(grid.rows), range(grid.columns)):
                left, top, right, bottom = grid.cell_box(row, column, width, height)
                if left < box[2] and box[0] < right and top < box[3] and box[1] < bottom:
                    found.append(int(grid.positions[row, column]))
        if not found:
            where = "of a picture there" if self.grids else "of a picture; give --image, or name one in the line"
            raise InputMismatchError(f"{self.role} {list(box)}: no {self.role} is a cell {where}")
        return found

    @cached_property
    def cells(self) -> dict[int, str]:
        """The positions that are cells, grid by grid, and what each is called: as `positions_of` reads it, without `@`.

        A cell of a tile, which no row and column name, is called by the pixel in its middle.
        """
        names: dict[int, str] = {}
        for grid in self.grids:
            image, is_largest = f"{grid.image}:" * bool(grid.image), grid is self._largest(grid.image)
            places = product(range(grid.rows), range(grid.columns))
            for (row, column), position in zip(places, grid.positions.flat, strict=True):
                name = f"{image}r{row}c{column}"
                if grid.is_overview and not is_largest:
                    name = f"overview {name}"
                elif not is_largest and grid.image < len(self.pictures):
                    left, top, right, bottom = grid.cell_box(row, column, *self.pictures[grid.image][1:3])
                    name = f"{image}{int((left + right) / 2)},{int((top + bottom) / 2)}"
                names.setdefault(int(position), name)
        return names

    def _largest(self, image: int) -> ImageGrid:
        """Return the grid of a picture whose cells rows and columns name."""
        own = (grid for grid in self.grids if grid.image == image)
        return max(own, key=lambda grid: (not grid.is_overview, grid.size))

    def positions_of(self, wanted: str) -> list[int] | None:
        """Return the positions that `@120,80` or `@r3c5` names, or None for what names no place in a picture.

        `@1:120,80` is in picture 1. Of a picture with tiles a pixel is in one of these and in the overview too.

        Raises:
            InputMismatchError: there is no such place.
        """
        pixel, cell = _PIXEL.fullmatch(wanted), _CELL.fullmatch(wanted)
        if (match := pixel or cell) is None:
            return None
        image, first, second = int(match[1] or 0), int(match[2]), int(match[3])
        grids = [grid for grid in self.grids if grid.image == image]
        place = f"--{self.role} {wanted}"
        if not grids:
            raise InputMismatchError(
                f"{place}: no {self.role} is a cell of picture {image}; give --grid, such as 14x14, or a token"
            )
        if cell:
            grid = self._largest(image)
            if first >= grid.rows or second >= grid.columns:
                there = f"rows 0..{grid.rows - 1}, columns 0..{grid.columns - 1}"
                raise InputMismatchError(f"{place} is out of range: the grid has {there}")
            return [int(grid.positions[first, second])]
        if image >= len(self.pictures):
            raise InputMismatchError(f"{place}: the pixels of picture {image} are unknown; give --image, or @r3c5")
        picture = self.pictures[image]
        found = [at for grid in grids if (at := grid.position_at(first, second, picture)) is not None]
        if not found:
            size = f"{picture.width} × {picture.height} pixels"
            raise InputMismatchError(f"{place}: no cell is there; picture {image} has {size}")
        return found
