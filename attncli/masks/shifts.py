"""The usual mistakes that explain many wrong cells at once: a window off by one, another alignment, a transpose."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import numpy as np

from attncli.attention import row_blocks
from attncli.errors import InputError
from attncli.masks.algebra import And, Atom, Expression, Not, Or
from attncli.masks.subject import Subject, rows_of

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
    windows = dict.fromkeys(_windows(expression))
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


def _windows(expression: Expression) -> list[Atom]:
    if isinstance(expression, And | Or):
        return [window for side in expression.sides for window in _windows(side)]
    if isinstance(expression, Not):
        return _windows(expression.inner)
    return [expression] if isinstance(expression, Atom) and expression.name == "window" else []


def _with(expression: Expression, old: Atom, new: Atom) -> Expression:
    if isinstance(expression, And | Or):
        return type(expression)(tuple(_with(side, old, new) for side in expression.sides))
    if isinstance(expression, Not):
        return Not(_with(expression.inner, old, new))
    return new if expression == old else expression
