"""Drawn views as Markdown: each one a fenced block of text, which keeps columns where they are.

Tables of Markdown would lose the alignment of numbers, the shades, and all of a map; a fence shows on GitHub what a
pipe shows, and scrolls where it is wide.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from attncli.formats.drawn import Drawing, Piece
from attncli.render.palette import LEFT_TO_RIGHT

_TICKS = re.compile(r"`+")


def write_markdown(drawings: Sequence[Drawing], name: str) -> Iterator[str]:
    """Yield all views, one below the other, each under a heading."""
    for number, drawing in enumerate(drawings):
        text = "\n".join("".join(map(_written, line)) for line in drawing.lines)
        fence = "`" * max(3, _longest(text) + 1)
        heading = _code(drawing.title) if drawing.title else name
        yield "\n" if number else ""
        yield f"## {heading}\n\n{fence}text\n{text}\n{fence}\n"


def _written(piece: Piece) -> str:
    # What is read from the right would take the numbers behind it along; a mark that takes no room ends that.
    return piece.text + (LEFT_TO_RIGHT if piece.is_right_to_left else "")


def _code(text: str) -> str:
    """Return text as a code span: in there nothing is markup, a mention, a link or HTML."""
    ticks = "`" * (_longest(text) + 1)
    blank = " " if text[:1] in " `" or text[-1:] in " `" else ""
    return f"{ticks}{blank}{text}{blank}{ticks}"


def _longest(text: str) -> int:
    return max(map(len, _TICKS.findall(text)), default=0)
