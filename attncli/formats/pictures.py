"""Drawn views as SVG, HTML and Markdown: what Rich exports of a recording console, in documents that load nothing.

A terminal gives every character its cells; a browser gives it what its fonts do. So what a common monospaced font may
lack, or give another width, is exported as stand-ins of its width, and then put back into a box that is as wide.

Markdown is a fenced block a view: its tables would lose the alignment of numbers, the shades, and all of a map; a
fence shows on GitHub what a pipe shows, and scrolls where it is wide.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import groupby
from typing import NamedTuple

from rich.cells import split_graphemes
from rich.console import Console, RenderableType
from rich.segment import Segment
from rich.style import Style
from rich.terminal_theme import TerminalTheme

from attncli.render.block import Block, block, trimmed
from attncli.render.palette import BOLD, LEFT_TO_RIGHT, is_right_to_left

INK, PAPER = (31, 35, 40), (255, 255, 255)
FAINT = "#59636e"  # what is dim in a terminal: on paper at a contrast of 6:1 (WCAG 2.2 asks for 4.5)
THEME = TerminalTheme(PAPER, INK, [INK])
FONTS = 'ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", "Liberation Mono", monospace'


class Drawing(NamedTuple):
    """A view, drawn.

    Attributes:
        title: what it shows, on one line and harmless; empty where its lines say so.
        block: its lines.
    """

    title: str
    block: Block


def draw(parts: Iterable[RenderableType], title: str, width: int) -> Drawing:
    """Draw the parts of a view with a blank line between them, in lines of `width` cells; a block may be wider."""
    console = _console(width)
    lines: list[Sequence[Segment]] = []
    for part in parts:
        lines += [*([[]] if lines else []), *map(trimmed, Segment.split_lines(console.render(part)))]
    return Drawing(title, block(lines))


def _console(width: int) -> Console:
    """Return a console that records, whatever the terminal of the user is like."""
    return Console(
        file=io.StringIO(),
        record=True,
        width=width,
        height=100,  # Rich ignores the width of a dumb terminal unless the height is set too
        force_jupyter=False,
        legacy_windows=False,
        markup=False,
        highlight=False,
        emoji=False,
        _environ={},
    )


def title_of(drawings: Sequence[Drawing], name: str) -> str:
    """Return what a document of these views is called, given what drew them."""
    titles = [drawing.title for drawing in drawings if drawing.title]
    if not titles:
        return name
    return f"{name}: {titles[0]}" + (f" and {len(titles) - 1} more" if len(titles) > 1 else "")


# --- what fonts may lack -----------------------------------------------------------------------------------

_FIRST = 0xF0000  # of the characters for private use; what the user has of them is in a box or escaped itself
_STAND_INS = re.compile("([\U000f0000-\U0010fffd])\\1*")


class _Recording:
    """Lines on a recording console, every box of them as stand-ins: one character a box, as often as it is wide."""

    def __init__(self, lines: Sequence[Sequence[Segment]]) -> None:
        self._boxes: dict[tuple[str, int], str] = {}
        drawn = block([[part for run in Segment.simplify(line) for part in self._parts(run)] for line in lines])
        self.console = _console(max(drawn.width, 1))
        self.console.print(drawn)

    def _parts(self, segment: Segment) -> Iterator[Segment]:
        """Yield a segment's text in parts that are wholly in boxes or not at all."""
        style = segment.style
        if style is not None and style.dim:
            style += Style(color=FAINT, dim=False)
        for text, width, is_boxed in boxed_runs(segment.text):
            box = self._boxes.setdefault((text, width), chr(_FIRST + len(self._boxes))) if is_boxed else ""
            yield Segment(box * width if is_boxed else text, style)

    def put_back(self, exported: str, box: str) -> str:
        """Return an export with the texts of the boxes, each in the given markup, where their stand-ins are."""
        texts = {stand_in: found for found, stand_in in self._boxes.items()}

        def filled(match: re.Match[str]) -> str:
            text, width = texts[match[1]]
            return box.format(text=escape(text) * (len(match[0]) // width), width=len(match[0]))

        return _STAND_INS.sub(filled, exported)


def boxed_runs(text: str) -> Iterator[tuple[str, int, bool]]:
    """Yield the parts of a text: what stands in it, how many cells that takes, and whether it needs a box."""
    if text.isascii():
        yield text, len(text), False
        return
    text = text.replace(LEFT_TO_RIGHT, "")  # a terminal's mark: here every box has a place of its own
    clusters = [(text[start:stop], width) for start, stop, width in split_graphemes(text)[0]]
    boxed = [len(cluster) > 1 or ord(cluster) > 0xFF for cluster, _ in clusters]
    for place in range(1, len(clusters) - 1):
        # The words between them are read in the order of theirs.
        if clusters[place][0] == " " and all(is_right_to_left(clusters[place + side][0]) for side in (-1, 1)):
            boxed[place] = True
    for is_boxed, run in groupby(zip(clusters, boxed, strict=True), key=lambda pair: pair[1]):
        parts, widths = zip(*(cluster for cluster, _ in run), strict=True)
        yield "".join(parts), sum(widths), is_boxed and sum(widths) > 0


# --- the three formats -------------------------------------------------------------------------------------

_CELL, _LINE, _MARGIN = 12, 24.4, 24  # of a letter of 20 units, as Rich draws them; shown at three quarters of it
_SVG = """\
<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" viewBox="0 0 {across:g} {down:g}">
<title>{title}</title>
<style>
text {{{{ font: {{char_height}}px {fonts}; }}}}
{{styles}}
</style>
<defs>
{{lines}}
</defs>
<rect width="100%" height="100%" fill="{paper}"/>
<g transform="translate({margin}, {margin})">
{{backgrounds}}
{{matrix}}
</g>
</svg>
"""


def write_svg(drawings: Sequence[Drawing], name: str) -> Iterator[str]:
    """Yield the picture of all views, one below the other: real text, as wide as a terminal makes it."""
    lines = stacked(drawings)
    recording = _Recording([*lines, []])  # Rich gives the last line no clip path, though it names one
    across = recording.console.width * _CELL + 2 * _MARGIN
    down = len(lines) * _LINE + 2 * _MARGIN
    form = _SVG.format(
        width=across * 0.75,
        height=down * 0.75,
        across=across,
        down=down,
        title=_literally(title_of(drawings, name)),
        fonts=FONTS,
        paper=THEME.background_color.hex,
        margin=_MARGIN,
    )
    svg = recording.console.export_svg(theme=THEME, code_format=form, font_aspect_ratio=_CELL / 20)
    yield _with_areas(recording.put_back(svg, "{text}"))


# Half a character is an area of a colour, for no font fills its cells to the edges.
_AREA = r'x="(?P<left>[^"]*)" y="(?P<top>[^"]*)" (?:width|textLength)="(?P<width>[^"]*)"'
_BACKGROUND = re.compile(rf'<rect fill="(?P<fill>[^"]*)" {_AREA} height="(?P<height>[^"]*)"[^>]*/>')
_HALF = re.compile(rf'<text class="(?P<style>[^"]*)" {_AREA}[^>]*>(?:(?P<upper>▀+)|▄+)</text>')
_FILL = re.compile(r"\.(\S+) \{ fill: (#\w+)")


def _with_areas(svg: str) -> str:
    """Return a picture whose halves of characters are drawn, one shape for each colour: there are thousands of them."""
    if _HALF.search(svg) is None:
        return svg
    fills = dict(_FILL.findall(svg))
    shapes: dict[str, list[str]] = {}

    def add(fill: str, match: re.Match[str], top: float, height: float) -> str:
        width = match["width"]
        shapes.setdefault(fill, []).append(f"M{match['left']} {top:g}h{width}v{height:g}h-{width}z")
        return ""

    def half(match: re.Match[str]) -> str:
        top = float(match["top"]) - 20 + 1.5  # of the text is its base; so much above it Rich draws its background
        return add(fills[match["style"]], match, top if match["upper"] else top + _LINE / 2, _LINE / 2)

    svg = _HALF.sub(half, svg)
    halves, shapes = shapes, {}
    svg = _BACKGROUND.sub(lambda match: add(match["fill"], match, float(match["top"]), float(match["height"])), svg)
    areas = "".join(
        f'<path fill="{fill}" shape-rendering="crispEdges" d="{"".join(parts)}"/>\n'
        for layer in (shapes, halves)  # halves stand on the background of their character
        for fill, parts in layer.items()
    )
    before, opening, rest = svg.partition(f'<g transform="translate({_MARGIN}, {_MARGIN})">\n')
    return before + opening + areas + rest


def _literally(text: str) -> str:
    """Return text for a form that Rich fills in and boxes are put into, escaped so that it stays what it is."""
    escaped = _STAND_INS.sub(lambda match: f"&#{ord(match[1])};" * len(match[0]), escape(text))
    return escaped.replace("{", "{{").replace("}", "}}")


def stacked(drawings: Sequence[Drawing]) -> list[Sequence[Segment]]:
    """Return the lines of all views; where there are several, each below its title."""
    if len(drawings) == 1:
        return list(drawings[0].block.lines)
    lines: list[Sequence[Segment]] = []
    for drawing in drawings:
        title = [[Segment(drawing.title, BOLD)], []] if drawing.title else []
        lines += [*([[], []] if lines else []), *title, *drawing.block.lines]
    return lines


_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light">
<title>{title}</title>
<style>
body {{ margin: 1.5rem; background: {paper}; color: {ink}; font-family: system-ui, sans-serif; }}
h1 {{ color: {faint}; font-size: 1rem; font-weight: normal; }}
h2 {{ font-size: 1rem; overflow-wrap: anywhere; }}
pre {{ overflow-x: auto; font: 15px/20px {fonts}; -webkit-print-color-adjust: exact; print-color-adjust: exact; }}
pre span, pre bdi {{ display: inline-block; height: 20px; vertical-align: top; }}
pre bdi {{ overflow: hidden; }}
</style>
</head>
<body>
<main>
<h1>{name}</h1>
"""
# What is wider than the window scrolls by itself, and by keyboard once it has the focus.
_VIEW = '<pre role="region" aria-label="{label}" dir="ltr" translate="no" tabindex="0">\n{{code}}</pre>\n'


def write_html(drawings: Sequence[Drawing], name: str) -> Iterator[str]:
    """Yield the page of all views, one below the other: text that can be selected and searched, no script."""
    colors = {"paper": THEME.background_color.hex, "ink": THEME.foreground_color.hex, "faint": FAINT}
    yield _PAGE.format(title=escape(title_of(drawings, name)), name=escape(name), fonts=FONTS, **colors)
    for drawing in drawings:
        if drawing.title:
            yield f'<h2 dir="auto" translate="no">{escape(drawing.title)}</h2>\n'
        recording = _Recording(drawing.block.lines)
        form = _VIEW.format(label=_literally(drawing.title or "view"))
        view = recording.console.export_html(theme=THEME, code_format=form, inline_styles=True)
        yield _HALVES_OF_HTML.sub(_as_gradient, recording.put_back(view, '<bdi style="width: {width}ch">{text}</bdi>'))
    yield "</main>\n</body>\n</html>\n"


_HALVES_OF_HTML = re.compile(r'<bdi style="(width: \d+ch)">((▀+)|▄+)</bdi>')


def _as_gradient(match: re.Match[str]) -> str:
    """Return halves of characters as two colours; the characters, out of sight, are what is copied."""
    width, text, is_upper = match.groups()
    colors = "currentcolor 50%, transparent 0" if is_upper else "transparent 50%, currentcolor 0"
    return f'<bdi style="{width}; text-indent: 100%; background: linear-gradient({colors})">{text}</bdi>'


_TICKS = re.compile(r"`+")


def write_markdown(drawings: Sequence[Drawing], name: str) -> Iterator[str]:
    """Yield all views, one below the other, each under a heading."""
    for number, drawing in enumerate(drawings):
        text = "\n".join("".join(segment.text for segment in line) for line in drawing.block.lines)
        fence = "`" * max(3, _longest(text) + 1)
        heading = _code(drawing.title) if drawing.title else name
        yield "\n" if number else ""
        yield f"## {heading}\n\n{fence}text\n{text}\n{fence}\n"


def _code(text: str) -> str:
    """Return text as a code span: in there nothing is markup, a mention, a link or HTML."""
    ticks = "`" * (_longest(text) + 1)
    blank = " " if text[:1] in " `" or text[-1:] in " `" else ""
    return f"{ticks}{blank}{text}{blank}{ticks}"


def _longest(text: str) -> int:
    return max(map(len, _TICKS.findall(text)), default=0)
