"""What a mask is laid over: how many rows, keys and heads, and the mask that an expression or a file is there."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attncli.attention import row_blocks
from attncli.errors import InputError, UsageError
from attncli.masks.expressions import Expression, Grid, RuleMask, bias_heads, files_of, leaves, named
from attncli.masks.function import FUNCTION, load_function
from attncli.masks.notation import ENDINGS, MOST
from attncli.masks.parser import parse
from attncli.text import visible

if TYPE_CHECKING:
    from jaxtyping import Bool, Int

    from attncli.masks.conventions import Reader, Reading
    from attncli.masks.files import Loaded

_DEFAULT = 8  # positions, where nothing says how many


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

    def completed(self, fallback: int) -> Size:
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


def check_past(past: int | None) -> None:
    """Raise UsageError for a past beyond which positions would not fit into the integers they are counted in."""
    if past is not None and past > MOST:
        raise UsageError(f"--past {past}: expected a number from 0 to {MOST}")


def filled(size: Size, *expressions: Expression) -> Size:
    """Return the size with what the expressions themselves say where nobody else did."""
    if size.queries is None and size.keys is None:
        for file in files_of(*expressions):
            return Size(file.mask.shape[-2], file.mask.shape[-1], size.past)
    documents = named("docs", leaves(*expressions))
    return size.completed(max((sum(lengths.arguments) for lengths in documents), default=_DEFAULT))


def heads_asked(expression: Expression, heads: int) -> int:
    """Return how many heads an expression is asked for: a mask that all heads share may stand beside files of many."""
    return heads if heads > 1 else max((heads_of(file.mask.shape) for file in files_of(expression)), default=1)


def heads_of(shape: Sequence[int]) -> int:
    """Return how many heads a mask of this shape has; 1 where all of them share it."""
    return shape[-3] if len(shape) > 2 else 1


_MOST_HEADS = 1024
_MOST_CELLS = 2**31  # held at once, a byte each; a bias is made head by head, but written whole


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
    def heads(self) -> int:
        """How many heads its shape has; 1 where all of them share a mask."""
        return heads_of(self.shape)

    @property
    def cells(self) -> Bool[np.ndarray, "*#B #H Q K"]:
        """`allowed` in `shape`, which broadcasts to batch rows and heads as attention broadcasts it."""
        return self.allowed.reshape(self.shape)

    @property
    def is_ambiguous(self) -> bool:
        """Whether it is not known what True means in its file."""
        return self.reading is not None and self.reading.is_ambiguous

    def check_read(self) -> None:
        """Raise UsageError if what True means in its file is not known."""
        if self.reading is not None and self.reading.is_ambiguous:
            raise UsageError(f"{visible(self.name)}: {self.reading.why}; say it with --for sdpa or --for mha")

    @property
    def bias_heads(self) -> int | None:
        """How many heads its bias has; None is no bias."""
        return None if self.expression is None else bias_heads(self.expression)


def is_file(given: str) -> bool:
    """Return whether a mask is given as a file."""
    return given.lower().endswith(ENDINGS)


def expression_of(given: str, allow_bias: bool = False) -> Expression:
    """Return what an expression, a file name or `file.py:function` says; a bare name does not state what True means.

    Raises:
        UsageError: it is none of them.
        InputError: a file cannot be read.
    """
    return load_function(given) if FUNCTION.fullmatch(given) else parse(given, True, allow_bias, states_true=False)


def subject_of_file(
    given: str,
    reader: Reader | None = None,
    past: int | None = None,
    expected: Expression | None = None,
) -> Subject:
    """Read a mask file.

    Args:
        given: the file.
        reader: what it is for, which says what True means; None is to be found out.
        past: how many keys stand before the first query; None is as many as there are more keys than queries.
        expected: what it should say, which tells what True means where it can be laid over so many positions.

    Raises:
        InputError: it cannot be read, or holds no mask.
        UsageError: `reader` does not apply to its values.
    """
    from attncli.masks.files import read_values

    check_past(past)
    loaded = read_values(Path(given))
    *several, queries, keys = shape = loaded.values.shape
    offset = max(keys - queries, 0) if past is None else past
    wanted = None
    if expected is not None and reader is None:
        with suppress(InputError):  # whoever compares them says why it does not fit
            wanted = laid_out(expected, Size(queries, keys, offset), heads_of(shape))
    subject = Subject(given, np.empty((0, queries, keys), bool), plane_names(several), offset, None, loaded)
    return _read(subject, reader, past, wanted)


def _read(
    subject: Subject,
    reader: Reader | None = None,
    past: int | None = None,
    expected: Bool[np.ndarray, "*#P Q K"] | None = None,
    says: str = "--expect",
) -> Subject:
    """Return a subject with what the values of its file mean."""
    from attncli.masks.conventions import read_convention

    assert subject.loaded is not None
    reading = read_convention(subject.loaded.values, visible(subject.name), reader, past, expected, says)
    return subject._replace(allowed=reading.allowed.reshape(-1, *subject.allowed.shape[1:]), reading=reading)


def open_subjects(
    given: str,
    size: Size,
    reader: Reader | None = None,
    heads: int = 1,
    allow_bias: bool = False,
    beside: Expression | None = None,
) -> list[Subject]:
    """Return the mask that is given as a file, or as something to be laid over positions.

    Args:
        given: an expression, a file name or `file.py:function`.
        size: how many positions there are, as far as it was said.
        reader: what a file is for, which says what True means there; None is to be found out.
        heads: how many heads an expression is asked for; one that reads a file of several has as many.
        allow_bias: whether an expression may hold a bias.
        beside: what it is held against, whose size an expression takes that says none.

    Returns:
        One subject, or two where the alignment of an expression matters and was not chosen.

    Raises:
        UsageError: it is neither, or `reader` does not apply to it.
        InputError: a file cannot be read, or is not of this size.
    """
    if is_file(given):
        subject = subject_of_file(given, reader, size.past)
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
    expression = expression_of(given, allow_bias)
    known = (expression,) if beside is None else (expression, beside)
    return subjects_of_expression(expression, filled(size, *known), heads)


def open_pair(one: str, other: str, size: Size, reader: Reader | None = None) -> tuple[Subject, Subject]:
    """Return two masks of one size, which either gives to the other where nothing else does.

    Where nothing in the cells of one tells what True means, it is read as what is nearer to the other.

    Raises:
        UsageError: one of them is no mask, `reader` applies to neither, or what True means remains open.
        InputError: a file cannot be read, or is not of this size.
    """
    if reader is not None and not is_file(one) and not is_file(other):
        raise UsageError(f"--for {reader} applies to files; in an expression True = attend")
    expressions = {given: expression_of(given) for given in (one, other) if not is_file(given)}
    opened = {}
    for given in sorted((one, other), key=is_file, reverse=True):  # a file knows its size
        if is_file(given):
            subjects = open_subjects(given, size, reader)
        else:
            subjects = subjects_of_expression(expressions[given], filled(size, *expressions.values()))
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


def _read_beside(subject: Subject, other: Subject) -> Subject:
    """Return a mask that could mean either as what is nearer to another one, any other as it is."""
    try:
        np.broadcast_shapes(subject.shape, other.shape)
    except ValueError:
        return subject
    if not subject.is_ambiguous:
        return subject
    read = _read(subject, None, subject.past, other.cells, visible(other.name))
    assert read.reading is not None
    # It is what was looked for, and no more than that, even where it is exactly the other one.
    return read._replace(reading=read.reading._replace(is_nearer=not read.is_ambiguous))


def subjects_of_expression(expression: Expression, size: Size, heads: int = 1) -> list[Subject]:
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
    subjects = []
    for past in pasts:
        allowed = laid_out(expression, size._replace(past=past), heads)
        subjects.append(Subject(str(expression), allowed, plane_names(allowed.shape[:1]), past, expression))
    same = len(subjects) == 2 and np.array_equal(subjects[0].allowed, subjects[1].allowed)
    return subjects[1:] if same and subjects[1].bias_heads is None else subjects


def laid_out(expression: Expression, size: Size, heads: int = 1) -> Bool[np.ndarray, "#H Q K"]:
    """Return the cells of an expression, made a block of rows at a time.

    Args:
        expression: what is laid out; one that reads a file of several heads has as many where it is asked for one.
        size: over how many positions.
        heads: how many heads it is asked for.

    Raises:
        InputError: the expression does not fit this many positions, or there are too many cells.
    """
    assert size.queries is not None
    assert size.keys is not None
    check_past(size.past)
    heads = heads_asked(expression, heads)
    if heads * size.queries * size.keys > _MOST_CELLS:
        of_heads, fewer = (f"{heads} heads of ", "fewer heads or ") if heads > 1 else ("", "")
        raise InputError(
            f"{of_heads}{size.queries} × {size.keys} cells are too many to lay out; give {fewer}a smaller size"
        )
    mask = RuleMask(expression, size.queries, size.keys, heads, size.past or 0)
    blocks = row_blocks(np.arange(size.queries), size.keys)
    first = mask.rows(list(range(heads)), blocks[0])
    allowed = np.empty((len(first), size.queries, size.keys), bool)
    for block in blocks:
        allowed[:, block[0] : block[-1] + 1] = mask.rows(list(range(heads)), block)
    return allowed


def rows_of(expression: Expression, subject: Subject, rows: Int[np.ndarray, " R"]) -> Grid:
    """Return the grid of some rows of an expression, to be held against the same rows of a mask."""
    _, queries, keys = subject.allowed.shape
    return Grid(rows[:, None], keys, subject.past, queries, heads_asked(expression, subject.heads))


def plane_names(shape: Sequence[int]) -> tuple[str, ...]:
    """Return what the masks of leading axes are called: heads, or heads of batch rows."""
    if int(np.prod(shape)) == 1:
        return ("",)
    if len(shape) == 1:
        return tuple(f"head {head}" for head in range(shape[0]))
    rows = [f"batch {row}" if shape[0] > 1 else "" for row in range(shape[0])]
    heads = [f"head {head}" if shape[1] > 1 else "" for head in range(shape[1])]
    return tuple(f"{row} {head}".strip() for row in rows for head in heads)
