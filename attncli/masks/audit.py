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
from attncli.masks import MOST
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
from attncli.masks.findings import MOST_CELLS, Finding, error, in_batch, note
from attncli.masks.mask_grid import MaskGrid, MaskSize, grid_rows
from attncli.masks.recognition import Rule, RuleWithExceptions, Shape, rule_of
from attncli.text import plural

if TYPE_CHECKING:
    from jaxtyping import Bool

    Planes = Bool[np.ndarray, "*P Q K"]
    Allowed = Bool[np.ndarray, "#B #H #Q #K"]

# The code of a cell that is allowed against the expectation, by the atom that forbids it.
_CODES = {
    "causal": "leak", "window": "window", "band": "window", "dilated": "window", "global": "window",
    "docs": "document", "chunk": "document", "pad": "pad", "keys": "pad", "queries": "pad", "prefix": "pad",
}  # fmt: skip
_ONE_SIDED = {"window", "dilated"}  # they forbid the future as well
WHAT_BECOMES = "softmax gives NaN with -inf, a uniform row with finfo.min, and 0 in scaled_dot_product_attention"
_LEAST = 3  # queries; of fewer, a triangle is too small to be one
_LOOKING_BACK = {"causal", "window", "docs", "chunk", "dilated"}  # a query sees itself in each of them
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
        yield error("shape", f"one column for {queries} queries {message}", queries)
    elif shape != [queries, keys]:
        message = f"the mask is [{queries}, {keys}], expected [queries, keys] = {shape}"
        message += ". It is transposed" if [keys, queries] == shape else ""
        message += ". Broadcast, every query gets the same keys" if queries == 1 and keys == shape[1] else ""
        yield error("shape", message)
    if subject.reading is not None and subject.is_ambiguous:
        yield error("ambiguous", f"{subject.reading.why}. Use --for sdpa or --for mha to decide")
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
        rule = rule_of(subject.batched, past=subject.past)
        if rule.expression is None:  # rows with padding of their own follow one rule
            yield from _varies(subject, None)
        yield from intrinsic_findings(subject.batched, rule, subject.past)


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


def first_cells(where: Bool[np.ndarray, "Q K"]) -> tuple[tuple[int, int], ...]:
    """Return the first cells of those that a finding is about, as (query, key)."""
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
    cells_of = {code: first_cells(wrong[code]) for code in _MESSAGES if code in wrong}
    first = np.array(sorted({row for cells in cells_of.values() for row, _ in cells}))
    mistakes = (usual for usual in _mistakes(subject, expected) if _explains(usual, first))
    mistake = next(mistakes, _Mistake((), "", expected, subject))
    for code in {*mistake.codes} & {"shape", "broadcast"}:  # the cause of those below
        yield error(code, mistake.hint, sum(int(np.count_nonzero(cells)) for cells in wrong.values()))
    for code, cells in cells_of.items():
        count = int(np.count_nonzero(wrong[code]))
        message = f"{_MESSAGES[code]} in {plural(count, 'cell')}{in_batch(batch[code])}"
        message += f": {mistake.hint}" if code in mistake.codes else ""
        yield error(code, message, count, cells=cells)


class _Mistake(NamedTuple):
    """A usual mistake: the codes of the findings that it explains, and the expectation and the mask that it implies."""

    codes: tuple[str, ...]
    hint: str
    expected: Expression
    subject: MaskGrid


def _mistakes(subject: MaskGrid, expected: Expression) -> Iterator[_Mistake]:
    (queries, keys), causal = subject.shape[-2:], Atom("causal")
    of_cells = ("window", "missing", "leak")

    def changed(hint: str, old: Atom, new: Expression) -> _Mistake:
        return _Mistake(of_cells, hint, map_leaves(expected, lambda leaf: new if leaf == old else leaf), subject)

    windows = {*atoms_named("window", leaves(expected))}
    for window in windows if len(windows) == 1 else ():
        (width,) = window.arguments
        for other in {width + 1, max(width - 1, 1)} - {width}:
            hint = f"the window has {other} keys, not {width} ({other - width:+d})"
            yield changed(hint, window, Atom("window", (other,)))
    if queries == keys:
        hint = "the mask is the transpose of what is expected: queries and keys are swapped"
        yield _Mistake(("shape",), hint, expected, subject._replace(cells=subject.cells.swapaxes(-1, -2)))
    if causal in leaves(expected):
        hint, strict = "the diagonal is shifted by ", And((causal, Not(Atom("window", (1,)))))
        yield changed(hint + "+1, a query sees the key after itself", causal, Atom("band", (MOST, 1)))
        yield changed(hint + "-1, a query does not see itself", causal, strict)
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
    differs = {plane: cells ^ planes[plane - plane % alike] for plane, cells in enumerate(planes)}
    differs = {plane: cells for plane, cells in differs.items() if cells.any()}
    if not differs:
        return
    row = None if expected is None else expected.allowed(grid_rows(subject, np.arange(1)))
    is_same = row is not None and (row.ndim == 2 or row.shape[-3] == 1)  # for all heads
    where = np.logical_or.reduce([*differs.values()])
    names = ", ".join(subject.planes[plane] for plane in [*differs][:5])
    names += f" and {len(differs) - 5} more" if len(differs) > 5 else ""
    first, count = min(differs), int(where.sum())
    message = f"{names} {'differs' if len(differs) == 1 else 'differ'} from {subject.planes[first - first % alike]}"
    message += f", in {plural(count, 'cell')}"
    yield (error if is_same else note)("varies", message, len(differs), cells=first_cells(where))


def _dead_rows(subject: MaskGrid, expected: Expression) -> Iterator[Finding]:
    """Yield the fully masked rows; those that the expectation masks too are a note."""
    dead = ~np.any(subject.cells, axis=-1, keepdims=True)
    rows = np.flatnonzero(_in_any_plane(dead))
    if not rows.size:
        return
    grid = grid_rows(subject, rows)
    attends = np.any(expected.allowed(grid), axis=-1, keepdims=True) & word_queries(expected, grid)
    wrong = _in_any_plane(dead[..., rows, :] & attends)[:, 0]
    for finding, dead_rows, addition in ((error, rows[wrong], ""), (note, rows[~wrong], ", as expected")):
        if dead_rows.size:
            who = f"{plural(len(dead_rows), 'row')} {'is' if len(dead_rows) == 1 else 'are'}"
            listed = tuple(dead_rows[:MOST_CELLS].tolist())
            message = f"{who} fully masked{addition}: {WHAT_BECOMES}"
            yield finding("dead-row", message, len(dead_rows), rows=listed)


# --- without an expectation ----------------------------------------------------------------------------------


def intrinsic_findings(allowed: Allowed, rule: Rule, past: int, becomes: str = WHAT_BECOMES) -> Iterator[Finding]:
    """Yield the findings of a mask and its rule that need no expectation.

    `past` is the number of keys before the first query, `becomes` the output of a fully masked query in the program.
    """
    yield from _turned(rule)
    inverted = _inverted(allowed, rule)
    if inverted is not None:
        yield inverted
        return  # rows that see nothing follow from it
    laid = _laid_along_queries(rule)
    yield from _dead_queries(allowed, rule, becomes) if laid is None else [laid]
    if any(variant.past == 0 != past for variant in rule.variants):
        yield note(
            "shape", f"aligned top-left: query 0 sees key 0 alone, and not the {past} keys before the last queries"
        )


def _turned(rule: Rule) -> Iterator[Finding]:
    """Yield upper triangles, and causal masks whose diagonal is one key too far to the right."""
    _, _, queries, keys = rule.shape
    for variant in rule.variants if _LEAST <= queries == keys else ():
        expression = getattr(variant.expression, "inner", variant.expression)
        for band in atoms_named("band", conjuncts(expression) if expression else []):
            back, ahead = band.arguments
            if back == 0 and ahead >= keys - 1:
                message = "upper triangle: looks like a transposed causal mask"
                advice = "correct in a language model that reads backwards"
            elif (back, ahead) == (keys - 1, 1) and queries > _LEAST:
                message = "each query sees one key after itself: the diagonal of a causal mask is shifted by +1"
                advice = "correct with one key of lookahead, as in streaming speech"
            else:
                continue
            later = np.tri(keys, k=ahead, dtype=bool) & ~np.tri(keys, dtype=bool)
            message += "" if len(variant.rows) == rule.shape[0] else in_batch(variant.rows)
            yield note("leak", message, int(later.sum()), advice, cells=first_cells(later))


def _inverted(allowed: Allowed, rule: Rule) -> Finding | None:
    """Return that True and False are swapped, if the complement of a mask is a usual mask.

    Either no query sees itself, as padding may, and each does in the complement, which is a rule. Or rows of the
    batch see nothing, and in the complement every row has keys from its beginning, or up to its end.
    """
    batch, heads, queries, keys = rule.shape
    empty, swapped = ~rule.tokens.any(axis=1), ~rule.tokens
    if rule.expression is not None and empty.any() and swapped.any(axis=1).all() and _is_sorted(swapped):
        message = f"attends to padding only, so that rows without padding see nothing{in_batch(np.flatnonzero(empty))}"
        return error("leak", f"{message}: True and False are swapped", int(rule.tokens.sum()))
    if queries != keys or queries < _LEAST or rule.expression is not None:
        return None
    other = rule_of(~allowed, rule.shape, 0)
    atoms = leaves(*filter(None, [other.expression]))  # the complement of a window of 1 is a mask in use
    names = {leaf.name for leaf in atoms if isinstance(leaf, Atom) and leaf != Atom("window", (1,))}
    own_cells = (np.arange(keys) if side > 1 else np.zeros(keys, int) for side in allowed.shape[2:])
    sees_itself = np.any(allowed[:, :, *own_cells], axis=1)  # in some head
    if not names & _LOOKING_BACK or (sees_itself & other.tokens).any():
        return None
    count = int(np.count_nonzero(allowed)) * (batch * heads * queries * keys // allowed.size)
    return error("leak", f"attends only where {other.text} forbids: True and False are swapped", count)


def _is_sorted(rows: Bool[np.ndarray, "B N"]) -> bool:
    """Return whether every row begins with its True cells, or every row ends with them."""
    return bool((rows[:, :-1] >= rows[:, 1:]).all() or (rows[:, :-1] <= rows[:, 1:]).all())


def _laid_along_queries(rule: Rule) -> Finding | None:
    """Return that a padding mask hides whole queries at an end of their rows, and none of the keys there."""
    odd = rule.expression
    if not isinstance(odd, RuleWithExceptions) or odd.match.who != "some" or rule.shape[2] != rule.shape[3]:
        return None
    where = odd.match.where
    if where is None or rule.padded or not _is_sorted(where):
        return None
    if odd.match.rule != Atom("full") and (where == where[:1]).all():
        return None
    message = "padding hides whole queries, not keys: a mask of keys has the shape [batch, 1, 1, keys]"
    message += in_batch(np.flatnonzero(where.any(axis=1))) if len(where) > 1 else ""
    hidden = np.flatnonzero(where.any(axis=0))[:MOST_CELLS].tolist()
    return error("broadcast", message, int(where.sum()), rows=tuple(hidden))


def _dead_queries(allowed: Allowed, rule: Rule, becomes: str) -> Iterator[Finding]:
    """Yield the queries that see nothing in some head; those that are padding are a note."""
    batch, _, queries, keys = rule.shape
    dead = np.broadcast_to(np.any(~np.any(allowed, axis=-1), axis=1), (batch, queries))
    if not dead.any():
        return
    padding = np.zeros((batch, queries), bool)
    if queries == keys:
        padding = ~rule.tokens | (dead & ~np.any(allowed, axis=(1, 2)))  # a key that no query sees
    elif queries > 1:  # of another sequence, whose padding is at one of its ends, or of the last positions
        padding = dead & [[_is_sorted(row[None])] for row in dead]
    padding = padding & ~dead.all(axis=1, keepdims=True)  # a row whose queries are all fully masked is not padded
    if queries != keys:  # where some heads see keys that others do not, heads are blocks of positions, some all padding
        padding |= dead & np.any(allowed, axis=(1, 3))
    for finding, which, kind in ((error, dead & ~padding, ""), (note, dead & padding, "padding ")):
        hidden = np.flatnonzero(which.any(axis=0)).tolist()
        if hidden:
            message = f"{len(hidden)} {kind}{'query is' if len(hidden) == 1 else 'queries are'} fully masked"
            message += in_batch(np.flatnonzero(which.any(axis=1))) if batch > 1 else ""
            yield finding("dead-row", f"{message}: {becomes}", len(hidden), rows=tuple(hidden[:MOST_CELLS]))


# --- numbers -----------------------------------------------------------------------------------------------

_CLOSE = 1e-2  # −1e4 is −9984 in bfloat16


def audit_fills(subject: MaskGrid, dtype: str | None) -> Iterator[Finding]:
    """Yield findings about the forbidding values of an additive mask, in the type that a model computes in."""
    if subject.stored is None or subject.reading is None or not subject.reading.fills:
        return
    values, fills = subject.stored.values, subject.reading.fills
    counts = {fill: int((values == fill).sum()) for fill in fills}
    twice = [(fill, other) for fill in fills for other in fills if _is_twice(other, fill)]
    for fill, other in twice:
        of_fill, of_other, of_zero = ((values == number).any(axis=-2) for number in (fill, other, 0))
        # In masks that are concatenated, `other` hides keys that some query sees, and no query has `fill` there.
        stand_apart = (of_other & of_zero).any() and not (of_fill & of_other).any()
        if math.isinf(other) and not stand_apart:  # a number that stays finite hides as well
            message = f"{other:.5g} beside {fill:.5g} is {fill:.5g} added twice. "
            yield error("double-fill", f"{message}Combine masks before they become numbers", counts[other])
    if len(fills) > 1 and len(twice) < len(fills) - 1:
        listed = ", ".join(f"{fill:.5g} ({count})" for fill, count in counts.items())
        message = f"forbidden cells hold different values: {listed}. Rows with several are masked unevenly"
        yield note("mixed-fill", message, len(fills))
    least = -math.inf if dtype is None else LEAST[dtype]
    for fill in fills:
        if math.isfinite(fill) and fill < least:
            message = f"{fill:.5g} is beyond {dtype}, whose least number is {least:.5g}: there it becomes -inf"
            yield error("overflow", message, counts[fill])


def _is_twice(value: float, fill: float) -> bool:
    """Return whether a value is twice a fill; twice the least number of a type is infinite in it."""
    if math.isinf(value):
        return any(math.isclose(fill, least, rel_tol=1e-6) for least in LEAST.values())
    return math.isclose(value, 2 * fill, rel_tol=_CLOSE)
