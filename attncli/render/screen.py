"""What fits one screen: how much of a long text is shown when nobody says what, and how large its maps are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from rich.text import Text

from attncli.render.axes import Axis
from attncli.render.heatmap import COMFORTABLE, GAP, MOST, STRIPS, pooling
from attncli.render.palette import Palette
from attncli.render.summaries import headline, shapes_table
from attncli.text import as_ranges, layers_named
from attncli.trace.layer import LayerTrace
from attncli.trace.ranking import Heaviest
from attncli.trace.trace import Trace
from attncli.trace.view import View

LONG = MOST  # more tokens than this are shown pooled, unless asked for in so many words
LINES = 40  # of a screen
TOP_KEYS = 5  # of the one query that is shown of a long text
_LEAST = 8  # rows and columns of a map; smaller ones tell heads no longer apart
_HEADER_LINES = 2  # of a map: its title and its ticks
_LEGEND_LINES = 3  # at the most, where it is narrow

Size = tuple[int, int]  # rows and columns of a map


class Fit(NamedTuple):
    """How the maps of one layer are drawn.

    Attributes:
        pool: how many rows and columns a cell of a map stands for.
        heads: the heads that are drawn.
        strips: the maps stand in so many strips one below the other before their cells are narrowed.
    """

    pool: tuple[int, int]
    heads: tuple[int, ...]
    strips: int = STRIPS


@dataclass(frozen=True)
class Screen:
    """How much of a trace is shown.

    A summary is what is shown of a long text when the parts are not named: the first layer, and of it as much as
    one screen has room for, whatever the output. Rows that were chosen are not pooled, and where their heaviest keys
    were asked for all of them are listed.

    Attributes:
        trace: what is shown.
        view: what of it is shown.
        palette: how words look.
        width: cells in a line; None is as many as it takes.
    """

    trace: Trace
    view: View
    palette: Palette
    width: int | None

    @cached_property
    def rows(self) -> list[int]:
        """The query rows that are shown, of the first layer where it has positions of its own."""
        first = self.trace.layers[0]
        return self.view.rows(self.trace) if first.query_tokens is None else self.view.cells(self.trace, first).rows

    @cached_property
    def columns(self) -> list[int]:
        """The key columns that are shown, of the first layer where it has positions of its own."""
        first = self.trace.layers[0]
        return self.view.columns(self.trace) if first.key_tokens is None else self.view.cells(self.trace, first).columns

    @property
    def is_long(self) -> bool:
        """Whether there are too many tokens for every one of them to have a row or a column."""
        return max(len(self.rows), len(self.columns)) > LONG

    @property
    def is_summary(self) -> bool:
        """Whether no more is shown than one screen has room for."""
        is_listed = self.view.heaviest is not None and self.view.chooses_rows(self.trace)
        return self.is_long and self.view.show is None and not is_listed

    @property
    def layers(self) -> tuple[LayerTrace, ...]:
        """The layers that are shown."""
        return self.trace.layers[:1] if self.is_summary else self.trace.layers

    @property
    def heaviest(self) -> Heaviest | None:
        """Which keys of each query are listed; of a single query of a long text some are, though nobody asked."""
        is_one_of_many = self.is_summary and len(self.rows) == 1
        return self.view.heaviest or (Heaviest(TOP_KEYS) if is_one_of_many else None)

    def fit(self, layer: LayerTrace, rows: Axis, columns: Axis) -> Fit:
        """Return how the maps of a layer are drawn: as they come, or in a summary the largest that fit the screen.

        The fewer heads, the larger the maps; as many heads are kept as can be told apart. Rows that were chosen stand
        for themselves as long as one strip of maps has lines for all of them.
        """
        if not self.is_summary:
            return Fit(pooling(rows, columns, self.width or COMFORTABLE), layer.heads)
        header = _HEADER_LINES + bool(rows.boundary)
        lines = self._lines_left(layer)
        most = max(lines - header, 1)  # the words alone may fill the screen
        is_kept = self.view.chooses_rows(self.trace)
        least = min(len(rows), most if is_kept else _LEAST), min(len(columns), _LEAST)
        for heads in range(len(layer.heads), 0, -1):
            sizes = [
                (size, strips)
                for size, strips in self._sizes(heads, rows, columns, lines + 1, header)
                if size[0] >= least[0] and size[1] >= least[1]
            ]
            if sizes:
                size, strips = max(sizes, key=lambda found: (min(found[0]), found[0][0] * found[0][1]))
                return Fit(_pool(rows, columns, size), layer.heads[:heads], strips)
        return Fit(_pool(rows, columns, (most, least[1])), layer.heads[:1], 1)

    def _sizes(self, heads: int, rows: Axis, columns: Axis, lines: int, header: int) -> Iterator[tuple[Size, int]]:
        """Yield what size the maps have room for in every number of strips, a blank line below each strip."""
        for strips in range(1, heads + 1):
            per_strip = -(-heads // strips)
            high = lines // strips - 1 - header
            wide = ((self.width or COMFORTABLE) - rows.width) // per_strip - GAP - bool(columns.boundary)
            yield (min(high, MOST, len(rows)), min(wide, MOST, len(columns))), strips

    def listed(self, layer: LayerTrace, rows: Axis, lines_each: int = 1) -> tuple[tuple[int, ...], Axis]:
        """Return the heads and the rows of a layer whose heaviest keys are listed.

        Args:
            layer: whose they are.
            rows: the query axis.
            lines_each: how many lines the keys of one query take.
        """
        if not self.is_summary:
            return layer.heads, rows
        room = max((self._lines_left(layer) - 1) // lines_each - 1, 1)  # without the titles
        return layer.heads[: max(room // len(rows), 1)], rows.first(room)

    def notes(self, fit: Fit) -> Iterator[str]:
        """Yield what a summary leaves out, a sentence each, and what shows it."""
        if not self.is_summary:
            return
        tokens = max(len(self.rows), len(self.columns))
        if self.heaviest is not None:
            most = f"{self.heaviest.most} " if self.heaviest.most else ""
            yield (
                f"{tokens} tokens: one screen of the {most}heaviest keys of each query; --head and --rows "
                "choose, --rows 0: has every query, --show weights or -F tsv every key"
            )
        else:
            yield (
                f"{tokens} tokens: matrices are left out and maps show the largest weight of each block of cells; "
                "--rows 0:20 and --top-keys 5 show parts, --show weights or -F tsv all of them"
            )
            if gone := [head for head in self.trace.layers[0].heads if head not in fit.heads]:
                yield f"one screen has no room for heads {as_ranges(gone)}; --head chooses, --show heatmap draws all"
        if len(self.trace.layers) > 1:
            shown, kinds = self.trace.layers[0], {layer.kind for layer in self.trace.layers}
            named = layers_named([shown.layer], shown.kind if len(kinds) > 1 else None)
            chooses = "--layer and --kind choose" if len(kinds) > 1 else "--layer chooses"
            yield f"{named} is shown, one of {len(self.trace.layers)}; {chooses}, --show heatmap draws all"

    def _lines_left(self, layer: LayerTrace) -> int:
        """Return how many lines of a screen the words around the maps of a layer leave."""
        words = self._lines_of(headline(self.trace.recorded, self.palette)) + 1
        if self.trace.origin is None:
            words += len(shapes_table(self.trace, layer, self.palette, self.width).lines) + 1
        else:
            words += sum(self._lines_of(Text(rule)) for rule in self.trace.origin.rules) + 1
        words += 2 * (len(self.trace.layers) > 1) + 2 * (layer.proof is not None)
        words += _LEGEND_LINES + self.view.log + self.view.no_sink  # which have marks of their own
        return LINES - words

    def _lines_of(self, line: Text) -> int:
        """Return how many lines of the output one of our own takes."""
        return -(-line.cell_len // (self.width or line.cell_len))


def _pool(rows: Axis, columns: Axis, size: Size) -> tuple[int, int]:
    return -(-len(rows) // size[0]), -(-len(columns) // size[1])
