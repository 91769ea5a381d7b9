"""Where two masks differ, as counts and as a picture; what a check found, and where."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from rich.console import RenderableType
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from attncli.masks.comparison import Comparison
from attncli.masks.conventions import WRITTEN
from attncli.masks.findings import Finding
from attncli.masks.layout import Subject
from attncli.render.axes import Axis
from attncli.render.block import Block, beside, block, cell, flowing, stack
from attncli.render.findings import finding_lines, tally
from attncli.render.heatmap import pooling
from attncli.render.palette import BOLD, DIM, Palette

if TYPE_CHECKING:
    from jaxtyping import Bool, Int

# Cells of a comparison: neither allows, both do, one does, and a pooled cell in which each does somewhere.
_NEITHER, _BOTH, _FIRST, _SECOND, _EITHER = range(5)
_FIRST_STYLE = Style(color="#000000", bgcolor="#e69f00", bold=True)  # Okabe and Ito's orange and blue
_SECOND_STYLE = Style(color="#ffffff", bgcolor="#0072b2", bold=True)


def compared(comparison: Comparison, palette: Palette, room: int) -> Iterator[RenderableType]:
    """Yield where two masks differ, as counts and as a picture."""
    differing = comparison.count
    if not differing:
        yield Text(palette.fit(f"equal: {comparison.both.size} cells"))
        return
    rows = int((comparison.only_first | comparison.only_second).any(axis=1).sum())
    line = f"{differing} of {comparison.both.size} cells differ, in {rows} of {len(comparison.both)} rows"
    yield Text(palette.fit(line))
    yield _difference(comparison, palette, room)


def _difference(comparison: Comparison, palette: Palette, room: int) -> Block:
    """Return the picture of where two masks differ."""
    queries, keys = comparison.both.shape
    rows = Axis(("",) * queries, tuple(range(comparison.past, comparison.past + queries)))
    columns = Axis(("",) * keys, tuple(range(keys)))
    pool = pooling(rows, columns, room)
    codes = _pooled_codes(comparison, pool)
    width = 2 if codes.shape[1] * 2 <= room - rows.width - 1 else 1
    glyphs = _glyphs(width, palette)
    kept_rows, kept_columns = rows.pooled(pool[0]), columns.pooled(pool[1])
    lines = [kept_columns.ticks(width, palette)]
    lines += [[cell(glyphs[code][0], width, glyphs[code][1]) for code in row] for row in codes.tolist()]
    picture = beside([kept_rows.row_labels(1, palette), block(lines)], 1)
    return stack([picture, _key(comparison, codes, pool, palette, room)])


def _key(
    comparison: Comparison, codes: Int[np.ndarray, "R C"], pool: tuple[int, int], palette: Palette, room: int
) -> Block:
    """Return what the marks mean and how often they occur."""
    names = [palette.shortened(name, room - 20) for name in comparison.names]
    counts = [int(np.count_nonzero(cells)) for cells in (comparison.only_first, comparison.only_second)]
    glyphs = _glyphs(1, palette)
    said = [f"{'AB'[side]} only {names[side]}: {counts[side]}" for side in (0, 1)]
    said += [f"{glyphs[_BOTH][0]} both", f"{glyphs[_NEITHER][0]} neither"]
    said += ["X each somewhere"] if (codes == _EITHER).any() else []
    said += [palette.fit(f"a cell is {pool[0]}×{pool[1]}")] if pool != (1, 1) else []
    return flowing(([Segment(part, DIM)] for part in said), room)


def checked(
    subject: Subject, findings: Sequence[Finding], comparison: Comparison | None, palette: Palette, room: int
) -> Iterator[RenderableType]:
    """Yield what a check found, and where."""
    yield Text(palette.label(_read_as(subject)))
    if findings:
        yield finding_lines(findings, palette)
    if comparison is not None:
        names = (comparison.names[0], "expected")
        yield _difference(replace(comparison, names=names), palette, room)
    yield Text(tally(findings))


def _glyphs(width: int, palette: Palette) -> list[tuple[str, Style | None]]:
    colors = (_FIRST_STYLE, _SECOND_STYLE, BOLD) if palette.has_color else (BOLD, BOLD, BOLD)
    both = palette.fit("░")
    return [
        (palette.fit("·"), DIM),
        (both * width, DIM),
        ("A" * width, colors[0]),
        ("B" * width, colors[1]),
        ("X" * width, colors[2]),
    ]


def _pooled_codes(comparison: Comparison, pool: tuple[int, int]) -> Int[np.ndarray, "R C"]:
    only_first, only_second = _any(comparison.only_first, pool), _any(comparison.only_second, pool)
    codes = np.where(_any(comparison.both, pool), _BOTH, _NEITHER)
    codes[only_first] = _FIRST
    codes[only_second] = _SECOND
    codes[only_first & only_second] = _EITHER
    return codes


def _any(cells: Bool[np.ndarray, "Q K"], pool: tuple[int, int]) -> Bool[np.ndarray, "R C"]:
    if pool == (1, 1):
        return cells
    rows = [cells[start : start + pool[0]].any(axis=0) for start in range(0, len(cells), pool[0])]
    return np.logical_or.reduceat(np.array(rows), np.arange(0, cells.shape[1], pool[1]), axis=1)


def _read_as(subject: Subject) -> str:
    """Return what a mask is and how its values are read."""
    if subject.loaded is None or subject.reading is None:
        _, queries, keys = subject.allowed.shape
        return f"{subject.name} · {queries} queries × {keys} keys"
    said = f"{subject.name} · {subject.loaded.dtype or 'numbers'} {list(subject.shape)} · "
    if subject.reading.is_ambiguous:
        return said + "ambiguous"
    said += WRITTEN[subject.reading.convention]
    return said if subject.reading.is_nearer else f"{said} ({subject.reading.why})"  # a note says why it is nearer
