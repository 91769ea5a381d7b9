"""What a figure draws: the maps of each layer, their colours, and the marks of odd cells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attncli.formats.figures.words import Words
from attncli.render.axes import LONGEST_END, MARK, Axis, titled, up_to
from attncli.render.heatmap import Picture, picture_of
from attncli.render.palette import Palette, Scale
from attncli.render.ranges import scales_of
from attncli.trace.layer import LayerTrace
from attncli.trace.trace import Trace
from attncli.trace.view import View

if TYPE_CHECKING:
    from jaxtyping import Bool, Float


class Mark(NamedTuple):
    """How a cell that is odd looks: matplotlib's marker, the colour of the cell (None is that of its number), words."""

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


class Group(NamedTuple):
    """The maps of one layer, which share their axes.

    Attributes:
        layer: the layer.
        rows: which of its queries are drawn.
        columns: which of its keys.
        axes: what they are called.
        plain: what its maps are called.
        titles: the same, with what the colours of each reach to, where that is not the same for all.
        name: of the layer, where the titles do not say it.
    """

    layer: LayerTrace
    rows: list[int]
    columns: slice | list[int]
    axes: tuple[Axis, Axis]
    plain: list[str]
    titles: list[str]
    name: str

    @classmethod
    def of(cls, trace: Trace, layer: LayerTrace, view: View, is_alone: bool) -> Group:
        """Return the maps of a layer; one that is alone is named once, below them."""
        cells, palette = view.cells(trace, layer), Palette()
        predicted = trace.predicted if layer.kind == "self" else None
        rows = Axis.of_tokens(cells.row_tokens, cells.rows, palette, predicted).marking(layer.blind(cells.rows))
        columns = Axis.of_tokens(cells.column_tokens, cells.columns, palette)
        heads = [layer.head_label(head) for head in layer.heads]
        kind = "" if layer.kind == "self" else f" {layer.kind}"
        name = titled("layer", layer.label) + kind
        titles = [titled("head", head) for head in heads]
        if not is_alone:
            short = f"L{layer.label}{kind}" if isinstance(layer.label, int) else name
            titles = [f"{short} H{head}" if isinstance(head, int) else f"{short} {head}" for head in heads]
        longest = [up_to(title, LONGEST_END) for title in titles] if view.range_ == "head" else titles
        return cls(layer, cells.rows, cells.of_columns, (rows, columns), titles, longest, name if is_alone else "")

    def within(self, words: Words, font: float, room: float) -> Group:
        """Return the same maps with labels that can be written, and have room in letters of this size."""
        rows, columns = (
            axis.labelled([words.clipped(words.written(label), font, room) for label in axis.labels])
            for axis in self.axes
        )
        return self._replace(axes=(rows, columns))

    def reaching(self, highest: Sequence[float]) -> Group:
        """Return the same maps with what the colours of each reach to in its title."""
        return self._replace(titles=[up_to(*each) for each in zip(self.plain, highest, strict=True)])

    def pictures(self, pool: int) -> list[Picture]:
        """Return the weights of each head, the largest of blocks of so many rows and columns."""
        heads = (self.layer.head(head, self.rows) for head in self.layer.heads)
        return [picture_of(head, self.columns, (pool, pool)) for head in heads]

    def labels(self, side: int, step: int) -> list[str]:
        """Return what stands at every so many places of an axis; where some are left out, their indices too."""
        axis = self.axes[side]
        return [
            (f"{axis.indices[place]} " if step > 1 else "")
            + axis.labels[place]
            + (f" {MARK}" if place in axis.marked else "")
            for place in range(0, len(axis), step)
        ]


class Map(NamedTuple):
    """A head's map, and which weight each of its colours stands for."""

    picture: Picture
    scale: Scale

    @property
    def odd(self) -> dict[str, Bool[np.ndarray, "Q K"]]:
        """Where the odd cells of each sort are, by the mark that a terminal gives them."""
        return {mark: where & self.picture.allowed for mark, where in self.scale.odd(self.picture.values).items()}

    @property
    def placed(self) -> Float[np.ndarray, "Q K"]:
        """How far along the colours each cell stands; what is no number stands at 0."""
        return self.scale.placed(np.where(np.isfinite(self.picture.values), self.picture.values, 0))


def colored(
    trace: Trace, view: View, groups: Sequence[Group], pictures: Sequence[Sequence[Picture]]
) -> list[list[Map]]:
    """Return the maps with their scales: one for all of them, or where the range is of each head, its own."""
    layers = [group.layer for group in groups]
    found = [
        list(scales_of(trace, view, layer, dict(zip(layer.heads, drawn, strict=True))).values())
        for layer, drawn in zip(layers, pictures, strict=True)
    ]
    if view.range_ != "head":
        common = max((scale for scales in found for scale in scales), key=lambda scale: scale.high)
        found = [[common] * len(scales) for scales in found]
    return [list(map(Map, *each)) for each in zip(pictures, found, strict=True)]
