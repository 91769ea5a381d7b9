"""Drawn views as the picture formats write them: lines of text, cut into pieces whose place and width are known.

A terminal gives every character its cells; a browser gives it what its fonts do. So whatever a common monospaced
font may lack, or give another width, is a piece by itself, which the writers put where a terminal would.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby

from rich.cells import split_graphemes
from rich.color import Color
from rich.segment import Segment
from rich.style import Style
from rich.terminal_theme import DEFAULT_TERMINAL_THEME

from attncli.render.palette import LEFT_TO_RIGHT

INK = "#1f2328"
PAPER = "#ffffff"
FAINT = "#59636e"  # on paper at a contrast of 6:1 (WCAG 2.2 asks for 4.5)
FONTS = ("ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "DejaVu Sans Mono", "Liberation Mono", "monospace")

_PLAIN, _OTHER, _RIGHT_TO_LEFT = range(3)


@dataclass(frozen=True)
class Look:
    """How cells look on paper: colours as `#rrggbb`, `behind` None where that is the paper."""

    ink: str = INK
    behind: str | None = None
    is_bold: bool = False


@dataclass(frozen=True)
class Piece:
    """Neighbouring cells of a line that look alike.

    Attributes:
        start: the first of its cells.
        width: how many there are.
        text: what stands in them.
        look: how they look.
        is_plain: whether every monospaced font has all of it, at one cell a character.
        is_right_to_left: whether it is read so; what stands beside it is not.
    """

    start: int
    width: int
    text: str
    look: Look = Look()
    is_plain: bool = True
    is_right_to_left: bool = False

    @property
    def is_blank(self) -> bool:
        """Whether there is nothing to see."""
        return self.look.behind is None and not self.text.strip(" ")


@dataclass(frozen=True)
class Drawing:
    """A view, drawn.

    Attributes:
        title: what it shows, on one line and harmless; empty where its lines say so.
        lines: its lines from the top, without the blanks at their ends.
    """

    title: str
    lines: Sequence[Sequence[Piece]]

    @property
    def width(self) -> int:
        """Cells of its longest line."""
        return max((line[-1].start + line[-1].width for line in self.lines if line), default=0)


def title_of(drawings: Sequence[Drawing], name: str) -> str:
    """Return what a document of these views is called, given what drew them."""
    titles = [drawing.title for drawing in drawings if drawing.title]
    if not titles:
        return name
    return f"{name}: {titles[0]}" + (f" and {len(titles) - 1} more" if len(titles) > 1 else "")


def pieces(segments: Iterable[Segment]) -> list[Piece]:
    """Return a line as pieces, without the blanks at its end."""
    kept: list[Piece] = []
    for piece in _placed(segments):
        last = kept[-1] if kept else None
        if last is not None and last.is_plain and piece.is_plain and last.look == piece.look:
            kept[-1] = replace(last, width=last.width + piece.width, text=last.text + piece.text)
        else:
            kept.append(piece)
    while kept and kept[-1].is_blank:
        kept.pop()
    if kept and kept[-1].is_plain and kept[-1].look.behind is None:
        text = kept[-1].text.rstrip(" ")
        kept[-1] = replace(kept[-1], width=len(text), text=text)
    return kept


def _placed(segments: Iterable[Segment]) -> Iterator[Piece]:
    start = 0
    for text, style, _ in segments:
        # A terminal's mark: here every piece has a place of its own.
        for run, width, kind in _runs(text.replace(LEFT_TO_RIGHT, "")):
            yield Piece(start, width, run, _look(style), kind == _PLAIN, kind == _RIGHT_TO_LEFT)
            start += width


def _runs(text: str) -> Iterator[tuple[str, int, int]]:
    """Yield the runs of one kind that a text consists of, with their widths in cells."""
    if text.isascii():
        yield text, len(text), _PLAIN
        return
    clusters = [(text[start:stop], width) for start, stop, width in split_graphemes(text)[0]]
    kinds = [_kind(cluster) for cluster, _ in clusters]
    for place in range(1, len(kinds) - 1):
        # The words between them are read in the order of theirs.
        if clusters[place][0] == " " and kinds[place - 1] == kinds[place + 1] == _RIGHT_TO_LEFT:
            kinds[place] = _RIGHT_TO_LEFT
    for kind, run in groupby(zip(kinds, clusters, strict=True), key=lambda pair: pair[0]):
        parts = [cluster for _, cluster in run]
        yield "".join(part for part, _ in parts), sum(width for _, width in parts), kind


@cache
def _kind(cluster: str) -> int:
    if any(unicodedata.bidirectional(character) in {"R", "AL", "AN"} for character in cluster):
        return _RIGHT_TO_LEFT
    return _PLAIN if len(cluster) == 1 and ord(cluster) < 0x100 else _OTHER


@cache
def _look(style: Style | None) -> Look:
    if style is None:
        return Look()
    ink, behind = _hex(style.color, is_ink=True), _hex(style.bgcolor, is_ink=False)
    faint = FAINT if style.dim and behind is None else INK
    return Look(ink or faint, behind, bool(style.bold))


def _hex(color: Color | None, *, is_ink: bool) -> str | None:
    if color is None or color.is_default:
        return None
    return color.get_truecolor(DEFAULT_TERMINAL_THEME, foreground=is_ink).hex
