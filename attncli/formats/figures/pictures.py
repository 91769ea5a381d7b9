"""Attention of heads in pictures, in one figure: each picture as it is, and under the weights of each head."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from attncli.errors import UsageError
from attncli.formats.figures import maps
from attncli.formats.figures.fonts import Fonts
from attncli.formats.figures.size import INCH, Size
from attncli.render.components import Components
from attncli.render.palette import COLORMAPS, Palette, Scale
from attncli.render.picture import COVER, DARK, DIMMED, OWN, QUERY, Panel, canvases, grayed
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
    names = [maps.title_of(trace, item, head) for item in filter(trace.has_images, trace.layers) for head in item.heads]
    look = replace(look, heads=[head._replace(name=name) for head, name in zip(look.heads, names, strict=True)])
    panels = [Panel(each, None, each.name) for each in canvases(look.layout, False) if each.picture is not None]
    panels += look.panels
    size = size or Size(maps.COLUMN if len(panels) == 2 else maps.PAGE)
    tallest = max(panel.canvas.size[1] / panel.canvas.size[0] for panel in panels)
    across = _across(len(panels), tallest, size)
    strips = -(-len(panels) // across)
    high = strips * (size.width / across * tallest + _TITLE) + maps.KEY
    figure = Figure((size.width / INCH, (size.height or high) / INCH), facecolor="white", layout="compressed")
    grid = figure.add_gridspec(strips, across)
    frame = "white" if colormap == "gray" else f"#{QUERY}"
    own = next((place for place, mark in look.marks.items() if mark == OWN and place in look.layout.cells), None)
    for place, panel in enumerate(panels):
        axes = figure.add_subplot(grid[divmod(place, across)])
        _draw(axes, panel, look.scale, colors)
        if panel.head is None:
            letters = int(size.width / across / (0.6 * maps.FONT))
            title = Palette().shortened(panel.name, letters, keeps_end=True)
        else:
            title = panel.name + look.share(panel.head, panel.canvas)
            for rows in panel.canvas.grids if own is not None else ():
                for row, column in np.argwhere(rows.positions == own).tolist():
                    left, top, right, bottom = rows.cell_box(row, column, *panel.canvas.size)
                    axes.add_patch(Rectangle((left, top), right - left, bottom - top, fill=False, edgecolor=frame))
        fonts = Fonts.of([title])
        axes.set_title(fonts.escaped(title), fontproperties=fonts.of_size(maps.FONT), parse_math=False)
    fonts = Fonts.of([look.title[0]])
    relation = "of" if look.layout.role == "key" else "on"
    maps.add_bar(figure, look.scale, colors, f"{trace.layers[0].measure} {relation} {fonts.escaped(look.title[0])}")
    figure.axes[-1].xaxis.label.set(fontproperties=fonts.of_size(maps.FONT), parse_math=False)
    entries: list[maps.Entry] = [(Patch(facecolor="black", edgecolor=frame), "the query's own cell")] * (
        own is not None
    )
    notes = ["beside each head: its weight on the picture"] * look.has_shares
    maps.add_words(figure, entries, [*notes, "dark: masked, no number, or outside the grid", *look.facts])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that panels have collapsed: they are measured here
        figure.draw_without_rendering()
        if size.height is None:
            maps.fit_height(figure)
    least = min(max(axes.bbox.width, axes.bbox.height) for axes in figure.axes[: len(panels)]) * INCH / figure.dpi
    if least < _LEAST:
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


def _draw(axes: Axes, panel: Panel, scale: Scale, colors: LinearSegmentedColormap) -> None:
    """Draw a picture as it is, or under the weights of a head."""
    canvas, head, _, _ = panel
    width, height = canvas.size
    whole = (0, width, height, 0)
    pixels = None if canvas.picture is None else canvas.picture.pixels / 255
    if head is None:
        assert pixels is not None
        axes.imshow(grayed(pixels) if colors.name == "gray" else pixels, extent=whole)
    else:
        axes.patch.set(**maps.HATCHED)
        if pixels is not None:
            _, is_lit = head.sampled(canvas.placed(*pixels.shape[:2]))
            axes.imshow(grayed(pixels) * np.where(is_lit, DIMMED, DARK)[..., None], extent=whole)
        for grid in canvas.grids:
            weights, is_lit = head.sampled(grid.positions)
            place = scale.placed(weights)
            painted = np.asarray(colors(place))
            painted[..., 3] = (1 if pixels is None else COVER * place) * is_lit
            left, top, right, bottom = grid.box_in(width, height)
            axes.imshow(painted, extent=(left, right, bottom, top), interpolation="nearest")
    axes.set(xlim=(0, width), ylim=(height, 0), xticks=[], yticks=[], aspect="equal")
