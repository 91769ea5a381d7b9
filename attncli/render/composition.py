"""What wrote a key and a query, as a page: a sentence, and the writers of each by their margin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.console import RenderableType
from rich.text import Text

from attncli.analysis.composition import Composition, Side, Term
from attncli.render.bars import TableFormat, bar_column, largest_of, signed_bar
from attncli.render.block import Block, Column, hstack, table
from attncli.render.fit import lines_of
from attncli.render.palette import BOLD, DIM
from attncli.render.sections import headline
from attncli.text import plural

_MOST, _FEWEST = 8, 2  # lines of writers, where no screen says how many there is room for
_AROUND = 3  # lines of a table but for its writers: titles, the others, the sum
_GAP, _NUMBERS, _WIDEST_BAR = 4, 28, 41  # cells between the sides, of two numbers and a short bar, of a long one
_LONGEST_TITLE = 40  # cells of a token's name


def writer_name(term: Term) -> str:
    """Return what wrote a term, as `head 16.0`."""
    match term.writer:
        case "head":
            return f"head {term.layer}.{term.head}"
        case "mlp":
            return f"MLP {term.layer}"
        case "bias":
            return "biases of the embedding" if term.layer is None else f"biases of layer {term.layer}"
    return f"{'token' if term.writer == 'embedding' else term.writer} embedding"


def sentences_of(composition: Composition) -> str:
    """Return what the key is found through, what the query finds it with, and what a margin is; a line each."""
    key, query, margin = composition.cell.key.index, composition.cell.row.query.index, composition.margin
    others = plural(composition.others, "other key")
    if margin <= 0:
        return (
            f"Key {key} scores {-margin:.2f} below the mean of {others}.\n"
            "The margin of a writer is its value at this key less its mean over those."
        )
    (found, by_key), (sought, by_query) = (_largest(composition, side) for side in ("key", "query"))
    return (
        f"Key {key} is found mostly through {found}, which wrote {by_key / margin:.0%} of its margin.\n"
        f"Query {query} looks for it mostly through {sought}, {by_query / margin:.0%}.\n"
        f"A margin is the value at this key less its mean over {others}."
    ).replace("%", " %")


def _largest(composition: Composition, side: Side) -> tuple[str, float]:
    term = max(composition.of_side(side), key=lambda term: term.margin)
    return "the " * (term.head is None and term.writer != "mlp") + writer_name(term), term.margin


@dataclass(frozen=True)
class CompositionPage:
    """A composition laid out for one output.

    Attributes:
        composition: what is shown.
        top: how many writers of each side have a line; None is as many as there is room for.
        sheet: where it goes.
        lines: of the screen that it is to fit; None is as many as it takes.
    """

    composition: Composition
    top: int | None
    sheet: TableFormat
    lines: int | None = None

    def parts(self) -> list[RenderableType]:
        """Return the page, part by part; a blank line belongs between two parts."""
        composition, sheet = self.composition, self.sheet
        cell, palette = composition.cell, sheet.palette
        row = cell.row
        names = f"query {sheet.named(row.query, _LONGEST_TITLE)} → key {sheet.named(cell.key, _LONGEST_TITLE)}"
        place = f" · layer {row.layer.layer} · head {row.head.head} of {row.layer.num_heads}"
        title = Text.assemble((names, BOLD), place)
        above = [headline(composition.trace, palette), title, Text(sentences_of(composition))]
        names_width = max(map(len, (self._title("query"), *map(writer_name, composition.terms))))
        is_beside = sheet.room >= 2 * (names_width + _NUMBERS) + _GAP
        top = self.top or self._top(above, is_beside)
        if is_beside:
            half = replace(sheet, width=(sheet.room - _GAP) // 2)
            tables = [hstack([self._side(side, top, half) for side in ("key", "query")], _GAP)]
        else:
            tables = [self._side(side, top, sheet) for side in ("key", "query")]
        return [*above, *tables]

    def _top(self, around: Sequence[RenderableType], is_beside: bool) -> int:
        """Return how many writers of each side have a line."""
        if self.lines is None:
            return _MOST
        room = self.lines - lines_of(around, self.sheet.room)
        return max((room if is_beside else (room - 1) // 2) - _AROUND, _FEWEST)

    def _side(self, side: Side, top: int, sheet: TableFormat) -> Block:
        """Return the writers of one side, the largest margin first, and what the others sum up to."""
        composition, palette = self.composition, sheet.palette
        terms = composition.of_side(side)
        shown, others = terms[:top], terms[top:]
        names = [writer_name(term) for term in shown]
        if others:
            names.append(plural(len(others), "other writer"))
        names.append("score" if composition.cell.row.layer.softcap is None else "before the softcap")
        values, margins = (
            [*(getattr(term, name) for term in shown), *_sums(others, name), sum(getattr(term, name) for term in terms)]
            for name in ("value", "margin")
        )
        styles = [BOLD] * len(shown) + [DIM] * bool(others) + [BOLD]
        columns = [
            Column(self._title(side), names, styles, "<"),
            *(Column(name, [sheet.cell(value) for value in numbers], [None] * (len(names) - 1) + [BOLD])
              for name, numbers in (("value", values), ("margin", margins))),
        ]  # fmt: skip
        width = sheet.bar_width(columns, len(columns), _WIDEST_BAR)
        largest = largest_of(term.margin for term in composition.terms)
        bars = [signed_bar(margin, largest, width, palette) for margin in margins[: len(shown)]]
        return table([*columns, bar_column([*bars, *[("", None)] * (len(names) - len(shown))])], sheet.width)

    def _title(self, side: Side) -> str:
        cell = self.composition.cell
        return f"{side} {(cell.key if side == 'key' else cell.row.query).index}, written by"


def _sums(terms: Sequence[Term], name: str) -> list[float]:
    return [sum(getattr(term, name) for term in terms)] if terms else []
