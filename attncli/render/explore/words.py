"""The explorer's panes of words: the sentence on the colours of its weights, the cell, the status, and the why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich.segment import Segment

from attncli.analysis.cell import AttentionCell, AttentionRow
from attncli.render.bars import TableFormat
from attncli.render.block import Block, Bounds, block, crop, join_facts
from attncli.render.explore.layer_view import LayerViewCache
from attncli.render.explore.pane import KEY, QUERY, CellCursor, PaneContent
from attncli.render.palette import DIM, Palette
from attncli.render.sections import proof_line, what_ran
from attncli.render.sentence import SentenceLine, sentence
from attncli.render.why import dimensions, stages
from attncli.text import visible

if TYPE_CHECKING:
    from attncli.trace.view import Ramp

_LEAST_DIMENSIONS = 3  # lines of the products of q·k
_MOST_LINES = 2  # of the sentence


def tokens(sight: LayerViewCache, cursor: CellCursor, ramp: Ramp | None, palette: Palette, room: Bounds) -> PaneContent:
    """Return the keys on the colours of the weights of the cursor's query."""
    queries, keys = sight.tokens
    cells = sight.cells(cursor.head, range(cursor.query, cursor.query + 1))
    line = SentenceLine("", cells.values[0], cells.allowed[0])
    marks = {cursor.key: KEY} | ({cursor.query: QUERY} if queries == keys else {})
    drawn = sentence(keys, [line], palette, sight.scale(ramp), room.width, marks, _MOST_LINES)
    facts = [f"{QUERY} query {KEY} key", f"each key on the colour of its {sight.layer.measure.removesuffix('s')}"]
    return PaneContent(drawn, join_facts(facts, room.width, "sentence"))


def cell_line(sight: LayerViewCache, cursor: CellCursor, palette: Palette, room: Bounds) -> PaneContent:
    """Return the cell of the cursor in words and numbers, as many as a line has room for."""
    name, *facts = _cell_facts(sight, cursor, palette)
    return PaneContent(crop([join_facts(facts, room.width, name)], room))


def _cell_facts(sight: LayerViewCache, cursor: CellCursor, palette: Palette) -> Iterator[str]:
    """Yield the name of a cell, and its numbers, the most important first."""
    layer, (_, query, key) = sight.layer, cursor
    sheet = TableFormat(palette, None)
    queries, keys = sight.tokens
    yield f"{QUERY} query {sheet.named(queries[query])} → {KEY} key {sheet.named(keys[key])}"
    head = layer.head(cursor.head, [query])
    weights, allowed = head.weights[0], head.mask[0]
    if not allowed[key] and not weights[key]:
        yield "masked"
        return
    yield f"{layer.measure.removesuffix('s')} {sheet.number(weights[key])}"
    finite = np.where(np.isfinite(weights), weights, 0).astype(np.float64)
    if finite.sum() > 0 and np.isfinite(weights[key]):
        yield f"{100 * finite[key] / finite.sum():.3g} % of its row"
        yield f"rank {1 + int((finite > finite[key]).sum())} of {int((allowed | (weights != 0)).sum())}"
    if "scores" not in layer.missing:
        yield f"score {sheet.number(head.scores[0, key])}"


def status_line(sight: LayerViewCache | None, messages: Sequence[str], room: Bounds) -> PaneContent:
    """Return messages, then the proof and the model, as many as a line has room for."""
    facts = [visible(each) for each in messages if each]
    if sight is not None:
        facts += [proof_line(sight.layer).plain] if sight.layer.proof else []
        facts += what_ran(sight.trace).plain.split(" · ")
    return PaneContent(crop([join_facts(facts, room.width)], room))


def why_box(sight: LayerViewCache, cursor: CellCursor, palette: Palette, room: Bounds) -> PaneContent:
    """Return the steps from q·k to the weight of a cell, and the largest products in q·k."""
    layer = next(
        each for each in sight.trace.recorded.layers if (each.layer, each.kind) == (sight.layer.layer, sight.layer.kind)
    )
    cursor = cursor._replace(head=min(max(cursor.head, 0), max(layer.heads)))  # a rollout has none of its own
    queries, keys = sight.tokens
    query, key = queries[cursor.query], keys[cursor.key]
    sheet = TableFormat(palette, room.width)
    one = AttentionCell(AttentionRow(layer.head(cursor.head, [cursor.query]), query, keys), key)
    parts: list[Block] = [stages(one, TableFormat(palette, None))]  # of which a line is cut rather than folded
    if one.products is not None:
        left = room.lines - len(parts[0].lines) - 1
        # The title, the rest and the sum take three lines.
        parts += [block([[]]), dimensions(one, one.products, max(left - 3, _LEAST_DIMENSIONS), sheet)]
    lines = [list(line) for part in parts for line in part.lines]
    if len(lines) > room.lines:
        lines[room.lines - 1 :] = [[Segment(f"{len(lines) - room.lines + 1} more lines, in a larger window", DIM)]]
    facts = [f"layer {layer.layer}{'' if layer.kind == 'self' else f' {layer.kind}'}", f"head {cursor.head}"]
    title = join_facts(facts, room.width, f"{sheet.named(query)} → {sheet.named(key)}")
    return PaneContent(crop((_cut(line, room.width) for line in lines), room), title)


def _cut(line: list[Segment], width: int) -> list[Segment]:
    if Segment.get_line_length(line) <= width:
        return line
    return [*Segment.adjust_line_length(line, width - 1), Segment("…", DIM)]
