"""What a page holds of pictures: their pixels, which cells lie where in them, and the cell that it opens at."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.formats.page.packing import pack_pixels
from attncli.render.components import Components
from attncli.render.palette import Palette
from attncli.render.picture import canvases, facts_of, resized
from attncli.text import visible

if TYPE_CHECKING:
    from attncli.trace.trace import Trace
    from attncli.trace.view import View

_LONGEST_SIDE = 512  # pixels of a picture: at most a megabyte of the page each


def picture_document(trace: Trace) -> dict[str, Any]:
    """Return which pictures there are, and where the keys that are cells lie in them."""
    layout = trace.layout("key")
    drawn = canvases(layout, has_overview=True)
    return {
        "pictures": [
            {"name": visible(picture.name), "pixels": _pixels(picture.pixels).shape[1::-1]}
            for picture in trace.pictures
        ],
        "canvases": [
            {
                "picture": None if canvas.picture is None else canvas.number,
                "size": canvas.size,
                "overview": canvas.is_overview,
                "grids": [
                    {
                        "box": grid.box_in(*canvas.size),
                        "rows": grid.rows,
                        "columns": grid.columns,
                        "positions": grid.positions.ravel().tolist(),
                        "queries": grid.side == "both",
                    }
                    for grid in canvas.grids
                ],
            }
            for canvas in drawn
        ],
        "facts": [visible(fact) for fact in facts_of(layout.grids)],
    }


def picture_blocks(trace: Trace) -> Iterator[tuple[str, Iterator[str]]]:
    """Yield the name of each block of pixels, and what is in it."""
    for number, picture in enumerate(trace.pictures):
        yield f"picture-{number}", pack_pixels(_pixels(picture.pixels))


def _pixels(pixels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    share = min(_LONGEST_SIDE / max(pixels.shape[:2]), 1)
    rows, columns = (max(round(size * share), 1) for size in pixels.shape[:2])
    return np.rint(resized(pixels, rows, columns)).astype(np.uint8)


def telling_cell(trace: Trace, view: View) -> dict[str, int]:
    """Return the query that says most, and of it the head that gives most to one cell.

    It is the last word of a causal model; in others the first token that is no cell, or the middle one.
    """
    components = Components(trace, view, Palette(), None)
    frame = next(frame for frame in components.frames if trace.looks(frame.layer))
    of_queries, rows = trace.layout("query").cells, frame.cells.rows
    others = [row for row, position in enumerate(rows) if position not in of_queries] or [len(rows) // 2]
    row = others[-1 if frame.is_causal else 0]
    cells = list(trace.layout("key").cells)
    found = {
        (place, head): float(np.nan_to_num(layer.head(head, [rows[row]]).weights[0, cells]).max())
        for place, layer in enumerate(trace.layers)
        if trace.looks(layer)
        for head in layer.heads
    }
    place, head = max(found, key=found.__getitem__)
    return {"place": place, "head": head, "row": row}
