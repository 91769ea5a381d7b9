"""What a mask command is about: an expression, a mask file or a Python function, laid over so many positions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from attncli.blocks import row_blocks
from attncli.errors import InputError, UsageError
from attncli.masks.algebra import And, Atom, Expression, File, Grid, Not, Or, RuleMask
from attncli.masks.bias import bias_heads
from attncli.masks.function import FUNCTION, load_function
from attncli.masks.notation import ENDINGS
from attncli.masks.parser import parse
from attncli.tokens import visible

if TYPE_CHECKING:
    from jaxtyping import Bool

    from attncli.masks.conventions import Reading
    from attncli.masks.files import Loaded

DEFAULT_SIZE = 8  # positions, where nothing says how many
_MOST_HEADS = 1024  # of a bias
_MOST_CELLS = 2**31  # held at once, a byte each


class Size(NamedTuple):
    """How many positions a mask is laid over; None is what nobody said.

    Attributes:
        queries: query rows.
        keys: key columns.
        past: how many keys stand before the first query.
    """

    queries: int | None = None
    keys: int | None = None
    past: int | None = None

    def filled(self, fallback: int) -> Size:
        """Return the size with the sides that follow from the others.

        Raises:
            UsageError: they contradict each other.
        """
        queries, keys, past = self.queries, self.keys, self.past
        if queries is None and keys is None:
            queries = fallback
        if keys is None and queries is not None:
            keys = queries + (past or 0)
        if queries is None and keys is not None:
            queries = keys - (past or 0)
        if queries is not None and queries < 1:
            raise UsageError(f"--past {past} leaves no query among {keys} keys")
        return Size(queries, keys, past)


class Subject(NamedTuple):
    """A mask, cell by cell.

    Attributes:
        name: what it is called, as an expression where it is one.
        allowed: True = attend; a plane for each mask that heads or batch rows have.
        planes: what each plane is called; one empty name where there is one plane.
        past: how many keys stand before the first query.
        expression: what it was made from; None for a file that stands alone.
        loaded: what the file holds.
        reading: what its values mean.
    """

    name: str
    allowed: Bool[np.ndarray, "P Q K"]
    planes: tuple[str, ...]
    past: int
    expression: Expression | None = None
    loaded: Loaded | None = None
    reading: Reading | None = None

    @property
    def size(self) -> Size:
        """How many queries and keys it has."""
        _, queries, keys = self.allowed.shape
        return Size(queries, keys, self.past)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape it has in its file; without one, a plane axis only where there are several."""
        if self.loaded is not None:
            return self.loaded.values.shape
        return self.allowed.shape[1:] if len(self.allowed) == 1 else self.allowed.shape

    @property
    def bias_heads(self) -> int | None:
        """How many heads its bias has; None is no bias."""
        return None if self.expression is None else bias_heads(self.expression)


def is_file(given: str) -> bool:
    """Return whether a mask is given as a file."""
    return given.lower().endswith(ENDINGS)


def expression_of(given: str, allow_bias: bool = False) -> Expression:
    """Return what an expression, a file name or `file.py:function` says.

    Raises:
        UsageError: it is none of them.
        InputError: a file cannot be read.
    """
    return load_function(given) if FUNCTION.fullmatch(given) else parse(given, allow_bias=allow_bias)


def subject_of_file(
    given: str,
    true: Literal["attend", "masked"] | None = None,
    past: int | None = None,
    expected: Expression | None = None,
) -> Subject:
    """Read a mask file.

    Raises:
        InputError: it cannot be read, or holds no mask.
        UsageError: `true` does not apply to its values.
    """
    from attncli.masks.conventions import read_convention
    from attncli.masks.files import read_values

    loaded = read_values(Path(given))
    planes = loaded.values.reshape(-1, *loaded.values.shape[-2:])
    queries, keys = planes.shape[1:]
    offset = max(keys - queries, 0) if past is None else past
    wanted = None if expected is None else lambda: laid_out(expected, Size(queries, keys, offset))[0]
    reading = read_convention(planes, visible(given), true, past, wanted)
    return Subject(given, reading.allowed, plane_names(loaded.values.shape[:-2]), offset, None, loaded, reading)


def open_subjects(
    given: str,
    size: Size,
    true: Literal["attend", "masked"] | None = None,
    heads: int = 1,
    allow_bias: bool = False,
) -> list[Subject]:
    """Return the mask that is given as a file, or as something to be laid over positions.

    Returns:
        One subject, or two where the alignment of an expression matters and was not chosen.

    Raises:
        UsageError: it is neither, or `true` does not apply to it.
        InputError: a file cannot be read, or is not of this size.
    """
    if is_file(given):
        subject = subject_of_file(given, true, size.past)
        _, queries, keys = subject.allowed.shape
        if (size.queries or queries, size.keys or keys) != (queries, keys):
            raise InputError(
                f"the mask in {visible(given)} is [{queries}, {keys}]; expected [queries, keys] = "
                f"{[size.queries or queries, size.keys or keys]}"
            )
        return [subject]
    if true is not None:
        raise UsageError(f"--true {true} applies to files; in an expression True = attend")
    expression = expression_of(given, allow_bias)
    return subjects_of_expression(expression, _filled(expression, size), heads)


def open_pair(
    one: str, other: str, size: Size, true: Literal["attend", "masked"] | None = None
) -> tuple[Subject, Subject]:
    """Return two masks of one size, which a file gives to the other where nothing else does.

    Raises:
        UsageError: one of them is no mask, or `true` applies to neither.
        InputError: a file cannot be read, or is not of this size.
    """
    if true is not None and not is_file(one) and not is_file(other):
        raise UsageError(f"--true {true} applies to files; in an expression True = attend")
    opened: dict[str, Subject] = {}
    for given in sorted((one, other), key=is_file, reverse=True):  # a file knows its size
        opened[given] = open_subjects(given, size, true if is_file(given) else None)[-1]
        size = opened[given].size
    return opened[one], opened[other]


def subjects_of_expression(expression: Expression, size: Size, heads: int = 1) -> list[Subject]:
    """Lay an expression over positions: one subject, or two where its alignment matters and was not chosen.

    With more keys than queries the queries are the first positions (top-left, PyTorch's `is_causal`) or the last
    ones (bottom-right, a KV cache).

    Raises:
        InputError: the expression does not fit this many positions.
    """
    assert size.queries is not None
    assert size.keys is not None
    if (bias_heads(expression) or 0) > _MOST_HEADS:
        raise InputError(f"a bias of {bias_heads(expression)} heads is too many to draw; give at most {_MOST_HEADS}")
    heads = max(heads, _file_heads(expression))
    pasts = [size.past] if size.past is not None else sorted({0, max(size.keys - size.queries, 0)})
    subjects = []
    for past in pasts:
        allowed = laid_out(expression, size._replace(past=past), heads)
        subjects.append(Subject(str(expression), allowed, plane_names(allowed.shape[:1]), past, expression))
    same = len(subjects) == 2 and np.array_equal(subjects[0].allowed, subjects[1].allowed)
    return subjects[1:] if same and subjects[1].bias_heads is None else subjects


def laid_out(expression: Expression, size: Size, heads: int = 1) -> Bool[np.ndarray, "P Q K"]:
    """Return the cells of an expression, made a block of rows at a time.

    Raises:
        InputError: the expression does not fit this many positions, or there are too many cells.
    """
    assert size.queries is not None
    assert size.keys is not None
    if heads * size.queries * size.keys > _MOST_CELLS:
        raise InputError(f"{size.queries} × {size.keys} cells are too many to lay out; give a smaller size")
    mask = RuleMask(expression, size.queries, size.keys, heads, size.past or 0)
    blocks = row_blocks(np.arange(size.queries), size.keys)
    first = mask.rows(list(range(heads)), blocks[0])
    allowed = np.empty((len(first), size.queries, size.keys), bool)
    for block in blocks:
        allowed[:, block[0] : block[-1] + 1] = mask.rows(list(range(heads)), block)
    return allowed


def _filled(expression: Expression, size: Size) -> Size:
    """Return the size with what the expression itself says where nobody else did."""
    if size.queries is None and size.keys is None:
        file = next(((file.mask.shape[-2], file.mask.shape[-1]) for file in _files(expression)), None)
        if file is not None:
            return Size(file[0], file[1], size.past)
    return size.filled(_documents(expression) or DEFAULT_SIZE)


def _documents(expression: Expression) -> int:
    """Return how many positions the documents of an expression take."""
    if isinstance(expression, And | Or):
        return max(_documents(side) for side in expression.sides)
    if isinstance(expression, Not):
        return _documents(expression.inner)
    return sum(expression.arguments) if isinstance(expression, Atom) and expression.name == "docs" else 0


def single_rows(expression: Expression, size: Size, rows: np.ndarray[tuple[int], np.dtype[np.int_]]) -> Grid:
    """Return the grid of some rows of a mask of this size."""
    assert size.queries is not None
    assert size.keys is not None
    return Grid(rows[:, None], size.keys, size.past or 0, size.queries, _file_heads(expression) or 1)


def _files(expression: Expression) -> list[File]:
    if isinstance(expression, And | Or):
        return [file for side in expression.sides for file in _files(side)]
    if isinstance(expression, Not):
        return _files(expression.inner)
    return [expression] if isinstance(expression, File) else []


def _file_heads(expression: Expression) -> int:
    return max((len(file.mask) for file in _files(expression) if file.mask.ndim == 3), default=0)


def plane_names(shape: Sequence[int]) -> tuple[str, ...]:
    """Return what the masks of leading axes are called: heads, or heads of batch rows."""
    if int(np.prod(shape)) == 1:
        return ("",)
    if len(shape) == 1:
        return tuple(f"head {head}" for head in range(shape[0]))
    rows = [f"batch {row}" if shape[0] > 1 else "" for row in range(shape[0])]
    heads = [f"head {head}" if shape[1] > 1 else "" for head in range(shape[1])]
    return tuple(f"{row} {head}".strip() for row in rows for head in heads)
