"""Where heads look in a picture: the one that is looked at, large, and all heads of the layer, small."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from attncli.render.axes import titled
from attncli.render.explore.head import CellCursor
from attncli.render.explore.layer_view import LayerViewCache
from attncli.render.explore.pane import QUERY, PaneContent
from attncli.render.fit import Bounds, crop, join_facts
from attncli.render.heatmap import Extent
from attncli.render.legend import legend_line
from attncli.render.palette import Palette, Scale
from attncli.render.picture import CHOSEN, OWN, HeadLook, PictureView

if TYPE_CHECKING:
    from attncli.trace.view import Ramp

_LEAST = 6  # columns of a picture
_LEAST_WITH_LEGEND = 8  # lines of a room


def _view_of(sight: LayerViewCache, cursor: CellCursor, ramp: Ramp | None, palette: Palette) -> PictureView:
    """Return where the heads of a layer look from the query of the cursor, or how that differs."""
    layer, query, layout = sight.layer, cursor.query, sight.layout
    assert layout is not None
    rows = {head: sight.cells(head, range(query, query + 1)) for head in layer.heads}
    looks = [HeadLook(str(layer.head_label(head)), own.values[0], own.allowed[0]) for head, own in rows.items()]
    cells = [*layout.cells]
    highest = max(float(np.abs(np.nan_to_num(look.weights * look.allowed)[cells]).max()) for look in looks)
    scale = (Scale.up_to if sight.pair is None else Scale.around_zero)(highest, ramp)
    title = titled("layer", layer.label), f"{layer.measure} − held" if sight.pair else layer.measure
    marks, has_shares = {cursor.key: CHOSEN, query: OWN}, sight.pair is None and layer.derived is None
    return PictureView(title, looks, layout, marks, palette, scale, has_shares, (), sight.resized)


def large_picture(
    sight: LayerViewCache, cursor: CellCursor, ramp: Ramp | None, palette: Palette, room: Bounds, label: str = ""
) -> PaneContent[int]:
    """Return the pictures under the weights of the head of the cursor; what lies at a place of it is a position."""
    view, has_legend = _view_of(sight, cursor, ramp, palette), room.lines >= _LEAST_WITH_LEGEND
    look, cells = view.heads[sight.layer.heads.index(cursor.head)], np.array([*view.layout.cells])
    panels = [each._replace(name=each.canvas.name, facts=()) for each in replace(view, heads=[look]).panels]
    tiles = view.tiling(panels, Bounds(max(room.lines - 1 - has_legend, 1), room.width), _LEAST, room.width)
    drawn = view.hung(panels[: tiles.capacity], tiles)
    share = f"{float(look.weights[cells].sum()):.0%} on the picture" * view.has_shares
    facts = [label, view.title[1], view.heaviest(look, cells), share, view.title[0]]
    title = titled("head", sight.layer.head_label(cursor.head))
    lines = [join_facts(facts, room.width, palette, title), *drawn.block.lines]
    if has_legend:
        extent = Extent.of(look.weights[None, cells], look.allowed[None, cells])
        notes = [each for each in extent.notes_on(view.scale) if not each.startswith("·")]
        lines += [[]] * (room.lines - 1 - len(lines))
        lines.append(legend_line(view.scale, notes, palette, room.width, 2, palette.has_color))
    return PaneContent(crop(lines, room), lambda line, column: (drawn.at(line - 1, column) or (0, None))[1])


def small_pictures(
    sight: LayerViewCache, cursor: CellCursor, ramp: Ramp | None, palette: Palette, room: Bounds
) -> PaneContent[int]:
    """Return the heads of the layer, over the first picture; what lies at a place is a head."""
    view, heads = _view_of(sight, cursor, ramp, palette), sight.layer.heads
    place, panels = heads.index(cursor.head), view.panels[:: len(view.panels) // len(heads)]
    panels[place] = panels[place]._replace(name=QUERY + panels[place].name)
    tiles = view.tiling(panels, Bounds(max(room.lines - 1, 1), room.width), _LEAST, room.width)
    first = place // tiles.capacity * tiles.capacity
    shown = heads[first : first + tiles.capacity]
    drawn = view.hung(panels[first : first + tiles.capacity], tiles)
    counted = f"{shown[0]}–{shown[-1]} of {len(heads)} heads" * (len(shown) < len(heads))
    lines = [join_facts([counted, view.title[1]], room.width, palette, view.title[0]), *drawn.block.lines]

    def at(line: int, column: int) -> int | None:
        found = drawn.at(line - 1, column)
        return None if found is None else shown[found[0]]

    return PaneContent(crop(lines, room), at)
