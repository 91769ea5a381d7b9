"""Where heads look in pictures, in one figure: each picture as it is, and under the weights of each head."""

from __future__ import annotations

import warnings

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from attncli.errors import UsageError
from attncli.formats.figures import maps
from attncli.formats.figures.fonts import Fonts
from attncli.formats.figures.size import INCH, Size
from attncli.render.components import Components
from attncli.render.palette import COLORMAPS, Palette, Scale
from attncli.render.picture import COVER, DARK, DIMMED, QUERY, Canvas, HeadLook, canvases, facts_of, grayed
from attncli.text import plural
from attncli.trace.trace import Trace
from attncli.trace.view import View

_LEAST = 24.0  # points of a panel, in which a cell can be found
_ENOUGH = 86.0  # points of a panel, from which on rather fewer strips are wanted than larger panels
_TITLE = 2 * maps.FONT  # of a panel, with the gap below it


def draw_pictures(trace: Trace, view: View, colormap: str, size: Size | None) -> Figure:
    """Return the figure; see `attncli.formats.figures.figure_of`.

    Raises:
        UsageError: there is no room for the pictures.
    """
    look = Components(trace, view, Palette(), None).look
    if not look.layout.grids:
        raise UsageError("--key without --query needs queries that are cells of a picture; add --query")
    colors = LinearSegmentedColormap.from_list(colormap, [f"#{stop}" for stop in COLORMAPS[colormap]])
    names = [maps.title_of(trace, layer, head) for layer in trace.layers if trace.looks(layer) for head in layer.heads]
    drawn = canvases(look.layout, not look.lacks_overviews)
    panels: list[tuple[Canvas, HeadLook | None]] = [
        (canvas, None) for canvas in canvases(look.layout, False) if canvas.picture is not None
    ]
    heads = [head._replace(name=name) for head, name in zip(look.heads, names, strict=True)]
    panels += [(canvas, head) for head in heads for canvas in drawn]
    size = size or Size(maps.COLUMN if len(panels) == 2 else maps.PAGE)
    tallest = max(canvas.size[1] / canvas.size[0] for canvas, _ in panels)
    across = _across(len(panels), tallest, size)
    strips = -(-len(panels) // across)
    high = strips * (size.width / across * tallest + _TITLE) + maps.KEY
    figure = Figure((size.width / INCH, (size.height or high) / INCH), facecolor="white", layout="compressed")
    grid, odd = figure.add_gridspec(strips, across), set[str]()
    frame = "white" if colormap == "gray" else f"#{QUERY}"
    for place, (canvas, head) in enumerate(panels):
        axes = figure.add_subplot(grid[divmod(place, across)])
        odd |= _draw(axes, canvas, head, look.scale, colors)
        if head is not None and look.query is not None:
            _mark(axes, canvas, look.query, frame)
        letters = int(size.width / across / (0.6 * maps.FONT))
        title = _title(canvas, head, letters, look.has_shares)
        fonts = Fonts.of([title])
        axes.set_title(fonts.escaped(title), fontproperties=fonts.of_size(maps.FONT), parse_math=False)
    fonts = Fonts.of([look.title[0]])
    relation = "of" if look.layout.role == "key" else "on"
    maps.add_bar(figure, look.scale, colors, f"{trace.layers[0].measure} {relation} {fonts.escaped(look.title[0])}")
    figure.axes[-1].xaxis.label.set(fontproperties=fonts.of_size(maps.FONT), parse_math=False)
    entries: list[maps.Entry] = []
    if look.query is not None:
        entries.append((Patch(facecolor="black", edgecolor=frame), "the query's own cell"))
    entries += maps.odd_entries(odd, colors)
    notes = ["beside each head: its weight on the picture"] * look.has_shares
    lit = (canvas.sampled(head, *canvas.cells)[1].all() for canvas in drawn for head in heads)
    notes += ["dark: masked, or outside the grid"] * (not all(lit))
    notes += ["the overview is drawn for one --head"] * look.lacks_overviews
    maps.add_words(figure, entries, [*notes, *facts_of(look.layout.grids)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that panels have collapsed: they are measured here
        figure.draw_without_rendering()
        if size.height is None:
            maps.fit_height(figure)
    panel = min(max(axes.bbox.width, axes.bbox.height) for axes in figure.axes[: len(panels)]) * INCH / figure.dpi
    if panel < _LEAST:
        raise UsageError(
            f"{plural(len(panels), 'picture')} do not fit a figure of this size; choose with --layer and --head, or "
            "give a larger --size"
        )
    return figure


def _across(count: int, tallest: float, size: Size) -> int:
    """Return how many panels stand side by side: as many as are large enough, or else so that they are largest."""
    room = (size.height or maps.HIGH * size.width) - maps.KEY

    def wide(across: int) -> float:
        return min(size.width / across, (room / -(-count // across) - _TITLE) / tallest)

    return max(range(1, count + 1), key=lambda across: (min(wide(across), _ENOUGH), across))


def _title(canvas: Canvas, head: HeadLook | None, letters: int, has_shares: bool) -> str:
    if head is not None:
        share = f" {canvas.share(head):.0%}" * has_shares
        return f"{head.name}{' overview' * canvas.is_overview}{share}"
    assert canvas.picture is not None
    return Palette().shortened(canvas.picture.name.rpartition("/")[2], letters, keeps_end=True)


def _draw(axes: Axes, canvas: Canvas, head: HeadLook | None, scale: Scale, colors: LinearSegmentedColormap) -> set[str]:
    """Draw a picture as it is, or under the weights of a head; return the words of the cells that are odd."""
    width, height = canvas.size
    whole = (0, width, height, 0)
    odd = set[str]()
    pixels = None if canvas.picture is None else canvas.picture.pixels / 255
    if head is None:
        assert pixels is not None
        axes.imshow(grayed(pixels) if colors.name == "gray" else pixels, extent=whole)
    else:
        axes.patch.set(**maps.HATCHED)
        if pixels is not None:
            _, is_lit = canvas.sampled(head, *pixels.shape[:2])
            axes.imshow(grayed(pixels) * np.where(is_lit, DIMMED, DARK)[..., None], extent=whole)
        for grid in canvas.grids:
            weights = head.weights[grid.positions]
            place = scale.placed(np.where(np.isfinite(weights), weights, 0))
            painted = np.asarray(colors(place))
            painted[..., 3] = 1 if pixels is None else COVER * place
            for mark, where in scale.odd(weights).items():
                if maps.MARKS[mark].color and where.any():
                    painted[where] = to_rgba(maps.MARKS[mark].color)
                    odd.add(maps.MARKS[mark].words)
            painted[~head.allowed[grid.positions], 3] = 0
            left, top, right, bottom = grid.box_in(width, height)
            axes.imshow(painted, extent=(left, right, bottom, top), interpolation="nearest")
    axes.set(xlim=(0, width), ylim=(height, 0), xticks=[], yticks=[], aspect="equal")
    return odd


def _mark(axes: Axes, canvas: Canvas, query: int, color: str) -> None:
    """Frame the cell that is the query itself."""
    for grid in canvas.grids:
        for row, column in np.argwhere(grid.positions == query).tolist():
            left, top, right, bottom = grid.cell_box(row, column, *canvas.size)
            axes.add_patch(Rectangle((left, top), right - left, bottom - top, fill=False, edgecolor=color))
