"""Axis labels: tokens of the rows, indices or tokens of the columns, and the boundary of a second text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from rich.cells import cell_len, set_cell_size
from rich.segment import Segment

from attncli.render.block import Block, cell
from attncli.render.palette import BOLD, DIM, Palette
from attncli.trace.tokens import Token, Tokens

if TYPE_CHECKING:
    from jaxtyping import Bool

LONGEST_LABEL = 12
MARK = "!"  # of a row that may attend to no key
# At every how many places a tick or a label stands.
STEPS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)


@dataclass(frozen=True, repr=False)
class Axis:
    """The rows or the columns of a matrix."""

    labels: tuple[str, ...]  # fit for the output
    indices: tuple[int, ...]  # the position of each one
    boundary: int = 0  # how many of them come before the second text of a pair; 0 where there is no boundary
    marked: frozenset[int] = frozenset()  # the places of those that carry `MARK`

    @classmethod
    def of_tokens(
        cls, tokens: Tokens, chosen: Sequence[int], palette: Palette, predicted: Mapping[int, Token] | None = None
    ) -> Axis:
        """Return the axis of the chosen tokens, each with the token that it predicted, if one is known."""
        shown: list[Token] = [tokens[index] for index in chosen]
        labels = [palette.shortened(token.label, LONGEST_LABEL) for token in shown]
        for place, index in enumerate(chosen):
            if predicted and index in predicted:
                labels[place] += " → " + palette.shortened(predicted[index].label, LONGEST_LABEL)
        first = sum(1 for token in shown if token.segment == 0)
        in_order = all(token.segment == 0 for token in shown[:first])
        return cls(tuple(labels), tuple(chosen), first if 0 < first < len(shown) and in_order else 0)

    def __len__(self) -> int:
        """How many rows or columns."""
        return len(self.labels)

    def marking(self, blind: Bool[np.ndarray, "P Q"]) -> Axis:
        """Return the axis with a mark at the rows that may attend to no key in one of the planes."""
        return replace(self, marked=frozenset(np.flatnonzero(blind.any(axis=0)).tolist()))

    def taken(self, parts: Sequence[range]) -> Axis:
        """Return the axis of parts of this one: each is called as its first place, and marked where one of it is."""
        before = sum(part.start < self.boundary for part in parts)
        marked = (number for number, part in enumerate(parts) if not self.marked.isdisjoint(part))
        return Axis(
            tuple(self.labels[part.start] for part in parts),
            tuple(self.indices[part.start] for part in parts),
            before if before < len(parts) else 0,
            frozenset(marked if self.marked else ()),
        )

    def pooled(self, step: int) -> Axis:
        """Return the axis of every `step`-th place, marked if one up to the next is."""
        return self.taken([range(start, start + step) for start in range(0, len(self), step)])

    def paired(self) -> Axis:
        """Return the axis of lines that show two places each, which both belong to the same text of a pair."""
        texts = range(self.boundary), range(self.boundary, len(self))
        return self.taken([text[start : start + 2] for text in texts for start in range(0, len(text), 2)])

    @cached_property
    def digits(self) -> int:
        """How many digits the longest index has."""
        return len(str(max(self.indices)))

    @cached_property
    def width(self) -> int:
        """How many cells the row labels take."""
        longest = max(map(cell_len, self.labels))
        return self.digits + (1 + longest if longest else 0) + (2 if self.marked else 0)

    def row_labels(self, header_lines: int, palette: Palette, height: int = 1) -> Block:
        """Return `index label` for every row, which is so high, below as many blank lines as the matrix has headers."""
        digits, width = self.digits, self.width
        margin = 2 if self.marked else 0  # a column of its own, where no token that is called so is taken for a mark
        blank, lines = [Segment(" " * width)], []
        for place, (index, label) in enumerate(zip(self.indices, self.labels, strict=True)):
            lines += [[Segment("─" * width, DIM)]] * (place == self.boundary > 0)
            name = cell(f"{index:>{digits}} {label}".rstrip(), width - margin, align="left")
            above = (height - 1) // 2  # where the numbers of cells stand
            mark = cell(MARK if place in self.marked else "", margin, BOLD)
            lines += [*[blank] * above, [name, mark], *[blank] * (height - 1 - above)]
        return Block([blank] * header_lines + lines, width)

    def header(self, cell_width: int, palette: Palette) -> list[Segment]:
        """Return the header of columns: what each is called, or its index; of narrow ones as many as have room."""
        if cell_width <= 2 or self.boundary:
            return self.ticks(cell_width, palette)
        has_room = any(self.labels) and max(map(cell_len, self.labels)) < cell_width
        texts = self.labels if has_room else map(str, self.indices)
        placed = (" " * ((cell_width - cell_len(text)) // 2) + text for text in texts)
        return [Segment(set_cell_size(text, cell_width), DIM) for text in placed]

    def ticks(self, cell_width: int, palette: Palette, marked: int | None = None) -> list[Segment]:
        """Return the header of narrow columns: as many of their indices as have room.

        The place that is `marked` has a mark instead.
        """
        last = len(str(self.indices[-1]))
        step = next(step for step in STEPS if step * cell_width > last)
        width = len(self) * cell_width + bool(self.boundary)

        def start_of(place: int) -> int:
            return place * cell_width + (1 if self.boundary and place >= self.boundary else 0)

        mark = None if marked is None else start_of(marked) + cell_width - 1
        line = ""
        for place in range(0, len(self), step):
            start, text = start_of(place), str(self.indices[place])
            is_free = mark is None or not start - 1 <= mark <= start + len(text)
            if is_free and len(line) <= start and start + len(text) <= width:
                line += " " * (start - len(line)) + text
        line = line[:width].ljust(width)
        if mark is None:
            return [Segment(line, DIM)]
        return [Segment(line[:mark], DIM), Segment("▾", BOLD), Segment(line[mark + 1 :], DIM)]


def mark_note(blind: Bool[np.ndarray, "P Q"]) -> str:
    """Return what the mark of an axis means; nothing where no row has it."""
    if not blind.any():
        return ""
    is_everywhere = np.array_equal(blind.any(axis=0), blind.all(axis=0))
    return f"{MARK} fully masked" + ("" if is_everywhere else " in some of them")


def titled(what: str, label: int | str) -> str:
    """Return the title of a layer or a head: `head 3`, `mean of heads`, `rollout`."""
    if isinstance(label, int):
        return f"{what} {label}"
    return label if label == "rollout" else f"{label} of {what}s"
