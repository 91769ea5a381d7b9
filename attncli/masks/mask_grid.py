"""Masks cell by cell: expressions laid over positions, and mask files, with their heads and batch rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attncli.attention import row_blocks
from attncli.errors import InputError, UsageError
from attncli.masks.expressions import (
    Expression,
    Grid,
    Pad,
    atoms_named,
    batch_rows,
    files_of,
    leaves,
    with_lengths,
)
from attncli.masks.notation import ENDINGS, MOST
from attncli.masks.parser import parse
from attncli.text import visible

if TYPE_CHECKING:
    from jaxtyping import Bool, Int

    from attncli.masks.conventions import Reader, Reading
    from attncli.masks.files import StoredMask

_DEFAULT = 8  # positions, where nothing says how many
_MOST_CELLS = 2**31  # held at once, a byte each

Lengths = Any  # of batch rows, as `with_lengths` takes them: `[B]` numbers of tokens, or `[B, K]` which keys are tokens


class MaskSize(NamedTuple):
    """How many positions a mask is laid over; None is what nobody said.

    Attributes:
        queries: query rows.
        keys: key columns.
        past: how many keys stand before the first query.
    """

    queries: int | None = None
    keys: int | None = None
    past: int | None = None

    def completed(self, fallback: int) -> MaskSize:
        """Return the size with what follows from the sides that are known; the last query stands at the last key.

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


def check_past(past: int | None) -> None:
    """Raise UsageError for a past beyond which positions would not fit into the integers they are counted in."""
    if past is not None and past > MOST:
        raise UsageError(f"--past {past}: expected a number from 0 to {MOST}")


def size_for(size: MaskSize, *expressions: Expression) -> MaskSize:
    """Return the size; where nobody gave one, that of a file or of the documents in the expressions."""
    if size.queries is None and size.keys is None:
        for file in files_of(*expressions):
            return MaskSize(file.mask.shape[-2], file.mask.shape[-1], size.past).completed(_DEFAULT)
    lengths = [sum(documents.arguments) for documents in atoms_named("docs", leaves(*expressions))]
    lengths = lengths or [pad.longest for pad in leaves(*expressions) if isinstance(pad, Pad)]
    return size.completed(max(lengths, default=_DEFAULT))


def heads_of(shape: Sequence[int]) -> int:
    """Return how many heads a mask of this shape has; 1 where all of them share it."""
    return shape[-3] if len(shape) > 2 else 1


def _heads_for(expression: Expression, heads: int) -> int:
    """Return how many heads an expression is laid out for: those asked for, or those of a file in it."""
    return heads if heads > 1 else max((heads_of(file.mask.shape) for file in files_of(expression)), default=1)


class GridOptions(NamedTuple):
    """How a mask is read.

    Attributes:
        size: how many positions it is laid over.
        reader: what a file is for, which says what True means there; None leaves it to its cells.
        lengths: what `pad` without numbers stands for, as `with_lengths` takes it.
        is_batch: whether the first axis of a file is the batch: `[B, K]` says which keys of each row are padding,
            `[B, Q, K]` is a mask for each row.
    """

    size: MaskSize = MaskSize()
    reader: Reader | None = None
    lengths: Lengths | None = None
    is_batch: bool = False

    def check_file(self, *masks: str) -> None:
        """Raise UsageError for options that say how a file is read, if none of the masks is one."""
        if any(map(is_file, masks)):
            return
        if self.reader is not None:
            raise UsageError(f"--for {self.reader} applies to files; in an expression True = attend")
        if self.is_batch:
            raise UsageError(
                "--batch applies to files; in an expression pad and --lengths say what batch rows there are"
            )


_AS_IT_IS = GridOptions()


class MaskGrid(NamedTuple):
    """A mask, cell by cell.

    Attributes:
        name: what it is called, as an expression where it is one.
        allowed: True = attend; a plane for each mask that heads or batch rows have.
        past: how many keys stand before the first query.
        expression: what it was made from; None for a file that stands alone.
        stored: what the file holds.
        reading: what its values mean.
        is_padding: whether it says of each batch row which keys are padding, to every query alike.
    """

    name: str
    allowed: Bool[np.ndarray, "P Q K"]
    past: int
    expression: Expression | None = None
    stored: StoredMask | None = None
    reading: Reading | None = None
    is_padding: bool = False

    @property
    def size(self) -> MaskSize:
        """How many queries and keys it has."""
        _, queries, keys = self.allowed.shape
        return MaskSize(queries, keys, self.past)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape it has in its file; without one, a plane axis only where there are several."""
        if self.stored is not None:
            return self.stored.values.shape
        rows = None if self.expression is None else batch_rows(self.expression)
        if rows is not None:
            return (rows, len(self.allowed) // rows, *self.allowed.shape[1:])
        return self.allowed.shape[1:] if len(self.allowed) == 1 else self.allowed.shape

    @property
    def planes(self) -> tuple[str, ...]:
        """What each plane is called: heads, or heads of batch rows; one empty name where there is one plane."""
        *several, _, _ = self.shape
        if len(self.allowed) == 1:
            return ("",)
        if len(several) == 1:
            return tuple(f"head {head}" for head in range(several[0]))
        rows = [f"batch {row}" if several[0] > 1 else "" for row in range(several[0])]
        heads = [f"head {head}" if several[1] > 1 else "" for head in range(several[1])]
        return tuple(f"{row} {head}".strip() for row in rows for head in heads)

    @property
    def heads(self) -> int:
        """How many heads its shape has; 1 where all of them share a mask."""
        return heads_of(self.shape)

    @property
    def cells(self) -> Bool[np.ndarray, "*B Q K"]:
        """`allowed` in `shape`, which broadcasts to batch rows and heads as attention broadcasts it."""
        return self.allowed.reshape(self.shape)

    @property
    def is_ambiguous(self) -> bool:
        """Whether it is not known what True means in its file."""
        return self.reading is not None and self.reading.is_ambiguous

    def check_read(self) -> None:
        """Raise UsageError if what True means in its file is not known."""
        if self.reading is not None and self.is_ambiguous:
            raise UsageError(f"{visible(self.name)}: {self.reading.why}; say it with --for sdpa or --for mha")


def is_file(mask: str) -> bool:
    """Return whether a mask is given as a file."""
    return mask.lower().endswith(ENDINGS)


def as_expression(mask: str, lengths: Lengths | None = None) -> Expression:
    """Return what an expression or a file name says.

    Args:
        mask: one of these.
        lengths: what `pad` without numbers stands for, as `with_lengths` takes it.

    Raises:
        UsageError: it is none of them.
        InputError: a file cannot be read.
    """
    expression = parse(mask, allow_rows=True)
    return expression if lengths is None else with_lengths(expression, lengths)


def read_grid(
    name: str, options: GridOptions = _AS_IT_IS, expected: Expression | None = None, stored: StoredMask | None = None
) -> MaskGrid:
    """Read a mask that is stored cell by cell.

    Args:
        name: its file, or what it is called.
        options: how it is read; without a past, there are as many keys before the first query as there are more keys
            than queries. Its size is not compared.
        expected: what it should say. Three axes have a batch where that has the padding of as many rows, and for
            `nn.MultiheadAttention`, whose first axis is the heads of the first row, then of the second.
        stored: its values, two to four axes; None reads the file.

    Raises:
        InputError: the file cannot be read, holds no mask, or that of another batch than `expected`.
        UsageError: the reader does not apply to its values.
    """
    from attncli.masks.conventions import read_convention
    from attncli.masks.files import read_values

    check_past(options.size.past)
    stored = read_values(Path(name)) if stored is None else stored
    rows = None if expected is None else batch_rows(expected)
    stored = stored._replace(values=_with_batch(stored.values, rows, options))
    *_, queries, keys = shape = stored.values.shape
    batch = shape[0] if len(shape) == 4 else 1
    if rows is not None and 1 not in (rows, batch) and rows != batch:
        raise InputError(f"the mask {visible(name)} has {batch} batch rows, and the lengths are those of {rows}")
    past = max(keys - queries, 0) if options.size.past is None else options.size.past
    is_padding = options.is_batch and queries == heads_of(shape) == 1
    reading = read_convention(stored.values, visible(name), options.reader, past)
    allowed = reading.allowed.reshape(-1, queries, keys)
    return MaskGrid(name, allowed, past, None, stored, reading, is_padding)


def _with_batch(values: np.ndarray[Any, Any], rows: int | None, options: GridOptions) -> np.ndarray[Any, Any]:
    """Return the values with axes for batch rows and heads, if their first axis is the batch."""
    if values.ndim == 2 and options.is_batch:
        return values[:, None, None]
    if values.ndim == 3:
        planes, *cells = values.shape
        if rows and planes % rows == 0 and (options.is_batch or options.reader == "mha" or planes == rows > 1):
            return values.reshape(rows, planes // rows, *cells)
        if options.is_batch:
            return values[:, None]
    return values


def open_mask(mask: str, options: GridOptions, reference: Expression | None = None) -> MaskGrid:
    """Open a mask: read its file, or lay its expression over positions.

    Args:
        mask: an expression or a file name.
        options: how it is read.
        reference: what it is held against, whose size an expression takes that says none.

    Raises:
        UsageError: it is neither, or an option does not apply to it.
        InputError: a file cannot be read, or is not of this size.
    """
    options.check_file(mask)
    if not is_file(mask):
        expression = as_expression(mask, options.lengths)
        sizing = (expression,) if reference is None else (expression, reference)
        return grid_of_expression(expression, size_for(options.size, *sizing))
    grid = read_grid(mask, options)
    _, queries, keys = grid.allowed.shape
    wanted = [options.size.queries or queries, options.size.keys or keys]
    if wanted != [queries, keys]:
        raise InputError(f"the mask in {visible(mask)} is [{queries}, {keys}]; expected [queries, keys] = {wanted}")
    return grid


def open_pair(one: str, other: str, options: GridOptions) -> tuple[MaskGrid, MaskGrid]:
    """Open two masks of one size to compare them; where nothing else says it, one takes the size of the other.

    Raises:
        UsageError: one of them is no mask, an option applies to neither, or what True means is not known.
        InputError: a file cannot be read, or is not of this size.
    """
    options.check_file(one, other)
    expressions = [as_expression(mask, options.lengths) for mask in (one, other) if not is_file(mask)]
    size, opened = options.size, {}
    for mask in sorted((one, other), key=is_file, reverse=True):  # a file knows its size
        how = options._replace(size=size) if is_file(mask) else GridOptions(size, lengths=options.lengths)
        opened[mask] = open_mask(mask, how, expressions[-1] if expressions else None)
        opened[mask].check_read()
        size = opened[mask].size
    return opened[one], opened[other]


def grid_of_expression(expression: Expression, size: MaskSize, heads: int = 1) -> MaskGrid:
    """Lay an expression over positions.

    Raises:
        InputError: the expression does not fit this many positions.
    """
    allowed = materialise(expression, size, heads)
    planes = allowed.reshape(-1, *allowed.shape[-2:])
    return MaskGrid(str(expression), planes, size.past or 0, expression)


def materialise(expression: Expression, size: MaskSize, heads: int = 1) -> Bool[np.ndarray, "*B #H Q K"]:
    """Return the cells of an expression, made a block of rows at a time.

    Args:
        expression: what is laid out; one that reads a file of several heads has as many where it is asked for one.
        size: over how many positions.
        heads: how many heads it is asked for.

    Returns:
        A plane for all heads or one for each; behind a batch axis where batch rows have padding of their own.

    Raises:
        InputError: the expression does not fit this many positions, or there are too many cells.
    """
    assert size.queries is not None
    assert size.keys is not None
    check_past(size.past)
    heads = _heads_for(expression, heads)
    count = (batch_rows(expression) or 1) * heads
    if count * size.queries * size.keys > _MOST_CELLS:
        masks = f"{count} masks of " if count > 1 else ""
        raise InputError(f"{masks}{size.queries} × {size.keys} cells are too many to lay out; give a smaller size")
    allowed = None
    for block in row_blocks(np.arange(size.queries), size.keys):
        cells = expression.allowed(Grid(block[:, None], size.keys, size.past or 0, size.queries, heads))
        if allowed is None:
            allowed = np.empty((*(cells.shape[:-2] or (1,)), size.queries, size.keys), bool)
        allowed[..., block, :] = cells
    assert allowed is not None
    return allowed


def grid_rows(expression: Expression, mask: MaskGrid, rows: Int[np.ndarray, " R"]) -> Grid:
    """Return the grid of some rows of a mask, on which an expression is compared with it."""
    _, queries, keys = mask.allowed.shape
    return Grid(rows[:, None], keys, mask.past, queries, _heads_for(expression, mask.heads))
