"""Two traces compared, as a person reads it: what they share, which heads and cells changed most, and their maps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from textwrap import wrap
from typing import TYPE_CHECKING

import numpy as np
from rich.console import RenderableType
from rich.segment import Segment
from rich.text import Text

from attncli.analysis.alignment import NAMES, Alignment, LayerPair
from attncli.analysis.diff import CellDifference, Difference, HeadDifference, weights_of
from attncli.render.axes import LONGEST_LABEL, Axis, mark_note
from attncli.render.block import COMFORTABLE, Block, block, grid, hstack, in_lines, stack
from attncli.render.color_limits import largest_weight
from attncli.render.heatmap import (
    GAP,
    MOST,
    Extent,
    Heatmap,
    extent_of,
    heatmap_of,
    heatmaps,
    joined,
    pooling,
)
from attncli.render.legend import legend
from attncli.render.matrix import DIGITS
from attncli.render.palette import BOLD, DIM, Palette, Scale
from attncli.render.sections import cautioned, proof_line, what_ran
from attncli.render.tables import Cell, Column, table
from attncli.trace.tokens import Tokens
from attncli.trace.top_keys import drawn_cells

if TYPE_CHECKING:
    from jaxtyping import Bool

    from attncli.trace.view import Ramp

    Blind = Bool[np.ndarray, "1 R"]

CHANGE = "B − A"
_WEIGHTS = "weights  "
_BETWEEN = 3  # cells between two maps
_TALLEST = 64  # rows of a map that is drawn whole
_SCREEN = 24  # rows of the maps of a longer text, those one above the other together
_FEWEST_COLUMNS = 20  # of a map that stands beside another one

Axes = tuple[Axis, Axis]  # rows and columns


def maps_of(pair: LayerPair, head: int, palette: Palette, room: int, ramp: Ramp | None = None) -> Block:
    """Return the three maps under what their cells mean.

    Args:
        pair: the layer in A and in B.
        head: the head.
        palette: how cells look.
        room: cells in a line.
        ramp: how colours grow with weights and differences; None leaves it to the palette.
    """
    blind = _blind(pair, head)
    axes = _axes(pair, blind, palette)
    share = _share(axes, room)
    in_a_line = max((room + _BETWEEN) // (share + _BETWEEN), 1)
    pools = [_pool(rows, columns, share, _SCREEN // -(-len(axes) // in_a_line)) for rows, columns in axes]
    sides = (pair.first.head(head, axes[0][0].indices), pair.second.head(head, axes[1][0].indices))
    pictures = [heatmap_of(side, slice(None), pool) for side, pool in zip(sides, pools[:2], strict=True)]
    common = extent_of(pictures)
    change = _change(pair, head, pools[2])
    highest, reach = common.highest, change.extent.highest
    if pair.chosen != pair.rows.pairs:  # the rows that are chosen keep the colours that they have among all
        whole = replace(pair, chosen=pair.rows.pairs)
        highest = max(
            largest_weight(layer.head(head, rows), slice(None))
            for layer, rows in zip((pair.first, pair.second), zip(*whole.chosen, strict=True), strict=True)
        )
        reach = _change(whole, head, pools[2]).extent.highest
    weights, signed = Scale.up_to(highest, ramp), Scale.around_zero(reach, ramp)
    shown = [(picture._replace(title=name), weights) for picture, name in zip(pictures, NAMES, strict=True)]
    drawn = [
        heatmaps([picture], *axis, pool, palette, share, [scale])
        for (picture, scale), axis, pool in zip([*shown, (change, signed)], axes, pools, strict=True)
    ]
    rows, columns = axes[2]
    cell_width = 2 if drawn[2].width >= rows.width + GAP + 2 * len(columns.pooled(pools[2][1])) else 1
    more = [f"{sign} more in {name}" for sign, name in zip("−+", NAMES, strict=True)]
    more += [mark for mark in change.extent.mark_notes if mark not in common.marks]
    marks = [*common.mark_notes, mark_note(blind[0] | blind[1])]
    scales = [
        _named(_WEIGHTS, legend([weights], marks, palette, room - len(_WEIGHTS)), palette),
        _named(CHANGE, legend([signed], more, palette, room - len(_WEIGHTS), cell_width), palette),
    ]
    maps = stack((hstack(line, _BETWEEN) for line in in_lines(drawn, _BETWEEN, room)), gap=1)
    return stack([*scales, *_pooled(pools, palette), maps])


def _pool(rows: Axis, columns: Axis, share: int, most: int) -> tuple[int, int]:
    """Return what a cell stands for; a map of a long text has so many rows at most, for all three to fit a screen."""
    pool = pooling(rows, columns, share)
    return pool if len(rows) <= _TALLEST else (max(pool[0], -(-len(rows) // most)), pool[1])


def _named(name: str, scale: Block, palette: Palette) -> Block:
    return hstack([Block([[Segment(palette.fit(name), BOLD)]], len(_WEIGHTS)), scale], 0)


def _pooled(pools: Sequence[tuple[int, int]], palette: Palette) -> list[Block]:
    """Return what a cell of the maps stands for, if it is more than one."""
    sizes = dict.fromkeys(f"{rows}×{columns}" for rows, columns in pools)
    if list(sizes) == ["1×1"]:
        return []
    text = palette.fit(f"a cell is the strongest of {' or '.join(sizes)}")
    return [Block([[Segment(text, DIM)]], len(text))]


def _axes(pair: LayerPair, blind: Sequence[Blind], palette: Palette) -> list[Axes]:
    """Return the rows and the columns of A, of B, and of what both share; rows that are blind are marked."""

    def axes(queries: Tokens, rows: Sequence[int], marked: Blind, keys: Tokens, columns: Sequence[int]) -> Axes:
        return Axis.of_tokens(queries, rows, palette).marking(marked), Axis.of_tokens(keys, columns, palette)

    queries, keys = pair.rows, pair.columns
    mine, theirs = zip(*pair.chosen, strict=True)
    shared, _ = zip(*keys.pairs, strict=True)
    return [
        axes(queries.first, mine, blind[0], keys.first, range(len(keys.first))),
        axes(queries.second, theirs, blind[1], keys.second, range(len(keys.second))),
        axes(queries.first, mine, blind[0] | blind[1], keys.first, shared),
    ]


def _blind(pair: LayerPair, head: int) -> list[Blind]:
    """Return which of the compared rows may attend to no key, in A and in B."""
    sides = zip((pair.first, pair.second), zip(*pair.chosen, strict=True), strict=True)
    return [layer.fully_masked(rows)[[layer.heads.index(head)]] for layer, rows in sides]


def _share(axes: Sequence[Axes], room: int) -> int:
    """Return the width of one map with which the most of them stand side by side, if need be pooled.

    Wide cells come before narrow ones, and narrow ones before pooled ones.
    """
    shares = [(room - _BETWEEN * (count - 1)) // count for count in (3, 2, 1)]
    labels = max(rows.width for rows, _ in axes) + 2
    widest = max(len(columns) for _, columns in axes)
    for needed in (2 * widest, widest):
        fitting = [share for share in shares[:2] if labels + needed <= share]
        if fitting:
            return fitting[0]
    return next((share for share in shares if labels + _FEWEST_COLUMNS <= share), shares[-1])


def _change(pair: LayerPair, head: int, pool: tuple[int, int]) -> Heatmap:
    """Return the difference of a head on the shared tokens; its rows are pooled as they are derived."""
    parts = []
    for blocks in pair.blocks(head):
        first, second = weights_of(pair, blocks)
        drawn = [drawn_cells(block)[:, keys] for block, keys in zip(blocks, pair.keys, strict=True)]
        with np.errstate(invalid="ignore"):
            values = second - first
        allowed = drawn[0] | drawn[1]
        parts.append(Heatmap("", values, allowed, Extent.of(np.abs(values), allowed)).strongest(1, pool[1]))
    return joined(CHANGE, parts).strongest(pool[0], 1)


_FEW = 3  # query rows that are named
_LISTED = 12  # tokens that are not shared, of a long sequence


@dataclass(frozen=True)
class DiffView:
    """A comparison laid out for one output.

    Attributes:
        difference: what is shown.
        palette: how cells look.
        width: cells in a line; None is as many as it takes.
        precision: digits after the point.
        top: how many heads are listed.
        ramp: how colours grow with weights and differences; None leaves it to the palette.
    """

    difference: Difference
    palette: Palette
    width: int | None
    precision: int = DIGITS
    top: int = 10
    ramp: Ramp | None = None

    def renderables(self) -> Iterator[RenderableType]:
        """Yield the view, part by part; a blank line belongs between two parts."""
        difference = self.difference
        traces = (difference.first, difference.second)
        titles = [what_ran(trace, self.palette) for trace in traces]
        if titles[0] != titles[1]:
            named = (Text.assemble((f"{name}  ", BOLD), title) for name, title in zip(NAMES, titles, strict=True))
            titles = [Text("\n").join(named)]
        yield cautioned(titles[0], [trace.source for trace in traces], self.palette)
        if difference.queries == difference.keys:
            yield self._alignment(difference.keys, "tokens")
        else:
            yield stack([self._alignment(difference.queries, "queries"), self._alignment(difference.keys, "keys")])
        yield from self._heads()
        yield from self._cells()
        for head in difference.heads[:1]:
            if head.jensen_shannon:
                yield self._title(head)
                yield maps_of(difference.pair(head), head.head, self.palette, self._room, self.ramp)
        proven = [layer for pair in difference.layers for layer in (pair.first, pair.second) if layer.proof]
        if proven:
            worst = max(proven, key=lambda layer: layer.proof.max_abs_error if layer.proof else 0)
            yield proof_line(worst, self.palette)

    @property
    def _room(self) -> int:
        return self.width or COMFORTABLE

    # --- what the two share ---

    def _alignment(self, aligned: Alignment, title: str) -> Block:
        """Return both sequences, tokens that are shared one above the other and marked."""
        sides = (aligned.first, aligned.second)
        if max(map(len, sides)) > MOST:
            return self._shared_in_short(aligned, title)
        shared = set(aligned.pairs)
        columns = list(aligned.columns())
        names: list[list[Cell]] = [[(text, DIM)] for text in (f"{title} {NAMES[0]}", f"{title} {NAMES[1]}", "shared")]
        for column in columns:
            is_shared = column in shared
            for tokens, index, row in zip(sides, column, names[:2], strict=True):
                label = "" if index is None else f"{index} {self._label(tokens[index].label)}"
                row.append((label, None if is_shared else DIM))
            names[2].append(("=" if is_shared else "", DIM))
        if aligned.is_whole and [text for text, _ in names[0][1:]] == [text for text, _ in names[1][1:]]:
            names = [[(title, BOLD), *names[0][1:]]]
        return grid(names, "<" * (len(columns) + 1), self._room)

    def _shared_in_short(self, aligned: Alignment, title: str) -> Block:
        first, second = ({pair[side] for pair in aligned.pairs} for side in (0, 1))
        parts: list[str] = [f"{title}: {len(aligned.pairs)} shared"]
        for name, tokens, shared in zip(NAMES, (aligned.first, aligned.second), (first, second), strict=True):
            others = [token for token in tokens if token.index not in shared]
            listed = "  ".join(f"{token.index} {self._label(token.label)}" for token in others[:_LISTED])
            more = f" and {len(others) - _LISTED} more" if len(others) > _LISTED else ""
            text = f"{name}  {len(tokens)} tokens" + (f", only here: {listed}{more}" if others else "")
            parts += wrap(text, self._room)
        return block([[Segment(part, None if number else BOLD)] for number, part in enumerate(parts)])

    def _label(self, label: str) -> str:
        return self.palette.shortened(label, LONGEST_LABEL)

    # --- which heads and cells ---

    def _heads(self) -> Iterator[RenderableType]:
        """Yield the ranking of the heads."""
        difference = self.difference
        heads = difference.heads
        title = f"heads that changed most, of {len(heads)}"
        facts = f" · Jensen-Shannon divergence, 0 to 1 bit · {self._mean_over()}"
        yield Text.assemble((title, BOLD), (self.palette.fit(facts), DIM))
        shown = heads[: self.top]
        columns = [*self._places(shown), self._numbers("divergence", [each.jensen_shannon for each in shown])]
        parts = []
        if any(each.elsewhere and max(each.elsewhere) > 0 for each in heads):
            sides = zip(*(each.elsewhere or (None, None) for each in shown), strict=True)
            for name, values in zip(NAMES, sides, strict=True):
                columns.append(self._numbers(f"elsewhere {name}", values))
            parts.append(self._elsewhere())
        yield stack([table(columns, self._room), *parts])

    def _places(self, found: Sequence[HeadDifference | CellDifference]) -> list[Column]:
        """Return the columns that say where heads are; kinds only where there are several."""
        columns = [Column("layer", [str(each.layer) for each in found], BOLD)]
        if len({each.kind for each in self.difference.heads}) > 1:
            columns.append(Column("kind", [each.kind for each in found]))
        return [*columns, Column("head", [str(each.head) for each in found], BOLD)]

    def _numbers(self, title: str, values: Sequence[float | None]) -> Column:
        return Column(title, [self._number(value) for value in values])

    def _mean_over(self) -> str:
        """Return which rows the numbers are the mean of."""
        compared = sorted({each.rows for each in self.difference.heads})
        if compared == [0]:
            return "no query row could be compared"
        if compared[0] < min(len(pair.chosen) for pair in self.difference.layers):
            return f"mean over {' or '.join(map(str, compared))} query rows"
        chosen = {pair.chosen for pair in self.difference.layers}
        counts = sorted({len(pairs) for pairs in chosen})
        if len(chosen) == 1 and counts[0] <= _FEW:
            pair = self.difference.layers[0]
            named = ", ".join(self._both(pair.rows, place) for place in pair.chosen)
            return f"mean over the query rows {named}" if counts[0] > 1 else f"query row {named}"
        return f"mean over {' or '.join(map(str, counts))} query rows"

    def _cells(self) -> Iterator[RenderableType]:
        """Yield the cells that changed most, or that none did."""
        difference = self.difference
        cells = difference.cells
        if not cells:
            has_rows = any(each.rows for each in difference.heads)
            yield Text("no cell that both have has changed" if has_rows else "no cell could be compared")
            return
        pairs = [difference.pair(each) for each in cells]
        queries = [self._both(pair.rows, each.query) for pair, each in zip(pairs, cells, strict=True)]
        keys = [self._both(pair.columns, each.key) for pair, each in zip(pairs, cells, strict=True)]
        weights = zip(*(each.weights for each in cells), strict=True)
        changes = [self.palette.fit(self._number(each.difference, "+")) for each in cells]
        yield Text("cells that changed most", BOLD)
        yield table(
            [
                *self._places(cells),
                Column("query", queries, align="<"),
                Column("key", keys, align="<"),
                *(self._numbers(name, values) for name, values in zip(NAMES, weights, strict=True)),
                Column(self.palette.fit(CHANGE), changes, BOLD),
            ],
            self._room,
        )

    def _both(self, aligned: Alignment, place: tuple[int, int]) -> str:
        """Return a shared token under its position, or both of them where they differ."""
        first, second = place
        index = str(first) if first == second else f"{first}/{second}"
        return f"{index} {self._label(aligned.first[first].label)}"

    def _number(self, value: float | None, sign: str = "") -> str:
        if not value:
            return self.palette.fit("–") if value is None else "0"  # exactly; 0.0000 is a small number rounded
        return f"{value:{sign}.{self.precision}f}".replace("-", "−")

    def _elsewhere(self) -> Block:
        """Return what the weight elsewhere is, and what becomes of it."""
        layers = [layer for pair in self.difference.layers for layer in (pair.first, pair.second)]
        where = (
            [] if all(pair.columns.is_whole for pair in self.difference.layers) else ["on tokens that are not shared"]
        )
        where += ["taken by sinks"] if any(layer.sinks is not None for layer in layers) else []
        text = f"elsewhere: weight {' or '.join(where) or 'that rows lack of 1'}; to the divergence it is one more cell"
        return block([[Segment(line, DIM)] for line in wrap(self.palette.fit(text), self._room)])

    def _title(self, head: HeadDifference) -> Text:
        own = "" if head.kind == "self" else f"{head.kind} "
        note = f" · {self._number(head.jensen_shannon)} bits"
        return Text.assemble((f"{own}layer {head.layer} head {head.head}", BOLD), (self.palette.fit(note), DIM))
