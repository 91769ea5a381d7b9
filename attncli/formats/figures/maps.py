"""The heads of a trace as heat maps in one figure: tokens at both axes, a colour bar, the meanings of marks."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from textwrap import fill
from typing import Any, NamedTuple

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.transforms import Bbox

from attncli.errors import UsageError
from attncli.formats.figures.fonts import Fonts
from attncli.formats.figures.size import INCH, Size
from attncli.render.axes import MARK, STEPS, Axis, titled
from attncli.render.heatmap import Heatmap, heatmap_of, scale_of_layer
from attncli.render.legend import ticks
from attncli.render.palette import COLORMAPS, Palette, Scale
from attncli.text import plural
from attncli.trace.layer import LayerTrace
from attncli.trace.trace import Trace
from attncli.trace.view import View

COLUMN, PAGE = 3.3 * INCH, 6.9 * INCH  # the widths of one column and of both, about those of most journals
HIGH = 1.2  # times as high as wide a figure becomes, if its height was left open
_FINEST = 0.4  # side of a cell with its share of the labels; without it about a pixel of 300 to an inch
_PADS = 0.3  # inches between the maps, the bar of colours, the words and the edges
KEY = 80.0  # approximate height of the legend below the maps
FONT = 7.0  # of all that is not a label
_AIR = 1.1  # from one label to the next, in units of the size of the font
# Sizes of the labels' font, and at every how many places one stands: the first that has room.
_LABELS = [(8.0, 1), (7.0, 1), *((6.0, step) for step in STEPS)]
HATCHED: dict[str, Any] = {"facecolor": "white", "edgecolor": "#b4bac2", "hatch": "//////"}


class Mark(NamedTuple):
    """Look of a special cell: matplotlib's marker, the colour of the cell (None is that of its number), its meaning."""

    marker: str
    color: str | None
    words: str


# By the mark that a terminal gives them; the colours are those of the page.
MARKS = {
    "0": Mark(".", None, "exactly zero"),
    "+": Mark("+", None, "beyond the range"),
    "-": Mark("_", None, "below the range"),
    "X": Mark("x", "#e03131", "NaN"),
    "I": Mark("^", "#ff922b", "inf"),
    "-I": Mark("v", "#f06595", "-inf"),
}


Entry = tuple[Artist | tuple[Artist, ...], str]  # of the legend: a look, and its meaning


class _Map(NamedTuple):
    """A head's map: its weights, the tokens at its axes, and whether these are written left of and below it."""

    axes: Axes
    picture: Heatmap
    rows: Axis
    columns: Axis
    has_rows: bool
    has_columns: bool


def draw_maps(trace: Trace, view: View, colormap: str, size: Size | None) -> Figure:
    """Return the figure; see `attncli.formats.figures.figure_of`."""
    size = size or Size(COLUMN if sum(len(layer.heads) for layer in trace.layers) == 1 else PAGE)
    across, pool = _grid(trace, view, size)
    colors = LinearSegmentedColormap.from_list(colormap, [f"#{stop}" for stop in COLORMAPS[colormap]])
    figure = Figure((size.width / INCH, (size.height or size.width) / INCH), facecolor="white", layout="compressed")
    sides = [_sides(trace, layer, view) for layer in trace.layers]
    strips = [-(-len(layer.heads) // across) for layer in trace.layers]
    ratios = [len(rows) / len(columns) for (rows, columns), own in zip(sides, strips, strict=True) for _ in range(own)]
    grid = figure.add_gridspec(len(ratios), across, height_ratios=ratios)
    maps: list[_Map] = []
    scales: list[Scale] = []
    for number, (layer, (rows, columns)) in enumerate(zip(trace.layers, sides, strict=True)):
        has_columns = number == len(sides) - 1 or columns != sides[number + 1][1]
        cells = view.cells(trace, layer)
        heads = {head: layer.head(head, cells.rows) for head in layer.heads}
        pictures = {head: heatmap_of(own, cells.of_columns, (pool, pool)) for head, own in heads.items()}
        scales.append(scale_of_layer(trace, view, layer))
        for place, (head, picture) in enumerate(pictures.items()):
            axes = figure.add_subplot(grid[sum(strips[:number]) + place // across, place % across])
            axes.set_title(title_of(trace, layer, head))
            axes.set(xlim=(0, len(columns)), ylim=(len(rows), 0), aspect="equal")
            axes.patch.set(**HATCHED)  # cells that are not painted later
            is_lowest = has_columns and place + across >= len(pictures)
            maps.append(_Map(axes, picture, rows, columns, place % across == 0, is_lowest))
    scale = max(scales, key=lambda scale: scale.high)  # one for all
    _add_key(figure, trace, maps, scale, colors, pool)
    cell = _lay_out(figure, maps, size, size.width / across, sum(ratios))
    for each in maps:
        _draw(each, scale, colors, pool, cell)
    return figure


def _grid(trace: Trace, view: View, size: Size) -> tuple[int, int]:
    """Return how many maps stand side by side so that cells are largest, and how many cells a side are pooled."""
    cells = [(len(layer.heads), view.cells(trace, layer)) for layer in trace.layers]
    wide = max(len(own.columns) for _, own in cells)
    title = max(len(title_of(trace, layer, head)) for layer in trace.layers for head in layer.heads)
    most = max(1, min(max(heads for heads, _ in cells), int(size.width / ((title + 1) * 0.6 * FONT))))

    def cell(across: int) -> float:
        strips = [-(-heads // across) for heads, _ in cells]
        words = KEY + 2 * FONT * sum(strips) if size.height else 0.0
        room = (size.height or HIGH * size.width) - words
        rows = sum(count * len(own.rows) for count, (_, own) in zip(strips, cells, strict=True))
        return min(size.width / (across * wide), max(room, 1.0) / rows)

    across = max(range(1, most + 1), key=cell)
    return across, max(1, int(np.ceil(_FINEST / cell(across))))


def _sides(trace: Trace, layer: LayerTrace, view: View) -> tuple[Axis, Axis]:
    """Return the rows and the columns of a layer's maps."""
    cells, palette = view.cells(trace, layer), Palette()
    predicted = trace.predicted if layer.kind == "self" else None
    rows = Axis.of_tokens(cells.row_tokens, cells.rows, palette, predicted).marking(layer.fully_masked(cells.rows))
    return rows, Axis.of_tokens(cells.column_tokens, cells.columns, palette)


def title_of(trace: Trace, layer: LayerTrace, head: int) -> str:
    """Return the title of a head."""
    label = layer.head_label(head)
    short = (
        f"L{layer.label}{_kind(layer)}" if isinstance(layer.label, int) else titled("layer", layer.label) + _kind(layer)
    )
    return f"{short} H{label}" if isinstance(label, int) else " ".join(dict.fromkeys([short, label]))


def _kind(layer: LayerTrace) -> str:
    return "" if layer.kind == "self" else f" {layer.kind}"


# --- where everything stands -------------------------------------------------------------------------------


def _lay_out(figure: Figure, maps: Sequence[_Map], size: Size, width: float, ratio: float) -> float:
    """Label the maps with as large letters and as many tokens as there is room for; return the side of a cell.

    Raises:
        UsageError: there is no room for the maps.
    """
    fonts = Fonts.of(label for each in maps for axis in (each.rows, each.columns) for label in axis.labels)
    cell = min(width / len(each.columns) for each in maps)
    for font, step in _LABELS:
        if cell and cell * step < _AIR * font:  # no room; smaller letters make cells hardly larger
            continue
        for each in maps:
            _label(each, fonts, font, step)
        cell = _cell(figure, maps, size, max(width * ratio, size.width))
        if cell * step >= _AIR * font:
            figure.set_layout_engine("none")
            return cell
    raise UsageError(
        f"{plural(len(maps), 'map')} {'does' if len(maps) == 1 else 'do'} not fit a figure of this size; choose with "
        "--layer, --head, --query and --key, or give a larger --size"
    )


def _label(drawn: _Map, fonts: Fonts, font: float, step: int) -> None:
    """Write every `step`-th token left of and below a map; where some are left out, their indices too."""
    sides = (drawn.axes.yaxis, drawn.rows, drawn.has_rows), (drawn.axes.xaxis, drawn.columns, drawn.has_columns)
    for side, axis, is_labelled in sides:
        places = range(0, len(axis), step) if is_labelled else range(0)
        labels = [
            (f"{axis.indices[i]} " if step > 1 else "")
            + fonts.escaped(axis.labels[i])
            + (f" {MARK}" if i in axis.marked else "")
            for i in places
        ]
        side.set_ticks([i + 0.5 for i in places])
        side.set_ticklabels(labels, fontproperties=fonts.of_size(font), parse_math=False)
        side.set_tick_params(length=2 if step > 1 else 0)
    drawn.axes.tick_params("x", labelrotation=90)


def _cell(figure: Figure, drawn: Sequence[_Map], size: Size, tallest: float) -> float:
    """Lay the figure out and return the side of its smallest cells, in points; 0 where it has no room."""
    if size.height is None:
        figure.set_figheight((tallest + len(drawn) * 2 * FONT) / INCH + 2)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)  # that maps have collapsed
            figure.draw_without_rendering()
            if size.height is None:
                fit_height(figure)
    except UserWarning:
        return 0.0
    return min(each.axes.bbox.height / len(each.rows) for each in drawn) * INCH / figure.dpi


def fit_height(figure: Figure) -> None:
    """Make a figure that was laid out as high as its maps, its bar of colours and its words."""
    *maps, bar = (axes.get_tightbbox() or axes.bbox for axes in figure.axes)
    parts = Bbox.union(maps), bar, figure.legends[0].get_window_extent()
    figure.set_figheight(sum(float(part.height) for part in parts) / figure.dpi + _PADS)
    figure.draw_without_rendering()


# --- drawing -------------------------------------------------------------------------------------------------


def _odd(picture: Heatmap, scale: Scale) -> Iterator[tuple[Mark, np.ndarray[tuple[int, int], np.dtype[np.bool_]]]]:
    """Yield where the odd cells of each sort are, if there are any."""
    for name, where in scale.odd(picture.values).items():
        if (where & picture.allowed).any():
            yield MARKS[name], where & picture.allowed


def _draw(drawn: _Map, scale: Scale, colors: LinearSegmentedColormap, pool: int, cell: float) -> None:
    """Paint the cells and draw the marks of those that are odd; masked ones are left as they are."""
    axes, picture = drawn.axes, drawn.picture
    painted = np.asarray(colors(scale.placed(np.where(np.isfinite(picture.values), picture.values, 0))))
    lightness = painted[..., :3] @ (0.2126, 0.7152, 0.0722)
    side = cell * pool * 0.5
    for mark, where in _odd(picture, scale):
        if mark.color is not None:
            painted[where] = to_rgba(mark.color)
        rows, columns = np.nonzero(where)
        is_light = (lightness[where] > 0.45) | (mark.color is not None)
        axes.scatter(
            (columns + 0.5) * pool,
            (rows + 0.5) * pool,
            s=side**2,
            marker=mark.marker,
            c=np.where(is_light[:, None], to_rgba("black"), to_rgba("white")),
            linewidths=min(0.8, side / 5) if mark.marker in "x+_" else 0,
        )
    painted[~picture.allowed] = 0
    high, wide = (side * pool for side in picture.values.shape)  # the last blocks may reach beyond the axes
    axes.imshow(painted, extent=(0, wide, high, 0), interpolation="nearest")
    axes.set(xlim=(0, len(drawn.columns)), ylim=(len(drawn.rows), 0))
    for axis, line in ((drawn.rows, axes.axhline), (drawn.columns, axes.axvline)):
        if axis.boundary:
            line(axis.boundary, color=HATCHED["edgecolor"], linewidth=0.8)


def _add_key(
    figure: Figure, trace: Trace, maps: Sequence[_Map], scale: Scale, colors: LinearSegmentedColormap, pool: int
) -> None:
    """Add the colour bar, with ticks at round weights, and the legend of marks."""
    add_bar(figure, scale, colors, trace.layers[0].measure)
    entries: list[Entry] = []
    if not all(each.picture.allowed.all() for each in maps):
        entries.append((Patch(linewidth=0, **HATCHED), "masked"))
    entries += odd_entries({mark.words for each in maps for mark, _ in _odd(each.picture, scale)}, colors)
    add_words(figure, entries, _notes(trace, maps, pool))


def add_bar(figure: Figure, scale: Scale, colors: LinearSegmentedColormap, words: str) -> None:
    """Add the bar of colours below all that is there, with round weights on it."""
    axes = figure.axes
    bar = figure.colorbar(ScalarMappable(cmap=colors), ax=axes, location="bottom", shrink=0.6, aspect=40, pad=0.02)
    width = 0.5 * min(figure.bbox.size) / figure.dpi * INCH  # at least, of the bar
    found: list[tuple[float, str]] = []
    for value, text in ticks(scale):
        at = float(scale.placed(np.array([value]))[0])
        if all(abs(at - other) * width > 0.35 * FONT * (len(text) + len(word) + 2) for other, word in found):
            found.append((at, text))
    bar.set_ticks([at for at, _ in found], labels=[text for _, text in found])
    bar.set_label(f"{words}, {scale.ramp} scale")


def odd_entries(odd: set[str], colors: LinearSegmentedColormap) -> Iterator[Entry]:
    """Yield the looks of special cells, by their meanings."""
    for mark in MARKS.values():
        if mark.words in odd:
            cell = Patch(facecolor=mark.color or colors(0.0), linewidth=0)
            ink = "black" if mark.color else "white"
            sign = Line2D([], [], marker=mark.marker, color=ink, linestyle="none", markersize=FONT / 2)
            yield (cell, sign), mark.words


def add_words(figure: Figure, entries: list[Entry], notes: Iterable[str]) -> None:
    """Add the legend of marks and the notes, below the bar."""
    blank = Line2D([], [], linestyle="none")
    letters = int(figure.bbox.width / figure.dpi * INCH / (0.6 * FONT))  # in a line
    room = letters - (20 if entries and letters > 40 else 6)  # right of the marks, or below them
    entries.append((blank, fill("; ".join(notes), room)))
    handles, words = zip(*entries, strict=True)
    for columns in range(len(entries), 0, -1):  # as many side by side as there is room for
        legend = figure.legend(handles, words, loc="outside lower left", ncols=columns)
        for text in legend.get_texts():
            text.set_parse_math(False)
        if columns == 1 or legend.get_window_extent().width < figure.bbox.width:
            return
        legend.remove()


def _notes(trace: Trace, maps: Sequence[_Map], pool: int) -> Iterator[str]:
    """Yield the notes on maps besides the legend."""
    yield "rows are queries, columns keys"
    if trace.source.kind == "toy":
        yield "random weights: patterns mean nothing; -m demo is a trained model"
    if pool > 1:
        yield f"each cell is the largest of {pool}×{pool}"
    if any(each.rows.marked for each in maps):
        yield f"{MARK} may attend to no key"
    if any(axis.boundary for each in maps for axis in (each.rows, each.columns)):
        yield "grey lines: where the second text begins"
