"""Grids of positions: a run of positions is the cells of a picture.

A grid comes from a checkpoint's processor (`engines/torch/pictures.py`), from `--grid` (`parse_grids`), or from the
metadata of a file. Positions outside of grids, such as CLS, registers and all text, have no place in a picture.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np

from attncli.errors import InputError, InputMismatchError, UsageError
from attncli.text import visible

if TYPE_CHECKING:
    from jaxtyping import Int, UInt8

    from attncli.trace.tokens import Tokens

Side = Literal["both", "query", "key"]
Box = tuple[float, float, float, float]  # left, top, right and bottom, in pixels

MOST_CELLS = 1_000_000
MOST_PIXELS = 36_000_000  # of a picture, which a processor holds several times, as floats too
MOST_SIDE = 1024  # pixels of it in a trace
MOST_RATIO = 200  # of its sides
_FARTHEST = 1e9  # pixels
_FINEST = 1000  # cells along a side of a picture
_GRID = re.compile(r"(\d{1,4})[x×](\d{1,4})")
_PIXEL = re.compile(r"@(?:(\d{1,4}):)?(\d{1,6}),(\d{1,6})")
_CELL = re.compile(r"@(?:(\d{1,4}):)?r(\d{1,4})c(\d{1,4})")


class Picture(NamedTuple):
    """A picture that a model read."""

    name: str  # of the file
    width: int  # of a row, in its pixels, as it is seen: turned by its orientation tag
    height: int
    pixels: UInt8[np.ndarray, "h w 3"]  # in red, green and blue, perhaps of a smaller copy

    @staticmethod
    def is_sensible_size(width: int, height: int) -> bool:
        """Whether attn reads a picture of that size: no line of pixels, nor much like one, and not too large."""
        short, long = sorted((width, height))
        return 1 < short <= long <= short * MOST_RATIO and short * long <= MOST_PIXELS


@dataclass(frozen=True)
class ImageGrid:
    """Map of positions to the cells of a picture."""

    start: int  # the first position
    rows: int
    columns: int
    image: int = 0  # index of the picture; it need not be there
    # of the whole grid, in pixels of the picture as displayed, and beyond it where it was padded; None is all of it
    box: Box | None = None
    side: Side = "both"  # the tokens it applies to: the queries, the keys, or both
    order: tuple[int, ...] = ()  # offset of each cell's position from `start`; empty is one after the other
    patches: int = 1  # along a side of a position, where the model merged neighbours
    is_overview: bool = False  # whether it shows a picture whole that other grids show in detail
    note: str = ""  # a remark for the reader, in a sentence

    def __post_init__(self) -> None:
        """Refuse invalid grids."""
        integers = (self.start, self.rows - 1, self.columns - 1, self.image, self.patches - 1)
        if min(integers) < 0 or self.rows * self.columns > MOST_CELLS or self.side not in get_args(Side):
            raise ValueError(f"attn reads no grid of {self.rows} × {self.columns} cells from position {self.start}")
        count = len({step for step in self.order if type(step) is int and step >= 0})
        if self.order and not count == len(self.order) == self.size:
            raise ValueError(f"a grid has {self.size} cells, and its order {count} positions")
        left, top, right, bottom = self.box or (0, 0, 1, 1)
        if not (-_FARTHEST <= left < right <= _FARTHEST and -_FARTHEST <= top < bottom <= _FARTHEST):
            raise ValueError(f"the box of a grid is left, top, right and bottom, not {self.box}")

    def check(self, pictures: Sequence[Picture], sizes: Mapping[str, int]) -> None:
        """Raise InputError where it ends beyond the positions of its side, or is too fine for its picture."""
        if any(self.stop > size for side, size in sizes.items() if self.side in ("both", side)):
            raise InputError(f"a grid ends at position {self.stop}, and there are not as many tokens")
        if self.box is not None and self.image < len(pictures):
            _, width, height, _ = pictures[self.image]
            left, top, right, bottom = self.cell_box(0, 0, width, height)
            if (right - left) * _FINEST < width or (bottom - top) * _FINEST < height:
                raise InputError(f"a grid of {self.rows} × {self.columns} cells is too small for its picture")

    @property
    def size(self) -> int:
        """Number of cells."""
        return self.rows * self.columns

    @property
    def stop(self) -> int:
        """One past its last position."""
        return self.start + (max(self.order) + 1 if self.order else self.size)

    @property
    def positions(self) -> Int[np.ndarray, "rows columns"]:
        """The position of each cell."""
        steps = np.array(self.order) if self.order else np.arange(self.size)
        return self.start + steps.reshape(self.rows, self.columns)

    def box_in(self, width: float, height: float) -> Box:
        """Return its box in its picture, by default all of that."""
        return self.box or (0, 0, width, height)

    def cell_box(self, row: Any, column: Any, width: float, height: float) -> tuple[Any, Any, Any, Any]:
        """Return the box of one cell, or of an array of them, in a picture of that size, in pixels."""
        left, top, right, bottom = self.box_in(width, height)
        wide, high = (right - left) / self.columns, (bottom - top) / self.rows
        return left + column * wide, top + row * high, left + (column + 1) * wide, top + (row + 1) * high


def parse_grids(
    grid: str, prefix: int, images: int, queries: int, keys: int, where: str = "--grid"
) -> tuple[ImageGrid, ...]:
    """Parse the grids of `--grid`, `14x14` for each picture, the first one behind `prefix` positions.

    They are of queries and keys where there are as many of both, else of the side on which they fit, keys first.

    Raises:
        UsageError: it is no grid.
        InputMismatchError: there are not as many positions.
    """
    match = _GRID.fullmatch(grid.strip())
    rows, columns = map(int, match.groups()) if match else (0, 0)
    if not rows * columns:
        raise UsageError(f"{where} '{visible(grid)}': expected rows and columns, such as 14x14")
    needed = prefix + rows * columns * max(images, 1)
    side: Side = "both" if queries == keys else "key" if needed <= keys else "query"
    most = queries if side == "query" else keys
    if needed > most:
        size = f"{rows}x{columns} needs {f'{prefix} and ' * bool(prefix)}{needed - prefix} positions"
        raise InputMismatchError(f"{where} {size}, and the trace has {most}; give another grid or prefix")
    starts = range(prefix, needed, rows * columns)
    return tuple(ImageGrid(start, rows, columns, number, side=side) for number, start in enumerate(starts))


@dataclass(frozen=True)
class SideLayout:
    """The pictures and grids of one side of a trace."""

    pictures: tuple[Picture, ...]
    grids: tuple[ImageGrid, ...]
    role: str  # query or key, for the errors

    @cached_property
    def cells(self) -> dict[int, str]:
        """Names of the positions that are cells, as `positions_of` reads them, without `@`; of a tile, its middle."""
        names: dict[int, str] = {}
        for grid in self.grids:
            image, is_largest = f"{grid.image}:" * bool(grid.image), grid is self._largest(grid.image)
            for (row, column), position in np.ndenumerate(grid.positions):
                name = f"{image}r{row}c{column}"
                if grid.is_overview and not is_largest:
                    name = f"overview {name}"
                elif not is_largest and grid.image < len(self.pictures):
                    left, top, right, bottom = grid.cell_box(row, column, *self.pictures[grid.image][1:3])
                    name = f"{image}{int((left + right) / 2)},{int((top + bottom) / 2)}"
                names.setdefault(int(position), name)
        return names

    def _largest(self, image: int) -> ImageGrid:
        """Return the grid of a picture whose rows and columns name cells."""
        grids = (grid for grid in self.grids if grid.image == image)
        return max(grids, key=lambda grid: (not grid.is_overview, grid.size))

    def find(self, tokens: Tokens, wanted: str | int) -> list[int]:
        """Return the positions of tokens, or of cells of a picture, by their name; InputMismatchError without any."""
        positions = self.positions_of(wanted) if isinstance(wanted, str) else None
        return tokens.find(wanted, self.role) if positions is None else positions

    def positions_of(self, wanted: str) -> list[int] | None:
        """Return the positions that `@120,80` or `@r3c5` names, or None for what names no cell of a picture.

        `@1:120,80` is in picture 1. Of a picture with tiles a pixel is in one of these and in the overview too.

        Raises:
            InputMismatchError: there is no such cell.
        """
        pixel, cell = _PIXEL.fullmatch(wanted), _CELL.fullmatch(wanted)
        if (match := pixel or cell) is None:
            return None
        image, first, second = int(match[1] or 0), int(match[2]), int(match[3])
        if all(grid.image != image for grid in self.grids):
            missing = f"no {self.role} is a cell of picture {image}"
            raise InputMismatchError(f"--{self.role} {wanted}: {missing}; give --grid, such as 14x14, or a token")
        if pixel:  # its middle
            x, y = first + 0.5, second + 0.5
            return self.positions_in((x, y, np.nextafter(x, np.inf), np.nextafter(y, np.inf)), image, wanted)
        grid = self._largest(image)
        if first >= grid.rows or second >= grid.columns:
            there = f"rows 0..{grid.rows - 1}, columns 0..{grid.columns - 1}"
            raise InputMismatchError(f"--{self.role} {wanted} is out of range: the grid has {there}")
        return [int(grid.positions[first, second])]

    def positions_in(self, box: Sequence[float], image: int = 0, wanted: str = "") -> list[int]:
        """Return the cells that overlap a box in a picture: left, top, right, bottom.

        Raises:
            InputMismatchError: no cell has, or the size of the picture is unknown.
        """
        option = f"--{self.role} {wanted or list(box)}"
        if image >= len(self.pictures):
            raise InputMismatchError(f"{option}: the pixels of picture {image} are unknown; give --image, or @r3c5")
        _, width, height, _ = self.pictures[image]
        positions: list[int] = []
        for grid in self.grids:
            row, column = np.indices((grid.rows, grid.columns))
            left, top, right, bottom = grid.cell_box(row, column, width, height)
            overlaps = (left < box[2]) & (box[0] < right) & (top < box[3]) & (box[1] < bottom)
            positions += grid.positions[overlaps].tolist() if grid.image == image else []
        if not positions or box[0] >= width or box[1] >= height:
            size = f"{width} × {height} pixels"
            raise InputMismatchError(f"{option}: no {self.role} is a cell there; picture {image} has {size}")
        return positions
