"""Any view as a figure: its lines as a terminal shows them, in a font of one width, its colours behind them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from rich.segment import Segment
from rich.style import Style

from attncli.errors import InputError
from attncli.formats.figures.size import INCH
from attncli.formats.figures.words import MONOSPACED, Words
from attncli.formats.pictures import FAINT, THEME, Drawing, boxed_runs, stacked

if TYPE_CHECKING:
    from jaxtyping import Float

_FONT = 8.0
_LINE = 1.22 * _FONT
_MARGIN = 8.0
_TALLEST = 200  # inches: no reader shows a larger page of PDF
_HALVES = {"█": (0, 1), "▀": (0,), "▄": (1,)}  # which halves of a cell a block fills: from the top


class _Run(NamedTuple):
    """Some characters of one line.

    Attributes:
        line: the line.
        column: where they begin.
        width: how many cells they take.
        text: the characters.
        style: how they look.
    """

    line: int
    column: int
    width: int
    text: str
    style: Style


def draw_view(drawings: Sequence[Drawing]) -> Figure:
    """Return the figure of all views, one below the other.

    Raises:
        InputError: there are more lines than a page has room for.
    """
    lines = stacked(drawings)
    found = list(_runs_of(lines))
    words = Words.of((run.text for run in found), MONOSPACED)
    columns = max((run.column + run.width for run in found), default=1)
    cell = words.width("0", _FONT)
    width, height = (columns * cell + 2 * _MARGIN) / INCH, (len(lines) * _LINE + 2 * _MARGIN) / INCH
    if max(width, height) > _TALLEST:
        raise InputError(
            f"the view has {len(lines)} lines of {columns} cells, more than a page has room for; show less of it, or "
            "give svg or html"
        )
    figure = Figure(figsize=(width, height), facecolor=THEME.background_color.hex)
    left, high = _MARGIN / width / INCH, _MARGIN / height / INCH
    axes = figure.add_axes((left, high, 1 - 2 * left, 1 - 2 * high))
    axes.set(xlim=(0, columns), ylim=(len(lines), 0))
    axes.axis("off")
    axes.imshow(
        _painted(found, len(lines), columns), extent=(0, columns, len(lines), 0), aspect="auto", interpolation="nearest"
    )
    for run in found:
        if not (text := run.text.strip()) or run.text[0] in _HALVES:
            continue
        start = run.column + len(run.text) - len(run.text.lstrip())
        shown, size = words.written(text), _FONT
        if not text.isascii():  # which its own cells may have no room for
            room = (run.column + run.width - start) * cell
            size *= min(1, room / words.width(shown, _FONT))
        axes.text(
            start, run.line + 0.72, shown, color=_ink(run.style), parse_math=False, clip_on=False,
            fontproperties=words.font(size, "bold" if run.style.bold else "normal"),
        )  # fmt: skip
    return figure


def _runs_of(lines: Sequence[Sequence[Segment]]) -> Iterator[_Run]:
    """Yield what stands in the lines, in runs of one style; each block or line of a drawing stands in its own cell."""
    for line, segments in enumerate(lines):
        column = 0
        for segment in Segment.simplify(segments):
            for text, width, is_boxed in boxed_runs(segment.text):
                is_drawing = is_boxed and all("\u2500" <= each <= "\u259f" for each in text)
                for part, cells in [(each, 1) for each in text] if is_drawing else [(text, width)]:
                    yield _Run(line, column, cells, part, segment.style or Style.null())
                    column += cells


def _painted(found: Sequence[_Run], lines: int, columns: int) -> Float[np.ndarray, "L C N"]:
    """Return the colour behind each half of each cell, the upper one first; where there is none it is transparent."""
    painted = np.zeros((2 * lines, columns, 4))
    for run in found:
        cells = slice(run.column, run.column + run.width)
        if run.style.bgcolor is not None:
            painted[2 * run.line : 2 * run.line + 2, cells] = to_rgba(run.style.bgcolor.get_truecolor(THEME).hex)
        for half in _HALVES.get(run.text[:1], ()):
            painted[2 * run.line + half, cells] = to_rgba(_ink(run.style))
    return painted


def _ink(style: Style) -> str:
    """Return the colour of letters."""
    if style.dim:
        return FAINT
    return THEME.foreground_color.hex if style.color is None else style.color.get_truecolor(THEME).hex
