"""The maps of heads in one figure: tokens along both axes, the bar of colours, and what each mark means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.transforms import Affine2D, Transform

from attncli.formats.figures.groups import MARKS, Group, Map, Mark, colored
from attncli.formats.figures.key import BAR, BAR_HEIGHT, Entry, Key
from attncli.formats.figures.layout import AIR, FONT_SIZES, GAP, MARGIN, Layout, is_labelled, layout_of
from attncli.formats.figures.size import INCH, Size
from attncli.formats.figures.words import Words
from attncli.render.palette import COLORMAPS
from attncli.trace.trace import Trace
from attncli.trace.view import View

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

_COLUMN, _PAGE = 3.3 * INCH, 6.9 * INCH  # the widths of one column and of both, about those of most journals
_LABEL_SHARE = 0.35  # of the width of the figure, that the labels of rows may take
_FINEST = 0.24  # side of a cell, a pixel of 300 to an inch; smaller ones are pooled
_INK, _FAINT, _PALE = "#1f2328", "#59636e", "#b4bac2"


def draw_maps(trace: Trace, view: View, colormap: str, size: Size | None) -> Figure:
    """Return the figure; see `attncli.formats.figures.figure_of`."""
    groups = [Group.of(trace, layer, view, len(trace.layers) == 1) for layer in trace.layers]
    count = sum(len(group.titles) for group in groups)
    size = size or Size(_COLUMN if count == 1 else _PAGE)
    words = Words.of(text for group in groups for axis in group.axes for text in axis.labels)
    groups = [group.within(words, FONT_SIZES[-1], size.width * _LABEL_SHARE) for group in groups]
    layout = layout_of(groups, size, words, BAR_HEIGHT)
    pool = max(1, int(np.ceil(_FINEST / layout.cell)))
    maps = colored(trace, view, groups, [group.pictures(pool) for group in groups])
    if view.range_ == "head":
        groups = [group.reaching([each.scale.high for each in own]) for group, own in zip(groups, maps, strict=True)]
    key = Key.of(groups, maps, view, trace.source.kind == "toy", pool, layout, size, words)
    if key.height > BAR_HEIGHT and size.height is not None:
        layout = layout_of(groups, size, words, key.height)
    return _Drawing(groups, maps, colormap, layout, words, size, key, pool).figure()


class _Drawing:
    """The figure while it is drawn."""

    def __init__(
        self,
        groups: Sequence[Group],
        maps: Sequence[Sequence[Map]],
        colormap: str,
        layout: Layout,
        words: Words,
        size: Size,
        key: Key,
        pool: int,
    ) -> None:
        self._groups, self._maps, self._layout, self._pool = groups, maps, layout, pool
        self._words, self._key = words, key
        self._colors = LinearSegmentedColormap.from_list(colormap, [f"#{stop}" for stop in COLORMAPS[colormap]])
        height = size.height or layout.height + key.height + GAP
        self._size = (size.width, height)
        self._figure = Figure(figsize=(size.width / INCH, height / INCH), facecolor="white")

    def figure(self) -> Figure:
        """Return the figure."""
        layout, y = self._layout, MARGIN
        line = AIR * layout.font
        for place, (group, maps) in enumerate(zip(self._groups, self._maps, strict=True)):
            rows, columns = (len(axis) for axis in group.axes)
            across, count = layout.across[place], len(maps)
            for index, each in enumerate(maps):
                if index and index % across == 0:
                    y += line + rows * layout.cell + GAP
                box = (layout.left + index % across * layout.slots[place], y + line, columns, rows)
                axes = self._map(box, each, group.titles[index])
                self._boundaries(axes, group)
                is_lowest = index + across >= count and is_labelled(self._groups, place)
                self._label(axes, group, has_rows=index % across == 0, has_columns=is_lowest)
            y += line + rows * layout.cell + layout.below[place] + GAP
        self._draw_key(y)
        return self._figure

    def _axes(self, x: float, y: float, width: float, height: float) -> Axes:
        """Return axes in a rectangle of the figure."""
        across, down = self._size
        return self._figure.add_axes((x / across, 1 - (y + height) / down, width / across, height / down))

    def _map(self, box: tuple[float, float, int, int], drawn: Map, title: str) -> Axes:
        """Draw a map at a place of the figure, so many columns wide and rows high."""
        x, y, columns, rows = box
        cell, font = self._layout.cell, self._layout.font
        axes = self._axes(x, y, columns * cell, rows * cell)
        axes.set_title(title, fontproperties=self._words.font(font), color=_INK, loc="left", pad=font * 0.3)
        for side in axes.spines.values():
            side.set(linewidth=0.4, color=_FAINT)
        if not drawn.picture.allowed.all():
            axes.add_patch(_hatched(0, 0, columns, rows, zorder=-1))
        # The last blocks may reach beyond the axes.
        high, wide = (side * self._pool for side in drawn.picture.values.shape)
        axes.imshow(self._painted(drawn), extent=(0, wide, high, 0), aspect="auto", interpolation="nearest")
        axes.set(xlim=(0, columns), ylim=(rows, 0))
        for name, where in drawn.odd.items():
            self._mark(axes, MARKS[name], where, drawn)
        return axes

    def _painted(self, drawn: Map) -> Float[np.ndarray, "Q K C"]:
        """Return the colours of the cells; masked ones have none."""
        painted = np.asarray(self._colors(drawn.placed))
        for name, where in drawn.odd.items():
            if (color := MARKS[name].color) is not None:
                painted[where] = to_rgba(color)
        painted[~drawn.picture.allowed] = 0
        return painted

    def _mark(self, axes: Axes, mark: Mark, where: Bool[np.ndarray, "Q K"], drawn: Map) -> None:
        """Draw a mark into the cells of its sort."""
        if not where.any():
            return
        rows, columns = np.nonzero(where)
        side = self._layout.cell * self._pool * 0.5
        lightness = np.asarray(self._colors(drawn.placed))[rows, columns, :3] @ (0.2126, 0.7152, 0.0722)
        inks = np.where((lightness > 0.45)[:, None] | (mark.color is not None), to_rgba("black"), to_rgba("white"))
        axes.scatter(
            (columns + 0.5) * self._pool,
            (rows + 0.5) * self._pool,
            s=side**2,
            marker=mark.marker,
            c=inks,
            linewidths=min(0.8, side / 5) if mark.marker in "x+_" else 0,
        )

    def _boundaries(self, axes: Axes, group: Group) -> None:
        """Draw where the second text of a pair begins."""
        for axis, draw in zip(group.axes, (axes.axhline, axes.axvline), strict=True):
            if axis.boundary:
                draw(axis.boundary, color=_PALE, linewidth=0.8)

    def _label(self, axes: Axes, group: Group, *, has_rows: bool, has_columns: bool) -> None:
        """Write the tokens beside and below a map."""
        font, step = self._layout.font, self._layout.step
        for side, axis, has_labels in ((0, axes.yaxis, has_rows), (1, axes.xaxis, has_columns)):
            texts = group.labels(side, step)
            places = [place * step + 0.5 for place in range(len(texts))]
            axis.set_ticks(places if has_labels else [])
            axis.set_tick_params(length=2 if step > 1 else 0, width=0.4, color=_FAINT, pad=2)
            if has_labels:
                axis.set_ticklabels(texts, fontproperties=self._words.font(font), color=_INK, parse_math=False)
        axes.tick_params("x", labelrotation=90)

    def _draw_key(self, y: float) -> None:
        """Draw what explains the maps."""
        key, font, left = self._key, self._layout.font, self._layout.left
        bar = self._axes(left, y, key.bar, BAR)
        bar.imshow(self._colors(np.linspace(0, 1, 256))[None], extent=(0, 1, 0, 1), aspect="auto")
        bar.set_yticks([])
        bar.set_xticks([at for at, _ in key.ticks], [text for _, text in key.ticks])
        bar.tick_params("x", length=2, width=0.4, color=_FAINT, pad=1)
        sides = {0.0: "left", 1.0: "right"}
        for (at, _), label in zip(key.ticks, bar.get_xticklabels(), strict=True):
            label.set(fontproperties=self._words.font(font), color=_INK, ha=sides.get(at, "center"))
        for side in bar.spines.values():
            side.set(linewidth=0.4, color=_FAINT)
        points = Affine2D().scale(1 / INCH, -1 / INCH).translate(0, self._size[1] / INCH) + self._figure.dpi_scale_trans
        for x, down, entry in key.entries:
            at, middle = left + x, y + down + font * 0.5
            if entry.has_swatch:
                self._swatch(entry, at, middle, points)
                at += font + 2
            self._figure.text(
                at, middle, entry.words, transform=points, va="center_baseline", color=_INK,
                fontproperties=self._words.font(font), parse_math=False,
            )  # fmt: skip

    def _swatch(self, entry: Entry, x: float, middle: float, points: Transform) -> None:
        """Draw a cell that looks as those that an entry explains."""
        side = self._layout.font * 0.9
        if entry.mark is None:
            self._figure.add_artist(_hatched(x, middle - side / 2, side, side, transform=points))
            return
        color, ink = entry.mark.color or self._colors(0.0), "black" if entry.mark.color else "white"
        box = Rectangle((x, middle - side / 2), side, side, facecolor=color, linewidth=0, transform=points)
        self._figure.add_artist(box)
        mark = Line2D(
            [x + side / 2], [middle], marker=entry.mark.marker, markersize=side * 0.6, color=ink, linestyle="none",
            markeredgewidth=0.8 if entry.mark.marker in "x+_" else 0, transform=points,
        )  # fmt: skip
        self._figure.add_artist(mark)


def _hatched(x: float, y: float, width: float, height: float, **how: Any) -> Rectangle:
    """Return what masked cells look like."""
    patch = Rectangle((x, y), width, height, facecolor="white", edgecolor=_PALE, hatch="/////", linewidth=0, **how)
    patch.set_hatch_linewidth(0.4)
    return patch
