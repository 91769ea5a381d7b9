"""The recording on the documentation's first page: the explorer, twenty seconds of it, as one picture that moves.

`python tests/helpers/recording.py` makes it. The frames are the screens of the explorer; lines that
are drawn several times are in the file once, and a style sheet says when each frame is seen. Who prefers no motion sees
one of them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import accumulate, groupby
from pathlib import Path

from explored import driven_by
from rich.cells import cell_len
from rich.color import Color
from rich.segment import Segment
from rich.style import Style

from attncli.formats.pictures import FAINT, FONTS, THEME

PATH = "docs/explore.svg"
COMMAND = 'attn explore "the cat sat on the mat and the dog sat"'
COLUMNS, LINES = 100, 30
TITLE = "attn explore: a text that is typed, and its attention"
CELL, LINE, MARGIN = 12, 24.4, 24
STILL = 0.6  # how far into the recording the frame is that stands still

# Keys, as people call them, or a text; how many seconds each is seen, and the last one besides.
STEPS: tuple[tuple[str | list[str], float, float], ...] = (
    (" on the", 0.25, 1.2), (["Esc"], 0.6, 0),
    (["PgDn"], 0.9, 0),  # to layer 3, whose head 3 looks for what followed before
    (["←"] * 3, 0.3, 0.8), (["w"], 2.2, 0), (["w"], 0.3, 0), (["m"], 0.4, 0), ("window(4)", 0.13, 1.0),
    (["Esc"], 0.6, 0), (["i"], 0.4, 0), (["Home", *["Delete"] * 3], 0.2, 0), ("no", 0.2, 2.0),
)  # fmt: skip

Frame = tuple[float, list[Sequence[Segment]]]  # seconds, and what is seen, a segment a cell

_SVG = """\
<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" viewBox="0 0 {across:g} {down:g}">
<title>{title}</title>
<style>
text{{font:20px {fonts};white-space:pre;transform:translateY(18.5px)}}
path{{transform:scale({cell},{line});shape-rendering:crispEdges}}
g>g{{visibility:hidden}}
{rules}
@media(prefers-reduced-motion:reduce){{g>g{{animation:none!important}}}}
</style>
<defs>
{lines}
</defs>
<rect width="100%" height="100%" fill="{paper}"/>
<g transform="translate({margin},{margin})">
{groups}
</g>
</svg>
"""


def recorded(environment: Mapping[str, str]) -> list[Frame]:
    async def within() -> list[Frame]:
        async with driven_by(COMMAND, COLUMNS, LINES, environment) as one:
            frames: list[Frame] = [(1.0, one.screen())]
            for keys, seconds, besides in STEPS:
                for place, key in enumerate(keys, start=1):
                    await one.press(key)
                    await one.answered()
                    frames.append((seconds + besides * (place == len(keys)), one.screen()))
            return frames

    return asyncio.run(within())


def picture(frames: Sequence[Frame]) -> str:
    drawn = _DrawnFrame()
    places = [[drawn.line(line) for line in lines] for _, lines in frames]
    whole = sum(seconds for seconds, _ in frames)
    ends = [100 * end / whole for end in accumulate(seconds for seconds, _ in frames)]
    still = next(place for place, end in enumerate(ends) if end >= 100 * STILL)
    seen = [f"#f{still}{{visibility:visible}}"]
    groups = []
    for place, (begin, end) in enumerate(zip([0, *ends], ends, strict=False)):
        before = "0%{visibility:hidden}" if place else ""
        after = f"{end:.2f}%{{visibility:hidden}}" if place < len(ends) - 1 else ""
        seen.append(f"@keyframes k{place}{{{before}{begin:.2f}%{{visibility:visible}}{after}}}")
        seen.append(f"#f{place}{{animation:k{place} {whole:g}s step-end infinite}}")
        uses = "".join(f'<use href="#{name}" y="{row * LINE:g}"/>' for row, name in enumerate(places[place]) if name)
        groups.append(f'<g id="f{place}">{uses}</g>')
    across, down = COLUMNS * CELL + 2 * MARGIN, LINES * LINE + 2 * MARGIN
    return _SVG.format(
        width=across * 0.75, height=down * 0.75, across=across, down=down, title=escape(TITLE), fonts=FONTS, cell=CELL,
        line=LINE, margin=MARGIN, paper=THEME.background_color.hex, rules="\n".join([*drawn.rules(), *seen]),
        lines="\n".join(drawn.lines()), groups="\n".join(groups),
    )  # fmt: skip


class _DrawnFrame:
    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._styles: dict[str, str] = {}

    def line(self, cells: Sequence[Segment]) -> str:
        content = "".join([*self._areas(cells), *self._texts(cells)])
        return self._names.setdefault(content, f"l{len(self._names)}") if content else ""

    def lines(self) -> Iterator[str]:
        return (f'<g id="{name}">{content}</g>' for content, name in self._names.items())

    def rules(self) -> Iterator[str]:
        return (f".{name}{{{rule}}}" for rule, name in self._styles.items())

    def _style(self, rule: str) -> str:
        return self._styles.setdefault(rule, f"s{len(self._styles)}")

    def _areas(self, cells: Sequence[Segment]) -> Iterator[str]:
        paths: dict[str, list[str]] = {}
        column = 0
        for (half, style), run in groupby(cells, lambda cell: (cell.text if cell.text in "▀▄" else "", _style(cell))):
            width = sum(cell.cell_length for cell in run)
            ink, paper = _colors(style)
            parts = [(paper, "0h{}v1h-{}")] if paper else []
            parts += [(ink, ".5h{}v.5h-{}" if half == "▄" else "0h{}v.5h-{}")] if half else []
            for color, form in parts:
                paths.setdefault(self._style(f"fill:{color}"), []).append(f"M{column} {form.format(width, width)}")
            column += width
        return (f'<path class="{name}" d="{"".join(parts)}"/>' for name, parts in paths.items())

    def _texts(self, cells: Sequence[Segment]) -> Iterator[str]:
        column = 0
        for style, run in groupby(cells, _style):
            text = "".join(cell.text for cell in run)
            blank = len(text) - len(text.lstrip())
            if (shown := text.strip()) and not set(shown) <= set("▀▄"):
                rule = f"fill:{_colors(style)[0]}" + (";font-weight:bold" if style.bold else "")
                place = f'x="{(column + blank) * CELL}" textLength="{cell_len(shown) * CELL}"'
                yield f'<text class="{self._style(rule)}" {place}>{escape(shown, quote=False)}</text>'
            column += cell_len(text)


def _style(cell: Segment) -> Style:
    return cell.style or Style.null()


def _colors(style: Style) -> tuple[str, str]:
    ink = (style.color or Color.default()).get_truecolor(THEME, True).hex
    paper = style.bgcolor.get_truecolor(THEME, False).hex if style.bgcolor else ""
    if style.reverse:
        ink, paper = paper or THEME.background_color.hex, ink
    elif style.dim:
        ink = FAINT
    return ink, "" if paper == THEME.background_color.hex else paper


def write() -> None:
    Path(__file__).parents[2].joinpath(PATH).write_text(picture(recorded(os.environ)), encoding="utf-8")


if __name__ == "__main__":
    write()
