"""The cell under the cursor in words and numbers, and what else a person should know of what is drawn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from rich.segment import Segment

from attncli.render.bars import TableFormat
from attncli.render.block import Block, in_words
from attncli.render.explore.head import CellCursor
from attncli.render.explore.layer_view import LayerViewCache
from attncli.render.explore.pane import KEY, QUERY
from attncli.render.fit import Bounds, crop, join_facts
from attncli.render.palette import DIM, Palette
from attncli.render.sections import proof_line, what_ran

_LONGEST_TITLE = 40  # cells of what a model is called


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
    yield palette.fit(f"{QUERY} ") + sheet.named(queries[query]) + palette.fit(f" → {KEY} ") + sheet.named(keys[key])
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
