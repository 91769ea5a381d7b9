"""Two traces or two models compared: what they share, which heads and cells changed most, and the maps of one head."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from textwrap import wrap
from typing import TYPE_CHECKING

import numpy as np
from rich.console import RenderableType
from rich.segment import Segment
from rich.text import Text

from attncli.analysis.alignment import NAMES, Alignment, LayerPair
from attncli.analysis.diff import (
    CellDifference,
    Difference,
    Differences,
    HeadDifference,
    HeadDifferences,
    weights_of,
)
from attncli.render.axes import LONGEST_LABEL, Axis, mark_note
from attncli.render.block import COMFORTABLE, Block, Cell, Column, block, grid, hstack, in_lines, stack, table
from attncli.render.heatmap import GAP, MOST, Extent, Heatmap, heatmap_of, heatmaps, joined, pooling
from attncli.render.legend import legend
from attncli.render.matrix import DIGITS
from attncli.render.palette import BOLD, DIM, Palette, Scale
from attncli.render.sections import architecture_of, cautioned, numbers_of, proof_line, what_ran
from attncli.render.sections import joined as joined_facts
from attncli.text import plural
from attncli.trace.top_keys import drawn_cells
from attncli.trace.trace import Provenance

if TYPE_CHECKING:
    from attncli.trace.view import Ramp

CHANGE = "B − A"
_WEIGHTS = "weights  "
_BETWEEN = 3  # cells between two maps
_TALLEST = 64  # rows of a map that is drawn whole
_SCREEN = 24  # rows of the maps of a longer text, those one above the other together
_FEWEST_COLUMNS = 20  # of a map that stands beside another one
_FEW = 3  # query rows that are named
_LISTED = 12  # tokens that are not shared, of a long sequence

Axes = tuple[Axis, Axis]  # rows and columns


def maps_of(pair: LayerPair, head: int, palette: Palette, room: int, ramp: Ramp | None = None) -> Block:
    """Return the three maps under what their cells mean."""
    layers, places = (pair.first, pair.second), list(zip(*pair.chosen, strict=True))
    blind = [layer.fully_masked(rows)[[layer.heads.index(head)]] for layer, rows in zip(layers, places, strict=True)]
    marked, shared = [*blind, blind[0] | blind[1]], [mine for mine, _ in pair.columns.pairs]
    sides = [
        (pair.rows.first, places[0], pair.columns.first, range(len(pair.columns.first))),
        (pair.rows.second, places[1], pair.columns.second, range(len(pair.columns.second))),
        (pair.rows.first, places[0], pair.columns.first, shared),
    ]
    axes = [
        (Axis.of_tokens(queries, rows, palette).marking(own), Axis.of_tokens(keys, columns, palette))
        for (queries, rows, keys, columns), own in zip(sides, marked, strict=True)
    ]
    share = _share(axes, room)
    in_a_line = max((room + _BETWEEN) // (share + _BETWEEN), 1)
    pools = []
    for rows, columns in axes:  # a map of a long text is so low that all three fit a screen
        pool = pooling(rows, columns, share)
        low = pool[0] if len(rows) <= _TALLEST else -(-len(rows) // (_SCREEN // -(-len(axes) // in_a_line)))
        pools.append((max(pool[0], low), pool[1]))
    pictures = [
        heatmap_of(layer.head(head, rows), slice(None), pool)._replace(title=name)
        for layer, rows, pool, name in zip(layers, places, pools, NAMES, strict=False)
    ]
    common = Extent.joined([picture.extent for picture in pictures])
    change = _change(pair, head, pools[2])
    reach = change.extent.highest
    if pair.chosen != pair.rows.pairs:  # the rows that are chosen keep the colours that they have among all
        whole = replace(pair, chosen=pair.rows.pairs)
        reach = _change(whole, head, pools[2]).extent.highest
    weights, signed = Scale.up_to(1.0, ramp), Scale.around_zero(reach, ramp)
    drawn = [
        heatmaps([picture], *axis, pool, palette, share, scale)
        for picture, axis, pool, scale in zip([*pictures, change], axes, pools, [weights, weights, signed], strict=True)
    ]
    rows, columns = axes[2]
    cell_width = 2 if drawn[2].width >= rows.width + GAP + 2 * len(columns.pooled(pools[2][1])) else 1
    more = [f"{sign} more in {name}" for sign, name in zip("−+", NAMES, strict=True)]
    more += [mark for mark in change.extent.mark_notes if mark not in common.marks]
    marks = [*common.mark_notes, mark_note(marked[2])]
    left = room - len(_WEIGHTS)
    legends = {
        _WEIGHTS: legend(weights, marks, palette, left),
        CHANGE: legend(signed, more, palette, left, cell_width),
    }
    above = [
        hstack([Block([[Segment(palette.fit(name), BOLD)]], len(_WEIGHTS)), scale], 0)
        for name, scale in legends.items()
    ]
    if (sizes := list(dict.fromkeys(f"{rows}×{columns}" for rows, columns in pools))) != ["1×1"]:
        above.append(block([[Segment(palette.fit(f"a cell is the strongest of {' or '.join(sizes)}"), DIM)]]))
    maps = stack((hstack(line, _BETWEEN) for line in in_lines(drawn, _BETWEEN, room)), gap=1)
    return stack([*above, maps])


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
        extent = Extent.of(np.abs(values), allowed)
        parts.append(Heatmap("", values, allowed, extent).pooled(1, pool[1], is_signed=True))
    return joined(CHANGE, parts).pooled(pool[0], 1, is_signed=True)


@dataclass(frozen=True)
class DiffView:
    """A comparison laid out for one output.

    It is of two traces, or of two models over many sentences; of the heads the `top` are listed.
    """

    difference: Difference | Differences
    palette: Palette
    width: int | None
    precision: int = DIGITS
    top: int = 10
    ramp: Ramp | None = None

    def renderables(self) -> Iterator[RenderableType]:
        """Yield the view, part by part; a blank line belongs between two parts."""
        found = self.difference
        return self._over_sentences(found) if isinstance(found, Differences) else self._of_traces(found)

    def _of_traces(self, difference: Difference) -> Iterator[RenderableType]:
        traces = (difference.first, difference.second)
        lines = [what_ran(trace, self.palette) for trace in traces]
        yield self._headline(lines, [trace.source for trace in traces])
        if difference.queries == difference.keys:
            yield self._alignment(difference.keys, "tokens")
        else:
            yield stack([self._alignment(difference.queries, "queries"), self._alignment(difference.keys, "keys")])
        yield self._title(_mean_over(difference, self._both))
        heads = difference.heads[: self.top]
        columns = [*self._places(heads), self._numbers("divergence", [each.jensen_shannon for each in heads])]
        elsewhere = self._elsewhere(heads)
        parts = [table([*columns, *elsewhere], self._room)]
        if elsewhere:
            parts.append(self._on_elsewhere(difference))
        yield stack(parts)
        yield from self._cells(difference)
        for head in difference.heads[:1]:
            if head.jensen_shannon:
                own = "" if head.kind == "self" else f"{head.kind} "
                note = self.palette.fit(f" · {self._number(head.jensen_shannon)} bits")
                yield Text.assemble((f"{own}layer {head.layer} head {head.head}", BOLD), (note, DIM))
                yield maps_of(difference.pair(head), head.head, self.palette, self._room, self.ramp)
        proven = [layer for pair in difference.layers for layer in (pair.first, pair.second) if layer.proof]
        if proven:
            worst = max(proven, key=lambda layer: layer.proof.max_abs_error if layer.proof else 0)
            yield proof_line(worst, self.palette)

    def _over_sentences(self, found: Differences) -> Iterator[RenderableType]:
        sources = found.first, found.second
        lines = [
            joined_facts(each.title, [*architecture_of(each), *numbers_of(each)], self.palette) for each in sources
        ]
        yield self._headline(lines, sources)
        yield self._title(plural(found.sentences, "sentence"))
        heads = found.heads[: self.top]
        columns = self._places(heads)
        numbers = [f"{self._number(each.jensen_shannon)} ±{self._number(each.std)}" for each in heads]
        columns.append(Column("divergence", numbers))
        if any(each.count < found.sentences for each in found.heads):
            columns.append(Column("sentences", [str(each.count) for each in heads]))
        elsewhere = self._elsewhere(heads)
        yield table([*columns, *elsewhere], self.width)
        notes = ["mean ± standard deviation over sentences"]
        notes += ["elsewhere: mean weight on tokens that are not shared, or taken by sinks"] * bool(elsewhere)
        yield Text(self.palette.fit("; ".join(notes)), DIM)

    @property
    def _room(self) -> int:
        return self.width or COMFORTABLE

    # --- what the two share ---

    def _headline(self, lines: Sequence[Text], sources: Sequence[Provenance]) -> Text:
        named = (Text.assemble((f"{name}  ", BOLD), line) for name, line in zip(NAMES, lines, strict=True))
        is_one = lines[0] == lines[1] and isinstance(self.difference, Difference)
        return cautioned(lines[0] if is_one else Text("\n").join(named), sources, self.palette)

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
        parts: list[str] = [f"{title}: {len(aligned.pairs)} shared"]
        for side, (name, tokens) in enumerate(zip(NAMES, (aligned.first, aligned.second), strict=True)):
            shared = {pair[side] for pair in aligned.pairs}
            others = [token for token in tokens if token.index not in shared]
            listed = "  ".join(f"{token.index} {self._label(token.label)}" for token in others[:_LISTED])
            more = f" and {len(others) - _LISTED} more" if len(others) > _LISTED else ""
            text = f"{name}  {len(tokens)} tokens" + (f", only here: {listed}{more}" if others else "")
            parts += wrap(text, self._room)
        return block([[Segment(part, None if number else BOLD)] for number, part in enumerate(parts)])

    def _label(self, label: str) -> str:
        return self.palette.shortened(label, LONGEST_LABEL)

    # --- which heads and cells ---

    def _title(self, over: str) -> Text:
        facts = f" · Jensen-Shannon divergence, 0 to 1 bit · {over}"
        return Text.assemble(
            (f"heads that changed most, of {len(self.difference.heads)}", BOLD), (self.palette.fit(facts), DIM)
        )

    def _places(self, found: Sequence[HeadDifference | HeadDifferences | CellDifference]) -> list[Column]:
        """Return the columns that say where heads are; kinds only where there are several."""
        columns = [Column("layer", [str(each.layer) for each in found], BOLD)]
        if len({each.kind for each in self.difference.heads}) > 1:
            columns.append(Column("kind", [each.kind for each in found]))
        return [*columns, Column("head", [str(each.head) for each in found], BOLD)]

    def _elsewhere(self, found: Sequence[HeadDifference | HeadDifferences]) -> list[Column]:
        """Return the columns of the weight that is on no shared token; none where no head has any."""
        if not any(each.elsewhere and max(each.elsewhere) > 0 for each in self.difference.heads):
            return []
        sides = zip(*(each.elsewhere or (None, None) for each in found), strict=True)
        return [self._numbers(f"elsewhere {name}", values) for name, values in zip(NAMES, sides, strict=True)]

    def _on_elsewhere(self, difference: Difference) -> Block:
        """Return what the weight elsewhere is, and what becomes of it."""
        layers = [layer for pair in difference.layers for layer in (pair.first, pair.second)]
        is_whole = all(pair.columns.is_whole for pair in difference.layers)
        where = [] if is_whole else ["on tokens that are not shared"]
        where += ["taken by sinks"] if any(layer.sinks is not None for layer in layers) else []
        text = f"elsewhere: weight {' or '.join(where) or 'that rows lack of 1'}; to the divergence it is one more cell"
        return block([[Segment(line, DIM)] for line in wrap(self.palette.fit(text), self._room)])

    def _cells(self, difference: Difference) -> Iterator[RenderableType]:
        """Yield the cells that changed most, or that none did."""
        cells = difference.cells
        if not cells:
            has_rows = any(each.rows for each in difference.heads)
            yield Text("no cell that both have has changed" if has_rows else "no cell could be compared")
            return
        pairs = [difference.pair(each) for each in cells]
        queries = [self._both(pair.rows, each.query) for pair, each in zip(pairs, cells, strict=True)]
        keys = [self._both(pair.columns, each.key) for pair, each in zip(pairs, cells, strict=True)]
        columns = [*self._places(cells), Column("query", queries, align="<"), Column("key", keys, align="<")]
        weights = zip(*(each.weights for each in cells), strict=True)
        columns += [self._numbers(name, values) for name, values in zip(NAMES, weights, strict=True)]
        changes = [self.palette.fit(self._number(each.difference, "+")) for each in cells]
        yield Text("cells that changed most", BOLD)
        yield table([*columns, Column(self.palette.fit(CHANGE), changes, BOLD)], self._room)

    def _both(self, aligned: Alignment, place: tuple[int, int]) -> str:
        """Return a shared token under its position, or both of them where they differ."""
        first, second = place
        index = str(first) if first == second else f"{first}/{second}"
        return f"{index} {self._label(aligned.first[first].label)}"

    def _numbers(self, title: str, values: Iterable[float | None]) -> Column:
        return Column(title, [self._number(value) for value in values])

    def _number(self, value: float | None, sign: str = "") -> str:
        if not value:
            return self.palette.fit("–") if value is None else "0"  # exactly; 0.0000 is a small number rounded
        return f"{value:{sign}.{self.precision}f}".replace("-", "−")


def _mean_over(difference: Difference, named: Callable[[Alignment, tuple[int, int]], str]) -> str:
    """Return which rows the numbers are the mean of; a few of them are named."""
    compared = sorted({each.rows for each in difference.heads})
    if compared == [0]:
        return "no query row could be compared"
    chosen = {pair.chosen for pair in difference.layers}
    counts = sorted({len(pairs) for pairs in chosen})
    if compared[0] < counts[0]:
        return f"mean over {' or '.join(map(str, compared))} query rows"
    if len(chosen) == 1 and counts[0] <= _FEW:
        pair = difference.layers[0]
        names = ", ".join(named(pair.rows, place) for place in pair.chosen)
        return f"mean over the query rows {names}" if counts[0] > 1 else f"query row {names}"
    return f"mean over {' or '.join(map(str, counts))} query rows"
