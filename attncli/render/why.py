"""Page of `attn why`: one cell or row, a line for each of several heads, or the writers of a score."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.cells import cell_len
from rich.console import RenderableType
from rich.text import Text

from attncli.analysis.cell import AttentionCell, AttentionRow
from attncli.analysis.why import Explained
from attncli.render.bars import TableFormat, largest_of
from attncli.render.block import Block, Cell, Column, hstack, lines_of, ranking, width_of, wrapping
from attncli.render.components import wrap_block
from attncli.render.matrix import MARK
from attncli.render.palette import BOLD, DIM
from attncli.render.sections import headline, proof_line
from attncli.render.sentence import distant_keys, head_name
from attncli.text import plural
from attncli.trace.trace import Trace

if TYPE_CHECKING:
    from jaxtyping import Float

    from attncli.analysis.composition import Composition, Side, Term

_MOST, _FEWEST = 8, 2  # lines of dimensions or keys, and heads, where no screen says how many there is room for
_AROUND_WRITERS = 3  # lines of a table but for its writers: titles, the others, the sum
_AROUND_KEYS = 4  # lines of a table but for its keys: titles, the rest, what is masked, the sum
_GAP, _NARROWEST = 4, 50  # cells between sums and stages, and of the sums at least
_LONGEST_TITLE = 40  # cells of a token's name
_NARROWEST_BAR = 7
_OF_WRITERS = 28  # cells of two numbers and a short bar


def ranked_keys(row: AttentionRow) -> list[int]:
    """Return the keys by weight, without those that are masked and have none."""
    drawn = row.head.drawn[0]
    return [key for key in row.ranked.tolist() if drawn[key]]


def keys_by_weight(row: AttentionRow, top: int, sheet: TableFormat) -> Block:
    """Return the keys by weight, what the others sum up to, and the sink; weights and shares add up to 1."""
    ranked = ranked_keys(row)
    shown, others = ranked[:top], ranked[top:]
    stages = {
        "score": row.scores, "weight": row.weights, "‖v‖": row.value_norms, "‖w·v‖": row.contribution_norms,
        "share": row.output_shares,
    }  # fmt: skip
    columns = {name: sheet.column(values, shown) for name, values in stages.items() if values is not None}
    sink = row.sink_weight
    sums: dict[str, dict[str, Any]] = {}  # a sum of many would leave no room for a bar
    if others:
        sums[f"{len(others)} more"] = _sums(row, others)
    if masked := len(row.keys) - len(ranked):
        sums[f"{masked} masked"] = {}
    if sink is not None:
        sums["learned sink"] = {"weight": sink, "score": row.sink}
    total = _sums(row, ranked)
    sums["total"] = total | {"weight": total["weight"] + float(sink or 0)}
    names = [*(sheet.named(row.keys[key]) for key in shown), *sums]
    styles = [None] * len(shown) + [DIM] * len(sums)
    titled = [
        Column(name, [*column, *(sheet.cell(each.get(name)) for each in sums.values())])
        for name, column in columns.items()
    ]
    bars = [*row.weights[shown].tolist(), *(sink if name == "learned sink" else None for name in sums)]
    return sheet.with_bars([Column("key", names, styles, "<"), *titled], 3, bars, largest_of(bars))


def _sums(row: AttentionRow, keys: Sequence[int]) -> dict[str, Any]:
    shares = row.output_shares
    share = None if shares is None else shares[list(keys)].sum(dtype=np.float64)
    return {"weight": row.weights[list(keys)].sum(dtype=np.float64), "share": share}


def dimensions(one: AttentionCell, products: Float[np.ndarray, " D"], top: int, sheet: TableFormat) -> Block:
    """Return the largest of the products that q·k is the sum of, and what the others sum up to."""
    assert one.q is not None
    assert one.k is not None
    places, others = one.ranked[:top].tolist(), one.ranked[top:]
    product, q, k = (sheet.column(vector, places) for vector in (products, one.q, one.k))
    names = [*map(str, places), *[f"{len(others)} more"] * bool(len(others)), "sum"]
    if len(others):
        with np.errstate(invalid="ignore"):
            product.append(sheet.number(products[others].sum(dtype=np.float64)))
    below = [""] * (len(names) - len(places))  # a sum of many has no factors, and would leave no room for a bar
    columns = [
        Column("dim", names, [BOLD] * len(places) + [DIM] * (len(below) - 1) + [BOLD]),
        Column("q", [*q, *below]),
        Column("k", [*k, *below]),
        Column("q·k", [*product, sheet.cell(one.dot_product)], [None] * (len(names) - 1) + [BOLD]),
    ]
    values = products[places].tolist()
    return sheet.with_bars(columns, 4, [*values, *[None] * len(below)], largest_of(values), is_signed=True)


def stages(one: AttentionCell, sheet: TableFormat) -> Block:
    """Return what is done to q·k until it is a weight, and what the weight carries."""
    rows: list[list[Cell]] = [
        [(name, BOLD), (sheet.number(value), BOLD if name in ("score", "weight") else None), (remark, DIM)]
        for name, value, remark in _stages(one, sheet)
    ]
    return wrapping(rows, "<><", sheet.width)


def _stages(one: AttentionCell, sheet: TableFormat) -> Iterator[tuple[str, Any, str]]:
    layer, parts = one.row.layer, one.row.softmax
    if one.products is not None:
        yield "q·k", one.dot_product, f"the sum over {len(one.products)} dimensions"
    if one.scaled is not None:
        yield "× scale", one.scaled, f"q·k × {layer.scale:.4g}"
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
    """An explanation laid out for one output."""

    trace: Trace
    explained: Explained  # the rows, or the cells, of every head that was asked for
    top: int | None  # dimensions of a cell, or keys of a row, that have a line; None is as many as fit
    sheet: TableFormat
    lines: int | None = None  # of the screen; None is as many as it takes

    def parts(self) -> list[RenderableType]:
        """Return the page, part by part; a blank line belongs between two parts."""
        below = self._of_heads() if len(self.explained) > 1 else self._of_one(self.explained[0])
        return [headline(self.trace), *below]

    def notes(self) -> list[str]:
        """Return how to see one of several heads alone, and all of them where a screen shows some."""
        if len(self.explained) == 1:
            return []
        most = max(self.explained, key=_prominence)
        row, which = _row(most), "the strongest head" if _prominence(most) > 0 else "one head"
        kind = f"--kind {row.layer.kind} " * self._has_kinds
        rest = "; --all lists all heads" if self._count else ""
        return [f"{kind}--head {head_name(row.layer, row.head.head)} explains {which}{rest}"]

    def _room(self, parts: Iterable[RenderableType]) -> int:
        """Return how many lines are left below the headline and these parts."""
        above = [headline(self.trace), *parts]
        return 10**6 if self.lines is None else self.lines - lines_of(above, self.sheet.room)

    def _top(self, room: int) -> int:
        return self.top or (_MOST if self.lines is None else max(room, _FEWEST))

    def _name(self, one: AttentionRow | AttentionCell) -> str:
        query = f"query {self.sheet.named(_row(one).query, _LONGEST_TITLE)}"
        return f"{query} → key {self.sheet.named(one.key, _LONGEST_TITLE)}" if isinstance(one, AttentionCell) else query

    # --- one head ---

    def _of_one(self, one: AttentionRow | AttentionCell) -> list[RenderableType]:
        row = _row(one)
        proof = [] if row.layer.proof is None else [proof_line(row.layer)]
        title = wrap_block(self._name(one), self._place(row), self.sheet.width, None)
        room = self._room([title, *proof])
        if isinstance(one, AttentionRow):
            return [title, keys_by_weight(one, self._top(room - _AROUND_KEYS), self.sheet), *proof]
        taken = stages(one, self.sheet)
        if one.products is None:
            return [title, taken, *proof]
        # Next to each other where a line has room for both, whose bars are as long as the rest leaves them room.
        left = replace(self.sheet, width=self.sheet.room - taken.width - _GAP)
        if self.sheet.width is not None and left.room >= _NARROWEST:
            summed = dimensions(one, one.products, self._top(room - _AROUND_KEYS), left)
            return [title, hstack([summed, taken], _GAP), *proof]
        room -= _AROUND_KEYS + len(taken.lines) + 1
        return [title, dimensions(one, one.products, self._top(room), self.sheet), taken, *proof]

    def _place(self, row: AttentionRow) -> str:
        layer = row.layer
        place = f" · layer {layer.layer}" + ("" if layer.kind == "self" else f" ({layer.kind})")
        place += f" · head {row.head.head} of {layer.num_heads}"
        if layer.num_groups < layer.num_heads:
            place += f", reads kv head {row.head.key_head} of {layer.num_groups}"
        return place + (f" · {MARK} fully masked" if row.is_blind else "")

    # --- several heads ---

    @property
    def _has_kinds(self) -> bool:
        return len({layer.kind for layer in self.trace.layers}) > 1

    @cached_property
    def _ranked(self) -> list[AttentionRow | AttentionCell]:
        return sorted(self.explained, key=_prominence, reverse=True)

    @property
    def _title(self) -> Block:
        # Where kinds of attention have tokens of their own, what was asked is named for each kind.
        kinds: dict[str, dict[str, None]] = {}
        for each in self.explained:
            kinds.setdefault(self._name(each), {})[_row(each).layer.kind] = None
        names = [f"{' and '.join(kind)} {name}" for name, kind in kinds.items()] if len(kinds) > 1 else [*kinds]
        which = "" if isinstance(self.explained[0], AttentionCell) else " on a distant token"
        order = f" · {len(self.explained)} heads, largest weight{which} first"
        return wrap_block("; ".join(names), order, self.sheet.width, None)

    @property
    def _count(self) -> int:
        """How many heads are left out."""
        room, every = self._room([self._title]) - 2, len(self.explained)  # titles, and how many there are
        return 0 if every <= room + 1 else every - max(room, _FEWEST)

    def _of_heads(self) -> list[RenderableType]:
        sheet, left_out = self.sheet, self._count
        shown = self._ranked[: len(self.explained) - left_out]
        rows = map(_row, shown)
        names = [f"{row.layer.kind} " * self._has_kinds + head_name(row.layer, row.head.head) for row in rows]
        columns = [Column("head", names, BOLD, "<")]
        cells = [one for one in shown if isinstance(one, AttentionCell)]
        if not cells:
            room = sheet.room - width_of(columns)
            keys = [self._keys(_row(one), room) for one in shown]
            columns.append(Column("keys by weight", keys, align="<"))
            return [self._title, ranking(columns, left_out, sheet.width, sheet.palette)]
        numbers = {
            "q·k": [one.dot_product for one in cells],
            "bias": [one.bias for one in cells],
            "score": [one.score for one in cells],
            "weight": [one.weight if one.allowed or one.weight else "·" for one in cells],
            "‖v‖": [one.value_norm for one in cells],
            "‖w·v‖": [one.contribution_norm for one in cells],
            "share": [one.output_share for one in cells],
        }
        columns += [
            Column(name, [sheet.cell(value) for value in values])
            for name, values in numbers.items()
            if any(value is not None for value in values)
        ]
        while width_of(columns) + _NARROWEST_BAR > sheet.room and columns[-1].title != "weight":
            columns.pop()  # what tells least, rather than lines of their own
        place = next(number for number, column in enumerate(columns, start=1) if column.title == "weight")
        bars = [float(one.weight) for one in cells]
        return [self._title, sheet.with_bars(columns, place, bars, 1.0, left_out)]

    def _keys(self, row: AttentionRow, room: int) -> str:
        text = ""
        for key in ranked_keys(row)[: self.top]:
            longer = f"{text}   {self.sheet.named(row.keys[key])} {self.sheet.cell(row.weights[key])}".lstrip()
            if text and cell_len(longer) > room:
                break
            text = longer
        return text


def _row(one: AttentionRow | AttentionCell) -> AttentionRow:
    return one.row if isinstance(one, AttentionCell) else one


def _prominence(one: AttentionRow | AttentionCell) -> float:
    """Return by what heads are ranked: the weight of a cell, or of a row the largest on a distant key."""
    if isinstance(one, AttentionCell):
        return -1.0 if np.isnan(one.weight) else float(one.weight)
    is_among_keys = one.layer.kind != "cross" and one.query in one.keys
    weights = one.weights[distant_keys(one.keys, one.query.index if is_among_keys else None)]
    return float(weights.max(initial=-1.0, where=np.isfinite(weights)))


# --- the writers of a key and of a query, by their margin ---


def writer_name(term: Term) -> str:
    """Return the writer of a term, as `L16H0`."""
    match term.writer:
        case "head":
            return f"L{term.layer}H{term.head}"
        case "mlp":
            return f"MLP {term.layer}"
        case "bias":
            return "biases of the embedding" if term.layer is None else f"biases of layer {term.layer}"
    return f"{'token' if term.writer == 'embedding' else term.writer} embedding"


def sentences_of(composition: Composition) -> str:
    """Return the largest writers of the key and of the query, and the meaning of a margin; a line each."""
    key, query, margin = composition.cell.key.index, composition.cell.row.query.index, composition.margin
    meaning = f"margin = value at this key − mean of {plural(composition.others, 'other key')}"
    if margin <= 0:
        return f"Key {key} scores {-margin:.2f} below the mean of the others.\n{meaning}"
    (found, by_key), (finder, by_query) = (_largest(composition, side) for side in ("key", "query"))
    return (
        f"Key {key} is found mostly through {found}, which wrote {by_key / margin:.0%} of its margin.\n"
        f"Query {query} looks for it mostly through {finder}, {by_query / margin:.0%}.\n{meaning}"
    ).replace("%", " %")


def _largest(composition: Composition, side: Side) -> tuple[str, float]:
    term = max(composition.of_side(side), key=lambda term: term.margin)
    return "the " * (term.head is None and term.writer != "mlp") + writer_name(term), term.margin


@dataclass(frozen=True)
class CompositionPage:
    """A composition laid out for one output."""

    composition: Composition
    top: int | None  # writers of each side that have a line; None is as many as fit
    sheet: TableFormat
    lines: int | None = None  # of the screen; None is as many as it takes

    def parts(self) -> list[RenderableType]:
        """Return the page, part by part; a blank line belongs between two parts."""
        composition, sheet, row = self.composition, self.sheet, self.composition.cell.row
        key = sheet.named(composition.cell.key, _LONGEST_TITLE)
        place = f" · layer {row.layer.layer} · head {row.head.head} of {row.layer.num_heads}"
        title = Text.assemble((f"query {sheet.named(row.query, _LONGEST_TITLE)} → key {key}", BOLD), place)
        above = [headline(composition.trace), title, Text(sentences_of(composition))]
        names = max(map(len, (self._title("query"), *map(writer_name, composition.terms))))
        is_beside = sheet.room >= 2 * (names + _OF_WRITERS) + _GAP and not sheet.palette.is_read_aloud
        room = _MOST + _AROUND_WRITERS if self.lines is None else self.lines - lines_of(above, sheet.room)
        if self.lines is not None and not is_beside:
            room = (room - 1) // 2
        top = self.top or max(room - _AROUND_WRITERS, _FEWEST)
        sheet = replace(sheet, width=(sheet.room - _GAP) // 2) if is_beside else sheet
        tables = [self._side(side, top, sheet) for side in ("key", "query")]
        return [*above, *([hstack(tables, _GAP)] if is_beside else tables)]

    def _side(self, side: Side, top: int, sheet: TableFormat) -> Block:
        terms = self.composition.of_side(side)
        shown, others = terms[:top], terms[top:]
        total = "score" if self.composition.cell.row.layer.softcap is None else "before the softcap"
        names = [*map(writer_name, shown), *[plural(len(others), "other writer")] * bool(others), total]
        columns = [Column(self._title(side), names, [BOLD] * len(shown) + [DIM] * bool(others) + [BOLD], "<")]
        for name in ("value", "margin"):
            numbers = [getattr(term, name) for term in shown]
            numbers += [sum(getattr(term, name) for term in others)] * bool(others)
            texts = [sheet.cell(number) for number in (*numbers, sum(getattr(term, name) for term in terms))]
            columns.append(Column(name, texts, [None] * (len(names) - 1) + [BOLD]))
        largest = largest_of(term.margin for term in self.composition.terms)
        bars = [*(term.margin for term in shown), *[None] * (len(names) - len(shown))]
        return sheet.with_bars(columns, len(columns), bars, largest, is_signed=True)

    def _title(self, side: Side) -> str:
        cell = self.composition.cell
        return f"{side} {(cell.key if side == 'key' else cell.row.query).index}, written by"
