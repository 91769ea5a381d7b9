"""Any view as a figure: its lines as a terminal shows them, in a font of one width, its colours behind them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from rich.segment import Segment
from rich.style import Style

from attncli.errors import InputError
from attncli.formats.figures.fonts import MONOSPACED, Fonts
from attncli.formats.figures.size import INCH
from attncli.formats.pictures import FAINT, THEME, Drawing, boxed_runs, stacked

_FONT = 8.0
_CELL, _LINE = 0.602 * _FONT, 1.22 * _FONT  # of DejaVu Sans Mono
_MARGIN = 8.0
_TALLEST = 200  # inches: no reader shows a larger page of PDF
_HALVES = {"█": (0, 1), "▀": (0,), "▄": (1,)}  # which halves of a cell a block fills: from the top


def draw_view(drawings: Sequence[Drawing]) -> Figure:
    """Return the figure of all views, one below the other.

    Raises:
        InputError: there are more lines than a page has room for.
    """
    lines = stacked(drawings)
    columns = max((sum(segment.cell_length for segment in line) for line in lines), default=1) or 1
    width, height = ((side + 2 * _MARGIN) / INCH for side in (columns * _CELL, len(lines) * _LINE))
    if max(width, height) > _TALLEST:
        raise InputError(
            f"the view has {len(lines)} lines of {columns} cells, more than a page holds; show less, or give svg or "
            "html"
        )
    figure = Figure(figsize=(width, height), facecolor=THEME.background_color.hex)
    left, low = _MARGIN / width / INCH, _MARGIN / height / INCH
    axes = figure.add_axes((left, low, 1 - 2 * left, 1 - 2 * low))
    axes.axis("off")
    painted = np.zeros((2 * len(lines), columns, 4))  # behind each half of each cell, the upper one first
    fonts = Fonts.of((segment.text for line in lines for segment in line), MONOSPACED)
    for row, line in enumerate(lines):
        column = 0
        for text, style, _ in Segment.simplify(line):
            for run, cells, _is_boxed in boxed_runs(text):
                _draw_run(painted[2 * row : 2 * row + 2, column : column + cells], run, style or Style())
                if run.strip() and run[0] not in _HALVES:
                    start = column + len(run) - len(run.lstrip())
                    font = fonts.of_size(_FONT, "bold" if style is not None and style.bold else "normal")
                    axes.text(
                        start, row + 0.72, fonts.escaped(run.strip()), color=_ink(style or Style()),
                        fontproperties=font, parse_math=False,
                    )  # fmt: skip
                column += cells
    axes.imshow(painted, extent=(0, columns, len(lines), 0), aspect="auto", interpolation="nearest")
    return figure


def _draw_run(painted: np.ndarray[tuple[int, ...], np.dtype[np.float64]], text: str, style: Style) -> None:
    """Paint the background of a run's characters, and the half-block characters."""
    if style.bgcolor is not None:
        painted[:] = to_rgba(style.bgcolor.get_truecolor(THEME).hex)
    for cell, character in enumerate(text if text[:1] in _HALVES else ""):
        for half in _HALVES.get(character, ()):
            painted[half, cell] = to_rgba(_ink(style))


def _ink(style: Style) -> str:
    """Return the colour of letters."""
    if style.dim:
        return FAINT
    return THEME.foreground_color.hex if style.color is None else style.color.get_truecolor(THEME).hex
