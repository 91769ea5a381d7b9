"""Masks cell by cell: expressions laid over positions, and mask files, with their heads and batch rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attncli.attention import row_blocks
from attncli.errors import InputError, UsageError
from attncli.masks import ENDINGS, MOST
from attncli.masks.conventions import Reader, Reading, read_convention
from attncli.masks.expressions import Expression, Grid, Pad, atoms_named, batch_rows, files_of, leaves, with_lengths
from attncli.masks.files import StoredMask, as_stored, read_values
from attncli.masks.parser import parse
from attncli.text import visible

if TYPE_CHECKING:
    from jaxtyping import Bool, Int

_DEFAULT = 8  # positions, where neither side is known
_MOST_CELLS = 2**31  # held at once, a byte each


class MaskSize(NamedTuple):
    """Number of positions that a mask is laid over; None is unknown."""

    queries: int | None = None  # query rows
    keys: int | None = None  # key columns
    past: int | None = None  # number of keys before the first query

    def completed(self, fallback: int) -> MaskSize:
        """Fill in the sides that follow from the known ones; the last query is at the last key.

        Raises:
            UsageError: they contradict each other.
        """
        queries, past = self.queries, self.past or 0
        if queries is None:
            queries = fallback if self.keys is None else self.keys - past
        keys = queries + past if self.keys is None else self.keys
        if queries < 1:
            raise UsageError(f"--past {past} leaves no query among {keys} keys")
        return MaskSize(queries, keys, max(keys - queries, 0) if self.past is None else self.past)

    def check_past(self) -> None:
        """Raise UsageError for a past whose positions overflow their integers."""
        if self.past is not None and self.past > MOST:
            raise UsageError(f"--past {self.past}: expected a number from 0 to {MOST}")


def size_for(size: MaskSize, *expressions: Expression) -> MaskSize:
    """Return the size, by default that of a file, of the documents or of the lengths in the expressions."""
    parts = [*leaves(*expressions)]
    files = [file.mask.shape for file in files_of(*expressions)]
    if size.queries is None and size.keys is None and files:
        size = MaskSize(files[0][-2], files[0][-1], size.past)
    lengths = [sum(documents.arguments) for documents in atoms_named("docs", parts)]
    rows = [part.stated for part in parts if isinstance(part, Pad)]
    lengths = lengths or [max(int(row.max()), 1) if row.ndim == 1 else row.shape[1] for row in rows]
    return size.completed(max(lengths, default=_DEFAULT))


class GridOptions(NamedTuple):
    """Options for reading a mask."""

    size: MaskSize = MaskSize()  # the number of positions it is laid over
    # the API that a file is for, which decides the meaning of True there; None leaves it to its cells
    reader: Reader | None = None
    lengths: Any = None  # the lengths of `pad` without numbers, see `bind_lengths`
    # masks that were read before, such as those of traces, by their names
    opened: Mapping[str, MaskGrid] = {}


class MaskGrid(NamedTuple):
    """A mask, cell by cell."""

    name: str  # its name, or the expression
    cells: Bool[np.ndarray, "*B Q K"]  # True = attend, `[Q, K]`, `[H, Q, K]` or `[B, H, Q, K]`
    past: int  # number of keys before the first query
    expression: Expression | None = None  # the expression it was made from; None for a file alone
    stored: StoredMask | None = None  # the values of the file
    reading: Reading | None = None  # their meaning
    # the names of its rows and columns; None where there are only positions
    tokens: tuple[Sequence[str], Sequence[str]] | None = None

    @property
    def allowed(self) -> Bool[np.ndarray, "P Q K"]:
        """The cells, with one axis for the masks of heads and batch rows."""
        return self.cells.reshape(-1, *self.cells.shape[-2:])

    @property
    def batched(self) -> Bool[np.ndarray, "#B #H Q K"]:
        """The cells with all four axes."""
        return self.cells.reshape((1,) * (4 - self.cells.ndim) + self.cells.shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the cells."""
        return self.cells.shape

    @property
    def size(self) -> MaskSize:
        """Its number of queries and keys."""
        *_, queries, keys = self.shape
        return MaskSize(queries, keys, self.past)

    @property
    def planes(self) -> tuple[str, ...]:
        """Names of the planes: heads, or heads of batch rows; one empty name for a single plane."""
        batch, heads = (1, 1, *self.shape[:-2])[-2:]
        rows = [f"batch {row} " if batch > 1 else "" for row in range(batch)]
        return tuple(f"{row}{f'head {head}' if heads > 1 else ''}".strip() for row in rows for head in range(heads))

    @property
    def is_ambiguous(self) -> bool:
        """Whether the meaning of True in its file is not known."""
        return self.reading is not None and self.reading.is_ambiguous

    def check_read(self) -> None:
        """Raise UsageError if the meaning of True in its file is not known."""
        if self.reading is not None and self.is_ambiguous:
            raise UsageError(f"{visible(self.name)}: {self.reading.why}; give --for sdpa or --for mha")


def is_file(mask: str) -> bool:
    """Return whether a mask is named as a file."""
    return mask.lower().endswith(ENDINGS)


def has_padding_of_rows(expression: Expression) -> bool:
    """Return whether an expression has `pad` without numbers, which needs lengths."""
    return any(isinstance(leaf, Pad) for leaf in leaves(expression))


def as_expression(mask: str, lengths: Any = None) -> Expression:
    """Parse an expression or a file name, with lengths for `pad` without numbers.

    Raises:
        AttnError: it is neither, a file cannot be read, or the lengths are invalid.
    """
    expression = parse(mask, allow_rows=True)
    return bind_lengths(expression, lengths) if lengths is not None and has_padding_of_rows(expression) else expression


def bind_lengths(expected: Expression | None, lengths: Any) -> Expression:
    """Return an expression whose `pad` has lengths: tokens of each batch row, or an attention mask `[B, K]`.

    Raises:
        UsageError: the expression has no `pad` that needs them.
        InputError: they are neither.
    """
    if expected is None or not has_padding_of_rows(expected):
        raise UsageError("lengths need an expression with a bare pad, such as 'causal & pad'")
    values = as_stored(lengths, "lengths").values
    fits = values.size > 0 and bool((values == np.floor(values)).all()) and values.min() >= 0 and values.max() <= MOST
    if fits and values.ndim == 1 and values.dtype != bool:
        return with_lengths(expected, values.astype(int))
    if not fits or values.ndim != 2 or values.max() > 1:
        raise InputError(
            f"lengths holds {values.dtype} of shape {list(values.shape)}; expected the tokens of each row, [batch], or "
            "a mask of 0 and 1, [batch, keys], with 1 for a token"
        )
    tokens = values.astype(bool)
    if not tokens.any(axis=1).all() and (~tokens).any(axis=1).all():
        raise InputError("lengths leaves a row without tokens; in it 1 and True are tokens, not padding")
    return with_lengths(expected, tokens)


def read_grid(
    name: str, options: GridOptions, expected: Expression | None = None, stored: StoredMask | None = None
) -> MaskGrid:
    """Read a mask from a file, or from its stored values, whose size is not compared.

    Three axes have a batch where the expected mask has the padding of as many rows, and for `nn.MultiheadAttention`,
    whose first axis is the heads of the first row, then of the second.

    Raises:
        InputError: the file cannot be read, holds no mask, or that of another batch than `expected`.
        UsageError: the reader does not apply to its values.
    """
    options.size.check_past()
    if name in options.opened:
        return options.opened[name]
    stored = stored or read_values(Path(name))
    values, rows = stored.values, None if expected is None else batch_rows(expected)
    planes, *cells = values.shape
    if rows and len(cells) == 2 and planes % rows == 0 and (options.reader == "mha" or planes == rows > 1):
        values = values.reshape(rows, planes // rows, *cells)
    batch = len(values) if values.ndim == 4 else 1
    if rows is not None and len({rows, batch} - {1}) > 1:
        raise InputError(f"the mask {visible(name)} has {batch} batch rows, and lengths has {rows}")
    *_, queries, keys = values.shape
    past = max(keys - queries, 0) if options.size.past is None else options.size.past
    reading = read_convention(values, visible(name), options.reader, past)
    return MaskGrid(name, reading.allowed, past, None, stored._replace(values=values), reading)


def open_masks(masks: Sequence[str], options: GridOptions, reference: Expression | None = None) -> list[MaskGrid]:
    """Open masks: read their files, and lay their expressions over positions.

    An expression takes the size of a file, or that of a reference mask, where nothing else says one.

    Raises:
        UsageError: one is neither, or an option does not apply to them.
        InputError: a file cannot be read, or is not of this size.
    """
    size = options.size
    grids = {mask: read_grid(mask, options) for mask in masks if is_file(mask) or mask in options.opened}
    if options.reader is not None and not grids:
        raise UsageError(f"--for {options.reader} applies to files; in an expression True = attend")
    expressions = {mask: as_expression(mask, options.lengths) for mask in masks if mask not in grids}
    for name, grid in grids.items():
        shape = list(grid.shape[-2:])
        wanted = [size.queries or shape[0], size.keys or shape[1]]
        if wanted != shape:
            raise InputError(f"the mask in {visible(name)} is {shape}; expected [queries, keys] = {wanted}")
    sizing = [*expressions.values(), *([] if reference is None else [reference])]
    size = next((grid.size for grid in grids.values()), None) or size_for(size, *sizing)
    grids |= {mask: grid_of_expression(expression, size) for mask, expression in expressions.items()}
    return [grids[mask] for mask in masks]


def grid_of_expression(expression: Expression, size: MaskSize) -> MaskGrid:
    """Lay an expression over positions.

    Raises:
        InputError: the expression does not fit this many positions.
    """
    cells = materialise(expression, size)
    return MaskGrid(str(expression), cells[0] if cells.shape[:-2] == (1,) else cells, size.past or 0, expression)


def materialise(expression: Expression, size: MaskSize) -> Bool[np.ndarray, "*B #H Q K"]:
    """Return the cells of an expression: a plane for all heads or for each, behind a batch axis if rows differ.

    Raises:
        InputError: the expression does not fit this many positions, or there are too many cells.
    """
    assert size.queries is not None
    assert size.keys is not None
    size.check_past()
    batch = batch_rows(expression) or 1
    if batch * size.queries * size.keys > _MOST_CELLS:
        masks = f"{batch} masks of " if batch > 1 else ""
        raise InputError(f"{masks}{size.queries} × {size.keys} cells are too many; give a smaller --size")
    blocks = row_blocks(np.arange(size.queries), size.keys)
    grids = (Grid(rows[:, None], size.keys, size.past or 0, size.queries) for rows in blocks)
    cells = np.concatenate([expression.allowed(grid) for grid in grids], axis=-2)
    return cells[None] if cells.ndim == 2 else cells


def grid_rows(mask: MaskGrid, rows: Int[np.ndarray, " R"]) -> Grid:
    """Return the grid of some rows of a mask, on which an expression is compared with it."""
    *_, queries, keys = mask.shape
    return Grid(rows[:, None], keys, mask.past, queries)
