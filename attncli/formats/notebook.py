"""A drawn view as HTML for a notebook's cell: text that can be selected, on whatever background the notebook has.

Words take the notebook's own colour, light or dark; cells bring theirs. A colour is a class of the style that stands
before the view, under a name that no other view has, because a map has thousands of cells and few colours.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING

from rich.segment import Segment

from attncli.formats.pictures import FONTS, boxed_runs

if TYPE_CHECKING:
    from rich.style import Style

# Half a character is a gradient: fonts draw their own as high as they like, which leaves gaps between rows.
_STYLE = """\
{view}{{margin:0;overflow-x:auto;white-space:pre;font:13px/17px {fonts};color:inherit;background:none}}
{view} i,{view} bdi{{display:inline-block;height:17px;vertical-align:top;font-style:normal;overflow:hidden}}
{view} i{{color:var(--f,inherit);background:var(--b,none)}}
{view} .up,{view} .lo{{color:transparent}}
{view} .up{{background:linear-gradient(var(--f) 50%,var(--b,transparent) 50%)}}
{view} .lo{{background:linear-gradient(var(--b,transparent) 50%,var(--f) 50%)}}
{view} s{{text-decoration:none;opacity:.7}}
"""
_HALVES = {"▀": "up", "▄": "lo"}


Colors = dict[tuple[str, str], str]  # of a letter (f) or behind it (b), to the name of its class


def markup(lines: Sequence[Sequence[Segment]]) -> str:
    """Return lines as an element with its style."""
    colors: Colors = {}
    drawn = "\n".join("".join(_line(line, colors)) for line in lines)
    name = "attn-" + hashlib.sha256(drawn.encode()).hexdigest()[:8]
    style = _STYLE.format(view=f"pre.{name}", fonts=FONTS)
    style += "".join(f"pre.{name} .{short}{{--{side}:{color}}}\n" for (side, color), short in colors.items())
    return f'<style>\n{style}</style>\n<pre class="{name}" dir="ltr" translate="no">{drawn}</pre>\n'


def _line(line: Sequence[Segment], colors: Colors) -> Iterator[str]:
    """Yield the runs of a line; a colour that is new is given a name."""
    for text, style, _ in Segment.simplify(line):
        inner = "".join(
            f'<bdi style="width:{width}ch">{escape(run)}</bdi>' if is_boxed else escape(run)
            for run, width, is_boxed in ([(text, 0, False)] if text[:1] in _HALVES else boxed_runs(text))
        )
        yield inner if style is None else _styled(text, inner, style, colors)


def _styled(text: str, inner: str, style: Style, colors: Colors) -> str:
    classes = [_HALVES[text[0]]] if len(set(text)) == 1 and text[0] in _HALVES else []
    for side, color in (("f", style.color), ("b", style.bgcolor)):
        if color is not None and not color.is_default:
            place = side, color.get_truecolor().hex
            classes.append(colors.setdefault(place, f"{side}{len(colors)}"))
    if classes:
        inner = f'<i class="{" ".join(classes)}">{inner}</i>'
    if style.bold:
        inner = f"<b>{inner}</b>"
    return f"<s>{inner}</s>" if style.dim else inner
