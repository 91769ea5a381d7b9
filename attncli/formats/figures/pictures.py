"""Attention of heads in pictures, in one figure: each picture as it is, and under the weights of each head."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from attncli.errors import UsageError
from attncli.formats.figures import maps
from attncli.render.block import shortened
from attncli.render.components import Components
from attncli.render.palette import Palette
from attncli.render.picture import OWN, QUERY, Panel, canvases, grayed, overlay
from attncli.text import plural
from attncli.trace.trace import Trace
from attncli.trace.view import View

_LEAST, _ENOUGH = 0.35, 1.2  # inches of a panel: to find a cell in it, and from which on more of them are wanted
_TITLE = 2 * maps.FONT / maps.INCH  # inches of a panel's title, with the gap below it
_PIXELS = 400  # of the longer side of a panel


def draw_pictures(trace: Trace, view: View, colormap: str, size: tuple[float, float | None] | None) -> Figure:
    """Return the figure; see `attncli.formats.figures.figure_of`.

    Raises:
        UsageError: there is no room for the pictures.
    """
    look, palette = Components(trace, view, Palette(), None).look, Palette("truecolor", colormap)
    names = [maps.title_of(item, head) for item in filter(trace.has_images, trace.layers) for head in item.heads]
    look = replace(look, heads=[head._replace(name=name) for head, name in zip(look.heads, names, strict=True)])
    panels = [Panel(each, None, each.name) for each in canvases(look.layout, False) if each.picture is not None]
    panels += look.panels
    width, height = size or (maps.COLUMN if len(panels) == 2 else maps.PAGE, None)
    ratio = max(panel.canvas.size[1] / panel.canvas.size[0] for panel in panels)
    room = (height or maps.HIGH * width) - maps.KEY

    def wide(across: int) -> float:
        return min(width / across, (room / ceil(len(panels) / across) - _TITLE) / ratio)

    across = max(range(1, len(panels) + 1), key=lambda across: (min(wide(across), _ENOUGH), across))
    strips = ceil(len(panels) / across)
    figure = Figure((width, height or maps.HIGH * width), facecolor="white", layout="compressed")
    grid = figure.add_gridspec(strips, across)
    frame = "white" if colormap == "gray" else f"#{QUERY}"
    query = [position for position, mark in look.marks.items() if mark == OWN and position in look.layout.cells]
    for place, (canvas, head, name, _) in enumerate(panels):
        axes, share = figure.add_subplot(grid[divmod(place, across)]), _PIXELS / max(canvas.size)
        rows, columns = (max(round(side * share), 1) for side in reversed(canvas.size))
        pixels = canvas.pixels(rows, columns)
        if head is not None:
            name += look.share(head, canvas)
            lit = head.sampled(canvas.placed(rows, columns))
            pixels = overlay(pixels, *lit, look.scale, palette.rgb(), canvas.picture is not None)
            for cells in canvas.grids:
                for row, column in np.argwhere(np.isin(cells.positions, query)).tolist():
                    left, top, right, bottom = cells.cell_box(row, column, *canvas.size)
                    axes.add_patch(Rectangle((left, top), right - left, bottom - top, fill=False, edgecolor=frame))
        elif colormap == "gray":
            pixels = grayed(pixels)
        axes.imshow(pixels / 255, extent=(0, canvas.size[0], canvas.size[1], 0))
        axes.set(xticks=[], yticks=[])
        letters = int(width / across / maps.LETTER)
        axes.set_title(maps.in_font(shortened(name, letters, keeps_end=True)), parse_math=False)
    words = f"{trace.layers[0].measure} of {maps.in_font(look.title[0])}"
    entries = [(Patch(facecolor="black", edgecolor=frame), "the query's own cell")] * bool(query)
    notes = ["beside each head: its weight on the picture"] * look.has_shares
    notes += ["dark: masked, no number, or outside the grid", *look.facts]
    maps.add_key(figure, look.scale, maps.colors_of(colormap), words, entries, notes)
    maps.fit(figure, look.scale, None if height else strips * width / across * ratio)
    if min(max(axes.bbox.width, axes.bbox.height) for axes in figure.axes[:-1]) < _LEAST * figure.dpi:
        raise UsageError(
            f"{plural(len(panels), 'picture')} do not fit a figure of this size; choose with --layer and --head, or "
            "give a larger --size"
        )
    return figure
