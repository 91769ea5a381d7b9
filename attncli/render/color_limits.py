"""Which weights stand at the ends of the colours of a layer's maps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from attncli.render.palette import Scale
from attncli.trace.top_keys import drawn_cells

if TYPE_CHECKING:
    from attncli.render.heatmap import Heatmap
    from attncli.trace.layer import HeadTrace, LayerTrace
    from attncli.trace.trace import Trace
    from attncli.trace.view import Columns, View

_MOST = 2**26  # cells that are looked at for their largest; more of them take seconds


def scale_of_layer(trace: Trace, view: View, layer: LayerTrace, pictures: Mapping[int, Heatmap]) -> Scale:
    """Return which weight each colour of the maps of some heads stands for.

    The ends are those of all rows and columns: the ones that are chosen keep the colours that they have among them.
    Where finding these ends would take seconds, rows that are chosen have colours up to 1, which no weight exceeds.
    """
    whole, shown = view.unselected.cells(trace, layer), view.cells(trace, layer)
    if (whole.rows, whole.columns) == (shown.rows, shown.columns):
        highest = [picture.extent.highest for picture in pictures.values()]
    elif len(whole.rows) * len(whole.columns) * len(pictures) > _MOST and layer.weights is None:
        highest = [1.0]
    else:
        highest = [largest_weight(layer.head(head, whole.rows), whole.of_columns) for head in pictures]
    return Scale.up_to(max(highest, default=0.0), view.ramp)


def largest_weight(head: HeadTrace, columns: Columns) -> float:
    """Return the largest finite weight of a head, of the keys that count, or 0.

    No softmax gives more than 1: once that is reached, as it is in the first row under a causal mask, no further rows
    are derived.
    """
    found = 0.0
    for block in head.blocks():
        weights = block.weights[:, columns]
        counted = drawn_cells(block)[:, columns] & np.isfinite(weights)
        found = float(weights.max(initial=found, where=counted))
        if found == 1 and head.layer.weights is None:
            break
    return found
