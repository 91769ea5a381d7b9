"""Masks as pictures: one, where two differ, and what a check of one found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from textwrap import wrap
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from rich.console import RenderableType
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from attncli.masks.comparison import Comparison, summary
from attncli.masks.conventions import WRITTEN
from attncli.masks.findings import Finding
from attncli.masks.mask_grid import MaskGrid
from attncli.render.axes import LONGEST_LABEL, Axis, mark_note
from attncli.render.block import COMFORTABLE, Block, Cell, block, cell, flowing, grid, hstack, stack, wrap_cells
from attncli.render.findings import finding_lines, tally
from attncli.render.heatmap import Heatmap, heatmaps, pooling
from attncli.render.palette import BOLD, DIM, Palette, Scale
from attncli.text import join_ranges, span

if TYPE_CHECKING:
    from jaxtyping import Bool, Float


@dataclass(frozen=True)
class MaskPicture:
    """A mask over two axes.

    Attributes:
        allowed: the cells that are drawn, True = attend; a plane for each mask that heads or batch rows have.
        blind: the rows of each plane that may attend to no key, be it drawn or not.
        names: what each plane is called.
        rows: the query axis.
        columns: the key axis.
        past: how many keys stand before the row of index 0.
    """

    allowed: Bool[np.ndarray, "P Q K"]
    blind: Bool[np.ndarray, "P Q"]
    names: Sequence[str]
    rows: Axis
    columns: Axis
    past: int = 0

    @cached_property
    def kinds(self) -> list[list[int]]:
        """The planes, those that are alike together."""
        kinds: dict[bytes, list[int]] = {}
        for plane, (allowed, blind) in enumerate(zip(self.allowed, self.blind, strict=True)):
            kinds.setdefault(np.packbits(allowed).tobytes() + np.packbits(blind).tobytes(), []).append(plane)
        return list(kinds.values())

    def picture(self, pool: tuple[int, int], palette: Palette, room: int) -> Block:
        """Return the cells, what their marks mean, and the keys that the rows do not name."""
        shares = [_shares(self.allowed[kind[0]], pool) for kind in self.kinds]
        pictures = [Heatmap(self._title(kind), own, own > 0) for kind, own in zip(self.kinds, shares, strict=True)]
        drawn = heatmaps(pictures, self.rows, self.columns, pool, palette, room, Scale(0.0, 1.0))
        # Without titles the first line is empty.
        cells = drawn if len(pictures) > 1 else Block(drawn.lines[1:], drawn.width)
        full, style = palette.ramp(2)[-1]
        notes = [" masked", mark_note(self.blind)]
        notes += [f"shade: share of {pool[0]}×{pool[1]} cells"] * (pool != (1, 1))
        legend = [[Segment(full, style), Segment(" attends", DIM)]]
        legend += [[Segment(palette.fit("·" * (note == " masked") + note), DIM)] for note in notes if note]
        parts = [cells, flowing(legend, room)]
        # The keys by name, unless they are nameless, pooled, or named by the rows already.
        keys = list(zip(self.columns.indices, self.columns.labels, strict=True))
        named = set(zip((index + self.past for index in self.rows.indices), self.rows.labels, strict=True))
        if pool == (1, 1) and any(self.columns.labels) and not named >= set(keys):
            listed = [[Segment(f"{index} ", DIM), Segment(label)] for index, label in keys]
            parts.append(flowing([[Segment("keys", BOLD)], *listed], room))
        return stack(parts)

    def facts(self, palette: Palette, room: int, title: str = "") -> Iterator[Block]:
        """Yield the numbers of every kind of plane, under a title that says which."""
        for kind in self.kinds:
            heading = palette.fit(f"{title} {self._title(kind)}".strip())
            lines = [block([[Segment(line, BOLD)]]) for line in wrap(heading, room)]
            yield stack([*lines, self._numbers(kind[0], palette, room)])

    def _title(self, kind: Sequence[int]) -> str:
        """Return what the planes of a kind are called."""
        if len(self.kinds) == 1:
            return self.names[0] if len(self.names) == 1 else ""
        return self.names[kind[0]] + (f" and {len(kind) - 1} more" if len(kind) > 1 else "")

    def _numbers(self, plane: int, palette: Palette, room: int) -> Block:
        queries, keys = np.array(self.rows.indices), np.array(self.columns.indices)
        facts = summary(self.allowed[plane], queries + self.past, keys)
        first = "none" if facts.first is None else span(*(self.columns.indices[place] for place in facts.first))
        lines = [
            ("keys per row", f"{span(facts.fewest, facts.most)}, the first one visible {first}"),
            ("density", f"{facts.density:.4g}"),
            ("symmetric", {None: "rows and columns differ", True: "yes", False: "no"}[facts.is_symmetric]),
            ("causal", "yes" if facts.is_causal else "no"),
            ("fully masked rows", join_ranges(queries[self.blind[plane]].tolist())),
            ("keys nobody sees", join_ranges(keys[list(facts.unseen_keys)].tolist())),
        ]
        margin = max(len(name) for name, _ in lines) + 2
        rows: list[list[Cell]] = [[(name, DIM), (palette.fit(text), None)] for name, text in lines]
        return grid(wrap_cells(rows, room - margin), "<<", None)


def _shares(cells: Bool[np.ndarray, "Q K"], pool: tuple[int, int]) -> Float[np.ndarray, "R C"]:
    """Return the share of each block of cells that is true; blocks at the edges may be smaller."""
    starts = [np.arange(0, size, step) for size, step in zip(cells.shape, pool, strict=True)]
    rows = np.array([cells[start : start + pool[0]].sum(axis=0, dtype=np.int32) for start in starts[0]])
    sizes = [np.diff(np.append(start, size)) for start, size in zip(starts, cells.shape, strict=True)]
    return np.add.reduceat(rows, starts[1], axis=1) / np.outer(*sizes)


class MaskView(NamedTuple):
    """Where masks are drawn.

    Attributes:
        palette: how cells look.
        width: cells in a line; None where the output sets none.
        queries: what the query at each position is called, past included; None where there are only positions.
        keys: what the key at each position is called.
    """

    palette: Palette
    width: int | None
    queries: Sequence[str] | None = None
    keys: Sequence[str] | None = None

    @property
    def room(self) -> int:
        """Cells in a line."""
        return self.width or COMFORTABLE

    def shown(self, subject: MaskGrid) -> Iterator[RenderableType]:
        """Yield the pictures and the numbers of a mask."""
        yield Text(self.palette.label(_headline(subject, self.keys is None)))
        drawing = self._drawing(subject)
        yield drawing.picture(self.pool(subject), self.palette, self.room)
        yield from drawing.facts(self.palette, self.room)

    def pool(self, subject: MaskGrid) -> tuple[int, int]:
        """Return how many rows and columns a drawn cell stands for."""
        drawing = self._drawing(subject)
        return pooling(drawing.rows, drawing.columns, self.room)

    def _drawing(self, subject: MaskGrid) -> MaskPicture:
        _, queries, keys = subject.allowed.shape
        blind = np.asarray(~subject.allowed.any(axis=2))
        rows = self._axis(self.queries, range(subject.past, subject.past + queries)).marking(blind)
        columns = self._axis(self.keys, range(keys))
        return MaskPicture(subject.allowed, blind, subject.planes, rows, columns)

    def _axis(self, tokens: Sequence[str] | None, positions: range) -> Axis:
        named = tokens or ()
        labels = (named[position] if position < len(named) else "" for position in positions)
        return Axis(tuple(self.palette.shortened(label, LONGEST_LABEL) for label in labels), tuple(positions))


def pooling_note(pool: tuple[int, int], command: str) -> str:
    """Return what has to be said of a picture with fewer cells than the mask."""
    return f"each cell drawn stands for {pool[0]}×{pool[1]}; `attn mask {command} -F json` has all of them"


def _headline(subject: MaskGrid, is_of_positions: bool) -> str:
    _, queries, keys = subject.allowed.shape
    text = f"{subject.name} · {queries} queries × {keys} keys"
    if subject.past or (is_of_positions and queries < keys):
        text += f", past {subject.past}"
    if subject.stored is not None and subject.reading is not None:
        text += f" · {subject.stored.dtype or 'numbers'} {list(subject.stored.values.shape)}"
    return text


# Cells of a comparison: neither allows, both do, one does, and a pooled cell in which each does somewhere.
_NEITHER, _BOTH, _FIRST, _SECOND, _EITHER = range(5)
_FIRST_STYLE = Style(color="#000000", bgcolor="#e69f00", bold=True)  # Okabe and Ito's orange and blue
_SECOND_STYLE = Style(color="#ffffff", bgcolor="#0072b2", bold=True)


def compared(comparison: Comparison, palette: Palette, room: int) -> Iterator[RenderableType]:
    """Yield where two masks differ, as counts and as a picture."""
    differing = comparison.count
    if not differing:
        yield Text(palette.fit(f"equal: {comparison.both.size} cells"))
        return
    rows = int((comparison.only_first | comparison.only_second).any(axis=1).sum())
    line = f"{differing} of {comparison.both.size} cells differ, in {rows} of {len(comparison.both)} rows"
    yield Text(palette.fit(line))
    yield _difference(comparison, palette, room)


def _difference(comparison: Comparison, palette: Palette, room: int) -> Block:
    """Return the picture of where two masks differ, what its marks mean, and how often they occur."""
    queries, keys = comparison.both.shape
    rows = Axis(("",) * queries, tuple(range(comparison.past, comparison.past + queries)))
    columns = Axis(("",) * keys, tuple(range(keys)))
    pool = pooling(rows, columns, room)
    planes = comparison.only_first, comparison.only_second, comparison.both
    first, second, both = (_shares(cells, pool) > 0 for cells in planes)
    codes = np.select([first & second, first, second, both], [_EITHER, _FIRST, _SECOND, _BOTH], _NEITHER)
    width = 2 if codes.shape[1] * 2 <= room - rows.width - 1 else 1
    styles = (_FIRST_STYLE, _SECOND_STYLE) if palette.has_color else (BOLD, BOLD)
    marks = [palette.fit("·"), palette.fit("░") * width, "A" * width, "B" * width, "X" * width]
    cells = [cell(mark, width, style) for mark, style in zip(marks, (DIM, DIM, *styles, BOLD), strict=True)]
    rows, columns = rows.pooled(pool[0]), columns.pooled(pool[1])
    lines = [columns.ticks(width, palette), *([cells[code] for code in row] for row in codes.tolist())]
    names = [palette.shortened(name, room - 20) for name in comparison.names]
    notes = [f"{'AB'[side]} only {names[side]}: {np.count_nonzero(planes[side])}" for side in (0, 1)]
    notes += [f"{palette.fit('░')} both", f"{palette.fit('·')} neither"]
    notes += ["X each somewhere"] if (codes == _EITHER).any() else []
    notes += [palette.fit(f"a cell is {pool[0]}×{pool[1]}")] if pool != (1, 1) else []
    picture = hstack([rows.row_labels(1, palette), block(lines)], 1)
    return stack([picture, flowing(([Segment(note, DIM)] for note in notes), room)])


def checked(
    subject: MaskGrid, findings: Sequence[Finding], comparison: Comparison | None, view: MaskView
) -> Iterator[RenderableType]:
    """Yield what a check found, and where."""
    yield Text(view.palette.label(_read_as(subject)))
    if findings:
        yield finding_lines(findings, view.palette, view.width)
    if comparison is not None:
        names = (comparison.names[0], "expected")
        yield _difference(replace(comparison, names=names), view.palette, view.room)
    yield tally(findings)


def _read_as(subject: MaskGrid) -> str:
    """Return what a mask is and how its values are read."""
    if subject.stored is None or subject.reading is None:
        _, queries, keys = subject.allowed.shape
        return f"{subject.name} · {queries} queries × {keys} keys"
    text = f"{subject.name} · {subject.stored.dtype or 'numbers'} {list(subject.shape)} · "
    if subject.reading.is_ambiguous:
        return text + "ambiguous"
    return f"{text}{WRITTEN[subject.reading.convention]} ({subject.reading.why})"
