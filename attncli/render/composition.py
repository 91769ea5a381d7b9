"""Page of `attn why --composition`: the writers of a key and of a query, by their margin."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rich.console import RenderableType
from rich.text import Text

from attncli.analysis.composition import Composition, Side, Term
from attncli.render.bars import TableFormat, bar_column, largest_of, signed_bar
from attncli.render.block import Block, Column, hstack, lines_of, table
from attncli.render.palette import BOLD, DIM
from attncli.render.sections import headline
from attncli.text import plural

_MOST, _FEWEST = 8, 2  # lines of writers, where no screen says how many there is room for
_AROUND = 3  # lines of a table but for its writers: titles, the others, the sum
_GAP, _NUMBERS, _WIDEST_BAR = 4, 28, 41  # cells between the sides, of two numbers and a short bar, of a long one
_LONGEST_TITLE = 40  # cells of a token's name


def writer_name(term: Term) -> str:
    """Return the writer of a term, as `head 16.0`."""
    match term.writer:
        case "head":
            return f"head {term.layer}.{term.head}"
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
        above = [headline(composition.trace, sheet.palette), title, Text(sentences_of(composition))]
        names = max(map(len, (self._title("query"), *map(writer_name, composition.terms))))
        is_beside = sheet.room >= 2 * (names + _NUMBERS) + _GAP
        room = _MOST + _AROUND if self.lines is None else self.lines - lines_of(above, sheet.room)
        if self.lines is not None and not is_beside:
            room = (room - 1) // 2
        top = self.top or max(room - _AROUND, _FEWEST)
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
        width = sheet.bar_width(columns, len(columns), _WIDEST_BAR)
        largest = largest_of(term.margin for term in self.composition.terms)
        bars = [signed_bar(term.margin, largest, width, sheet.palette) for term in shown]
        return table([*columns, bar_column([*bars, *[("", None)] * (len(names) - len(shown))])], sheet.width)

    def _title(self, side: Side) -> str:
        cell = self.composition.cell
        return f"{side} {(cell.key if side == 'key' else cell.row.query).index}, written by"
