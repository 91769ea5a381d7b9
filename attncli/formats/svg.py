"""Drawn views as SVG: rectangles for colours, real text on top; no style sheet, script, id or font of its own.

A run of text is as wide as a terminal makes it, whichever monospaced font the reader has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape

from rich.segment import Segment
from rich.style import Style

from attncli.formats.drawn import FONTS, INK, PAPER, Drawing, Piece, pieces, title_of

# Pixels. A letter of most monospaced fonts is 0.6 of its size wide.
_CELL, _LINE, _BASELINE, _SIZE, _MARGIN = 9, 20, 15, 15, 18
_WORDS = re.compile(r"[^ ]+(?: [^ ]+)*")  # more blanks than one are a distance


def write_svg(drawings: Sequence[Drawing], name: str) -> Iterator[str]:
    """Yield the picture of all views, one below the other."""
    lines = _stacked(drawings)
    width = max(line[-1].start + line[-1].width for line in lines if line) * _CELL + 2 * _MARGIN
    height = len(lines) * _LINE + 2 * _MARGIN
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'font-family="{", ".join(FONTS)}" font-size="{_SIZE}" fill="{INK}">\n'
        f"<title>{escape(title_of(drawings, name))}</title>\n"
        f'<rect width="{width}" height="{height}" fill="{PAPER}"/>\n'
    )
    yield from _rectangles(lines)
    for number, line in enumerate(lines):
        for piece in line:
            yield from _texts(piece, _MARGIN + number * _LINE + _BASELINE)
    yield "</svg>\n"


def _stacked(drawings: Sequence[Drawing]) -> list[Sequence[Piece]]:
    """Return the lines of all views; where there are several, each below its title."""
    if len(drawings) == 1:
        return list(drawings[0].lines)
    lines: list[Sequence[Piece]] = []
    for drawing in drawings:
        title = [pieces([Segment(drawing.title, Style(bold=True))]), []] if drawing.title else []
        lines += [*([[], []] if lines else []), *title, *drawing.lines]
    return lines


def _rectangles(lines: Sequence[Sequence[Piece]]) -> Iterator[str]:
    """Yield what is behind the text, all cells of one colour as one path."""
    paths: dict[str, list[str]] = {}
    for number, line in enumerate(lines):
        for piece in line:
            if piece.look.behind is not None:
                corner = f"M{_MARGIN + piece.start * _CELL} {_MARGIN + number * _LINE}"
                size = piece.width * _CELL
                paths.setdefault(piece.look.behind, []).append(f"{corner}h{size}v{_LINE}h-{size}z")
    for color, parts in paths.items():
        yield f'<path shape-rendering="crispEdges" fill="{color}" d="{"".join(parts)}"/>\n'


def _texts(piece: Piece, baseline: int) -> Iterator[str]:
    """Yield the words of a piece, each run of them where it stands."""
    look = piece.look
    how = f' fill="{look.ink}"' if look.ink != INK else ""
    how += ' font-weight="bold"' if look.is_bold else ""
    if not piece.is_plain:  # its glyphs, of whichever font has them, are fitted into its cells
        how += ' lengthAdjust="spacingAndGlyphs"'
        yield _text(piece.text, piece.start, piece.width, baseline, how)
        return
    for words in _WORDS.finditer(piece.text):
        yield _text(words[0], piece.start + words.start(), len(words[0]), baseline, how)


def _text(text: str, start: int, width: int, baseline: int, how: str) -> str:
    place = f'x="{_MARGIN + start * _CELL}" y="{baseline}" textLength="{width * _CELL}"'
    return f"<text {place}{how}>{escape(text)}</text>\n"
