"""Queries on one screen without maps: the heaviest keys of each, or how a single one becomes its output."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from rich.segment import Segment

from attncli.analysis.variety import most_different
from attncli.render.about import About, cost, first_that_fits
from attncli.render.block import Block, block
from attncli.render.palette import BOLD
from attncli.render.parts import Frame, layer_title
from attncli.trace.top_keys import TopKeys

_TOP_KEYS = 5  # of the one query that is shown
_WALK = frozenset({"q", "scores", "weights", "output"})  # from a query to what it becomes


@dataclass(frozen=True)
class Listing:
    """The queries of the first layer, as many as one screen has room for.

    Attributes:
        about: what stands around them.
    """

    about: About

    def shown(self) -> tuple[list[Block], str]:
        """Return the parts and the note, which takes lines of the screen too."""
        reserved, shown, note = 0, *self._listed(self.about.lines)
        while self.about.lines_of(note) > reserved:
            reserved = self.about.lines_of(note)
            shown, note = self._listed(self.about.lines - reserved)
        return shown, note

    def _listed(self, lines: int) -> tuple[list[Block], str]:
        wanted = self.about.parts.view.heaviest
        return self._one_row(lines) if wanted is None else self._ranked(lines, wanted)

    @property
    def _frame(self) -> Frame:
        return self.about.frames[0]

    # --- the heaviest keys ---

    def _ranked(self, lines: int, wanted: TopKeys, instead: str = "") -> tuple[list[Block], str]:
        """Return the heaviest keys of as many queries, of as many heads of the first layer as fit.

        Args:
            lines: of the screen.
            wanted: which keys of each query.
            instead: what they are, where they stand for numbers that do not fit.
        """
        about, frame = self.about, self._frame
        left = lines + 1 - cost(about.head)
        heads, rows = frame.layer.heads, len(frame.rows)
        room = max(left - 1 - 2 * about.is_many, 1)
        listed = min(len(heads) * rows, room)
        while True:
            count, queries = (listed // rows, rows) if listed >= rows else (1, listed)
            table = about.parts.ranked(frame, wanted, self._chosen(count), queries)
            if len(table.lines) <= room or (listed == 1 and wanted.most == 1):
                break
            if listed == 1:
                wanted = wanted._replace(most=max((wanted.most or len(frame.columns)) // 2, 1))
                instead = f"the {wanted.most} heaviest keys"
                continue
            each = -(-(len(table.lines) - 1) // (count * queries + 1))  # lines of a query, as of the titles
            listed = max(min((room - 1) // each - 1, listed - 1), 1)
        name = layer_title(frame.layer)
        title = [block([[Segment(about.parts.palette.fit(name), BOLD)]])] if about.is_many else []
        left -= cost([table, *title])
        said, left = first_that_fits(about.tokens, left)
        others, left = first_that_fits(about.shapes, left)
        proof, _ = first_that_fits(about.proof, left)
        gone = [instead] if instead else []
        gone += [f"{count} of {len(heads)} heads (those that do the most different things)"] * (count < len(heads))
        gone += [f"{queries} of {rows} queries"] * (queries < rows)
        gone += [f"{name}, one of {len(about.frames)} layers"] * about.is_many
        return [*about.head, *said, *others, *title, table, *proof], about.note(gone) if gone else ""

    def _chosen(self, count: int) -> list[int]:
        """Return so many heads, those that differ most."""
        if count not in self._found:
            chosen = most_different([self._frame.layer], self._frame.rows.indices, count)
            self._found[count] = [head for _, head in chosen]
        return self._found[count]

    @cached_property
    def _found(self) -> dict[int, list[int]]:
        return {}

    # --- one query in digits ---

    def _one_row(self, lines: int) -> tuple[list[Block], str]:
        """Return how one query becomes its output, of all heads or one, or the heaviest keys of each head."""
        about, frame = self.about, self._frame
        left = lines + 1 - cost(about.head)
        words = [about.tokens[0], *about.shapes]
        if not about.is_many and not about.is_long and not frame.layer.missing & {"q", "output"}:
            inputs, projected = self._inputs(), self._projected()
            whole = [*words, *inputs, *projected]
            for place, head in enumerate(frame.layer.heads, len(words) + len(inputs)):
                if cost(whole) > left:
                    break
                whole.insert(place, self._walk(head))
            if cost(whole) <= left:
                proof, _ = first_that_fits(about.proof, left - cost(whole))
                return [*about.head, *whole, *proof], ""
        wanted = self._side_by_side()
        return self._ranked(lines, wanted, f"the {wanted.most} heaviest keys of each head")

    def _side_by_side(self) -> TopKeys:
        """Return as many heaviest keys of one query as have room beside each other, where these are three or more."""
        lines = 2 + len(self._frame.layer.heads)  # under two titles
        asked = map(TopKeys, range(_TOP_KEYS, 2, -1))
        fitting = (keys for keys in asked if len(self.about.parts.ranked(self._frame, keys).lines) == lines)
        return next(fitting, TopKeys(_TOP_KEYS))

    def _walk(self, head: int) -> Block:
        drawn = self.about.parts.digits(self._frame, head, _WALK)
        assert drawn is not None
        return drawn

    def _inputs(self) -> list[Block]:
        found = self.about.parts.inputs(self._frame)
        return [] if found is None else [self.about.parts.drawn([found])]

    def _projected(self) -> list[Block]:
        found = self.about.parts.projected(self._frame)
        return [] if found is None else [self.about.parts.drawn([found])]
