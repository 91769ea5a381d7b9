"""Why the cell under the cursor has its weight, in a box: as many of the parts of `attn why` as it has room for."""

from __future__ import annotations

from collections.abc import Sequence

from rich.segment import Segment

from attncli.analysis.cell import AttentionCell, AttentionRow
from attncli.render.bars import TableFormat
from attncli.render.block import Block, block
from attncli.render.explore.head import CellCursor
from attncli.render.fit import Bounds, crop
from attncli.render.palette import BOLD, DIM, Palette
from attncli.render.why import dimensions, stages
from attncli.trace.layer import LayerTrace
from attncli.trace.trace import Trace

_LEAST_DIMENSIONS = 3  # lines of them; of fewer nobody sees what a product is made of


def why_box(trace: Trace, layer: LayerTrace, cursor: CellCursor, palette: Palette, room: Bounds) -> Block:
    """Return a cell taken apart: from q·k to what its weight carries, and the largest products that q·k sums up.

    What there is no room for is counted in the last line.
    """
    queries, keys = trace.sides(layer)
    query, key = queries[cursor.query], keys[cursor.key]
    sheet = TableFormat(palette, room.width)
    one = AttentionCell(AttentionRow(layer.head(cursor.head, [cursor.query]), query, keys), key)
    names = f"{sheet.named(query)} → {sheet.named(key)}"
    place = f" · layer {layer.layer}{'' if layer.kind == 'self' else f' {layer.kind}'} · head {cursor.head}"
    title = Segment(palette.fit(names), BOLD), Segment(palette.fit(place), DIM)
    parts = [block([title]), stages(one, TableFormat(palette, None))]  # of which a line is cut rather than folded
    if one.products is not None:
        # Its title, the line of those that are left out, and the sum.
        left = room.lines - sum(len(part.lines) for part in parts) - 1
        drawn = dimensions(one, one.products, max(left - 3, _LEAST_DIMENSIONS), sheet)
        parts.append(Block([[], *drawn.lines], drawn.width))
    lines = [_cut(line, room.width, palette) for part in parts for line in part.lines]
    if len(lines) > room.lines:
        more = f"{len(lines) - room.lines + 1} more lines, in a larger window"
        lines = [*lines[: room.lines - 1], _cut([Segment(more, DIM)], room.width, palette)]
    return crop(lines, room)


def _cut(line: Sequence[Segment], width: int, palette: Palette) -> list[Segment]:
    """Return a line, and where it is longer than there is room for an ellipsis at its end."""
    if Segment.get_line_length(list(line)) <= width:
        return list(line)
    ellipsis = palette.fit("…")
    return [*Segment.adjust_line_length(list(line), width - len(ellipsis)), Segment(ellipsis, DIM)]
