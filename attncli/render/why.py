"""Why a query attends to a key, as a page: one cell taken apart, one row, or a line for each of several heads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.cells import cell_len
from rich.console import RenderableType

from attncli.analysis.cell import AttentionCell, AttentionRow
from attncli.analysis.labels import labels_of_heads
from attncli.analysis.why import Explained
from attncli.render.axes import MARK
from attncli.render.bars import TableFormat, bar_column, largest_of, signed_bar
from attncli.render.block import Block, Cell, Column, block, hstack, in_lines, stack, table, width_of, wrapping
from attncli.render.components import wrap_block
from attncli.render.fit import lines_of
from attncli.render.legend import ramp_line
from attncli.render.palette import BOLD, DIM, Scale
from attncli.render.sections import headline, proof_line
from attncli.render.sentence import QUERY, distant_keys, head_lines, sentence
from attncli.trace.top_keys import drawn_cells
from attncli.trace.trace import Trace

if TYPE_CHECKING:
    from jaxtyping import Float

_MOST, _FEWEST = 8, 2  # lines of dimensions or keys, and heads, where no screen says how many there is room for
_AROUND_KEYS = 4  # lines of a table but for its keys: titles, the rest, what is masked, the sum
_LINES = 2  # that a sentence takes at most
_GAP, _NARROWEST = 4, 50  # cells between sums and stages, and of the sums at least
_LONGEST_TITLE = 40  # cells of a token's name
_WIDEST_BAR = 41


def ranked_keys(row: AttentionRow) -> list[int]:
    """Return the keys by weight, without those that are masked and have none."""
    drawn = drawn_cells(row.head)[0]
    return [key for key in row.ranked.tolist() if drawn[key]]


def _sum_of(values: Any, keys: Sequence[int]) -> Any:
    return None if values is None else values[list(keys)].sum(dtype=np.float64)


def keys_by_weight(row: AttentionRow, top: int, sheet: TableFormat) -> Block:
    """Return the keys by weight, what the others sum up to, and the sink; weights and shares add up to 1."""
    ranked = ranked_keys(row)
    shown, others = ranked[:top], ranked[top:]
    stages = {
        "score": row.scores,
        "weight": row.weights,
        "‖v‖": row.value_norms,
        "‖w·v‖": row.contribution_norms,
        "share": row.output_shares,
    }
    names = [sheet.named(row.keys[key]) for key in shown]
    columns = {name: sheet.column(values, shown) for name, values in stages.items() if values is not None}
    bars: list[float | None] = [float(row.weights[key]) for key in shown]

    def add(name: str, bar: float | None = None, **numbers: Any) -> None:
        names.append(name)
        for stage, column in columns.items():
            column.append(sheet.cell(numbers.get(stage)))
        bars.append(bar)  # a sum of many would leave no room for one

    if others:
        add(f"{len(others)} more", weight=_sum_of(row.weights, others), share=_sum_of(row.output_shares, others))
    if masked := len(row.keys) - len(ranked):
        add(f"{masked} masked")
    if (sink := row.sink_weight) is not None:
        add("learned sink", float(sink), weight=sink, score=row.sink)
    add("total", weight=_sum_of(row.weights, ranked) + float(sink or 0), share=_sum_of(row.output_shares, ranked))
    styles = [None] * len(shown) + [DIM] * (len(names) - len(shown))
    titled = [Column(name, column) for name, column in columns.items()]
    return sheet.with_bars([Column("key", names, styles, "<"), *titled], 3, bars, largest_of(bars))


def dimensions(one: AttentionCell, products: Float[np.ndarray, " D"], top: int, sheet: TableFormat) -> Block:
    """Return the largest of the products that q·k is the sum of, and what the others sum up to."""
    palette = sheet.palette
    shown, others = np.split(one.ranked, [top])
    assert one.q is not None
    assert one.k is not None
    places = shown.tolist()
    product, q, k = (sheet.column(vector, places) for vector in (products, one.q, one.k))
    names, total = [str(place) for place in places], sheet.cell(one.dot_product)
    if len(others):
        with np.errstate(invalid="ignore"):
            product.append(sheet.number(products[others].sum(dtype=np.float64)))
        names.append(f"{len(others)} more")
    below = [""] * (len(names) - len(places) + 1)  # a sum of many has no factors, and would leave no room for a bar
    styles = [BOLD] * len(places) + [DIM] * (len(below) - 1) + [BOLD]
    dim = Column("dim", [*names, "q·k"], styles)
    product_column = Column("q·k", [*product, total], [None] * len(names) + [BOLD])
    factors = [Column("q", [*q, *below]), Column("k", [*k, *below])]
    width = sheet.bar_width([dim, product_column, *factors], 4, _WIDEST_BAR)
    values = products[places].tolist()
    bars = [signed_bar(value, largest_of(values), width, palette) for value in values]
    return table([dim, *factors, product_column, bar_column([*bars, *((text, None) for text in below)])], sheet.width)


def stages(one: AttentionCell, sheet: TableFormat) -> Block:
    """Return what is done to q·k until it is a weight, and what the weight carries."""
    rows: list[list[Cell]] = [
        [(name, BOLD), (sheet.number(value), BOLD if name in ("score", "weight") else None), (remark, DIM)]
        for name, value, remark in _stages(one, sheet)
    ]
    return wrapping(rows, "<><", sheet.width)


def _stages(one: AttentionCell, sheet: TableFormat) -> Iterator[tuple[str, Any, str]]:
    """Yield the name of each stage, what it makes, and a remark."""
    layer, parts = one.row.layer, one.row.softmax
    if one.products is not None:
        yield "q·k", one.dot_product, f"the sum over {len(one.products)} dimensions"
    if one.scaled is not None:
        yield "× scale", one.scaled, f"{layer.scale:.4g}"
        if one.bias is not None:
            yield "+ bias", one.scaled + one.bias, sheet.number(one.bias)
    cap = "" if layer.softcap is None else f"softcapped, {layer.softcap:g}·tanh(x / {layer.softcap:g}); "
    if one.allowed:
        yield "score", one.score, f"{cap}the mask allows it"
    elif layer.recorded_scores is not None:
        yield "score", one.score, "masked, and recorded after the mask"
    else:
        yield "score", one.score, f"{cap}masked: the softmax gets {sheet.number(one.masked)} instead"
    if parts is None or one.exponential is None:
        yield "weight", one.weight, "as the model gave it: the mask leaves no key to this query"
    else:
        score = "score" if one.allowed else sheet.number(one.masked)
        yield "exp", one.exponential, f"e^({score} − {sheet.number(parts.highest)}), minus the row's highest"
        sink = "" if parts.sink is None else f", {sheet.number(parts.sink)} of it the sink's"
        yield "weight", one.weight, f"÷ {sheet.number(parts.total)}, the row's total{sink}"
    if one.value_norm is not None:
        yield "‖v‖", one.value_norm, "the length of the value"
        yield "‖w·v‖", one.contribution_norm, "weight × ‖v‖, the key's contribution"
        if one.output_share is not None:
            length = sheet.number(one.row.output_norm)
            yield "share", one.output_share, f"of the output's length {length}"


@dataclass(frozen=True)
class WhyPage:
    """An explanation laid out for one output.

    Attributes:
        trace: what it is about.
        explained: the rows, or the cells, of every head that was asked for.
        top: how many dimensions of a cell, or keys of a row, have a line; None is as many as there is room for.
        sheet: where it goes.
        lines: of the screen that it is to fit; None is as many as it takes.
    """

    trace: Trace
    explained: Explained
    top: int | None
    sheet: TableFormat
    lines: int | None = None

    def parts(self) -> list[RenderableType]:
        """Return the page, part by part; a blank line belongs between two parts."""
        return self._page[0]

    @cached_property
    def _page(self) -> tuple[list[RenderableType], bool]:
        """The parts, and whether some of several heads, or their table, is left out."""
        palette, above = self.sheet.palette, headline(self.trace, self.sheet.palette)
        if len(self.explained) > 1:
            # Where kinds of attention have tokens of their own, what was asked is named for each kind.
            kinds: dict[str, dict[str, None]] = {}
            for each in self.explained:
                kinds.setdefault(self._name(each), {})[_row(each).layer.kind] = None
            names = [f"{' and '.join(kind)} {name}" for name, kind in kinds.items()] if len(kinds) > 1 else [*kinds]
            parts, is_cut = self._of_heads("; ".join(names), self._room([above]))
            return [above, *parts], is_cut
        one, row = self.explained[0], self._rows[0]
        proof = [] if row.layer.proof is None else [proof_line(row.layer, palette)]
        title, _ = self._sentence(self._name(one), self._place(row), 1)
        room = self._room([above, title, *proof])
        if isinstance(one, AttentionRow):
            return [above, title, keys_by_weight(one, self._top(room - _AROUND_KEYS), self.sheet), *proof], False
        taken = stages(one, self.sheet)
        if one.products is None:
            return [above, title, taken, *proof], False
        # Beside each other where a line has room for both, whose bars are as long as the rest leaves them room.
        beside = replace(self.sheet, width=self.sheet.room - taken.width - _GAP)
        is_beside = self.sheet.width is not None and beside.room >= _NARROWEST
        room -= _AROUND_KEYS if is_beside else _AROUND_KEYS + len(taken.lines) + 1
        summed = dimensions(one, one.products, self._top(room), beside if is_beside else self.sheet)
        return [above, title, *([hstack([summed, taken], _GAP)] if is_beside else [summed, taken]), *proof], False

    def _room(self, parts: Iterable[RenderableType]) -> int:
        return 10**6 if self.lines is None else self.lines - lines_of(parts, self.sheet.room)

    def _top(self, room: int) -> int:
        """Return how many dimensions or keys have a line."""
        return self.top or (_MOST if self.lines is None else max(room, _FEWEST))

    def _place(self, row: AttentionRow) -> str:
        """Return where the one head that is explained is."""
        layer = row.layer
        place = f" · layer {layer.layer}" + ("" if layer.kind == "self" else f" ({layer.kind})")
        place += f" · head {row.head.head} of {layer.num_heads}"
        if layer.num_groups < layer.num_heads:
            place += f", reads kv head {row.head.key_head} of {layer.num_groups}"
        return place + (f" · {MARK} fully masked" if row.is_blind else "")

    def _sentence(self, title: str, facts: str, room: int) -> tuple[Block, int]:
        """Return a title above the sentence on the colours of the query's weights, and how many heads have a line.

        Those stand first with most weight on the key, or on one that is distant. Without colours there is none, and
        neither is for more heads than a screen has lines: a table has all of it.
        """
        row, sheet, palette = self._rows[0], self.sheet, self.sheet.palette
        header = wrap_block(title, facts, sheet.width, None)
        layers = {id(each.layer): each.layer for each in self._rows if each.keys == row.keys}
        if not palette.has_color or (self.lines is None and len(self._rows) > _MOST):
            return header, 0
        labels = labels_of_heads(self.trace) if len(self._rows) > 1 else {}
        cell = self.explained[0]
        keys = [cell.key.index] if isinstance(cell, AttentionCell) else _distant(row)
        lines = head_lines(layers.values(), row.query.index, keys, labels)
        if len(self._rows) == 1:
            lines = [lines[0]._replace(name="", label="")]
        scale = Scale.up_to(1.0, sheet.ramp)
        ramp = block([ramp_line(scale, palette, sheet.width)])
        header = stack(hstack(each, 3) for each in in_lines([header, ramp], 3, sheet.room))

        def drawn(count: int) -> Block:
            marks = {row.query.index: QUERY} if _is_among_keys(row) else {}
            return sentence(row.keys, lines[:count], palette, scale, sheet.room, marks, _LINES)

        count = min(max((room - len(header.lines)) // len(drawn(1).lines), 1), len(lines))
        return stack([header, drawn(count)]), count

    def notes(self) -> list[str]:
        """Return how to see one of several heads alone, and all of them where a screen shows some."""
        if len(self.explained) == 1:
            return []
        most = max(self.explained, key=_prominence)
        row, which = _row(most), "the strongest head" if _prominence(most) > 0 else "one head"
        place = f"L{row.layer.layer}H{row.head.head}" if "layer" in self._facts else str(row.head.head)
        kind = f"--kind {row.layer.kind} " * ("kind" in self._facts)
        rest = "; --all lists every head" if self._page[1] else ""
        return [f"{kind}--head {place} explains {which}{rest}"]

    @cached_property
    def _rows(self) -> list[AttentionRow]:
        return [_row(one) for one in self.explained]

    def _name(self, one: AttentionRow | AttentionCell) -> str:
        query = f"query {self.sheet.named(_row(one).query, _LONGEST_TITLE)}"
        return f"{query} → key {self.sheet.named(one.key, _LONGEST_TITLE)}" if isinstance(one, AttentionCell) else query

    # --- several heads ---

    def _of_heads(self, names: str, room: int) -> tuple[list[Block], bool]:
        """Return the sentence and a table of all heads where both fit, else one of them for as many heads as fit.

        Those with the largest weight come first. Whether anything is left out is the second part.
        """
        cells = [one for one in self.explained if isinstance(one, AttentionCell)]
        by_weight: Explained = tuple(sorted(self._rows, key=_prominence, reverse=True))
        if is_cell := bool(cells):
            by_weight = tuple(sorted(cells, key=_prominence, reverse=True))
        ranked, every = replace(self, explained=by_weight), len(self.explained)
        order = f"heads, largest weight {'' if is_cell else 'on a distant token '}first"
        coloured, count = ranked._sentence(names, f" · {every} {order}", room)
        listed = ranked._table_of_heads()
        if lines_of([coloured, listed], self.sheet.room) <= room + 1:
            return [coloured, listed], False
        if count and not is_cell:
            shown = f"{count} of " * (count < every)
            return [ranked._sentence(names, f" · {shown}{every} {order}", room)[0]], True
        for count in range(min(max(room - 3, _FEWEST), every), 0, -1):
            facts = f" · {f'{count} of ' * (count < every)}{every} {order}"
            header = wrap_block(names, facts, self.sheet.width, None)
            listed = replace(ranked, explained=ranked.explained[:count])._table_of_heads()
            if count <= _FEWEST or lines_of([header, listed], self.sheet.room) <= room + 1:
                break
        return [header, listed], count < every

    def _table_of_heads(self) -> Block:
        return self._cells_of_heads() if isinstance(self.explained[0], AttentionCell) else self._rows_of_heads()

    @cached_property
    def _facts(self) -> dict[str, list[str]]:
        """The first columns of a table with a line for each head: what tells them apart."""
        named = self.sheet.named
        facts = {
            "layer": [str(row.layer.layer) for row in self._rows],
            "kind": [row.layer.kind for row in self._rows],
            "query": [named(row.query) for row in self._rows],
            "key": [named(one.key) for one in self.explained if isinstance(one, AttentionCell)],
            "head": [str(row.head.head) for row in self._rows],
        }
        # Of some of the heads too, as many stand there as of all.
        layers = self.trace.layers
        several = {
            "head": True,
            "layer": len({one.layer for one in layers}) > 1,
            "kind": len({one.kind for one in layers}) > 1,
        }
        return {name: values for name, values in facts.items() if several.get(name, len(set(values)) > 1)}

    @property
    def _places(self) -> list[Column]:
        """Where each head is."""
        return [Column(name, values, BOLD) for name, values in self._facts.items()]

    def _columns(self, facts: dict[str, list[Any]]) -> list[Column]:
        """Return a column of numbers for what one of the heads has at least."""
        sheet = self.sheet
        return [
            Column(name, [sheet.cell(value) for value in values])
            for name, values in facts.items()
            if any(value is not None for value in values)
        ]

    def _cells_of_heads(self) -> Block:
        """Return a line for the cell in each head."""
        cells = [one for one in self.explained if isinstance(one, AttentionCell)]
        before = self._columns({
            "q·k": [one.dot_product for one in cells],
            "bias": [one.bias for one in cells],
            "score": [one.score for one in cells],
        })  # fmt: skip
        behind = self._columns({
            "weight": [one.weight if one.allowed or one.weight else "·" for one in cells],
            "‖v‖": [one.value_norm for one in cells],
            "‖w·v‖": [one.contribution_norm for one in cells],
            "share": [one.output_share for one in cells],
        })  # fmt: skip
        columns = [*self._places, *before, *behind]
        place = len(columns) - len(behind) + 1
        return self.sheet.with_bars(columns, place, [float(one.weight) for one in cells], 1.0)

    def _rows_of_heads(self) -> Block:
        """Return a line for the row in each head: as many of its keys as fit, by weight, and the others' weight."""
        sheet, rows = self.sheet, self._rows
        ranked = [ranked_keys(row) for row in rows]
        entries = [
            [f"{sheet.named(row.keys[key])} {sheet.cell(row.weights[key])}" for key in keys[: self.top]]
            for row, keys in zip(rows, ranked, strict=True)
        ]
        # Beside them stand columns for the others and the sink.
        widest = max((cell_len(entry) for listed in entries for entry in listed), default=0) + 2
        sums = 2 if any(row.layer.sinks is not None for row in rows) else 1
        left = sheet.room - width_of(self._places) - sums * len("0.0000  ")
        count = min(max(left // widest, 1), max(map(len, entries)))
        listed = [*zip_longest(*entries, fillvalue="")][:count]
        keys = [Column("" if place else "by weight", texts, align="<") for place, texts in enumerate(listed)]
        others = [
            _sum_of(row.weights, keys[count:]) if keys[count:] else None for row, keys in zip(rows, ranked, strict=True)
        ]
        sums_of = self._columns({"others": others, "sink": [row.sink_weight for row in rows]})
        return table([*self._places, *keys, *sums_of], sheet.width)


def _row(one: AttentionRow | AttentionCell) -> AttentionRow:
    return one.row if isinstance(one, AttentionCell) else one


def _prominence(one: AttentionRow | AttentionCell) -> float:
    """Return by what heads are ranked: the weight of a cell, or of a row the largest on a distant key."""
    if isinstance(one, AttentionCell):
        return -1.0 if np.isnan(one.weight) else float(one.weight)
    weights = one.weights[_distant(one)]
    return float(weights.max(initial=-1.0, where=np.isfinite(weights)))


def _distant(row: AttentionRow) -> list[int]:
    return distant_keys(row.keys, row.query.index if _is_among_keys(row) else None)


def _is_among_keys(row: AttentionRow) -> bool:
    return row.layer.kind != "cross" and row.query in row.keys
