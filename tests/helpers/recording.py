"""The recording on the documentation's first page: the explorer, twenty seconds of it, as one picture that moves.

`python tests/helpers/recording.py` makes it. The frames are what the explorer draws on a terminal in memory; lines that
are drawn several times are in the file once, and a style sheet says when each frame is seen. Who prefers no motion sees
one of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import accumulate, groupby
from pathlib import Path
from typing import NamedTuple

from explored import KeyWalk, explored
from rich.color import Color
from rich.segment import Segment
from rich.style import Style

from attncli.formats.pictures import FAINT, FONTS, THEME, boxed_runs

PATH = "docs/explore.svg"
COMMAND = 'attn explore "the cat sat on the mat and the dog sat"'
COLUMNS, LINES = 100, 30
TITLE = "attn explore: a text that is typed, and its attention"
CELL, LINE, MARGIN = 12, 24.4, 24
STILL = 0.6  # how far into the recording the frame is that stands still


class Step(NamedTuple):
    """Keys, as people call them, or a text; how many seconds each is seen, and the last one besides."""

    keys: str | Sequence[str]
    seconds: float
    besides: float = 0.0


STEPS = (
    Step(" on the", 0.25, 1.2),
    Step(["Esc"], 0.6),
    Step(["PgDn"], 0.9),  # to layer 3, whose head 3 looks for what followed before
    Step(["←"] * 3, 0.3, 0.8),
    Step(["w"], 2.2),
    Step(["w"], 0.3),
    Step(["m"], 0.4),
    Step("window(4)", 0.13, 1.0),
    Step(["Esc"], 0.6),
    Step(["d"], 0.7),
    Step(["i"], 0.4),
    Step(["Home", *["Delete"] * 3], 0.2),
    Step("no", 0.2, 2.0),
)


class Frame(NamedTuple):
    """What is seen for some time, a segment a cell."""

    seconds: float
    lines: list[Sequence[Segment]]


def recorded(environment: Mapping[str, str]) -> list[Frame]:
    """Return the frames."""
    frames: list[Frame] = []

    async def walk(one: KeyWalk) -> None:
        frames.append(Frame(1.0, one.screen.lines()))
        for step in STEPS:
            for place, key in enumerate(step.keys):
                await one.press(key)
                seconds = step.seconds + step.besides * (place == len(step.keys) - 1)
                frames.append(Frame(seconds, one.screen.lines()))

    explored(COMMAND, COLUMNS, LINES, walk, environment)
    return frames


def picture(frames: Sequence[Frame]) -> str:
    """Return the frames as an SVG that moves."""
    drawn = _DrawnFrame()
    places = [[drawn.line(line) for line in frame.lines] for frame in frames]
    whole = sum(frame.seconds for frame in frames)
    ends = [100 * end / whole for end in accumulate(frame.seconds for frame in frames)]
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
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{across * 0.75:g}" height="{down * 0.75:g}"'
        f' viewBox="0 0 {across:g} {down:g}">',
        f"<title>{escape(TITLE)}</title>",
        "<style>",
        f"text{{font:20px {FONTS};white-space:pre;transform:translateY(18.5px)}}",
        f"path{{transform:scale({CELL}px,{LINE}px);shape-rendering:crispEdges}}".replace("px", ""),
        "g>g{visibility:hidden}",
        *drawn.styles(),
        *seen,
        "@media(prefers-reduced-motion:reduce){g>g{animation:none!important}}",
        "</style>",
        "<defs>",
        *drawn.lines(),
        "</defs>",
        f'<rect width="100%" height="100%" fill="{THEME.background_color.hex}"/>',
        f'<g transform="translate({MARGIN},{MARGIN})">',
        *groups,
        "</g>",
        "</svg>",
        "",
    ])  # fmt: skip


class _DrawnFrame:
    """The lines that were drawn, each once, and the styles of what is in them."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._styles: dict[str, str] = {}

    def line(self, cells: Sequence[Segment]) -> str:
        """Return the name of a line; an empty one has none."""
        content = "".join([*self._areas(cells), *self._texts(cells)])
        return self._names.setdefault(content, f"l{len(self._names)}") if content else ""

    def lines(self) -> Iterator[str]:
        """Yield the lines."""
        return (f'<g id="{name}">{content}</g>' for content, name in self._names.items())

    def styles(self) -> Iterator[str]:
        """Yield the rules of the style sheet."""
        return (f".{name}{{{rule}}}" for rule, name in self._styles.items())

    def _style(self, rule: str) -> str:
        return self._styles.setdefault(rule, f"s{len(self._styles)}")

    def _areas(self, cells: Sequence[Segment]) -> Iterator[str]:
        """Yield the backgrounds, and above them the characters that are half of one, a path for each colour."""
        paths: dict[str, list[str]] = {}
        for column, width, (text, style) in _runs(cells):
            ink, paper = _colors(style)
            parts = [(paper, "0h{}v1h-{}")] if paper else []
            if text in ("▀", "▄"):
                parts.append((ink, ".5h{}v.5h-{}" if text == "▄" else "0h{}v.5h-{}"))
            for color, form in parts:
                paths.setdefault(self._style(f"fill:{color}"), []).append(f"M{column} {form.format(width, width)}")
        return (f'<path class="{name}" d="{"".join(parts)}"/>' for name, parts in paths.items())

    def _texts(self, cells: Sequence[Segment]) -> Iterator[str]:
        """Yield the texts; what fonts may lack or give another width has a box as wide as its cells."""
        column = 0
        for style, run in groupby(cells, key=lambda cell: cell.style or Style.null()):
            text = "".join(cell.text for cell in run)
            for part, width, is_boxed in boxed_runs(text):
                blank = len(part) - len(part.lstrip())
                if (shown := part.strip()) and not set(shown) <= set("▀▄"):
                    ink, _ = _colors(style)
                    rule = f"fill:{ink}" + (";font-weight:bold" if style.bold else "")
                    length = (width if is_boxed else len(shown)) * CELL
                    place = f'x="{(column + blank) * CELL}" textLength="{length}"'
                    yield f'<text class="{self._style(rule)}" {place}>{escape(shown, quote=False)}</text>'
                column += width


def _runs(cells: Sequence[Segment]) -> Iterator[tuple[int, int, tuple[str, Style]]]:
    """Yield runs of cells with the same area: the first column, how many, and a half character or nothing."""
    column = 0

    def area(cell: Segment) -> tuple[str, Style]:
        return (cell.text if cell.text in ("▀", "▄") else ""), cell.style or Style.null()

    for key, run in groupby(cells, key=area):
        width = sum(cell.cell_length for cell in run)
        yield column, width, key
        column += width


def _colors(style: Style) -> tuple[str, str]:
    """Return the colours of a style on paper, those of the text and of the background; none is empty."""
    ink, paper = _hex(style.color, True), _hex(style.bgcolor, False) if style.bgcolor else ""
    if style.reverse:
        ink, paper = paper or THEME.background_color.hex, ink
    elif style.dim:
        ink = FAINT
    return ink, "" if paper == THEME.background_color.hex else paper


def _hex(color: Color | None, is_ink: bool) -> str:
    return (color or Color.default()).get_truecolor(THEME, is_ink).hex


def write() -> None:
    """Make the recording."""
    Path(__file__).parents[2].joinpath(PATH).write_text(picture(recorded(os.environ)), encoding="utf-8")


if __name__ == "__main__":
    write()
