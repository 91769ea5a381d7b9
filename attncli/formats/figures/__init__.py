"""Figures for a paper, drawn by matplotlib: PDF, PNG and SVG of a stated size, with their fonts in them.

Maps of heads have tokens along both axes (`maps.py`); any other view is drawn as a terminal shows it (`views.py`).
"""

from __future__ import annotations

import io
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attncli.errors import UsageError
from attncli.formats.figures.size import Size
from attncli.trace.trace import Trace
from attncli.trace.view import View

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.figure import Figure

    from attncli.formats.pictures import Drawing

_INK, _FAINT = "#1f2328", "#59636e"
_DPI = {"pdf": 600, "svg": 600, "png": 300}  # of what is not drawn as lines and letters: cells, and all of a png


def check_figures(output: Path | None = None, chosen: str = "") -> None:
    """Make sure that there is what draws figures, and a file for bytes that are no text.

    Args:
        output: the file, if one is given.
        chosen: the format, if it is one that is no text.

    Raises:
        UsageError: one of the two is missing.
    """
    if chosen and output is None:
        raise UsageError(f"--format {chosen} writes a file; say where with --output figure.{chosen}")
    if find_spec("matplotlib") is None:
        raise UsageError("figures need the matplotlib library: pip install 'attncli[figures]'")


def figure_of(trace: Trace, view: View | None = None, colormap: str = "viridis", size: Size | None = None) -> Figure:
    """Return the maps of every head of every layer of a trace as one figure.

    A row is a query, a column a key. Cells are squares; where there are more of them than a printer tells apart, each
    shows the largest weight of a block, and the figure says so. Masked cells are hatched; what is zero, NaN, infinite
    or beyond the range of colours has a mark. What is there of these is explained below the maps.

    Args:
        trace: what is drawn.
        view: which rows and columns, and how weights become colours; None is all of them.
        colormap: `viridis`, `cividis` or `gray`.
        size: of the figure; None is 3.3 inches wide for one head and 6.9 for several, and as high as it has to be.

    Returns:
        A figure that no pyplot knows: its `savefig` writes it, and its `axes` can be changed.

    Raises:
        UsageError: matplotlib is not installed, or so many maps do not fit the size.
        InputMismatchError: a wanted token does not exist, or none is left.
    """
    check_figures()
    import matplotlib

    from attncli.formats.figures.maps import draw_maps

    with matplotlib.rc_context(_settings()):
        return draw_maps(trace, view or View(), colormap, size)


def figure_of_views(drawings: Sequence[Drawing]) -> Figure:
    """Return views as a terminal shows them, one below the other, as one figure.

    Raises:
        InputError: there are more lines than a page has room for.
    """
    import matplotlib

    from attncli.formats.figures.views import draw_view

    with matplotlib.rc_context(_settings()):
        return draw_view(drawings)


def written(figure: Figure, form: str, title: str) -> bytes:
    """Return a figure as a file: its fonts embedded, and the same bytes whenever it is written.

    Args:
        figure: the figure.
        form: `pdf`, `png` or `svg`.
        title: of the document, for readers that show one.
    """
    import matplotlib

    metadata: dict[str, Any] = {"Title": title}
    if form != "png":
        metadata |= {"Creator": "attn", "CreationDate" if form == "pdf" else "Date": None}
    file = io.BytesIO()
    with matplotlib.rc_context(_settings()):
        figure.savefig(file, format=form, dpi=_DPI[form], metadata=metadata)
    return file.getvalue()


def _settings() -> dict[str, Any]:
    """Return settings that leave nothing to those of the user: matplotlib's own, and of fonts the outlines."""
    import matplotlib

    defaults = {name: value for name, value in matplotlib.rcParamsDefault.items() if not name.startswith("backend")}
    embedded = {"pdf.fonttype": 42, "svg.fonttype": "path", "svg.hashsalt": "attn"}
    words = {
        "font.size": 7,
        "axes.titlesize": 7,
        "axes.labelsize": 7,
        "xtick.labelsize": 7,
        "text.color": _INK,
        "axes.labelcolor": _INK,
    }
    words |= {"xtick.labelcolor": _INK, "ytick.labelcolor": _INK, "xtick.color": _FAINT, "ytick.color": _FAINT}
    legend = {
        "legend.frameon": False,
        "legend.fontsize": 7,
        "legend.handlelength": 1,
        "legend.columnspacing": 1,
        "legend.borderpad": 0,
    }
    lines = {"axes.linewidth": 0.4, "axes.edgecolor": _FAINT, "hatch.linewidth": 0.4, "xtick.major.size": 2}
    ticks = {"xtick.major.width": 0.4, "ytick.major.width": 0.4, "xtick.major.pad": 2, "ytick.major.pad": 2}
    places = {"axes.titlelocation": "left", "axes.titlepad": 2, "axes.labelpad": 1}
    return defaults | embedded | words | legend | lines | ticks | places
