"""Checks of a mask: what it hides or shows by mistake, the usual reason for it, and the numbers it forbids with."""

from __future__ import annotations

import math
import operator
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attncli.attention import row_blocks
from attncli.errors import InputError
from attncli.masks.conventions import LEAST
from attncli.masks.expressions import (
    And,
    Atom,
    Expression,
    Grid,
    Not,
    Or,
    Pad,
    Unnumbered,
    atoms_named,
    batch_rows,
    conjuncts,
    is_padding,
    leaves,
    map_leaves,
)
from attncli.masks.findings import MOST_CELLS, Finding, Severity, in_batch
from attncli.masks.intrinsic_checks import LAID_ALONG_QUERIES, WHAT_BECOMES, intrinsic_findings
from attncli.masks.mask_grid import MaskGrid, MaskSize, grid_rows
from attncli.masks.notation import MOST
from attncli.masks.recognition import Shape, rule_of, shape_of

if TYPE_CHECKING:
    from jaxtyping import Bool

# The code of a cell that is allowed against the expectation, by the atom that forbids it.
_CODES = {
    "causal": "leak", "window": "window", "band": "window", "dilated": "window", "global": "window",
    "docs": "document", "chunk": "document", "pad": "pad", "keys": "pad", "queries": "pad", "prefix": "pad",
}  # fmt: skip
_ONE_SIDED = {"window", "dilated"}  # they forbid the future as well
_SAYS = {
    "leak": "attends to the future",
    "window": "attends outside the window",
    "document": "attends across a document boundary",
    "pad": "attends to padding",
    "missing": "misses an allowed key",
}


def audit(subject: MaskGrid, expected: Expression | None, size: MaskSize) -> Iterator[Finding]:
    """Yield the findings of a mask against the expression and the size that are expected of it.

    None skips a check. An ambiguous mask yields the findings that hold in both readings.
    """
    yield from _shape(subject, size)
    if subject.reading is not None and subject.is_ambiguous:
        message = f"{subject.reading.why}{_both_readings(subject, expected)}. Use --for sdpa or --for mha to decide"
        yield Finding("ambiguous", "error", message)
        yield from _varies(subject, None)
        return
    if expected is not None and not _is_misshapen(subject, size):  # it applies to no mask of another size
        planes = expected.allowed(grid_rows(subject, np.arange(1))).shape[:-2]
        try:
            np.broadcast_shapes(planes, subject.shape[:-2])
        except ValueError:
            raise InputError(f"the mask has {subject.shape[-3]} heads, and the expected mask {planes[-1]}") from None
        yield from _varies(subject, expected)
        yield from _cells(subject, expected)
        yield from _dead_rows(subject, expected)
        return
    cells = subject.cells.reshape((1,) * (4 - subject.cells.ndim) + subject.cells.shape)
    rule = rule_of(cells, shape_of(cells), subject.past)
    if rule.expression is None:  # rows with padding of their own follow one rule
        yield from _varies(subject, None)
    yield from intrinsic_findings(cells, rule, subject.past)


def _both_readings(subject: MaskGrid, expected: Expression | None) -> str:
    """Return how many cells of an ambiguous mask differ from the expectation, in either reading."""
    if expected is None:
        return ""
    wrong = total = 0
    with suppress(InputError, ValueError):  # of another size
        for rows in row_blocks(np.arange(subject.shape[-2]), subject.cells.size // subject.shape[-2]):
            differ = subject.cells[..., rows, :] != expected.allowed(grid_rows(subject, rows))
            wrong, total = wrong + int(np.count_nonzero(differ)), total + differ.size
    return f" ({wrong} of {total} cells are unexpected if it attends, {total - wrong} if it masks)" if total else ""


def audit_allowed(allowed: Bool[np.ndarray, "_ _ _ _"], shape: Shape, expected: Expression) -> Iterator[Finding]:
    """Yield the findings of a mask of attention, aligned so that the last query is at the last key.

    Args:
        allowed: `[#B, #H, #Q, #K]`, True = attend; an axis may be 1 where nothing changes along it.
        shape: `(B, H, Q, K)` of the attention.
        expected: the expected mask.

    Raises:
        InputError: the expectation does not fit this many positions, or is for another batch.
    """
    batch, _, queries, keys = shape
    rows = batch_rows(expected)
    if rows not in (None, 1, batch):
        raise InputError(f"the attention has {batch} batch rows, and lengths has {rows}")
    cells = np.broadcast_to(allowed, (*allowed.shape[:2], queries, keys))
    subject = MaskGrid("the mask", cells, max(keys - queries, 0))
    yield from audit(subject, expected, subject.size)


def word_queries(expected: Expression, grid: Grid) -> Bool[np.ndarray, " ..."]:
    """Return the queries whose cells have to be as expected; it broadcasts to the cells.

    Queries of padding are left out, as their outputs are not used: they may see anything. Where all are padding, the
    documents or lengths do not fit these positions, and every query counts.
    """
    pads = [leaf for leaf in leaves(expected) if is_padding(leaf)]
    if not pads or grid.total_queries == 1 or grid.past + grid.total_queries != grid.keys:
        return np.ones((1, 1), bool)
    tokens = reduce(operator.and_, (pad.allowed(grid)[..., 0, :] for pad in pads))
    of_words = tokens[..., grid.past :].any(axis=-1, keepdims=True)
    return (tokens | ~of_words)[..., grid.i[:, 0], None]


def forbidden_by(expression: Expression, grid: Grid) -> dict[str, Bool[np.ndarray, " ..."]]:
    """Return the cells that an expression forbids, by the code of the part that does."""
    is_future = grid.j > grid.i
    merged: dict[str, Bool[np.ndarray, " ..."]] = {}
    for part in conjuncts(expression):
        sides = part.sides if isinstance(part, Or) else (part,)
        first = sides[0] if Atom("causal") not in sides else Atom("causal")
        atom = first.name if isinstance(first, Atom | Unnumbered) else "pad" if isinstance(first, Pad) else ""
        code, forbidden = _CODES.get(atom, "leak"), ~part.allowed(grid)
        by_code = {code: forbidden}
        if atom in _ONE_SIDED:
            by_code = {"leak": forbidden & is_future, code: forbidden & ~is_future}
        for code, cells in by_code.items():
            merged[code] = merged[code] | cells if code in merged else cells
    return merged


# --- the usual mistakes ------------------------------------------------------------------------------------

# The codes of the findings that a mistake explains, a sentence about it, and the expectation and mask it implies.
_Mistake = tuple[tuple[str, ...], str, Expression, MaskGrid]


class _AlongQueries(NamedTuple):
    """Padding that is laid along the queries by mistake: it hides queries, and no keys."""

    pad: Expression

    def allowed(self, grid: Grid) -> Bool[np.ndarray, " ..."]:
        """See `Expression.allowed`."""
        keys = self.pad.allowed(grid._replace(queries=np.zeros((1, 1), int)))
        return np.broadcast_to(keys[..., 0, grid.i[:, 0], None], (*keys.shape[:-2], len(grid.queries), grid.keys))


def _mistakes(subject: MaskGrid, expected: Expression) -> Iterator[_Mistake]:
    """Yield the common mistakes."""
    (queries, keys), causal = subject.shape[-2:], Atom("causal")
    of_cells = ("window", "missing", "leak")

    def changed(old: Atom, new: Expression) -> Expression:
        return map_leaves(expected, lambda leaf: new if leaf == old else leaf)

    windows = set(atoms_named("window", leaves(expected)))
    for window, step in ((window, step) for window in windows for step in (1, -1) if len(windows) == 1):
        (width,) = window.arguments
        if width + step:
            hint = f"the window has {width + step} keys, not {width} ({step:+d})"
            yield of_cells, hint, changed(window, Atom("window", (width + step,))), subject
    if queries == keys:
        if any(map(is_padding, leaves(expected))):
            along = map_leaves(expected, lambda leaf: _AlongQueries(leaf) if is_padding(leaf) else leaf)
            yield ("broadcast",), LAID_ALONG_QUERIES, along, subject
        hint = "the mask is the transpose of what is expected: queries and keys are swapped"
        yield ("shape",), hint, expected, subject._replace(cells=subject.cells.swapaxes(-1, -2))
    if causal in leaves(expected):
        later, earlier = Atom("band", (MOST, 1)), And((causal, Not(Atom("window", (1,)))))
        hint = "the diagonal is shifted by "
        yield of_cells, hint + "+1, a query sees the key after itself", changed(causal, later), subject
        yield of_cells, hint + "-1, a query does not see itself", changed(causal, earlier), subject
    for past, side in ((0, "top-left"), (keys - queries, "bottom-right")):
        if past >= 0 and past != subject.past:
            hint = f"the mask is aligned {side} (past {past}), expected past {subject.past}"
            yield ("shape",), hint, expected, subject._replace(past=past)


def _explains(mistake: _Mistake, wrong: list[int]) -> bool:
    """Return whether a mistake explains every cell, trying the rows that are known to be wrong first."""
    _, _, expression, subject = mistake
    blocks = [np.array(wrong), *row_blocks(np.arange(subject.shape[-2]), subject.cells.size // subject.shape[-2])]
    with suppress(InputError):  # a mistake that does not fit at another alignment explains nothing
        for rows in blocks:
            grid = grid_rows(subject, rows)
            differs = subject.cells[..., rows, :] != expression.allowed(grid)
            if (differs & word_queries(expression, grid)).any():
                return False
        return True
    return False


# --- cells -------------------------------------------------------------------------------------------------


@dataclass
class _CellTally:
    """Cells of one kind: how many, where the first ones are, and in which rows of the batch, if there are several."""

    count: int = 0
    cells: list[tuple[int, int]] = field(default_factory=list)
    batch: set[int] = field(default_factory=set)

    def add(self, planes: Bool[np.ndarray, "*P Q K"], first_row: int = 0) -> None:
        """Add the cells that are true in any plane; a cell counts once however many planes agree."""
        if planes.ndim == 4 and len(planes) > 1:
            self.batch.update(np.flatnonzero(planes.any(axis=(1, 2, 3))).tolist())
        where = _in_any_plane(planes)
        self.count += int(np.count_nonzero(where))
        rows = np.flatnonzero(where.any(axis=1))[: MOST_CELLS - len(self.cells)]
        cells = np.argwhere(where[rows])[: MOST_CELLS - len(self.cells)].tolist()
        self.cells += [(int(rows[row]) + first_row, column) for row, column in cells]

    def __str__(self) -> str:
        return f"{self.count} cell{'s' * (self.count != 1)}" + in_batch(self.batch)


def _in_any_plane(cells: Bool[np.ndarray, "*P Q K"]) -> Bool[np.ndarray, "Q K"]:
    return np.any(cells, axis=tuple(range(cells.ndim - 2)))


def _cells(subject: MaskGrid, expected: Expression) -> Iterator[Finding]:
    """Yield the cells that differ from the expectation, in any plane."""
    queries = subject.shape[-2]
    tallies: dict[str, _CellTally] = defaultdict(_CellTally)
    for rows in row_blocks(np.arange(queries), subject.cells.size // queries):
        grid = grid_rows(subject, rows)
        wanted, block = expected.allowed(grid), subject.cells[..., rows[0] : rows[-1] + 1, :]
        weighed = word_queries(expected, grid)
        if not ((block != wanted) & weighed).any():
            continue
        tallies["missing"].add(~block & wanted & weighed, int(rows[0]))
        for code, forbidden in forbidden_by(expected, grid).items():
            tallies[code].add(block & forbidden & weighed, int(rows[0]))
    nonempty = {code: tally for code, tally in tallies.items() if tally.count}
    if not nonempty:
        return
    wrong = sorted({row for tally in nonempty.values() for row, _ in tally.cells})
    codes, hint, *_ = next(
        (mistake for mistake in _mistakes(subject, expected) if _explains(mistake, wrong)), ((), "", expected, subject)
    )
    for code, tally in nonempty.items():
        message = f"{_SAYS[code]} in {tally}" + (f": {hint}" if code in codes else "")
        yield Finding(code, "error", message, tally.count, tuple(tally.cells))
    for code in {*codes} & {"shape", "broadcast"}:
        yield Finding(code, "error", hint, sum(tally.count for tally in nonempty.values()))


# --- shape, planes, rows -----------------------------------------------------------------------------------


def _is_misshapen(subject: MaskGrid, size: MaskSize) -> bool:
    queries, keys = subject.shape[-2:]
    return (size.queries or queries) != queries or (size.keys or keys) != keys


def _shape(subject: MaskGrid, size: MaskSize) -> Iterator[Finding]:
    queries, keys = subject.shape[-2:]
    if keys == 1 and queries > 1 and size.keys != 1:
        message = (
            f"one column for {queries} queries applies to every key, so it masks queries. A mask of keys has the shape "
            "[1, keys]"
        )
        yield Finding("shape", "error", message, queries)
    elif _is_misshapen(subject, size):
        wanted = [size.queries or queries, size.keys or keys]
        message = f"the mask is [{queries}, {keys}], expected [queries, keys] = {wanted}"
        if [keys, queries] == wanted:
            message += ". It is transposed"
        elif queries == 1 and keys == wanted[1]:
            message += ". Broadcast, every query gets the same keys"
        yield Finding("shape", "error", message)


def _varies(subject: MaskGrid, expected: Expression | None) -> Iterator[Finding]:
    """Yield the heads, or batch rows, that have another mask; only heads where each batch row is expected to."""
    planes = subject.allowed
    has_rows = expected is not None and (batch_rows(expected) or 1) > 1 and subject.cells.ndim == 4
    alike = len(planes) // subject.shape[0] if has_rows else len(planes)  # planes compared with their first one
    tally, different = _CellTally(), []
    for plane, cells in enumerate(planes):
        first = planes[plane - plane % alike]
        if not np.array_equal(cells, first):
            different.append(plane)
            tally.add(cells ^ first)
    if not different:
        return
    severity: Severity = "note"
    if expected is not None:
        row = expected.allowed(grid_rows(subject, np.arange(1)))
        severity = "error" if row.ndim == 2 or row.shape[-3] == 1 else "note"  # where it is the same for all heads
    names = ", ".join(subject.planes[plane] for plane in different[:5])
    names += f" and {len(different) - 5} more" if len(different) > 5 else ""
    verb = "differs" if len(different) == 1 else "differ"
    message = f"{names} {verb} from {subject.planes[different[0] - different[0] % alike]}, in {tally}"
    yield Finding("varies", severity, message, len(different), tuple(tally.cells))


def _dead_rows(subject: MaskGrid, expected: Expression) -> Iterator[Finding]:
    """Yield the fully masked rows; those that the expectation masks too are a note."""
    dead = ~np.any(subject.cells, axis=-1, keepdims=True)
    rows = np.flatnonzero(_in_any_plane(dead))
    if not rows.size:
        return
    grid = grid_rows(subject, rows)
    attends = np.any(expected.allowed(grid), axis=-1, keepdims=True) & word_queries(expected, grid)
    wrong = _in_any_plane(dead[..., rows, :] & attends)[:, 0]
    severity: Severity
    for severity, some, addition in (("error", rows[wrong], ""), ("note", rows[~wrong], ", as expected")):
        if some.size:
            who = "1 row is" if len(some) == 1 else f"{len(some)} rows are"
            message = f"{who} fully masked{addition}: {WHAT_BECOMES}"
            yield Finding("dead-row", severity, message, len(some), rows=tuple(some[:MOST_CELLS].tolist()))


# --- numbers -----------------------------------------------------------------------------------------------

_CLOSE = 1e-2  # −1e4 is −9984 in bfloat16


def audit_fills(subject: MaskGrid, dtype: str | None) -> Iterator[Finding]:
    """Yield findings about the forbidding values of an additive mask, in the type that a model computes in."""
    if subject.stored is None or subject.reading is None or not subject.reading.fills:
        return
    values, fills = subject.stored.values, subject.reading.fills

    def count(fill: float) -> int:
        return int((values == fill).sum())

    def stand_apart(fill: float, other: float) -> bool:
        """Whether two fills hide keys of two kinds, in masks that are concatenated: none of them was added twice.

        A key that `other` hides is then seen by some query, as padding is not, and no query has `fill` there.
        """
        of_fill, of_other, of_zero = ((values == number).any(axis=-2) for number in (fill, other, 0))
        return bool((of_other & of_zero).any() and not (of_fill & of_other).any())

    twice = [(fill, other) for fill in fills for other in fills if _is_twice(other, fill)]
    for fill, other in twice:
        if math.isinf(other) and not stand_apart(fill, other):  # what stays finite hides as well
            message = (
                f"{other:.5g} beside {fill:.5g} is {fill:.5g} added twice. Combine masks before they become numbers"
            )
            yield Finding("double-fill", "error", message, count(other))
    if len(fills) > 1 and len(twice) < len(fills) - 1:
        listed = ", ".join(f"{fill:.5g} ({count(fill)})" for fill in fills)
        message = f"forbidden cells hold different values: {listed}. Rows with several are masked unevenly"
        yield Finding("mixed-fill", "note", message, len(fills))
    for fill in fills:
        if dtype is not None and math.isfinite(fill) and fill < LEAST[dtype]:
            message = f"{fill:.5g} is beyond {dtype}, whose least number is {LEAST[dtype]:.5g}: there it becomes -inf"
            yield Finding("overflow", "error", message, count(fill))


def _is_twice(value: float, fill: float) -> bool:
    """Return whether a value is twice a fill; twice the least number of a type is infinite in it."""
    if math.isinf(value):
        return any(math.isclose(fill, least, rel_tol=1e-6) for least in LEAST.values())
    return math.isclose(value, 2 * fill, rel_tol=_CLOSE)
