"""Queries on one screen without maps: the heaviest keys of each, or how a single one becomes its output."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING

from rich.segment import Segment

from attncli.analysis.diverse_heads import most_different
from attncli.render.block import Block, block
from attncli.render.components import MatrixFrame, layer_title
from attncli.render.fit import cost, fit, fit_with_note
from attncli.render.header import Header
from attncli.render.palette import BOLD

if TYPE_CHECKING:
    from collections.abc import Callable

_TOP_KEYS = 5  # of the one query that is shown
_WALK = frozenset({"q", "scores", "weights", "output"})  # from a query to what it becomes


@dataclass(frozen=True)
class RankedKeys:
    """The queries of the first layer, as many as one screen has room for.

    Attributes:
        header: what stands around them.
    """

    header: Header

    def shown(self) -> tuple[list[Block], str]:
        """Return the parts and the note, which takes lines of the screen too."""
        most = self.header.components.view.top_keys
        if most is not None:
            return self._ranked(most)
        return self._one_row() or self._ranked(self._side_by_side(), is_instead=True)

    @property
    def _frame(self) -> MatrixFrame:
        return self.header.frames[0]

    @cached_property
    def _chosen(self) -> Callable[[int], list[int]]:
        """Returns so many heads, those that differ most."""
        frame = self._frame
        return cache(
            lambda count: [head for _, head in most_different([frame.layer], frame.rows.indices, count)],
        )

    def _ranked(self, most: int, is_instead: bool = False) -> tuple[list[Block], str]:
        """Return the heaviest keys of as many queries, of as many heads of the first layer as fit, and the note.

        Args:
            most: how many keys of each query.
            is_instead: whether they stand for numbers that do not fit.
        """
        header, frame = self.header, self._frame
        heads, rows = len(frame.layer.heads), len(frame.rows)
        name = layer_title(frame.layer)
        title = [block([[Segment(header.components.palette.fit(name), BOLD)]])] if header.is_many else []

        def drawn(lines: int) -> tuple[list[Block], str]:
            left = lines + 1 - cost([*header.blocks, *title])
            table, fewer, count, queries = self._table(most, max(left - 1, 1))
            tokens, shapes, proof = fit([header.tokens, header.shapes, header.proof], left - cost([table]))
            facts = [f"the {most} heaviest keys of each head"] * (is_instead and fewer == most)
            facts += [f"the {fewer} heaviest keys"] * (fewer < most)
            facts += [f"{count} of {heads} heads (those that do the most different things)"] * (count < heads)
            facts += [f"{queries} of {rows} queries"] * (queries < rows)
            facts += [f"{name}, one of {len(header.frames)} layers"] * header.is_many
            return [*header.blocks, *tokens, *shapes, *title, table, *proof], header.note(facts) if facts else ""

        return fit_with_note(drawn, header.lines, header.lines_of)

    def _table(self, most: int, lines: int) -> tuple[Block, int, int, int]:
        """Return as much of the heaviest keys as lines have room for: of how many heads and queries, and how many."""
        frame = self._frame
        rows = len(frame.rows)
        listed = min(len(frame.layer.heads) * rows, lines)
        while True:
            count, queries = (listed // rows, rows) if listed >= rows else (1, listed)
            table = self.header.components.ranked(frame, most, self._chosen(count), queries)
            if len(table.lines) <= lines or (listed == 1 and most == 1):
                return table, most, count, queries
            if listed == 1:
                most = max(most // 2, 1)
                continue
            each = -(-(len(table.lines) - 1) // (count * queries + 1))  # lines of a query, as of the titles
            listed = max(min((lines - 1) // each - 1, listed - 1), 1)

    # --- one query in digits ---

    def _one_row(self) -> tuple[list[Block], str] | None:
        """Return how one query becomes its output in every head; None where that does not fit."""
        header, frame, parts = self.header, self._frame, self.header.components
        if header.is_many or header.is_long or frame.layer.missing & {"q", "output"}:
            return None
        left = header.lines + 1 - cost(header.blocks)
        inputs, projected = parts.inputs(frame), parts.projected(frame)
        shown = [header.tokens[0], *header.shapes]
        shown += [parts.drawn([inputs])] if inputs is not None else []
        last = [parts.drawn([projected])] if projected is not None else []
        for head in frame.layer.heads:
            if cost([*shown, *last]) > left:
                return None
            walk = parts.digits(frame, head, _WALK)
            assert walk is not None
            shown.append(walk)
        shown += last
        if cost(shown) > left:
            return None
        (proof,) = fit([header.proof], left - cost(shown))
        return [*header.blocks, *shown, *proof], ""

    def _side_by_side(self) -> int:
        """Return as many heaviest keys of one query as have room beside each other, where these are three or more."""
        lines = 2 + len(self._frame.layer.heads)  # under two titles
        fitting = (
            keys
            for keys in range(_TOP_KEYS, 2, -1)
            if len(self.header.components.ranked(self._frame, keys).lines) == lines
        )
        return next(fitting, _TOP_KEYS)
