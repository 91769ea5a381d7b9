"""Checks of a mask: what it hides or shows by mistake, the usual reason for it, and the numbers it forbids with."""

from __future__ import annotations

import math
import operator
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
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

    Planes = Bool[np.ndarray, "*P Q K"]

# The code of a cell that is allowed against the expectation, by the atom that forbids it.
_CODES = {
    "causal": "leak", "window": "window", "band": "window", "dilated": "window", "global": "window",
    "docs": "document", "chunk": "document", "pad": "pad", "keys": "pad", "queries": "pad", "prefix": "pad",
}  # fmt: skip
_ONE_SIDED = {"window", "dilated"}  # they forbid the future as well
_MESSAGES = {
    "missing": "misses an allowed key",
    "leak": "attends to the future",
    "window": "attends outside the window",
    "document": "attends across a document boundary",
    "pad": "attends to padding",
}


def audit(subject: MaskGrid, expected: Expression | None, size: MaskSize) -> Iterator[Finding]:
    """Yield the findings of a mask against the expression and the size that are expected of it.

    None skips a check. An ambiguous mask yields the findings that hold in both readings.
    """
    queries, keys = subject.shape[-2:]
    shape = [size.queries or queries, size.keys or keys]
    if keys == 1 and queries > 1 and size.keys != 1:
        message = "applies to every key, so it masks queries. A mask of keys has the shape [1, keys]"
        yield Finding("shape", "error", f"one column for {queries} queries {message}", queries)
    elif shape != [queries, keys]:
        message = f"the mask is [{queries}, {keys}], expected [queries, keys] = {shape}"
        message += ". It is transposed" if [keys, queries] == shape else ""
        message += ". Broadcast, every query gets the same keys" if queries == 1 and keys == shape[1] else ""
        yield Finding("shape", "error", message)
    if subject.reading is not None and subject.is_ambiguous:
        yield Finding("ambiguous", "error", f"{subject.reading.why}. Use --for sdpa or --for mha to decide")
        yield from _varies(subject, None)
    elif expected is not None and shape == [queries, keys]:  # it applies to no mask of another size
        planes = expected.allowed(grid_rows(subject, np.arange(1))).shape[:-2]
        try:
            np.broadcast_shapes(planes, subject.shape[:-2])
        except ValueError:
            raise InputError(f"the mask has {subject.shape[-3]} heads, and the expected mask {planes[-1]}") from None
        yield from _varies(subject, expected)
        yield from _cells(subject, expected)
        yield from _dead_rows(subject, expected)
    else:
        cells = subject.cells.reshape((1,) * (4 - subject.cells.ndim) + subject.cells.shape)
        rule = rule_of(cells, shape_of(cells), subject.past)
        if rule.expression is None:  # rows with padding of their own follow one rule
            yield from _varies(subject, None)
        yield from intrinsic_findings(cells, rule, subject.past)


def audit_allowed(allowed: Bool[np.ndarray, "_ _ _ _"], shape: Shape, expected: Expression) -> Iterator[Finding]:
    """Yield the findings of a mask `[#B, #H, #Q, #K]` of attention of a shape, whose last query is at the last key.

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


# --- cells -------------------------------------------------------------------------------------------------


def _in_any_plane(cells: Planes) -> Bool[np.ndarray, "Q K"]:
    return np.any(cells, axis=tuple(range(cells.ndim - 2)))


def _first_cells(where: Bool[np.ndarray, "Q K"]) -> tuple[tuple[int, int], ...]:
    rows = np.flatnonzero(where.any(axis=1))[:MOST_CELLS]
    return tuple((int(rows[row]), key) for row, key in np.argwhere(where[rows])[:MOST_CELLS].tolist())


def _cells(subject: MaskGrid, expected: Expression) -> Iterator[Finding]:
    """Yield the cells that differ from the expectation; one counts once however many planes agree."""
    queries, keys = subject.shape[-2:]
    wrong: dict[str, Bool[np.ndarray, "Q K"]] = defaultdict(lambda: np.zeros((queries, keys), bool))
    batch: dict[str, set[int]] = defaultdict(set)
    for rows in row_blocks(np.arange(queries), subject.cells.size // queries):
        grid = grid_rows(subject, rows)
        wanted, block, counts = expected.allowed(grid), subject.cells[..., rows, :], word_queries(expected, grid)
        if not ((block != wanted) & counts).any():
            continue
        for code, cells in {"missing": wanted & ~block, **forbidden_by(expected, grid)}.items():
            differs = cells & counts & (True if code == "missing" else block)
            if differs.any():
                wrong[code][rows] |= _in_any_plane(differs)
                if differs.ndim == 4 and len(differs) > 1:
                    batch[code].update(np.flatnonzero(differs.any(axis=(1, 2, 3))).tolist())
    if not wrong:
        return
    cells_of = {code: _first_cells(wrong[code]) for code in _MESSAGES if code in wrong}
    first = np.array(sorted({row for cells in cells_of.values() for row, _ in cells}))
    mistakes = (usual for usual in _mistakes(subject, expected) if _explains(usual, first))
    mistake = next(mistakes, _Mistake((), "", expected, subject))
    for code in {*mistake.codes} & {"shape", "broadcast"}:  # the cause of those below
        yield Finding(code, "error", mistake.hint, sum(int(np.count_nonzero(cells)) for cells in wrong.values()))
    for code, cells in cells_of.items():
        count = int(np.count_nonzero(wrong[code]))
        message = f"{_MESSAGES[code]} in {count} cell{'s' * (count != 1)}{in_batch(batch[code])}"
        message += f": {mistake.hint}" if code in mistake.codes else ""
        yield Finding(code, "error", message, count, cells)


class _Mistake(NamedTuple):
    """A usual mistake: the codes of the findings that it explains, and the expectation and the mask that it implies."""

    codes: tuple[str, ...]
    hint: str
    expected: Expression
    subject: MaskGrid


class _AlongQueries(NamedTuple):
    """Padding that is laid along the queries by mistake: it hides queries, and no keys."""

    pad: Expression

    def allowed(self, grid: Grid) -> Bool[np.ndarray, " ..."]:
        """See `Expression.allowed`."""
        keys = self.pad.allowed(grid._replace(queries=np.zeros((1, 1), int)))
        return np.broadcast_to(keys[..., 0, grid.i[:, 0], None], (*keys.shape[:-2], len(grid.queries), grid.keys))


def _mistakes(subject: MaskGrid, expected: Expression) -> Iterator[_Mistake]:
    (queries, keys), causal = subject.shape[-2:], Atom("causal")
    of_cells = ("window", "missing", "leak")

    def changed(old: Atom, new: Expression) -> Expression:
        return map_leaves(expected, lambda leaf: new if leaf == old else leaf)

    windows = set(atoms_named("window", leaves(expected)))
    if len(windows) == 1:
        (window,) = windows
        (width,) = window.arguments
        for other in (width + 1, width - 1):
            if other:
                hint = f"the window has {other} keys, not {width} ({other - width:+d})"
                yield _Mistake(of_cells, hint, changed(window, Atom("window", (other,))), subject)
    if queries == keys:
        if any(map(is_padding, leaves(expected))):
            along = map_leaves(expected, lambda leaf: _AlongQueries(leaf) if is_padding(leaf) else leaf)
            yield _Mistake(("broadcast",), LAID_ALONG_QUERIES, along, subject)
        hint = "the mask is the transpose of what is expected: queries and keys are swapped"
        yield _Mistake(("shape",), hint, expected, subject._replace(cells=subject.cells.swapaxes(-1, -2)))
    if causal in leaves(expected):
        later, earlier = Atom("band", (MOST, 1)), And((causal, Not(Atom("window", (1,)))))
        hint = "the diagonal is shifted by "
        yield _Mistake(of_cells, hint + "+1, a query sees the key after itself", changed(causal, later), subject)
        yield _Mistake(of_cells, hint + "-1, a query does not see itself", changed(causal, earlier), subject)
    for past, side in ((0, "top-left"), (keys - queries, "bottom-right")):
        if past >= 0 and past != subject.past:
            hint = f"the mask is aligned {side} (past {past}), expected past {subject.past}"
            yield _Mistake(("shape",), hint, expected, subject._replace(past=past))


def _explains(mistake: _Mistake, wrong: np.ndarray[tuple[int], np.dtype[np.int_]]) -> bool:
    """Return whether a mistake explains every cell, trying the rows that are known to be wrong first."""
    subject, queries = mistake.subject, mistake.subject.shape[-2]
    with suppress(InputError):  # a mistake that does not fit at another alignment explains nothing
        for rows in (wrong, *row_blocks(np.arange(queries), subject.cells.size // queries)):
            grid = grid_rows(subject, rows)
            differs = subject.cells[..., rows, :] != mistake.expected.allowed(grid)
            if (differs & word_queries(mistake.expected, grid)).any():
                return False
        return True
    return False


# --- planes and rows ---------------------------------------------------------------------------------------


def _varies(subject: MaskGrid, expected: Expression | None) -> Iterator[Finding]:
    """Yield the heads, or batch rows, that have another mask; only heads where each batch row is expected to."""
    planes = subject.allowed
    has_rows = expected is not None and (batch_rows(expected) or 1) > 1 and subject.cells.ndim == 4
    alike = len(planes) // subject.shape[0] if has_rows else len(planes)  # planes compared with their first one
    differs = {plane: cells ^ planes[plane - plane % alike] for plane, cells in enumerate(planes) if plane % alike}
    differs = {plane: cells for plane, cells in differs.items() if cells.any()}
    if not differs:
        return
    severity: Severity = "note"
    if expected is not None:
        row = expected.allowed(grid_rows(subject, np.arange(1)))
        severity = "error" if row.ndim == 2 or row.shape[-3] == 1 else "note"  # where it is the same for all heads
    where = np.logical_or.reduce([*differs.values()])
    names = ", ".join(subject.planes[plane] for plane in [*differs][:5])
    names += f" and {len(differs) - 5} more" if len(differs) > 5 else ""
    verb, first, count = "differs" if len(differs) == 1 else "differ", next(iter(differs)), int(where.sum())
    message = f"{names} {verb} from {subject.planes[first - first % alike]}, in {count} cell{'s' * (count != 1)}"
    yield Finding("varies", severity, message, len(differs), _first_cells(where))


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
    for severity, dead_rows, addition in (("error", rows[wrong], ""), ("note", rows[~wrong], ", as expected")):
        if dead_rows.size:
            who = "1 row is" if len(dead_rows) == 1 else f"{len(dead_rows)} rows are"
            message = f"{who} fully masked{addition}: {WHAT_BECOMES}"
            yield Finding("dead-row", severity, message, len(dead_rows), rows=tuple(dead_rows[:MOST_CELLS].tolist()))


# --- numbers -----------------------------------------------------------------------------------------------

_CLOSE = 1e-2  # −1e4 is −9984 in bfloat16


def audit_fills(subject: MaskGrid, dtype: str | None) -> Iterator[Finding]:
    """Yield findings about the forbidding values of an additive mask, in the type that a model computes in."""
    if subject.stored is None or subject.reading is None or not subject.reading.fills:
        return
    values, fills = subject.stored.values, subject.reading.fills
    counts = {fill: int((values == fill).sum()) for fill in fills}

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
            yield Finding("double-fill", "error", message, counts[other])
    if len(fills) > 1 and len(twice) < len(fills) - 1:
        listed = ", ".join(f"{fill:.5g} ({count})" for fill, count in counts.items())
        message = f"forbidden cells hold different values: {listed}. Rows with several are masked unevenly"
        yield Finding("mixed-fill", "note", message, len(fills))
    for fill in fills:
        if dtype is not None and math.isfinite(fill) and fill < LEAST[dtype]:
            message = f"{fill:.5g} is beyond {dtype}, whose least number is {LEAST[dtype]:.5g}: there it becomes -inf"
            yield Finding("overflow", "error", message, counts[fill])


def _is_twice(value: float, fill: float) -> bool:
    """Return whether a value is twice a fill; twice the least number of a type is infinite in it."""
    if math.isinf(value):
        return any(math.isclose(fill, least, rel_tol=1e-6) for least in LEAST.values())
    return math.isclose(value, 2 * fill, rel_tol=_CLOSE)
