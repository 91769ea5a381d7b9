"""Drawn views as SVG, HTML and Markdown: Rich's exports of a recording console, in documents that load nothing.

Markdown is a fenced block a view: its tables would lose the alignment of numbers, the shades, and all of a map; a
fence shows on GitHub what a pipe shows, and scrolls where it is wide.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import groupby
from typing import NamedTuple
from unicodedata import normalize

from rich.cells import split_graphemes
from rich.console import Console, RenderableType
from rich.segment import Segment
from rich.style import Style
from rich.terminal_theme import TerminalTheme

from attncli.render.block import Block, block, trimmed
from attncli.render.palette import BOLD, LEFT_TO_RIGHT, is_right_to_left

INK, PAPER = (31, 35, 40), (255, 255, 255)
FAINT = "#59636e"  # text that is dim in a terminal: on paper at a contrast of 6:1 (WCAG 2.2 asks for 4.5)
_RED, _GREEN, _YELLOW, _BLUE, _MAGENTA, _CYAN = (
    (207, 34, 46), (17, 99, 41), (125, 78, 0), (9, 105, 218), (130, 80, 223), (27, 124, 131),
)  # fmt: skip  # which can be read on paper
THEME = TerminalTheme(PAPER, INK, [INK, _RED, _GREEN, _YELLOW, _BLUE, _MAGENTA, _CYAN, INK])
_APART = Style(meta={"apart": True})  # which Rich joins with no other
_JOINER = "\u2060"
_CELL, _LINE, _MARGIN = 12.2, 24.4, 24  # of a letter of 20 units, as Rich places them; shown at three quarters of it
FONTS = 'ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", "Liberation Mono", monospace'


class Drawing(NamedTuple):
    """A view, drawn.

    The title is one line, safe to print; it is empty where the lines have one.
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
    """Return a recording console, independent of the user's terminal."""
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
    """Return the title of a document of these views, after the name of the command."""
    titles = [drawing.title for drawing in drawings if drawing.title]
    more = f" and {len(titles) - 1} more" if len(titles) > 1 else ""
    return f"{name}: {titles[0]}{more}" if titles else name


# --- SVG and HTML ------------------------------------------------------------------------------------------


def recorded(lines: Sequence[Sequence[Segment]], faint: str = FAINT) -> Console:
    """Return a console that has drawn these lines, to be exported; dim text has an ink of its own."""
    inked = [
        [
            Segment(text, style + Style(color=faint, dim=False) if style is not None and style.dim else style)
            for text, style, _ in Segment.simplify(line)
        ]
        for line in lines
    ]
    drawn = block(inked)
    console = _console(max(drawn.width, 1))
    console.print(drawn)
    return console


def boxed_runs(text: str) -> Iterator[tuple[str, int, bool]]:
    """Yield the parts of a text, how many cells each takes, and whether common fonts may give it another width."""
    if text.isascii():
        yield text, len(text), False
        return
    text = text.replace(LEFT_TO_RIGHT, "")  # a terminal's mark: here every part has a place of its own
    clusters = [(text[start:stop], width) for start, stop, width in split_graphemes(text)[0]]
    boxed = [len(cluster) > 1 or ord(cluster) > 0xFF for cluster, _ in clusters]
    for place in range(1, len(clusters) - 1):
        # The words between them are read in the order of theirs.
        if clusters[place][0] == " " and all(is_right_to_left(clusters[place + side][0]) for side in (-1, 1)):
            boxed[place] = True
    for is_boxed, run in groupby(zip(clusters, boxed, strict=True), key=lambda pair: pair[1]):
        parts, widths = zip(*(cluster for cluster, _ in run), strict=True)
        yield "".join(parts), sum(widths), is_boxed and sum(widths) > 0


# Rich fills in the names in double braces. Blocks of half a cell meet in fonts of this size, as most have them.
_SVG = """\
<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" viewBox="0 0 {across:g} {down:g}">
<title>{title}</title>
<style>
text {{{{ font: 21px {fonts}; }}}}
{{styles}}
</style>
<defs>
{{lines}}
</defs>
<rect width="100%" height="100%" fill="{{paper}}"/>
<g transform="translate({margin}, {margin})">
{{backgrounds}}
{{matrix}}
</g>
</svg>
""".replace("{{paper}}", THEME.background_color.hex)


def write_svg(drawings: Sequence[Drawing], name: str) -> Iterator[str]:
    """Yield the picture of all views, one below the other: real text, as wide as a terminal makes it."""
    lines, apart = stacked(drawings), list[list[Segment]]()
    for line in lines:
        # Characters that fonts may give another width have a segment of their own. Rich makes each as wide as it has
        # characters, so that wide ones are followed by joiners, which are invisible.
        apart.append([])
        for text, style, _ in Segment.simplify(line):
            for part, width, is_boxed in boxed_runs(text):
                own = normalize("NFC", part)
                padded = Segment(own + _JOINER * (width - len(own)), (style or Style()) + _APART)
                apart[-1].append(padded if is_boxed else Segment(part, style))
    console = recorded([*apart, []])  # Rich gives the last line no clip path
    across, down = console.width * _CELL + 2 * _MARGIN, len(lines) * _LINE + 2 * _MARGIN
    title, size = _literally(title_of(drawings, name)), {"width": across * 0.75, "height": down * 0.75}
    form = _SVG.format(**size, across=across, down=down, title=title, fonts=FONTS, margin=_MARGIN)
    yield console.export_svg(theme=THEME, code_format=form, font_aspect_ratio=_CELL / 20, unique_id="attn")


def _literally(text: str) -> str:
    """Return text as markup that a form has, which Rich fills in."""
    return escape(text).replace("{", "{{").replace("}", "}}")


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
pre {{ overflow-x: auto; font: 15px/17px {fonts}; -webkit-print-color-adjust: exact; print-color-adjust: exact; }}
</style>
</head>
<body>
<main>
<h1>{name}</h1>
"""
# A view wider than the window scrolls by itself, and by keyboard once it has the focus.
_VIEW = '<pre role="region" aria-label="{label}" dir="ltr" translate="no" tabindex="0">\n{{code}}</pre>\n'


def write_html(drawings: Sequence[Drawing], name: str) -> Iterator[str]:
    """Yield the page of all views, one below the other: text that can be selected and searched, no script."""
    colors = {"paper": THEME.background_color.hex, "ink": THEME.foreground_color.hex, "faint": FAINT}
    yield _PAGE.format(title=escape(title_of(drawings, name)), name=escape(name), fonts=FONTS, **colors)
    for drawing in drawings:
        if drawing.title:
            yield f'<h2 dir="auto" translate="no">{escape(drawing.title)}</h2>\n'
        form = _VIEW.format(label=_literally(drawing.title or "view"))
        yield recorded(drawing.block.lines).export_html(theme=THEME, code_format=form, inline_styles=True)
    yield "</main>\n</body>\n</html>\n"


_NOTEBOOK = """\
<style>
.{name} {{{{ margin: 0; overflow-x: auto; font: 13px/15px {fonts}; color: inherit; background: none; }}}}
.{name} {{{{ {{stylesheet}} }}}}
</style>
<pre class="{name}" dir="ltr" translate="no">{{code}}</pre>
"""


def notebook_html(drawing: Drawing) -> str:
    """Return a view for a notebook's cell: words in its own colour, light or dark, cells in theirs.

    A colour is a class of the style before the view, under a name that no other view has, because a map
    has thousands of cells and few colours.
    """
    console = recorded(drawing.block.lines, faint="#767676")  # legible on light and dark
    name = "attn-" + hashlib.sha256(console.export_html(theme=THEME, clear=False).encode()).hexdigest()[:8]
    return console.export_html(theme=THEME, code_format=_NOTEBOOK.format(name=name, fonts=FONTS))


# --- Markdown ----------------------------------------------------------------------------------------------


def write_markdown(drawings: Sequence[Drawing], name: str) -> Iterator[str]:
    """Yield all views, one below the other, each under a heading."""
    for number, drawing in enumerate(drawings):
        text = "\n".join("".join(segment.text for segment in line) for line in drawing.block.lines)
        fence = "`" * max(3, _longest(text) + 1)
        title, ticks = drawing.title, "`" * (_longest(drawing.title) + 1)
        # In a code span nothing is markup, a mention, a link or HTML.
        blank = " " if title[:1] in " `" or title[-1:] in " `" else ""
        heading = f"{ticks}{blank}{title}{blank}{ticks}" if title else name
        yield "\n" if number else ""
        yield f"## {heading}\n\n{fence}text\n{text}\n{fence}\n"


def _longest(text: str) -> int:
    """Return the length of the longest run of backticks."""
    return max(map(len, re.findall(r"`+", text)), default=0)
