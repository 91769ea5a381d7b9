"""Drawn views as SVG, HTML and Markdown: lines of text, cut into pieces whose place and width are known.

A terminal gives every character its cells; a browser gives it what its fonts do. So whatever a common monospaced
font may lack, or give another width, is a piece by itself, which the writers put where a terminal would.

SVG has rectangles for colours and real text on top, as wide as a terminal makes it; no style sheet, script, id or
font of its own. HTML is a static page that loads nothing: text that can be selected and searched, a style sheet
inside, no script. Markdown is a fenced block a view: its tables would lose the alignment of numbers, the shades,
and all of a map; a fence shows on GitHub what a pipe shows, and scrolls where it is wide.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from html import escape
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
        yield _svg_text(piece.text, piece.start, piece.width, baseline, how)
        return
    for words in _WORDS.finditer(piece.text):
        yield _svg_text(words[0], piece.start + words.start(), len(words[0]), baseline, how)


def _svg_text(text: str, start: int, width: int, baseline: int, how: str) -> str:
    place = f'x="{_MARGIN + start * _CELL}" y="{baseline}" textLength="{width * _CELL}"'
    return f"<text {place}{how}>{escape(text)}</text>\n"


_STYLE = """\
body {{ margin: 1.5rem; background: {paper}; color: {ink}; font-family: system-ui, sans-serif; }}
h1 {{ color: {faint}; font-size: 1rem; font-weight: normal; }}
h2 {{ font-size: 1rem; overflow-wrap: anywhere; }}
pre {{ overflow-x: auto; font: 15px/20px {fonts}; -webkit-print-color-adjust: exact; print-color-adjust: exact; }}
pre span, pre bdi {{ display: inline-block; height: 20px; vertical-align: top; }}
pre bdi {{ overflow: hidden; }}
"""


class _Classes:
    """The classes of a page's looks, and of the widths of what no font is sure to fit; named as they occur."""

    def __init__(self) -> None:
        self.looks: dict[Look, str] = {Look(): ""}
        self.widths: set[int] = set()

    def of(self, piece: Piece) -> str:
        """Return the class attribute of a piece."""
        names = [self.looks.setdefault(piece.look, f"l{len(self.looks)}")]
        if not piece.is_plain:
            self.widths.add(piece.width)
            names.append(f"w{piece.width}")
        said = " ".join(filter(None, names))
        return f' class="{said}"' if said else ""

    def rules(self) -> Iterator[str]:
        """Yield a rule for each class."""
        for look, name in self.looks.items():
            if name:
                ink = f"color: {look.ink};"
                behind = f" background: {look.behind};" if look.behind is not None else ""
                bold = " font-weight: bold;" if look.is_bold else ""
                yield f".{name} {{ {ink}{behind}{bold} }}\n"
        for width in sorted(self.widths):
            yield f".w{width} {{ width: {width}ch; }}\n"


def write_html(drawings: Sequence[Drawing], name: str) -> Iterator[str]:
    """Yield the page of all views, one below the other."""
    classes = _Classes()
    views = ["".join(_view(drawing, classes)) for drawing in drawings]  # the style sheet stands before them
    yield (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light">\n'
        f"<title>{escape(title_of(drawings, name))}</title>\n<style>\n"
    )
    fonts = ", ".join(f'"{font}"' if " " in font else font for font in FONTS)
    yield _STYLE.format(paper=PAPER, ink=INK, faint=FAINT, fonts=fonts)
    yield from classes.rules()
    yield f"</style>\n</head>\n<body>\n<main>\n<h1>{escape(name)}</h1>\n"
    for drawing, view in zip(drawings, views, strict=True):
        if drawing.title:
            yield f'<h2 dir="auto" translate="no">{escape(drawing.title)}</h2>\n'
        yield view
    yield "</main>\n</body>\n</html>\n"


def _view(drawing: Drawing, classes: _Classes) -> Iterator[str]:
    # What is wider than the window scrolls by itself, and by keyboard once it has the focus.
    yield f'<pre role="region" aria-label="{escape(drawing.title or "view")}" dir="ltr" translate="no" tabindex="0">\n'
    for line in drawing.lines:
        for piece in line:
            yield _marked(piece, classes)
        yield "\n"
    yield "</pre>\n"


def _marked(piece: Piece, classes: _Classes) -> str:
    if piece.is_plain and (piece.look == Look() or piece.is_blank):
        return escape(piece.text)
    tag = "bdi" if not piece.is_plain else "span"
    return f"<{tag}{classes.of(piece)}>{escape(piece.text)}</{tag}>"


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
