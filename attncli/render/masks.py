"""Pictures of masks: one, two alignments side by side, or where two of them differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from rich.console import RenderableType
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from attncli.findings import Finding
from attncli.masks.bias import alibi, slopes
from attncli.masks.comparison import Comparison
from attncli.masks.conventions import WRITTEN
from attncli.masks.subject import Subject
from attncli.masks.summary import Summary, summary
from attncli.render.axes import LONGEST_LABEL, Axis
from attncli.render.block import Block, beside, block, cell, grid, stack
from attncli.render.findings import finding_lines, tally
from attncli.render.heatmap import Picture, Scale, heatmaps, legend, pooling
from attncli.render.palette import BOLD, DIM, Palette
from attncli.render.ranges import listed, span

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

MOST = 64  # rows and columns of a picture; more are pooled
COMFORTABLE = 100  # cells in a line where the output sets no width
_GAP = 4

# Cells of a comparison: neither allows, both do, one does, and a pooled cell in which each does somewhere.
_NEITHER, _BOTH, _FIRST, _SECOND, _EITHER = range(5)
_FIRST_STYLE = Style(color="#000000", bgcolor="#e69f00", bold=True)  # Okabe and Ito's orange and blue
_SECOND_STYLE = Style(color="#ffffff", bgcolor="#0072b2", bold=True)


@dataclass(frozen=True)
class MaskView:
    """Where masks are drawn.

    Attributes:
        palette: how cells look.
        width: cells in a line; None where the output sets none.
        tokens: the tokens of the keys; None where there are only positions.
    """

    palette: Palette
    width: int | None
    tokens: Sequence[str] | None = None

    @property
    def room(self) -> int:
        """Cells in a line."""
        return self.width or COMFORTABLE

    # --- one mask ---

    def shown(self, subjects: Sequence[Subject]) -> Iterator[RenderableType]:
        """Yield the pictures and the numbers of a mask, or of its two alignments."""
        yield Text(self.palette.label(_headline(subjects)))
        panels = [self._panel(subject, is_one=len(subjects) == 1) for subject in subjects]
        is_wide = sum(panel.width for panel in panels) + _GAP * (len(panels) - 1) > self.room
        yield stack(panels) if is_wide else beside(panels, _GAP)
        for subject in subjects:
            title = "" if len(subjects) == 1 else _alignment(subject)
            for kind in _kinds(subject):
                names = _named(subject, kind)
                yield self._facts(summary(subject.allowed[kind[0]], subject.past), f"{title} {names}".strip())

    def pool(self, subject: Subject) -> tuple[int, int]:
        """Return how many rows and columns a drawn cell stands for."""
        return pooling(*self._axes(subject), self.room, MOST)

    def _panel(self, subject: Subject, is_one: bool) -> Block:
        rows, columns = self._axes(subject)
        pool = self.pool(subject)
        titles = [(kind[0], _named(subject, kind)) for kind in _kinds(subject)]
        pictures = [_picture(title, subject.allowed[plane], pool) for plane, title in titles]
        if subject.bias_heads is not None:
            pictures = list(_biases(subject, pool))
        drawn = heatmaps(pictures, rows, columns, pool, self.palette, self.room)
        # Without titles the first line is empty.
        parts = [drawn if any(picture.title for picture in pictures) else Block(drawn.lines[1:], drawn.width)]
        if not is_one:
            parts.insert(0, block([[Segment(self.palette.fit(_alignment(subject)), BOLD)]]))
        if subject.bias_heads is not None:
            parts.append(legend(pictures, self.palette))
        else:
            parts.append(self._legend(pool, has_dead=not subject.allowed.any(axis=2).all()))
        return stack(parts)

    def _axes(self, subject: Subject) -> tuple[Axis, Axis]:
        _, queries, keys = subject.allowed.shape
        dead = np.any(~subject.allowed.any(axis=2), axis=0).tolist()
        labels = [self._label(subject.past + row, "!" if dead[row] else "") for row in range(queries)]
        rows = Axis(tuple(labels), tuple(range(subject.past, subject.past + queries)))
        return rows, Axis(("",) * keys, tuple(range(keys)))

    def _label(self, position: int, mark: str) -> str:
        known = self.tokens is not None and position < len(self.tokens)
        token = self.palette.shortened(self.tokens[position], LONGEST_LABEL) if known and self.tokens else ""
        return f"{token} {mark}".strip()

    def _legend(self, pool: tuple[int, int], has_dead: bool) -> Block:
        full, style = self.palette.ramp(2)[-1]
        dot = self.palette.fit("·")
        line = [Segment(full, style), Segment(" attends   ", DIM), Segment(dot, DIM), Segment(" masked", DIM)]
        if has_dead:
            line.append(Segment("   ! fully masked", DIM))
        if pool != (1, 1):
            line.append(Segment(self.palette.fit(f"   shade: share of {pool[0]}×{pool[1]} cells"), DIM))
        return block([line])

    def _facts(self, facts: Summary, title: str) -> RenderableType:
        first = "none" if facts.first is None else span(*facts.first)
        lines = [
            ("keys per row", f"{span(facts.fewest, facts.most)}, the first one visible {first}"),
            ("density", f"{facts.density:.4g}"),
            ("symmetric", {None: "not square", True: "yes", False: "no"}[facts.is_symmetric]),
            ("causal", "yes" if facts.is_causal else "no"),
            ("fully masked rows", listed(facts.dead_rows)),
            ("keys nobody sees", listed(facts.unseen_keys)),
        ]
        body = grid([((name, DIM), (self.palette.fit(said), None)) for name, said in lines], "<<", None)
        heading = [block([[Segment(self.palette.fit(title), BOLD)]])] if title else []
        return stack([*heading, body])

    # --- two masks ---

    def compared(self, comparison: Comparison) -> Iterator[RenderableType]:
        """Yield where two masks differ, as counts and as a picture."""
        differing = comparison.count
        if not differing:
            yield Text(self.palette.fit(f"equal: {comparison.both.size} cells"))
            return
        rows = int((comparison.only_first | comparison.only_second).any(axis=1).sum())
        line = f"{differing} of {comparison.both.size} cells differ, in {rows} of {len(comparison.both)} rows"
        yield Text(self.palette.fit(line))
        yield self.difference(comparison)

    def difference(self, comparison: Comparison) -> Block:
        """Return the picture of where two masks differ."""
        queries, keys = comparison.both.shape
        rows = Axis(("",) * queries, tuple(range(comparison.past, comparison.past + queries)))
        columns = Axis(("",) * keys, tuple(range(keys)))
        pool = pooling(rows, columns, self.room, MOST)
        codes = _pooled_codes(comparison, pool)
        width = 2 if codes.shape[1] * 2 <= self.room - rows.width - 1 else 1
        glyphs = self._glyphs(width)
        kept_rows, kept_columns = rows.only(range(0, queries, pool[0])), columns.only(range(0, keys, pool[1]))
        lines = [kept_columns.ticks(width, self.palette)]
        lines += [[cell(glyphs[code][0], width, glyphs[code][1]) for code in row] for row in codes.tolist()]
        picture = beside([kept_rows.row_labels(1, self.palette), block(lines)], 1)
        return stack([picture, *self._key(comparison, codes, pool)])

    def _key(self, comparison: Comparison, codes: Int[np.ndarray, "R C"], pool: tuple[int, int]) -> Iterator[Block]:
        """Yield what the marks mean and how often they occur."""
        names = [self.palette.shortened(name, self.room - 20) for name in comparison.names]
        counts = [int(np.count_nonzero(cells)) for cells in (comparison.only_first, comparison.only_second)]
        glyphs = self._glyphs(1)
        said = [f"{'AB'[side]} only {names[side]}: {counts[side]}" for side in (0, 1)]
        said += [f"{glyphs[_BOTH][0]} both", f"{glyphs[_NEITHER][0]} neither"]
        said += ["X each somewhere"] if (codes == _EITHER).any() else []
        said += [self.palette.fit(f"a cell is {pool[0]}×{pool[1]}")] if pool != (1, 1) else []
        yield from _wrapped(said, self.room)

    def checked(
        self, subject: Subject, findings: Sequence[Finding], comparison: Comparison | None
    ) -> Iterator[RenderableType]:
        """Yield what a check found, and where."""
        yield Text(self.palette.label(_read_as(subject)))
        if findings:
            yield finding_lines(findings, self.palette)
        if comparison is not None:
            names = (comparison.names[0], "expected")
            yield self.difference(replace(comparison, names=names))
        yield Text(tally(findings))

    def _glyphs(self, width: int) -> list[tuple[str, Style | None]]:
        colors = (_FIRST_STYLE, _SECOND_STYLE, BOLD) if self.palette.has_color else (BOLD, BOLD, BOLD)
        both = self.palette.fit("░")
        return [
            (self.palette.fit("·"), DIM),
            (both * width, DIM),
            ("A" * width, colors[0]),
            ("B" * width, colors[1]),
            ("X" * width, colors[2]),
        ]


def _wrapped(parts: Sequence[str], width: int) -> Iterator[Block]:
    """Yield parts in as few lines as they fit in."""
    line = ""
    for part in parts:
        if line and len(line) + 3 + len(part) > width:
            yield block([[Segment(line, DIM)]])
            line = ""
        line = f"{line}   {part}" if line else part
    yield block([[Segment(line, DIM)]])


def _pooled_codes(comparison: Comparison, pool: tuple[int, int]) -> Int[np.ndarray, "R C"]:
    only_first, only_second = _any(comparison.only_first, pool), _any(comparison.only_second, pool)
    codes = np.where(_any(comparison.both, pool), _BOTH, _NEITHER)
    codes[only_first] = _FIRST
    codes[only_second] = _SECOND
    codes[only_first & only_second] = _EITHER
    return codes


def _any(cells: Bool[np.ndarray, "Q K"], pool: tuple[int, int]) -> Bool[np.ndarray, "R C"]:
    if pool == (1, 1):
        return cells
    rows = [cells[start : start + pool[0]].any(axis=0) for start in range(0, len(cells), pool[0])]
    return np.logical_or.reduceat(np.array(rows), np.arange(0, cells.shape[1], pool[1]), axis=1)


def _shares(cells: Bool[np.ndarray, "Q K"], pool: tuple[int, int]) -> Float[np.ndarray, "R C"]:
    """Return the share of each block of cells that is true; blocks at the edges may be smaller."""
    starts = [np.arange(0, size, step) for size, step in zip(cells.shape, pool, strict=True)]
    rows = np.array([cells[start : start + pool[0]].sum(axis=0, dtype=np.int32) for start in starts[0]])
    sizes = [np.diff(np.append(start, size)) for start, size in zip(starts, cells.shape, strict=True)]
    return np.add.reduceat(rows, starts[1], axis=1) / np.outer(*sizes)


def _picture(title: str, allowed: Bool[np.ndarray, "Q K"], pool: tuple[int, int]) -> Picture:
    shares = _shares(allowed, pool)
    return Picture(title, shares, shares > 0, Scale(1.0))


def _biases(subject: Subject, pool: tuple[int, int]) -> Iterator[Picture]:
    """Yield the size of the bias of each head, in the cells that the mask allows."""
    heads = subject.bias_heads
    assert heads is not None
    allowed = subject.allowed[0]
    for slope, bias in zip(slopes(heads), alibi(heads, len(allowed), allowed.shape[1], subject.past), strict=True):
        whole = Picture(f"slope {slope:.3g}", -bias, allowed, Scale.of(-bias, allowed))
        yield whole.pooled(*pool)


def _kinds(subject: Subject) -> list[list[int]]:
    """Return the planes of a mask, those that are alike together."""
    kinds: list[list[int]] = []
    for plane, cells in enumerate(subject.allowed):
        alike = next((kind for kind in kinds if np.array_equal(subject.allowed[kind[0]], cells)), None)
        if alike is None:
            kinds.append([plane])
        else:
            alike.append(plane)
    return kinds


def _named(subject: Subject, kind: Sequence[int]) -> str:
    """Return what the planes of a kind are called."""
    if len(kind) == 1:
        return subject.planes[kind[0]]
    return f"{subject.planes[kind[0]]} and {len(kind) - 1} more" if len(_kinds(subject)) > 1 else ""


def _headline(subjects: Sequence[Subject]) -> str:
    subject = subjects[0]
    _, queries, keys = subject.allowed.shape
    said = f"{subject.name} · {queries} queries × {keys} keys"
    if len(subjects) == 1 and subject.past:
        said += f", past {subject.past}"
    if subject.loaded is not None and subject.reading is not None:
        said += f" · {subject.loaded.dtype or 'numbers'} {list(subject.loaded.values.shape)}"
    if subject.bias_heads is not None:
        said += f" · bias −slope·|i−j| of {subject.bias_heads} heads, drawn as its size"
    return said


def _alignment(subject: Subject) -> str:
    return f"bottom-right, past {subject.past}" if subject.past else "top-left, past 0"


def _read_as(subject: Subject) -> str:
    """Return what a mask is and how its values are read."""
    if subject.loaded is None or subject.reading is None:
        _, queries, keys = subject.allowed.shape
        return f"{subject.name} · {queries} queries × {keys} keys"
    said = f"{subject.name} · {subject.loaded.dtype or 'numbers'} {list(subject.shape)} · "
    if subject.reading.is_ambiguous:
        return said + "ambiguous"
    return f"{said}{WRITTEN[subject.reading.convention]} ({subject.reading.why})"
