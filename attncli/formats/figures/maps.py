"""The heads of a trace as heat maps in one figure: tokens at both axes, a colour bar, the meanings of marks."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from math import ceil
from textwrap import fill
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.transforms import Bbox

from attncli.errors import UsageError
from attncli.render.components import Components
from attncli.render.heatmap import Heatmap, heatmap_of, ticks
from attncli.render.matrix import MARK, STEPS, Axis, titled
from attncli.render.palette import ODD_COLORS, Palette, Scale
from attncli.text import plural
from attncli.trace.layer import LayerTrace
from attncli.trace.trace import Trace
from attncli.trace.view import View

INCH = 72  # points
COLUMN, PAGE = 3.3, 6.9  # inches: the widths of one column and of both, about those of most journals
HIGH = 1.2  # times as high as wide a figure becomes, if its height was left open
KEY = 1.1  # inches of the legend below the maps, about
FONT = 7  # points of all that is not a label
LETTER = 0.6 * FONT / INCH  # inches of a letter, about
_FINEST = 0.4  # points of a cell with its share of the labels; without it about a pixel of 300 to an inch
_LARGEST_LABEL, _LEAST_LABEL, _AIR = 8.0, 6.0, 1.1  # points of labels, and from one to the next, in units of their size
HATCHED: dict[str, Any] = {"facecolor": "white", "edgecolor": "#b4bac2", "hatch": "//////"}
# Of odd cells, by the mark that a terminal gives them: matplotlib's marker, and the meaning.
_MARKS = {
    "0": (".", "exactly zero"), "+": ("+", "beyond the range"), "-": ("_", "below the range"), "X": ("x", "NaN"),
    "I": ("^", "inf"), "-I": ("v", "-inf"),
}  # fmt: skip

Entry = tuple[Any, str]  # of the legend: a look, and its meaning


class _Map(NamedTuple):
    """A head's map: its weights, the tokens at its axes, and whether these are written left of and below it."""

    axes: Axes
    picture: Heatmap
    rows: Axis
    columns: Axis
    has_rows: bool
    has_columns: bool


def draw_maps(trace: Trace, view: View, colormap: str, size: tuple[float, float | None] | None) -> Figure:
    """Return the figure; see `attncli.formats.figures.figure_of`."""
    width, height = size or (COLUMN if sum(len(layer.heads) for layer in trace.layers) == 1 else PAGE, None)
    parts = Components(trace, view, Palette(), None)
    sides = [(frame.rows, frame.columns) for frame in parts.frames]
    across, pool = _grid(trace, sides, width, max(height - KEY, 0.1) if height else HIGH * width)
    figure = Figure((width, height or HIGH * width), facecolor="white", layout="compressed")
    strips = [ceil(len(layer.heads) / across) for layer in trace.layers]
    ratios = [len(rows) / len(columns) for (rows, columns), count in zip(sides, strips, strict=True)
              for _ in range(count)]  # fmt: skip
    grid = figure.add_gridspec(len(ratios), across, height_ratios=ratios)
    maps: list[_Map] = []
    for number, (layer, cells, _, rows, columns) in enumerate(parts.frames):
        has_columns = number == len(sides) - 1 or columns != sides[number + 1][1]
        for place, head in enumerate(layer.heads):
            picture = heatmap_of(layer.head(head, cells.rows), cells.of_columns, (pool, pool))
            axes = figure.add_subplot(grid[sum(strips[:number]) + place // across, place % across])
            axes.set_title(title_of(layer, head))
            is_lowest = has_columns and place + across >= len(layer.heads)
            maps.append(_Map(axes, picture, rows, columns, place % across == 0, is_lowest))
    scale, colors = parts.scale, colors_of(colormap)
    odd = [name for each in maps for name in _draw(each, scale, colors, pool, INCH * width / across)]
    entries: list[Entry] = [(Patch(linewidth=0, **HATCHED), "masked")]
    entries *= not all(each.picture.allowed.all() for each in maps)
    signs = [(sign, words) for name, (sign, words) in _MARKS.items() if name in odd]
    entries += [
        (Line2D([], [], color="black", marker=sign, linestyle="none", markersize=4), words) for sign, words in signs
    ]
    add_key(figure, scale, colors, trace.layers[0].measure, entries, _notes(trace, maps, pool))
    _lay_out(figure, maps, scale, width * max(sum(ratios), 1) if height is None else None, width / across)
    return figure


def colors_of(colormap: str) -> ListedColormap:
    """Return the colours of a map, as a terminal of 16 million colours has them."""
    return ListedColormap(Palette("truecolor", colormap).rgb() / 255, colormap)


def _grid(trace: Trace, sides: Sequence[tuple[Axis, Axis]], width: float, height: float) -> tuple[int, int]:
    """Return how many maps are side by side so that cells are largest, and how many cells a side are pooled."""
    heads = [len(layer.heads) for layer in trace.layers]
    title = max(len(title_of(layer, head)) for layer in trace.layers for head in layer.heads)
    most = max(1, min(max(heads), int(width / ((title + 1) * LETTER))))

    def cell(across: int) -> float:
        rows = sum(ceil(count / across) * len(side) for count, (side, _) in zip(heads, sides, strict=True))
        return min(width / (across * max(len(columns) for _, columns in sides)), height / rows)

    across = max(range(1, most + 1), key=cell)
    return across, ceil(_FINEST / INCH / cell(across))


def title_of(layer: LayerTrace, head: int) -> str:
    """Return the title of a head."""
    label = layer.head_label(head)
    short = f"L{layer.label}" if isinstance(layer.label, int) else titled("layer", layer.label)
    short += "" if layer.kind == "self" else f" {layer.kind}"
    return f"{short} H{label}" if isinstance(label, int) else " ".join(dict.fromkeys([short, label]))


@cache
def _characters() -> frozenset[int]:
    return frozenset(get_font(findfont("DejaVu Sans")).get_charmap())


def in_font(text: str) -> str:
    """Return a text with escapes for the characters that the font of figures lacks."""
    return "".join(
        letter if ord(letter) in _characters() else letter.encode("ascii", "backslashreplace").decode()
        for letter in text
    )


# --- layout ---


def _lay_out(figure: Figure, maps: Sequence[_Map], scale: Scale, tallest: float | None, width: float) -> None:
    """Label the maps with as large letters and as many tokens as there is room for; an open height is set.

    Raises:
        UsageError: there is no room for the maps.
    """
    cell = INCH * width / max(len(each.columns) for each in maps)
    for _ in range(2):  # the first time with labels that are at least as large as at the end
        step = next(step for step in STEPS if cell * step >= _AIR * _LEAST_LABEL)
        for each in maps:
            _label(each, min(cell * step / _AIR, _LARGEST_LABEL), step)
        fit(figure, scale, tallest)
        cell = min(each.axes.bbox.height / len(each.rows) for each in maps) * INCH / figure.dpi
        if cell * STEPS[-1] < _AIR * _LEAST_LABEL:
            raise UsageError(
                f"{plural(len(maps), 'map')} {'does' if len(maps) == 1 else 'do'} not fit a figure of this size; "
                "choose with --layer, --head, --query and --key, or give a larger --size"
            )


def _label(drawn: _Map, font: float, step: int) -> None:
    """Write every `step`-th token left of and below a map; where some are left out, their indices too."""
    sides = (drawn.axes.yaxis, drawn.rows, drawn.has_rows), (drawn.axes.xaxis, drawn.columns, drawn.has_columns)
    for side, axis, is_labelled in sides:
        places = range(0, len(axis), step) if is_labelled else range(0)
        labels = [
            f"{axis.indices[place]} " * (step > 1) + in_font(axis.labels[place]) + f" {MARK}" * (place in axis.marked)
            for place in places
        ]
        side.set_ticks([place + 0.5 for place in places], labels, fontsize=font, parse_math=False)
        side.set_tick_params(length=2 if step > 1 else 0)
    drawn.axes.tick_params("x", labelrotation=90)


def fit(figure: Figure, scale: Scale, tallest: float | None) -> None:
    """Lay a figure out, and write as many weights on its bar as have room.

    It becomes as high as its maps, bar and words; without a tallest height it keeps its own.
    """
    if tallest is not None:
        figure.set_figheight(tallest + 2 + 2 * FONT / INCH * len(figure.axes))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that maps have collapsed: they are measured later
        figure.draw_without_rendering()
        *maps, bar = figure.axes
        shares, texts = zip(*ticks(scale, int(bar.bbox.width / figure.dpi / LETTER)), strict=True)
        bar.set_xticks(shares, texts)
        if tallest is not None:
            boxes = [axes.get_tightbbox() or axes.bbox for axes in maps]
            parts = Bbox.union(boxes), bar.get_tightbbox(), figure.legends[0].get_window_extent()
            figure.set_figheight(sum(float(part.height) for part in parts if part) / figure.dpi + 0.3)
        figure.draw_without_rendering()


# --- drawing ---


def _draw(drawn: _Map, scale: Scale, colors: ListedColormap, pool: int, width: float) -> Iterator[str]:
    """Paint the cells, mark those that are odd, and yield their marks; masked ones stay hatched."""
    axes, picture, rows, columns, _, _ = drawn
    painted = colors(scale.steps(picture.values, colors.N))
    axes.patch.set(**HATCHED)
    side = min(0.25 * pool * width / max(len(rows), len(columns)), FONT)  # of a mark, in points
    for name, where in scale.odd(picture.values).items():
        down, across = (np.argwhere(where & picture.allowed).T + 0.5) * pool
        if len(down):
            is_dark = name == "0"  # which has the colour of the least weight
            if not is_dark:
                painted[where, :3] = to_rgb(f"#{ODD_COLORS[name]}")
            ink = "white" if is_dark else "black"
            axes.scatter(across, down, side**2, ink, marker=_MARKS[name][0], linewidths=0.6)
            yield name
    painted[~picture.allowed] = 0
    high, wide = (count * pool for count in picture.values.shape)  # the last blocks may reach beyond the axes
    axes.imshow(painted, extent=(0, wide, high, 0), interpolation="nearest")
    axes.set(xlim=(0, len(columns)), ylim=(len(rows), 0), aspect="equal")


def add_key(
    figure: Figure, scale: Scale, colors: ListedColormap, words: str, entries: Sequence[Entry], notes: Iterable[str]
) -> None:
    """Add the bar of colours, and below it the notes and the legend of marks."""
    width = figure.get_figwidth()
    mappable = ScalarMappable(cmap=colors)
    bar = figure.colorbar(mappable, ax=figure.axes, location="bottom", shrink=0.6, aspect=30, pad=0.02)
    bar.ax.set_xlabel(f"{words}, {scale.ramp} scale", parse_math=False)
    handles, labels = [look for look, _ in entries], [text for _, text in entries]
    legend = figure.legend(handles, labels, loc="outside lower center", ncols=max(int(width / 1.2), 1))
    legend.set_title(fill("; ".join(notes), int(width / LETTER) - 6))
    legend.get_title().set(fontsize=FONT, parse_math=False)


def _notes(trace: Trace, maps: Sequence[_Map], pool: int) -> Iterator[str]:
    """Yield the notes on maps besides the legend."""
    yield "rows are queries, columns keys"
    if trace.source.kind == "toy":
        yield "random weights: patterns mean nothing"
    if pool > 1:
        yield f"each cell is the largest of {pool}×{pool}"
    if any(each.rows.marked for each in maps):
        yield f"{MARK} may attend to no key"
