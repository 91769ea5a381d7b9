"""Pictures of a mask: one, or two alignments side by side; a bias as the size of what it takes away."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from rich.console import RenderableType
from rich.segment import Segment
from rich.text import Text

from attncli.masks.expressions import biases, slopes
from attncli.masks.layout import Subject
from attncli.render.axes import LONGEST_LABEL, Axis, mark_note
from attncli.render.block import Block, beside, block, stack
from attncli.render.drawing import MaskDrawing
from attncli.render.heatmap import COMFORTABLE, Picture, Scale, heatmaps, legend, pooling
from attncli.render.palette import BOLD, Palette

_GAP = 4


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

    def shown(self, subjects: Sequence[Subject]) -> Iterator[RenderableType]:
        """Yield the pictures and the numbers of a mask, or of its two alignments."""
        yield Text(self.palette.label(_headline(subjects)))
        is_one = len(subjects) == 1
        panels = [self._panel(subject, "" if is_one else _alignment(subject)) for subject in subjects]
        is_wide = sum(panel.width for panel in panels) + _GAP * (len(panels) - 1) > self.room
        yield stack(panels) if is_wide else beside(panels, _GAP)
        for subject in subjects:
            yield from self._drawing(subject).facts(self.palette, self.room, "" if is_one else _alignment(subject))

    def pool(self, subject: Subject) -> tuple[int, int]:
        """Return how many rows and columns a drawn cell stands for."""
        drawing = self._drawing(subject)
        return pooling(drawing.rows, drawing.columns, self.room)

    def _drawing(self, subject: Subject) -> MaskDrawing:
        _, queries, keys = subject.allowed.shape
        blind = np.asarray(~subject.allowed.any(axis=2))
        rows = self._axis(self.queries, range(subject.past, subject.past + queries)).marking(blind)
        return MaskDrawing(subject.allowed, blind, subject.planes, rows, self._axis(self.keys, range(keys)))

    def _axis(self, tokens: Sequence[str] | None, positions: range) -> Axis:
        named = tokens or ()
        labels = (named[position] if position < len(named) else "" for position in positions)
        return Axis(tuple(self.palette.shortened(label, LONGEST_LABEL) for label in labels), tuple(positions))

    def _panel(self, subject: Subject, title: str) -> Block:
        drawing, pool = self._drawing(subject), self.pool(subject)
        if subject.bias_heads is None:
            parts = [drawing.picture(pool, self.palette, self.room)]
        else:
            pictures = list(_biases(subject, pool))
            drawn = heatmaps(pictures, drawing.rows, drawing.columns, pool, self.palette, self.room)
            parts = [drawn, legend(pictures, self.palette, self.room, mark_note(drawing.blind))]
        heading = [block([[Segment(self.palette.fit(title), BOLD)]])] if title else []
        return stack([*heading, *parts])


def pooling_note(pool: tuple[int, int], command: str) -> str:
    """Return what has to be said of a picture with fewer cells than the mask."""
    return f"each cell drawn stands for {pool[0]}×{pool[1]}; `attn mask {command} -F json` has all of them"


def _biases(subject: Subject, pool: tuple[int, int]) -> Iterator[Picture]:
    """Yield the size of the bias of each head, in the cells that the mask allows."""
    heads = subject.bias_heads
    assert heads is not None
    allowed = subject.allowed[0]
    for slope, rows_of in zip(slopes(heads), biases(heads, allowed.shape[1], subject.past), strict=True):
        bias = rows_of(np.arange(len(allowed)))
        whole = Picture(f"slope {slope:.3g}", -bias, allowed, Scale.of(-bias, allowed))
        yield whole.pooled(*pool)


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
