"""What a mask is laid over: how many rows, keys and heads, and the mask that an expression or a file is there."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attncli.attention import row_blocks
from attncli.errors import InputError, UsageError
from attncli.masks.alibi import bias_heads
from attncli.masks.expressions import (
    Expression,
    Grid,
    Pad,
    batch_rows,
    files_of,
    leaves,
    named,
    with_lengths,
)
from attncli.masks.function import FUNCTION, load_function
from attncli.masks.notation import ENDINGS, MOST
from attncli.masks.parser import parse
from attncli.text import visible

if TYPE_CHECKING:
    from jaxtyping import Bool, Int

    from attncli.masks.conventions import Reader, Reading
    from attncli.masks.files import StoredMask

_DEFAULT = 8  # positions, where nothing says how many


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
        """Return the size with what follows from the sides that are known.

        Raises:
            UsageError: they contradict each other.
        """
        queries, past = self.queries, self.past or 0
        if queries is None:
            queries = fallback if self.keys is None else self.keys - past
        keys = queries + past if self.keys is None else self.keys
        if queries < 1:
            raise UsageError(f"--past {past} leaves no query among {keys} keys")
        return MaskSize(queries, keys, self.past)


def check_past(past: int | None) -> None:
    """Raise UsageError for a past beyond which positions would not fit into the integers they are counted in."""
    if past is not None and past > MOST:
        raise UsageError(f"--past {past}: expected a number from 0 to {MOST}")


def size_for(size: MaskSize, *expressions: Expression) -> MaskSize:
    """Return the size; where nobody gave one, that of a file or of the documents in the expressions."""
    if size.queries is None and size.keys is None:
        for file in files_of(*expressions):
            return MaskSize(file.mask.shape[-2], file.mask.shape[-1], size.past)
    several = [sum(documents.arguments) for documents in named("docs", leaves(*expressions))]
    several = several or [pad.longest for pad in leaves(*expressions) if isinstance(pad, Pad)]
    return size.completed(max(several, default=_DEFAULT))


def heads_asked(expression: Expression, heads: int) -> int:
    """Return how many heads an expression is laid out for: those asked for, or those of a file in it."""
    return heads if heads > 1 else max((heads_of(file.mask.shape) for file in files_of(expression)), default=1)


def heads_of(shape: Sequence[int]) -> int:
    """Return how many heads a mask of this shape has; 1 where all of them share it."""
    return shape[-3] if len(shape) > 2 else 1


_MOST_HEADS = 1024
_MOST_CELLS = 2**31  # held at once, a byte each; a bias is made head by head, but written whole


class MaskGrid(NamedTuple):
    """A mask, cell by cell.

    Attributes:
        name: what it is called, as an expression where it is one.
        allowed: True = attend; a plane for each mask that heads or batch rows have.
        past: how many keys stand before the first query.
        expression: what it was made from; None for a file that stands alone.
        loaded: what the file holds.
        reading: what its values mean.
        is_padding: whether it says of each batch row which keys are padding, to every query alike.
    """

    name: str
    allowed: Bool[np.ndarray, "P Q K"]
    past: int
    expression: Expression | None = None
    loaded: StoredMask | None = None
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
        if self.loaded is not None:
            return self.loaded.values.shape
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

    @property
    def bias_heads(self) -> int | None:
        """How many heads its bias has; None is no bias."""
        return None if self.expression is None else bias_heads(self.expression)


def is_file(given: str) -> bool:
    """Return whether a mask is given as a file."""
    return given.lower().endswith(ENDINGS)


def as_expression(
    given: str,
    allow_bias: bool = False,
    lengths: Int[np.ndarray, " B"] | Bool[np.ndarray, "B K"] | None = None,
) -> Expression:
    """Return what an expression, a file name or `file.py:function` says; a bare name does not state what True means.

    Args:
        given: one of these.
        allow_bias: whether an expression may hold a bias.
        lengths: what `pad` without numbers stands for, as `with_lengths` takes it.

    Raises:
        UsageError: it is none of them.
        InputError: a file cannot be read.
    """
    if FUNCTION.fullmatch(given):
        return load_function(given)
    expression = parse(given, True, allow_bias, states_true=False, allow_rows=True)
    return expression if lengths is None else with_lengths(expression, lengths)


def grid_of_file(
    given: str,
    reader: Reader | None = None,
    past: int | None = None,
    expected: Expression | None = None,
    is_batch: bool = False,
) -> MaskGrid:
    """Read a mask file; see `subject_of_values`.

    Raises:
        InputError: it cannot be read, or holds no mask.
        UsageError: `reader` does not apply to its values.
    """
    from attncli.masks.files import read_values

    check_past(past)
    return grid_of_values(given, read_values(Path(given)), reader, past, expected, is_batch)


def grid_of_values(
    name: str,
    loaded: StoredMask,
    reader: Reader | None = None,
    past: int | None = None,
    expected: Expression | None = None,
    is_batch: bool = False,
) -> MaskGrid:
    """Return a mask that is given cell by cell.

    Args:
        name: what it is called.
        loaded: its values, two to four axes.
        reader: what it is for, which says what True means; None is to be found out.
        past: how many keys stand before the first query; None is as many as there are more keys than queries.
        expected: what it should say, which tells what True means where it can be laid over so many positions.
        is_batch: whether the first axis is the batch: `[B, K]` says which keys of each row are padding, `[B, Q, K]`
            is a mask for each row. Three axes are so too where `expected` has the padding of as many rows, and for
            `nn.MultiheadAttention`, whose first axis is the heads of the first row, then of the second.

    Raises:
        InputError: it holds no mask, or that of another batch than `expected`.
        UsageError: `reader` does not apply to its values.
    """
    from attncli.masks.conventions import read_convention

    rows = None if expected is None else batch_rows(expected)
    loaded = loaded._replace(values=_with_batch(loaded.values, rows, reader, is_batch))
    *_, queries, keys = shape = loaded.values.shape
    batch = shape[0] if len(shape) == 4 else 1
    if rows is not None and 1 not in (rows, batch) and rows != batch:
        raise InputError(f"the mask {visible(name)} has {batch} batch rows, and the lengths are those of {rows}")
    offset = max(keys - queries, 0) if past is None else past
    wanted = None
    if expected is not None and reader is None:
        with suppress(InputError):  # whoever compares them says why it does not fit
            wanted = materialise(expected, MaskSize(queries, keys, offset), heads_of(shape))
    is_padding = is_batch and queries == heads_of(shape) == 1
    reading = read_convention(loaded.values, visible(name), reader, offset, wanted, is_padding=is_padding)
    allowed = reading.allowed.reshape(-1, queries, keys)
    return MaskGrid(name, allowed, offset, None, loaded, reading, is_padding)


def _with_batch(
    values: np.ndarray[Any, Any], rows: int | None, reader: Reader | None, is_batch: bool
) -> np.ndarray[Any, Any]:
    """Return the values with axes for batch rows and heads, if their first axis is the batch."""
    if values.ndim == 2 and is_batch:
        return values[:, None, None]
    if values.ndim == 3:
        planes, *cells = values.shape
        if rows and planes % rows == 0 and (is_batch or reader == "mha" or planes == rows > 1):
            return values.reshape(rows, planes // rows, *cells)
        if is_batch:
            return values[:, None]
    return values


def read_lengths(given: str) -> Int[np.ndarray, " B"] | Bool[np.ndarray, "B K"]:
    """Return how long the rows of a batch are: `5,2`, or a file of such numbers, or of an attention mask.

    Raises:
        UsageError: it is none of them.
        InputError: the file cannot be read, or holds something else.
    """
    from attncli.masks.files import read_array

    if is_file(given):
        return lengths_of(read_array(Path(given)).values, f"--lengths {visible(given)}")
    numbers = [part.strip() for part in given.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) <= len(str(MOST)) for part in numbers):
        raise UsageError(f"--lengths {visible(given)}: expected numbers such as 5,2, or the file of an array")
    return np.array([int(part) for part in numbers])


def has_own_padding(given: str) -> bool:
    """Return whether an expression says `pad` without numbers, which needs lengths."""
    if is_file(given) or FUNCTION.fullmatch(given):
        return False
    return any(isinstance(leaf, Pad) for leaf in leaves(parse(given, True, True, states_true=False, allow_rows=True)))


def lengths_of(values: np.ndarray[Any, Any], name: str) -> Int[np.ndarray, " B"] | Bool[np.ndarray, "B K"]:
    """Return the lengths of rows as `with_lengths` takes them.

    Args:
        values: `[B]`, how many tokens each row has; or `[B, K]`, 1 or True where a key is a token.
        name: what they are called, for errors.

    Raises:
        InputError: they are neither.
    """
    whole = values.size > 0 and values.dtype.kind in "biuf" and bool((values == np.floor(values)).all())
    if values.ndim == 1 and whole and values.dtype != bool and values.min() >= 0 and values.max() <= MOST:
        return values.astype(int)
    if values.ndim != 2 or not whole or not ((values == 0) | (values == 1)).all():
        raise InputError(
            f"{name} holds {values.dtype} of shape {list(values.shape)}; expected the tokens of each row, [batch], or "
            "a mask of 0 and 1, [batch, keys], with 1 for a token"
        )
    tokens = values.astype(bool)
    if not tokens.any(axis=1).all() and (~tokens).any(axis=1).all():
        raise InputError(f"{name} leaves a row without a token; 1 and True are tokens in it, and not padding")
    return tokens


def open_masks(
    given: str,
    size: MaskSize,
    reader: Reader | None = None,
    heads: int = 1,
    allow_bias: bool = False,
    beside: Expression | None = None,
    lengths: Int[np.ndarray, " B"] | Bool[np.ndarray, "B K"] | None = None,
    is_batch: bool = False,
) -> list[MaskGrid]:
    """Return the mask that is given as a file, or as something to be laid over positions.

    Args:
        given: an expression, a file name or `file.py:function`.
        size: how many positions there are, as far as it was said.
        reader: what a file is for, which says what True means there; None is to be found out.
        heads: how many heads an expression is asked for; one that reads a file of several has as many.
        allow_bias: whether an expression may hold a bias.
        beside: what it is held against, whose size an expression takes that says none.
        lengths: what `pad` without numbers stands for, as `with_lengths` takes it.
        is_batch: whether the first axis of a file is the batch, as `subject_of_values` takes it.

    Returns:
        One subject, or two where the alignment of an expression matters and was not chosen.

    Raises:
        UsageError: it is neither, or `reader` does not apply to it.
        InputError: a file cannot be read, or is not of this size.
    """
    if is_file(given):
        subject = grid_of_file(given, reader, size.past, None, is_batch)
        _, queries, keys = subject.allowed.shape
        if (size.queries or queries, size.keys or keys) != (queries, keys):
            raise InputError(
                f"the mask in {visible(given)} is [{queries}, {keys}]; expected [queries, keys] = "
                f"{[size.queries or queries, size.keys or keys]}"
            )
        return [subject]
    if reader is not None:
        raise UsageError(f"--for {reader} applies to files; in an expression True = attend")
    if heads > _MOST_HEADS:
        raise InputError(f"{heads} heads are too many to lay out; give at most {_MOST_HEADS}")
    if is_batch:
        raise UsageError("--batch applies to files; in an expression pad and --lengths say what batch rows there are")
    expression = as_expression(given, allow_bias, lengths)
    known = (expression,) if beside is None else (expression, beside)
    return grids_of_expression(expression, size_for(size, *known), heads)


def open_pair(
    one: str,
    other: str,
    size: MaskSize,
    reader: Reader | None = None,
    lengths: Int[np.ndarray, " B"] | Bool[np.ndarray, "B K"] | None = None,
    is_batch: bool = False,
) -> tuple[MaskGrid, MaskGrid]:
    """Return two masks of one size; where nothing else says it, one takes the size of the other.

    Where nothing in the cells of one tells what True means, it is read as what is nearer to the other.

    Raises:
        UsageError: one of them is no mask, `reader` applies to neither, or what True means remains open.
        InputError: a file cannot be read, or is not of this size.
    """
    if reader is not None and not is_file(one) and not is_file(other):
        raise UsageError(f"--for {reader} applies to files; in an expression True = attend")
    if is_batch and not is_file(one) and not is_file(other):
        raise UsageError("--batch applies to files; in an expression pad and --lengths say what batch rows there are")
    expressions = {given: as_expression(given, False, lengths) for given in (one, other) if not is_file(given)}
    opened = {}
    for given in sorted((one, other), key=is_file, reverse=True):  # a file knows its size
        if is_file(given):
            subjects = open_masks(given, size, reader, is_batch=is_batch)
        else:
            subjects = grids_of_expression(expressions[given], size_for(size, *expressions.values()))
        opened[given] = subjects[-1]
        size = opened[given].size
    if one == other:  # whatever True means there
        return opened[one], opened[other]
    first, second = opened[one], opened[other]
    if first.is_ambiguous != second.is_ambiguous:
        first, second = _read_beside(first, second), _read_beside(second, first)
    for subject in (first, second):
        subject.check_read()
    return first, second


def _read_beside(subject: MaskGrid, other: MaskGrid) -> MaskGrid:
    """Return an ambiguous mask, read as what is nearer to another one; a mask that is not ambiguous as it is."""
    if not subject.is_ambiguous or not is_broadcast(subject.shape, other.shape):
        return subject
    from attncli.masks.conventions import read_convention

    assert subject.loaded is not None
    said = visible(subject.name), None, subject.past, other.cells, visible(other.name)
    reading = read_convention(subject.loaded.values, *said, is_padding=subject.is_padding)
    # It is what was looked for, and no more than that, even where it is exactly the other one.
    reading = reading._replace(is_nearer=not reading.is_ambiguous)
    return subject._replace(allowed=reading.allowed.reshape(subject.allowed.shape), reading=reading)


def is_broadcast(shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Return whether arrays of these shapes can be compared cell by cell, heads and batch rows repeated."""
    with suppress(ValueError):
        np.broadcast_shapes(shape, other)
        return True
    return False


def grids_of_expression(expression: Expression, size: MaskSize, heads: int = 1) -> list[MaskGrid]:
    """Lay an expression over positions: one subject, or two where its alignment matters and was not chosen.

    With more keys than queries the queries are the first positions (top-left, PyTorch's `is_causal`) or the last
    ones (bottom-right, a KV cache).

    Raises:
        InputError: the expression does not fit this many positions.
    """
    assert size.queries is not None
    assert size.keys is not None
    biased = bias_heads(expression) or 0
    if biased > _MOST_HEADS:
        raise InputError(f"a bias of {biased} heads is too many to draw; give at most {_MOST_HEADS}")
    if biased * size.queries * size.keys > _MOST_CELLS:
        raise InputError(
            f"a bias of {biased} heads over {size.queries} × {size.keys} cells is too many numbers; give fewer heads "
            "or a smaller size"
        )
    pasts = [size.past] if size.past is not None else sorted({0, max(size.keys - size.queries, 0)})
    if biased and batch_rows(expression):
        raise UsageError("a bias is drawn beside one mask; write pad(right=n) in place of pad")
    subjects = []
    for past in pasts:
        allowed = materialise(expression, size._replace(past=past), heads)
        planes = allowed.reshape(-1, size.queries, size.keys)
        subjects.append(MaskGrid(str(expression), planes, past, expression))
    same = len(subjects) == 2 and np.array_equal(subjects[0].allowed, subjects[1].allowed)
    return subjects[1:] if same and subjects[1].bias_heads is None else subjects


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
    heads = heads_asked(expression, heads)
    rows = batch_rows(expression) or 1
    if rows * heads * size.queries * size.keys > _MOST_CELLS:
        of_planes, fewer = (f"{heads} heads of ", "fewer heads or ") if heads > 1 else ("", "")
        of_planes = f"{rows} batch rows of {of_planes}" if rows > 1 else of_planes
        raise InputError(
            f"{of_planes}{size.queries} × {size.keys} cells are too many to lay out; give {fewer}a smaller size"
        )
    allowed = None
    for block in row_blocks(np.arange(size.queries), size.keys):
        cells = expression.allowed(Grid(block[:, None], size.keys, size.past or 0, size.queries, heads))
        if allowed is None:
            allowed = np.empty((*(cells.shape[:-2] or (1,)), size.queries, size.keys), bool)
        allowed[..., block, :] = cells
    assert allowed is not None
    return allowed


def grid_rows(expression: Expression, subject: MaskGrid, rows: Int[np.ndarray, " R"]) -> Grid:
    """Return the grid of some rows of a mask, on which an expression is compared with it."""
    _, queries, keys = subject.allowed.shape
    return Grid(rows[:, None], keys, subject.past, queries, heads_asked(expression, subject.heads))
