"""Checks of a mask: what it hides or shows by mistake, the usual reason for it, and the numbers it forbids with."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from attncli.attention import row_blocks
from attncli.errors import InputError
from attncli.masks.conventions import LEAST
from attncli.masks.expressions import And, Atom, Expression, Grid, Not, Or, conjuncts, leaves, named
from attncli.masks.findings import MOST_CELLS, Finding, Severity
from attncli.masks.layout import Size, Subject, rows_of

if TYPE_CHECKING:
    from jaxtyping import Bool, Int

_FURTHEST = 8  # keys that a window is looked for to either side
_MOST_WINDOWS = 8  # of an expectation whose windows are looked for; each is tried with all the others


def explained(subject: Subject, expected: Expression, wrong: list[int]) -> dict[str, str]:
    """Return what explains the wrong cells, by the code of the finding that it belongs to.

    Each is tried on the whole mask and named only where it explains every cell.

    Args:
        subject: the mask.
        expected: what it should say.
        wrong: some rows that are not as expected.
    """
    for changed, said in _other_windows(expected):
        if _is_laid_out(changed, subject, wrong):
            return dict.fromkeys(("window", "missing", "leak"), said)
    queries, keys = subject.allowed.shape[1:]
    transposed = subject._replace(allowed=subject.allowed.swapaxes(1, 2))
    if queries == keys and _is_laid_out(expected, transposed, wrong):
        return {"shape": "the mask is the transpose of what is expected: queries and keys are swapped"}
    for past, side in ((0, "top-left"), (keys - queries, "bottom-right")):
        if past >= 0 and past != subject.past and _is_laid_out(expected, subject._replace(past=past), wrong):
            return {"shape": f"the mask is aligned {side} (past {past}), expected past {subject.past}"}
    return {}


def _is_laid_out(expression: Expression, subject: Subject, wrong: list[int]) -> bool:
    """Return whether an expression is exactly a mask; the rows that are known to be wrong tell most apart."""
    planes, queries, keys = subject.allowed.shape
    blocks = [np.array(wrong), *row_blocks(np.arange(queries), planes * keys)]
    with suppress(InputError):  # what does not fit at another alignment explains nothing
        return all(
            (expression.allowed(rows_of(expression, subject, rows)) == subject.cells[..., rows, :]).all()
            for rows in blocks
        )
    return False


def _other_windows(expression: Expression) -> Iterator[tuple[Expression, str]]:
    """Yield the expression with a window of it wider or narrower, then shifted, the smallest change first."""
    windows = dict.fromkeys(named("window", leaves(expression)))
    if len(windows) > _MOST_WINDOWS:
        return
    for window in windows:
        width = window.arguments[0]
        steps = [sign * size for size in range(1, _FURTHEST + 1) for sign in (1, -1)]
        for step in steps:
            if width + step > 0:
                wider = Atom("window", (width + step,))
                yield _with(expression, window, wider), f"the window has {width + step} keys, not {width} ({step:+d})"
        for step in steps:
            moved = Atom("band", (width - 1 - step, step))
            yield _with(expression, window, moved), f"the window is shifted by {step:+d}"


def _with(expression: Expression, old: Atom, new: Atom) -> Expression:
    """Return the expression with `new` wherever it says `old`."""
    if isinstance(expression, And | Or):
        return type(expression)(tuple(_with(side, old, new) for side in expression.sides))
    if isinstance(expression, Not):
        return Not(_with(expression.inner, old, new))
    return new if expression == old else expression


# The code of a cell that is allowed and should not be, by the atom that forbids it.
_CODES = {
    "causal": "leak", "prefix": "leak", "window": "window", "band": "window", "dilated": "window", "global": "window",
    "docs": "document", "chunk": "document", "pad": "pad", "keys": "pad", "queries": "pad",
}  # fmt: skip
_ONE_SIDED = {"window", "dilated"}  # they forbid the future as well

_ROUNDING = {"float16": 2**-10, "bfloat16": 2**-7}
_SCORES_APART = 4.0

_SAYS = {
    "leak": "attends to the future",
    "window": "attends outside the window",
    "document": "attends across a document boundary",
    "pad": "attends to padding",
    "missing": "misses an allowed key",
}


@dataclass
class _Place:
    """Cells of one kind: how many, and where the first ones are."""

    count: int = 0
    cells: list[tuple[int, int]] = field(default_factory=list)

    def add(self, where: Bool[np.ndarray, "Q K"], first_row: int) -> None:
        found = int(np.count_nonzero(where))
        self.count += found
        room = MOST_CELLS - len(self.cells)
        if found and room:
            rows = np.flatnonzero(where.any(axis=1))[:room]
            cells = np.argwhere(where[rows])[:room].tolist()
            self.cells += [(int(rows[row]) + first_row, column) for row, column in cells]


def audit(subject: Subject, expected: Expression | None, size: Size) -> Iterator[Finding]:
    """Yield what is wrong with a mask; of one that could mean either, what is wrong whatever it means.

    Args:
        subject: the mask.
        expected: what it should say; None is not known.
        size: how many queries and keys it should have; None is not known.
    """
    yield from _shape(subject, size)
    yield from _ambiguous(subject)
    if _is_misshapen(subject, size):
        expected = None  # it says nothing of a mask of another size
    yield from _varies(subject, expected)
    if expected is not None:
        yield from _cells(subject, expected)
    if expected is not None or subject.reading is None or not subject.reading.is_ambiguous:
        yield from _dead_rows(subject, expected)


def forbidden_by(expression: Expression, grid: Grid) -> dict[str, Bool[np.ndarray, ...]]:
    """Return the cells that an expression forbids, by the code of the part that does."""
    is_future = grid.j > grid.i
    merged: dict[str, Bool[np.ndarray, ...]] = {}
    for part in conjuncts(expression):
        first = part.sides[0] if isinstance(part, Or) else part
        atom = first.name if isinstance(first, Atom) else ""
        code = _CODES.get(atom, "leak")
        forbidden = ~part.allowed(grid)
        by_code = {code: forbidden}
        if atom in _ONE_SIDED:
            by_code = {"leak": forbidden & is_future, code: forbidden & ~is_future}
        for code, cells in by_code.items():
            merged[code] = merged[code] | cells if code in merged else cells
    return merged


# --- cells -------------------------------------------------------------------------------------------------


def _cells(subject: Subject, expected: Expression) -> Iterator[Finding]:
    """Yield what differs from the expectation, in any plane; a cell counts once however many planes agree."""
    queries, keys = subject.allowed.shape[1:]
    places: dict[str, _Place] = {}
    for rows in row_blocks(np.arange(queries), keys * len(subject.allowed)):
        grid = rows_of(expected, subject, rows)
        wanted = expected.allowed(grid)
        block = subject.cells[..., rows[0] : rows[-1] + 1, :]
        if (block == wanted).all():
            continue
        places.setdefault("missing", _Place()).add(_in_any_plane(~block & wanted), int(rows[0]))
        for code, forbidden in forbidden_by(expected, grid).items():
            places.setdefault(code, _Place()).add(_in_any_plane(block & forbidden), int(rows[0]))
    found = {code: place for code, place in places.items() if place.count}
    if not found:
        return
    wrong = sorted({row for place in found.values() for row, _ in place.cells})
    hints = explained(subject, expected, wrong)
    for code, place in found.items():
        hint = f": {hints[code]}" if code in hints else ""
        yield Finding(code, "error", f"{_SAYS[code]} in {_in_words(place)}{hint}", place.count, tuple(place.cells))
    if "shape" in hints:
        yield Finding("shape", "error", hints["shape"], sum(place.count for place in found.values()))


def _in_words(place: _Place) -> str:
    return "1 cell" if place.count == 1 else f"{place.count} cells"


def _in_any_plane(cells: Bool[np.ndarray, "*P Q K"]) -> Bool[np.ndarray, "Q K"]:
    planes: Bool[np.ndarray, "P Q K"] = cells.reshape(-1, *cells.shape[-2:])
    return np.any(planes, axis=0)


# --- shape, planes, rows -----------------------------------------------------------------------------------


def _is_misshapen(subject: Subject, size: Size) -> bool:
    queries, keys = subject.allowed.shape[1:]
    return (size.queries or queries) != queries or (size.keys or keys) != keys


def _shape(subject: Subject, size: Size) -> Iterator[Finding]:
    queries, keys = subject.allowed.shape[1:]
    if keys == 1 and queries > 1 and size.keys != 1:
        message = (
            f"one column for {queries} queries is the same for every key once it is broadcast: it says which queries "
            "attend, not which keys are attended; a mask of keys has shape [1, keys]"
        )
        yield Finding("shape", "error", message, queries)
    elif _is_misshapen(subject, size):
        wanted = [size.queries or queries, size.keys or keys]
        said = f"the mask is [{queries}, {keys}], expected [queries, keys] = {wanted}"
        if [keys, queries] == wanted:
            said += "; it is transposed"
        elif queries == 1 and keys == wanted[1]:
            said += "; broadcast, every query gets the same keys"
        yield Finding("shape", "error", said)


def _ambiguous(subject: Subject) -> Iterator[Finding]:
    """Yield that what True means is not known: an error, or a note where one reading is at least the nearer one."""
    reading = subject.reading
    if reading is not None and (reading.is_ambiguous or reading.is_nearer):
        severity: Severity = "note" if reading.is_nearer else "error"
        said = f"read as True = {reading.convention}: {reading.why}" if reading.is_nearer else reading.why
        yield Finding("ambiguous", severity, f"{said}; --for sdpa or --for mha decides")


def _varies(subject: Subject, expected: Expression | None) -> Iterator[Finding]:
    different = [plane for plane in range(1, len(subject.allowed)) if _cells_apart(subject, plane)]
    if different:
        where = np.any([subject.allowed[plane] ^ subject.allowed[0] for plane in different], axis=0)
        place = _Place()
        place.add(where, 0)
        names = ", ".join(subject.planes[plane] for plane in different[:5])
        names += f" and {len(different) - 5} more" if len(different) > 5 else ""
        verb = "differs" if len(different) == 1 else "differ"
        yield Finding(
            "varies",
            "error" if expected is not None and _is_one_plane(expected, subject) else "note",
            f"{names} {verb} from {subject.planes[0]}, in {_in_words(place)}",
            len(different),
            tuple(place.cells),
        )


def _is_one_plane(expected: Expression, subject: Subject) -> bool:
    """Return whether an expectation is the same for all heads."""
    row = expected.allowed(rows_of(expected, subject, np.arange(1)))
    return row.ndim == 2 or len(row) == 1


def _cells_apart(subject: Subject, plane: int) -> bool:
    return not np.array_equal(subject.allowed[plane], subject.allowed[0])


def _dead_rows(subject: Subject, expected: Expression | None) -> Iterator[Finding]:
    """Yield the fully masked rows; those that the expectation masks too are a note."""
    dead = ~np.any(subject.cells, axis=-1, keepdims=True)
    rows = np.flatnonzero(_in_any_plane(dead))
    if not rows.size:
        return
    wanted: Bool[np.ndarray, " R"] = np.zeros(len(rows), bool)
    if expected is not None:
        attends = expected.allowed(rows_of(expected, subject, rows)).any(axis=-1, keepdims=True)
        wanted = ~_in_any_plane(dead[..., rows, :] & attends)[:, 0]
    if not wanted.all():
        yield _dead(subject, "error", rows[~wanted], "")
    if wanted.any():
        yield _dead(subject, "note", rows[wanted], ", as --expect has it")


def _dead(subject: Subject, severity: Severity, rows: Int[np.ndarray, " R"], addition: str) -> Finding:
    who = "1 row is" if len(rows) == 1 else f"{len(rows)} rows are"
    message = f"{who} fully masked{addition}: {_becomes(subject)}"
    return Finding("dead-row", severity, message, len(rows), rows=tuple(rows[:MOST_CELLS].tolist()))


def _becomes(subject: Subject) -> str:
    """Return what the APIs make of a fully masked row."""
    fills = () if subject.reading is None else subject.reading.fills
    if not fills:
        return "softmax over −inf gives NaN, finfo.min a uniform row that looks fine, scaled_dot_product_attention 0"
    if fills == (-np.inf,):
        return "softmax over −inf gives NaN, scaled_dot_product_attention 0"
    # A fill hides the scores in its own rounding where neighbouring numbers of its size are further apart than scores.
    dtype = "" if subject.loaded is None else subject.loaded.dtype
    if -max(fills) * _ROUNDING.get(dtype or "", 2**-23) < _SCORES_APART:
        return f"{max(fills):g} added to every score of a row changes no weight: it attends as if nothing were masked"
    return "adding this fill rounds every score away, so the row is uniform over all keys, which looks fine"


_CLOSE = 1e-2  # −1e4 is −9984 in bfloat16


def audit_fills(subject: Subject, dtype: str | None) -> Iterator[Finding]:
    """Yield what is wrong with the forbidding values of an additive mask.

    Args:
        subject: the mask.
        dtype: the type that the model computes in; None is the file's own.
    """
    if subject.reading is None or not subject.reading.fills:
        return
    fills = subject.reading.fills
    twice = [(fill, other) for fill in fills for other in fills if _is_twice(other, fill)]
    for fill, other in twice:
        message = f"{other:.5g} beside {fill:.5g} is {fill:.5g} added twice; combine masks before they become numbers"
        yield Finding("double-fill", "error", message, _count(subject, other))
    if len(fills) > 1 and len(twice) < len(fills) - 1:
        listed = ", ".join(f"{fill:.5g} ({_count(subject, fill)})" for fill in fills)
        message = f"forbidden cells hold different values: {listed}; a row of both is not masked evenly"
        yield Finding("mixed-fill", "error", message, len(fills))
    if dtype is None:
        return
    beyond = [fill for fill in fills if math.isfinite(fill) and fill < LEAST[dtype]]
    for fill in beyond:
        message = f"{fill:.5g} is beyond {dtype}, whose least number is {LEAST[dtype]:.5g}: there it becomes -inf"
        yield Finding("overflow", "error", message, _count(subject, fill))


def _is_twice(value: float, fill: float) -> bool:
    """Return whether a value is a fill added to itself, in the type whose least number the fill may be."""
    if math.isinf(value):
        return any(math.isclose(fill, least, rel_tol=1e-6) for least in LEAST.values())
    return math.isclose(value, 2 * fill, rel_tol=_CLOSE)


def _count(subject: Subject, fill: float) -> int:
    assert subject.loaded is not None
    return int((subject.loaded.values == fill).sum())
