"""Figures for a paper, drawn by matplotlib: PDF, PNG and SVG of a stated size, with their fonts in them.

Maps of heads have tokens along both axes (`maps.py`). Where keys are cells of pictures, these are drawn under the
weights (`pictures.py`).
"""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attncli.errors import UsageError, require
from attncli.text import visible
from attncli.trace.trace import Trace
from attncli.trace.view import View

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    Size = tuple[float, float | None]  # width and height, in inches; None is as high as its maps need

_DPI = {"pdf": 600, "svg": 600, "png": 300}  # of cells, and all of a png; lines and letters are vectors
_SIZE = re.compile(r"(\d{1,3}(?:\.\d*)?|\.\d+)(?:in)?(?:[x×](\d{1,3}(?:\.\d*)?|\.\d+)(?:in)?)?")


def parse_size(text: str) -> Size:
    """Return the width, and the height if there is one, of `3.3in` or `3.3inx2in`; UsageError for any other text."""
    match = _SIZE.fullmatch(text.strip().lower())
    width, height = (0.0 if side is None else float(side) for side in (match.groups() if match else (None, None)))
    if not all(1 <= side <= 100 for side in (width, height or 1)):
        raise UsageError(f"--size {visible(text)}: expected 1 to 100 inches: a width, 3.3in, or both sides, 3.3inx2in")
    return width, height or None


def check_figures(output: Path | None = None, chosen: str = "") -> None:
    """Check that matplotlib is installed, and that there is a file for bytes, in the format `chosen` if it is binary.

    Raises:
        UsageError: there is no file.
        LoadError: matplotlib is not installed.
    """
    if chosen and output is None:
        raise UsageError(f"--format {chosen} writes a file; give --output figure.{chosen}")
    require("a figure", "matplotlib")


def figure_of(trace: Trace, view: View | None = None, colormap: str = "viridis", size: Size | None = None) -> Figure:
    """Return the maps of every head of every layer of a trace as one figure.

    A row is a query, a column a key. Cells are squares; where there are more of them than a printer tells apart, each
    shows the largest weight of a block, and the figure notes it. Masked cells are hatched; zeros, NaN, infinities and
    numbers beyond the range of colours have marks, which are explained below the maps.

    Where keys are cells of pictures, these are drawn under the weights of one query instead: of the last one, or of a
    model that is not causal, of the class token.

    Args:
        trace: the trace.
        view: its rows and columns, and the scale from weights to colours; None is all of them.
        colormap: `viridis`, `cividis` or `gray`.
        size: of the figure; None is 3.3 inches wide for one head and 6.9 for several, and as high as it has to be.

    Returns:
        A figure outside of pyplot: its `savefig` writes it, and its `axes` can be changed.

    Raises:
        UsageError: matplotlib is not installed, or the maps do not fit the size.
        InputMismatchError: a wanted token does not exist, or none is left.
    """
    check_figures()
    import matplotlib

    from attncli.formats.figures.maps import draw_maps
    from attncli.formats.figures.pictures import draw_pictures

    draw = draw_pictures if trace.has_image_keys else draw_maps
    with matplotlib.rc_context(_settings()):
        return draw(trace, view or View(), colormap, size)


def written(figure: Figure, form: str, title: str) -> bytes:
    """Return a figure as a file: its fonts embedded, and the same bytes whenever it is written."""
    import matplotlib

    metadata: dict[str, Any] = {"Title": title}
    if form != "png":
        metadata |= {"Creator": "attn", "CreationDate" if form == "pdf" else "Date": None}
    file = io.BytesIO()
    with matplotlib.rc_context(_settings()):
        figure.savefig(file, format=form, dpi=_DPI[form], metadata=metadata)
    return file.getvalue()


_SETTINGS = {
    **dict.fromkeys(("font.size", "axes.titlesize", "axes.labelsize", "xtick.labelsize", "legend.fontsize"), 7),
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), "#1f2328"),
    **dict.fromkeys(("xtick.color", "ytick.color", "axes.edgecolor"), "#59636e"),
    **dict.fromkeys(("axes.linewidth", "hatch.linewidth", "xtick.major.width", "ytick.major.width"), 0.4),
    **dict.fromkeys(("axes.titlepad", "xtick.major.size", "xtick.major.pad", "ytick.major.pad"), 2),
    **dict.fromkeys(("axes.labelpad", "legend.handlelength", "legend.columnspacing"), 1),
    "axes.titlelocation": "left", "legend.frameon": False, "legend.borderpad": 0,
    "pdf.fonttype": 42, "svg.fonttype": "path", "svg.hashsalt": "attn",  # fonts are embedded, or outlines
}  # fmt: skip


def _settings() -> dict[str, Any]:
    """Return settings that leave nothing to those of the user: matplotlib's own, and ours."""
    import matplotlib

    defaults = {name: value for name, value in matplotlib.rcParamsDefault.items() if not name.startswith("backend")}
    return defaults | _SETTINGS
