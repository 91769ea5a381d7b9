"""Pictures of a page: their pixels, and the boxes of their cells."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.formats.page.packing import pack_pixels
from attncli.render.picture import canvases, facts_of, resized
from attncli.text import visible

if TYPE_CHECKING:
    from attncli.trace.trace import Trace

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
    """Yield the name of each block of pixels, and its content."""
    for number, picture in enumerate(trace.pictures):
        yield f"picture-{number}", pack_pixels(_pixels(picture.pixels))


def _pixels(pixels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    share = min(_LONGEST_SIDE / max(pixels.shape[:2]), 1)
    rows, columns = (max(round(size * share), 1) for size in pixels.shape[:2])
    return np.rint(resized(pixels, rows, columns)).astype(np.uint8)
