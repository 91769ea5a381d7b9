"""The pictures of a text under the weights of one head."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attncli.render.block import Bounds, join_facts
from attncli.render.explore.layer_view import LayerViewCache
from attncli.render.explore.pane import CellCursor, PaneContent
from attncli.render.matrix import titled
from attncli.render.palette import Palette, Scale
from attncli.render.picture import CHOSEN, OWN, HeadLook, PictureView

if TYPE_CHECKING:
    from attncli.trace.view import Ramp

_LEAST = 6  # columns of a picture


def large_picture(
    sight: LayerViewCache, cursor: CellCursor, ramp: Ramp | None, palette: Palette, label: str, room: Bounds
) -> PaneContent[int]:
    """Return the pictures as `attn inspect` draws them; the value at a place is a position."""
    layer, query, layout = sight.layer, cursor.query, sight.layout
    assert layout is not None
    (weights,), (allowed,) = sight.cells(cursor.head, range(query, query + 1))[1:3]
    cells = np.array([*layout.cells])
    look = HeadLook(str(layer.head_label(cursor.head)), weights, allowed)
    scale = Scale.up_to(float(np.nan_to_num(weights * allowed)[cells].max()), ramp)
    marks = {cursor.key: CHOSEN, query: OWN}
    view = PictureView(("", ""), [look], layout, marks, palette, scale, layer.derived is None, resized=sight.resized)
    panels = [each._replace(name=each.canvas.name, facts=()) for each in view.panels]
    tiles = view.tiling(panels, room, _LEAST, room.width)
    drawn = view.tiled(panels[: tiles.capacity], tiles)
    share = f"{float(weights[cells].sum()):.0%} on the picture" * view.has_shares
    facts = [label, layer.measure, view.heaviest(look, cells), share, titled("layer", layer.label)]
    title = join_facts(facts, room.width, palette, titled("head", layer.head_label(cursor.head)))
    return drawn._replace(title=title)
