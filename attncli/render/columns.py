"""A table of many lines that is wider than the output: which of its columns are shown, and whether it is folded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from rich.cells import cell_len
from rich.style import Style

from attncli.analysis.metric_names import Metric
from attncli.render.block import Block, grid
from attncli.render.screen import LINES

Words = list[tuple[str, Style | None]]

# What tells heads apart comes first; the last ones are the first to go.
_BY_USE: tuple[Metric, ...] = (
    "entropy", "sink", "previous", "induction", "self", "next", "special", "duplicate", "distance", "max_weight",
    "effective_keys", "max_score",
)  # fmt: skip


@dataclass(frozen=True)
class Table:
    """Lines of words, and numbers in columns that have names.

    Attributes:
        names: of the columns, but for the first one; the one that the lines are sorted by comes first.
        lines: a header and the others, each with the words of the first column and one more for every name.
        known: the names of the columns that hold something.
    """

    names: tuple[Metric, ...]
    lines: Sequence[Words]
    known: frozenset[Metric]

    @cached_property
    def widths(self) -> list[int]:
        """How many cells each column takes, the gap before it included."""
        return [max(cell_len(line[place][0]) for line in self.lines) + 2 for place in range(len(self.names) + 1)]

    @property
    def width(self) -> int:
        """How many cells it takes in one piece."""
        return sum(self.widths) - 2

    def of(self, kept: frozenset[Metric]) -> Table:
        """Return the table with these columns alone."""
        places = [0, *(place for place, name in enumerate(self.names, start=1) if name in kept)]
        names = tuple(name for name in self.names if name in kept)
        return replace(self, names=names, lines=[[line[place] for place in places] for line in self.lines])

    def within(self, width: int) -> Table:
        """Return the table with the most useful of its columns that stand in one line of `width` cells."""
        kept: list[Metric] = [self.names[0]]
        for name in _BY_USE:
            if name in self.names[1:] and self.of(frozenset([*kept, name])).width <= width:
                kept.append(name)
        return self.of(frozenset(kept))

    def drawn(self, width: int | None) -> Block:
        """Return it with columns that do not fit below the others."""
        return grid(self.lines, ">" * (len(self.names) + 1), width)


def fitting(tables: Sequence[Table], width: int | None) -> tuple[Block, tuple[Metric, ...]]:
    """Return a table as wide as the output, and the names of the columns that it shows.

    Columns that hold nothing go first. What is still too wide is folded, as long as all pieces stand on one screen;
    of more lines than that nobody could say to which one a number belongs, so that columns go.

    Args:
        tables: the same one with ever fewer digits.
        width: cells in a line; None is as many as it takes.
    """
    if width is None:
        return tables[0].drawn(None), tables[0].names
    known = [table.of(table.known) for table in tables]
    for table in (*tables, *known):
        if table.width <= width:
            return table.drawn(width), table.names
    folded = min((table.drawn(width) for table in known), key=lambda block: len(block.lines))
    if len(folded.lines) <= LINES:
        return folded, known[0].names
    kept = frozenset(known[-1].within(width).names)
    shown = [table.of(kept) for table in known]
    best = next((table for table in shown if table.width <= width), shown[-1])
    return best.drawn(width), best.names
