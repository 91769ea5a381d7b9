"""Masks as pictures: one, where two differ, and what a check of one found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from rich.console import RenderableType
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from attncli.masks.comparison import Comparison
from attncli.masks.conventions import WRITTEN
from attncli.masks.mask_grid import MaskGrid
from attncli.masks.recognition import rule_of
from attncli.render.block import COMFORTABLE, Block, block, flowing, hstack, in_words, padded, shortened, stack
from attncli.render.heatmap import Heatmap, heatmaps, pooling
from attncli.render.matrix import HALF, LONGEST_LABEL, Axis, GridCell, mark_note
from attncli.render.palette import BOLD, DIM, Palette, Scale
from attncli.text import join_ranges, plural, visible

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int


# How far along the colours cells stand that attend, and those of a query's own position: calm, and apart. Without
# colours a cell that attends is full.
_COLORED, _PLAIN = (0.45, 0.75), (1.0, 0.7)
_AROUND = 7  # lines around the rows of a mask, and of the note that cells are pooled


@dataclass(frozen=True)
class MaskPicture:
    """A mask over two axes, with a plane for each mask that heads or batch rows have."""

    allowed: Bool[np.ndarray, "P Q K"]  # the cells that are drawn, True = attend
    blind: Bool[np.ndarray, "P Q"]  # the rows that may attend to no key, be it drawn or not
    names: Sequence[str]  # of the planes
    rows: Axis
    columns: Axis
    past: int = 0  # keys before the row of index 0

    @cached_property
    def kinds(self) -> list[list[int]]:
        """The planes, those that are alike together."""
        kinds: dict[bytes, list[int]] = {}
        for plane, (allowed, blind) in enumerate(zip(self.allowed, self.blind, strict=True)):
            kinds.setdefault(np.packbits(allowed).tobytes() + np.packbits(blind).tobytes(), []).append(plane)
        return list(kinds.values())

    @cached_property
    def _positions(self) -> tuple[Int[np.ndarray, "Q 1"], Int[np.ndarray, " K"]]:
        return np.array(self.rows.indices)[:, None] + self.past, np.array(self.columns.indices)

    @cached_property
    def _is_of_itself(self) -> bool:
        """Whether queries and keys are the same tokens, as far as their labels say."""
        keys = dict(zip(self.columns.indices, self.columns.labels, strict=True))
        rows = zip(self.rows.indices, self.rows.labels, strict=True)
        return all(keys.get(index + self.past, label) == label or label.isdigit() for index, label in rows)

    def picture(self, pool: tuple[int, int], palette: Palette, room: int, lines: int | None = None) -> Block:
        """Return the cells, what their marks mean, and the keys that the rows do not name.

        More rows than `lines` are half a line high.
        """
        if palette.is_read_aloud:
            return self._in_words(room)
        attends, itself = _COLORED if palette.has_color else _PLAIN
        queries, keys = self._positions
        has_own, pictures = pool == (1, 1) and self._is_of_itself and bool((queries == keys).any()), []
        for kind in self.kinds:
            values = attends * _shares(self.allowed[kind[0]], pool)
            if has_own:
                values[(queries == keys) & (values > 0)] = itself
            pictures.append(Heatmap(self._title(kind), values, values > 0))
        scale = Scale(0.0, 1.0)
        is_high = lines is not None and palette.has_color and -(-len(self.rows) // pool[0]) > lines
        is_small = 2 * len(self.rows) <= (lines or 0) and 4 * len(self.columns) <= room - 20
        is_small &= pool == (1, 1) and len(pictures) == 1 and palette.has_color
        size = HALF if is_high else GridCell(4, 1, 2) if is_small else None  # which grows where there is room
        drawn = heatmaps(pictures, self.rows, self.columns, pool, palette, room, scale, size)
        # Without titles the first line is empty.
        cells = drawn if len(pictures) > 1 else Block(drawn.lines[1:], drawn.width)
        marks = {attends: " attends"} | ({itself: " itself"} if has_own else {})
        (shown,) = palette.cells(np.array([[*marks]]), np.ones((1, len(marks)), bool), scale, 2)
        legend = [[Segment(*one), Segment(note, DIM)] for one, note in zip(shown, marks.values(), strict=True)]
        notes = ["" if self.allowed.all() else "· masked", mark_note(self.blind)]
        notes += [f"shade: share of {pool[0]}×{pool[1]} cells"] * (pool != (1, 1))
        parts = [cells, flowing([*legend, *([Segment(note, DIM)] for note in notes if note)], room)]
        # The keys by name, unless they are nameless, pooled, or named by the rows already.
        columns = list(zip(self.columns.indices, self.columns.labels, strict=True))
        named = set(zip((index + self.past for index in self.rows.indices), self.rows.labels, strict=True))
        if pool == (1, 1) and any(self.columns.labels) and not named >= set(columns):
            listed = [[Segment(f"{index} ", DIM), Segment(label)] for index, label in columns]
            parts.append(flowing([[Segment("keys", BOLD)], *listed], room))
        return stack(parts)

    def _in_words(self, room: int) -> Block:
        """Return the keys of each query in a sentence."""
        lines, keys = list[str](), np.array(self.columns.indices)
        for kind in self.kinds:
            lines += filter(None, [self._title(kind)])
            for index, label, allowed in zip(self.rows.indices, self.rows.labels, self.allowed[kind[0]], strict=True):
                spoken = join_ranges(keys[allowed].tolist()).replace("..", " to ")
                query = " ".join(filter(None, ("query", str(index), label)))
                lines.append(f"{query} attends to {spoken or 'no key'}")
        return block([Segment(part)] for line in lines for part in in_words(line, room))

    def facts(self, room: int, title: str = "") -> Block:
        """Return what every kind of plane is like: how many keys a query has, and what is odd."""
        lines = []
        for kind in self.kinds:
            heading = f"{title} {self._title(kind)}".strip()
            facts = [[Segment(fact)] for fact in self._facts(kind[0])]
            lines.append(flowing([*([[Segment(heading, BOLD)]] if heading else []), *facts], room))
        return stack(lines)

    def _title(self, kind: Sequence[int]) -> str:
        if len(self.kinds) == 1:
            return self.names[0] if len(self.names) == 1 else ""
        return self.names[kind[0]] + (f" and {len(kind) - 1} more" if len(kind) > 1 else "")

    def _facts(self, plane: int) -> Iterator[str]:
        allowed, (queries, keys) = self.allowed[plane], self._positions
        counts = allowed.sum(axis=1)
        fewest, most = int(counts.min()), int(counts.max())
        yield f"{fewest} to {most} keys per query" if fewest < most else f"{plural(most, 'key')} per query"
        yield f"{counts.sum() / allowed.size:.0%} of cells allowed".replace("%", " %")
        if self._is_of_itself:
            later = int((allowed & (keys > queries)).sum())
            yield f"not causal: {plural(later, 'cell')} after the query" if later else "causal: none after the query"
        if self.blind[plane].any():
            yield f"fully masked rows: {join_ranges(np.array(self.rows.indices)[self.blind[plane]].tolist())}"
        if not allowed.any(axis=0).all():
            yield f"unseen keys: {join_ranges(keys[~allowed.any(axis=0)].tolist())}"


def _shares(cells: Bool[np.ndarray, "Q K"], pool: tuple[int, int]) -> Float[np.ndarray, "R C"]:
    """Return the share of each block of cells that is true; blocks at the edges may be smaller."""
    starts = [np.arange(0, size, step) for size, step in zip(cells.shape, pool, strict=True)]
    rows = np.array([cells[start : start + pool[0]].sum(axis=0, dtype=np.int32) for start in starts[0]])
    sizes = [np.diff(np.append(start, size)) for start, size in zip(starts, cells.shape, strict=True)]
    return np.add.reduceat(rows, starts[1], axis=1) / np.outer(*sizes)


class MaskView(NamedTuple):
    """Room for masks."""

    palette: Palette
    width: int | None  # cells in a line; None where the output sets none
    height: int | None = None  # lines that a view has room for; None shows every cell

    @property
    def lines(self) -> int | None:
        """Lines for the rows of one mask."""
        return None if self.height is None else max(self.height - _AROUND, 1)

    @property
    def room(self) -> int:
        """Cells in a line."""
        return self.width or COMFORTABLE

    def shown(self, subject: MaskGrid) -> Iterator[RenderableType]:
        """Yield the pictures and the numbers of a mask."""
        yield Text(visible(headline(subject, has_rule=True)))
        yield from self.drawn(subject)

    def drawn(self, subject: MaskGrid) -> Iterator[RenderableType]:
        """Yield the same without the headline."""
        picture = self._picture(subject)
        lines = self.lines if len(picture.kinds) == 1 else None
        yield picture.picture(self.pool(subject), self.palette, self.room, lines)
        yield picture.facts(self.room)

    def pool(self, subject: MaskGrid) -> tuple[int, int]:
        """Return how many rows and columns are pooled into a drawn cell."""
        picture = self._picture(subject)
        lines = self.lines if len(picture.kinds) == 1 else None
        return pooling(picture.rows, picture.columns, self.room, lines and lines * (1 + self.palette.has_color))

    def _picture(self, subject: MaskGrid) -> MaskPicture:
        _, queries, keys = subject.allowed.shape
        blind = np.asarray(~subject.allowed.any(axis=2))
        of_rows, of_keys = subject.tokens or ([""] * queries, [""] * keys)
        rows = self._axis(of_rows, range(subject.past, subject.past + queries)).marking(blind)
        return MaskPicture(subject.allowed, blind, subject.planes, rows, self._axis(of_keys, range(keys)))

    def _axis(self, tokens: Sequence[str], positions: range) -> Axis:
        return Axis(tuple(shortened(label, LONGEST_LABEL) for label in tokens), tuple(positions))


def pooling_note(pool: tuple[int, int], command: str) -> str:
    """Return the note on a picture with fewer cells than the mask."""
    return f"each drawn cell stands for {pool[0]}×{pool[1]} cells; `attn mask {command} -F json` writes all of them"


def headline(subject: MaskGrid, has_rule: bool) -> str:
    """Return what a mask is: its name, the rule that its cells follow, its size, and how its values are read."""
    _, queries, keys = subject.allowed.shape
    parts = [subject.name]
    if has_rule and subject.expression is None and not subject.is_ambiguous:
        parts.append(rule_of(subject.batched, past=subject.past).text)
    past = f", past {subject.past}" if subject.past or (subject.tokens is None and queries < keys) else ""
    parts.append(f"{queries} {'query' if queries == 1 else 'queries'} × {plural(keys, 'key')}{past}")
    if subject.stored is not None and subject.reading is not None:
        axes = f" {list(subject.shape)}" if len(subject.shape) > 2 else ""
        reading = f"{WRITTEN[subject.reading.convention]} ({subject.reading.why})"
        parts += [f"{subject.stored.dtype or 'numbers'}{axes}", "ambiguous" if subject.is_ambiguous else reading]
    return " · ".join(filter(None, parts))


# Cells of a comparison: neither allows, both do, one does, and a pooled cell in which each does somewhere.
_NEITHER, _BOTH, _FIRST, _SECOND, _EITHER = range(5)
_FIRST_STYLE = Style(color="#000000", bgcolor="#e69f00", bold=True)  # Okabe and Ito's orange and blue
_SECOND_STYLE = Style(color="#ffffff", bgcolor="#0072b2", bold=True)


def compared(comparison: Comparison, palette: Palette, room: int, lines: int | None = None) -> Iterator[RenderableType]:
    """Yield where two masks differ, as counts and as a picture of at most `lines` lines."""
    differing = comparison.count
    if not differing:
        yield Text(f"equal: {comparison.both.size} cells")
        return
    rows = int((comparison.only_first | comparison.only_second).any(axis=1).sum())
    line = f"{differing} of {comparison.both.size} cells differ, in {rows} of {len(comparison.both)} rows"
    yield Text(line)
    yield difference(comparison, palette, room, lines)


def difference(comparison: Comparison, palette: Palette, room: int, lines: int | None = None) -> Block:
    """Return the picture of where two masks differ, what its marks mean, and how often they occur."""
    queries, keys = comparison.both.shape
    rows = Axis(("",) * queries, tuple(range(comparison.past, comparison.past + queries)))
    columns = Axis(("",) * keys, tuple(range(comparison.first_key, comparison.first_key + keys)))
    pool = pooling(rows, columns, room, lines)
    planes = comparison.only_first, comparison.only_second, comparison.both
    first, second, both = (_shares(cells, pool) > 0 for cells in planes)
    codes = np.select([first & second, first, second, both], [_EITHER, _FIRST, _SECOND, _BOTH], _NEITHER)
    width = 2 if codes.shape[1] * 2 <= room - rows.width - 1 else 1
    styles = (_FIRST_STYLE, _SECOND_STYLE) if palette.has_color else (BOLD, BOLD)
    shade = ":" if palette.tier == "plain" else "░"
    marks = ["·", shade * width, "A" * width, "B" * width, "X" * width]
    cells = [padded(mark, width, style) for mark, style in zip(marks, (DIM, DIM, *styles, BOLD), strict=True)]
    rows, columns = rows.pooled(pool[0]), columns.pooled(pool[1])
    drawn = [columns.ticks(width), *([cells[code] for code in row] for row in codes.tolist())]
    names = [shortened(name, room - 20) for name in comparison.names]
    counts = [int(np.count_nonzero(cells)) for cells in planes[:2]]
    notes = [f"{'AB'[side]} only {names[side]}: {plural(counts[side], 'cell')}" for side in (0, 1) if counts[side]]
    notes += [f"{shade} both", "· neither"]
    notes += ["X each somewhere"] if (codes == _EITHER).any() else []
    notes += [f"a cell is {pool[0]}×{pool[1]}"] if pool != (1, 1) else []
    picture = hstack([rows.row_labels(1), block(drawn)], 1)
    return stack([picture, flowing(([Segment(note, DIM)] for note in notes), room)])
