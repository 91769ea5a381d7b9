"""The cell under the cursor in words and numbers, what else a person should know of what is drawn, and why it is so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from rich.cells import cell_len
from rich.segment import Segment

from attncli.analysis.cell import AttentionCell, AttentionRow
from attncli.render.bars import TableFormat
from attncli.render.block import Block, block, hstack, in_words, stack
from attncli.render.explore.head import CellCursor
from attncli.render.explore.layer_view import LayerViewCache
from attncli.render.explore.pane import KEY, QUERY, focus
from attncli.render.fit import Bounds, crop, join_facts
from attncli.render.palette import BOLD, DIM, Palette
from attncli.render.sections import proof_line, what_ran
from attncli.render.why import dimensions, stages
from attncli.trace.layer import LayerTrace
from attncli.trace.trace import Trace

_LONGEST_TITLE = 40  # cells of what a model is called
_LEAST_DIMENSIONS = 3  # lines of them; of fewer nobody sees what a product is made of


def cell_line(sight: LayerViewCache, cursor: CellCursor, palette: Palette, room: Bounds) -> Block:
    """Return the cell in words and numbers, as many of them as a line has room for."""
    title, *facts = cell_facts(sight, cursor, palette)
    return crop([join_facts(facts, room.width, palette, title)], room)


def status_lines(
    sight: LayerViewCache | None, matters: str, remarks: Sequence[str], palette: Palette, room: Bounds
) -> Block:
    """Return what is wrong, what runs, and how far the numbers are proven, as much of it as there is room for.

    Of two lines what matters most has both, if it is too long for one.
    """
    facts = [palette.label(each) for each in (matters, *remarks)]
    first, *rest = in_words(facts[0], room.width)
    if rest and room.lines > 1:
        return crop([[Segment(first, DIM)], join_facts([" ".join(rest)], room.width, palette)], room)
    if sight is not None:
        facts += [proof_line(sight.layer, palette).plain] if sight.layer.proof else []
        title, *others = what_ran(sight.trace, palette).plain.split(" · ")
        facts += [palette.shortened(title, _LONGEST_TITLE, keeps_end=True), *others]
    return crop([join_facts(facts, room.width, palette)], room)


def cell_facts(sight: LayerViewCache, cursor: CellCursor, palette: Palette) -> Iterator[str]:
    """Yield which cell it is, and its numbers, what matters most first."""
    layer, (_, query, key) = sight.layer, cursor
    sheet = TableFormat(palette, None)
    queries, keys = sight.tokens
    named = [sheet.named(token) + sight.cell_name(token) for token in (queries[query], keys[key])]
    yield f"{QUERY} query " + named[0] + f" → {KEY} key " + named[1]
    head = layer.head(cursor.head, [query])
    weights, allowed = head.weights[0], head.mask[0]
    what = layer.measure.removesuffix("s")
    if sight.pair is not None:
        yield from _compared(sight, cursor, sheet)
    if not allowed[key] and not weights[key]:
        yield "masked"
        return
    yield f"{what} {sheet.number(weights[key])}"
    finite = np.where(np.isfinite(weights), weights, 0).astype(np.float64)
    if finite.sum() > 0 and np.isfinite(weights[key]):
        yield f"{100 * finite[key] / finite.sum():.3g} % of its row"
        yield f"rank {1 + int((finite > finite[key]).sum())} of {int((allowed | (weights != 0)).sum())}"
    if "scores" not in layer.missing:
        yield f"score {sheet.number(head.scores[0, key])}"


def _compared(sight: LayerViewCache, cursor: CellCursor, sheet: TableFormat) -> Iterator[str]:
    """Yield how the cell differs from the held one."""
    assert sight.pair is not None
    rows = {mine: held for held, mine in sight.pair.chosen}
    columns = {mine: held for held, mine in sight.pair.columns.pairs}
    if cursor.query not in rows or cursor.key not in columns:
        yield "nothing like it is held"
        return
    held = sight.pair.first.head(cursor.head, [rows[cursor.query]]).weights[0, columns[cursor.key]]
    change = float(sight.layer.head(cursor.head, [cursor.query]).weights[0, cursor.key]) - float(held)
    yield f"{'+' if change > 0 else ''}{sheet.number(change)} from {sheet.number(held)}"


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
    title = Segment(names, BOLD), Segment(place, DIM)
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


def help_page(parts: Mapping[str, Mapping[str, str]], palette: Palette, width: int) -> Block:
    """Return the keys by what they do, a part below the other, or in two columns where both have room."""
    margin = max(cell_len(keys) for part in parts.values() for keys in part.values()) + 2

    def row(does: str, keys: str) -> list[Segment]:
        return [Segment(f"{keys:<{margin}}", BOLD), Segment(does)]

    blocks = [
        block([[Segment(name, focus(palette))], *(row(*each) for each in part.items())]) for name, part in parts.items()
    ]
    whole = stack(blocks, 1)
    if 2 * whole.width + 4 > width:
        return whole
    lines = [len(stack(blocks[:count], 1).lines) for count in range(len(blocks))]
    half = next(count for count, before in enumerate(lines) if 2 * before >= len(whole.lines))
    return hstack([stack(blocks[:half], 1), stack(blocks[half:], 1)], 4)


def _cut(line: Sequence[Segment], width: int, palette: Palette) -> list[Segment]:
    """Return a line, and where it is longer than there is room for an ellipsis at its end."""
    if Segment.get_line_length(list(line)) <= width:
        return list(line)
    ellipsis = "…"
    return [*Segment.adjust_line_length(list(line), width - len(ellipsis)), Segment(ellipsis, DIM)]
