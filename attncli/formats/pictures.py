"""Drawn views as SVG, HTML and Markdown: Rich's exports of a recording console, in documents that load nothing.

Markdown is a fenced block a view: its tables would lose the alignment of numbers, the shades, and all of a map.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import NamedTuple

from rich.console import Console, RenderableType
from rich.segment import Segment
from rich.style import Style
from rich.terminal_theme import DEFAULT_TERMINAL_THEME

from attncli.render.block import Block, block, trimmed
from attncli.render.palette import BOLD

THEME = DEFAULT_TERMINAL_THEME  # black on white
FAINT = "#59636e"  # text that is dim in a terminal: on white at a contrast of 6:1 (WCAG 2.2 asks for 4.5)
FONTS = 'ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", "Liberation Mono", monospace'


class Drawing(NamedTuple):
    """A view, drawn, and its title: one line, safe to print, or empty where the lines have one."""

    title: str
    block: Block


def draw(parts: Iterable[RenderableType], title: str, width: int) -> Drawing:
    """Draw the parts of a view with a blank line between them, in lines of `width` cells; a block may be wider.

    Hints of the command line are left out.
    """
    console = _console(width)
    lines: list[Sequence[Segment]] = []
    for part in parts:
        shown = [one for one in console.render(part) if one.style is None or not one.style.meta]
        if any(one.text.strip() for one in shown):
            lines += [*([[]] if lines else []), *map(trimmed, Segment.split_lines(shown))]
    return Drawing(title, block(lines))


def _console(width: int) -> Console:
    """Return a recording console, independent of the user's terminal."""
    return Console(
        file=io.StringIO(), record=True, width=width, height=100,  # Rich ignores the width of a dumb one without both
        force_jupyter=False, legacy_windows=False, markup=False, highlight=False, emoji=False, _environ={},
    )  # fmt: skip


def _recorded(lines: Sequence[Sequence[Segment]], faint: str = FAINT) -> Console:
    """Return a console that has drawn these lines, to be exported; dim text has an ink of its own."""
    ink = Style(color=faint, dim=False)
    drawn = block(
        [Segment(text, style + ink if style is not None and style.dim else style) for text, style, _ in line]
        for line in map(Segment.simplify, lines)
    )
    console = _console(max(drawn.width, 1))
    console.print(drawn)
    return console


def _title_of(drawings: Sequence[Drawing], name: str) -> str:
    """Return the title of a document of these views, after the name of the command."""
    titles = [drawing.title for drawing in drawings if drawing.title]
    more = f" and {len(titles) - 1} more" if len(titles) > 1 else ""
    return f"{name}: {titles[0]}{more}" if titles else name


def _literally(text: str) -> str:
    """Return text as markup in a form whose braces Rich fills in."""
    return escape(text).replace("{", "{{").replace("}", "}}")


_SVG = f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {{width}} {{height}}" width="{{width}}" height="{{height}}">
<title>TITLE</title>
<style>text {{{{ font: 21px {FONTS}; }}}} {{styles}}</style>
<defs>{{lines}}</defs>
<rect width="100%" height="100%" fill="#ffffff"/>
<g transform="translate(20, 20)">
{{backgrounds}}
{{matrix}}
</g>
</svg>
"""


def write_svg(drawings: Sequence[Drawing], name: str) -> Iterator[str]:
    """Yield the picture of all views, one below the other, each of several below its title."""
    lines: list[Sequence[Segment]] = []
    for drawing in drawings:
        title = [[Segment(drawing.title, BOLD)], []] if drawing.title and len(drawings) > 1 else []
        lines += [*([[], []] if lines else []), *title, *drawing.block.lines]
    form = _SVG.replace("TITLE", _literally(_title_of(drawings, name)))
    yield _recorded([*lines, []]).export_svg(theme=THEME, code_format=form, unique_id="attn")


_PAGE = f"""\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light">
<title>TITLE</title>
<style>
body {{ margin: 1.5rem; background: #ffffff; color: #000000; }}
h1 {{ color: {FAINT}; font: 1rem system-ui, sans-serif; }}
h2 {{ font: bold 1rem system-ui, sans-serif; overflow-wrap: anywhere; }}
pre {{ overflow-x: auto; font: 15px/17px {FONTS}; -webkit-print-color-adjust: exact; print-color-adjust: exact; }}
</style>
</head>
<body>
<main>
<h1>NAME</h1>
"""
# A view wider than the window scrolls by itself, and by keyboard once it has the focus.
_VIEW = '<pre role="region" aria-label="{label}" dir="ltr" translate="no" tabindex="0">\n{{code}}</pre>\n'


def write_html(drawings: Sequence[Drawing], name: str) -> Iterator[str]:
    """Yield the page of all views, one below the other: text that can be selected and searched, no script."""
    yield _PAGE.replace("NAME", escape(name)).replace("TITLE", escape(_title_of(drawings, name)))
    for drawing in drawings:
        if drawing.title:
            yield f'<h2 dir="auto" translate="no">{escape(drawing.title)}</h2>\n'
        form = _VIEW.format(label=_literally(drawing.title or "view"))
        yield _recorded(drawing.block.lines).export_html(theme=THEME, code_format=form, inline_styles=True)
    yield "</main>\n</body>\n</html>\n"


_NOTEBOOK = f"""\
<style>
.NAME {{{{ margin: 0; overflow-x: auto; font: 13px/15px {FONTS}; color: inherit; background: none; }}}}
.NAME {{{{ {{stylesheet}} }}}}
</style>
<pre class="NAME" dir="ltr" translate="no">{{code}}</pre>
"""


def notebook_html(drawing: Drawing) -> str:
    """Return a view for a notebook's cell: words in its own colour, light or dark, cells in theirs.

    A colour is a class of the style before the view, because a map has thousands of cells and few colours.
    """
    console = _recorded(drawing.block.lines, faint="#767676")  # legible on light and dark
    name = "attn-" + hashlib.sha256(console.export_html(theme=THEME, clear=False).encode()).hexdigest()[:8]
    return console.export_html(theme=THEME, code_format=_NOTEBOOK.replace("NAME", name))


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


WRITERS = {"svg": write_svg, "html": write_html, "md": write_markdown}
