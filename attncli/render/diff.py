"""Two traces compared: what they share, which heads and cells changed most, and the maps of one head."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from textwrap import wrap
from typing import TYPE_CHECKING

import numpy as np
from rich.console import RenderableType
from rich.segment import Segment
from rich.text import Text

from attncli.analysis.alignment import NAMES, Alignment, LayerPair
from attncli.analysis.diff import (
    CHANGED,
    NOTABLE,
    CellDifference,
    Difference,
    HeadDifference,
    weights_of,
)
from attncli.render.axes import LONGEST_LABEL, Axis, mark_note
from attncli.render.block import COMFORTABLE, Block, Cell, Column, block, grid, hstack, in_lines, ranking, stack, table
from attncli.render.cell_grid import GridCell
from attncli.render.fit import lines_of
from attncli.render.head_map import HeadMap, TitledMap, side_by_side
from attncli.render.heatmap import GAP, MOST, Extent, Heatmap, heatmap_of, heatmaps, joined, pooling
from attncli.render.legend import legend
from attncli.render.matrix import DIGITS
from attncli.render.palette import BOLD, DIM, Palette, Scale
from attncli.render.sections import cautioned, proof_line, what_ran
from attncli.text import plural
from attncli.trace.top_keys import drawn_cells
from attncli.trace.trace import Provenance

if TYPE_CHECKING:
    from attncli.trace.view import Ramp

WORTH = "0 = same weights, 0.05 = a tenth moved to a new key, 0.31 = half, 1 = no key in common."
CHANGE = "B − A"
_WEIGHTS = "weights  "
_BETWEEN = 3  # cells between two maps
_TALLEST = 64  # rows of a map that is drawn whole
_LARGE = (GridCell(7, 1, 3), GridCell(6, 1, 2), GridCell(5, 1, 1))  # cells of maps that have the room, with numbers
_AROUND = 5  # lines around the rows of maps: two legends, a title, ticks, a gap
_SCREEN = 24  # rows of the maps of a longer text, those one above the other together
_FEW = 3  # query rows that are named
_FINE = 0.01  # bits; less has another digit on the grid
_LISTED = 12  # tokens that are not shared, of a long sequence

Axes = tuple[Axis, Axis]  # rows and columns


def maps_of(
    pair: LayerPair, head: int, palette: Palette, room: int, ramp: Ramp | None = None, lines: int | None = None
) -> Block:
    """Return the three maps under what their cells mean, as large as so many lines let them be."""
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
    high = (lines or _SCREEN) - _AROUND
    cell = next((each for each in _LARGE if _fits(each, axes, room, high)), None)
    widest = max(rows.width + 2 + len(columns) for rows, columns in axes)
    count = next((count for count in (3, 2) if widest <= (room + _BETWEEN) // count - _BETWEEN), 1)
    share = room if cell else (room + _BETWEEN) // count - _BETWEEN
    pools = []
    for rows, columns in axes:  # a map of a long text is so low that all three fit a screen
        pool = pooling(rows, columns, share)
        low = -(-len(rows) // (_SCREEN * count // 3)) if len(rows) > _TALLEST else 1
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
        heatmaps([picture], *axis, pool, palette, share, scale, cell)
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
    above = [hstack([Block([[Segment(name, BOLD)]], len(_WEIGHTS)), scale], 0) for name, scale in legends.items()]
    if (sizes := list(dict.fromkeys(f"{rows}×{columns}" for rows, columns in pools))) != ["1×1"]:
        above.append(block([[Segment(f"a cell is the strongest of {' or '.join(sizes)}", DIM)]]))
    maps = stack((hstack(line, _BETWEEN) for line in in_lines(drawn, _BETWEEN, room)), gap=1)
    return stack([*above, maps])


def _fits(cell: GridCell, axes: Sequence[Axes], room: int, lines: int) -> bool:
    """Return whether the maps stand side by side in cells of this size."""
    widths = [rows.width + GAP + cell.columns * len(columns) + _BETWEEN for rows, columns in axes]
    return sum(widths) <= room + _BETWEEN and all(cell.lines * len(rows) <= lines for rows, _ in axes)


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
    """A comparison laid out for one output: of the heads the `top` are listed. A `height` of None shows all of it."""

    difference: Difference
    palette: Palette
    width: int | None
    precision: int = DIGITS
    top: int = 10
    ramp: Ramp | None = None
    height: int | None = None

    def renderables(self) -> list[RenderableType]:
        """Return the view, part by part; a blank line belongs between two parts."""
        difference = self.difference
        traces = (difference.first, difference.second)
        headline = self._headline([what_ran(trace, self.palette) for trace in traces], [one.source for one in traces])
        tokens = [self._alignment(difference.keys, "tokens")]
        if difference.queries != difference.keys:
            tokens = [self._alignment(difference.queries, "queries"), self._alignment(difference.keys, "keys")]
        elsewhere = self._on_elsewhere(difference)
        parts = [self._summary(_mean_over(difference, self._both)), stack(tokens), *self._heads(elsewhere)]
        proven = [layer for pair in difference.layers for layer in (pair.first, pair.second) if layer.proof]
        worst = max(proven, key=lambda layer: layer.proof.max_abs_error if layer.proof else 0, default=None)
        proof = [] if worst is None else [proof_line(worst, self.palette)]
        room = 10**6 if self.height is None else self.height - lines_of([headline, *parts, *proof], self._room)
        left_out = []
        if room <= 1:  # the heads that changed come first
            room += lines_of([parts.pop(1)], self._room)
            left_out = ["the tokens"]
        maps = self._maps(difference, room)
        room -= sum(len(one.lines) + 1 for one in maps)
        cells = self._cells(difference, room - (2 if maps else 4))
        if self._changed and not (cells and maps) and room > 1:
            left_out += [*["the cells that changed most"] * (not cells), *["three maps"] * (not maps)]
            proof.append(Text(f"--all shows {' and '.join(left_out)}", DIM))
        return [headline, *parts, *cells, *maps, *proof]

    @property
    def _room(self) -> int:
        return self.width or COMFORTABLE

    # --- what the two share ---

    def _headline(self, lines: Sequence[Text], sources: Sequence[Provenance]) -> Text:
        if lines[0] == lines[1] and sources[0].model != sources[1].model:  # paths that end alike
            lines = [
                Text.assemble(line, f" · {self.palette.label(one.model or '')}")
                for line, one in zip(lines, sources, strict=True)
            ]
        named = (Text.assemble((f"{name}  ", BOLD), line) for name, line in zip(NAMES, lines, strict=True))
        return cautioned(lines[0] if lines[0] == lines[1] else Text("\n").join(named), sources, self.palette)

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

    def _summary(self, over: str) -> Block:
        """Return how many heads changed and where, and what a bit is worth."""
        heads = self.difference.heads
        changed, most = self._changed, heads[0]
        notable = [each for each in changed if (each.jensen_shannon or 0) > NOTABLE]
        if most.jensen_shannon is None:
            sentence = "No query row could be compared"
        elif not changed:
            at_most = f"at most {most.jensen_shannon:.1e} bits ({self._name(most)}), which is rounding"
            sentence = (
                f"No head of {len(heads)} changed: {at_most if most.jensen_shannon else 'the weights are the same'}"
            )
        else:
            every, own = ({each.layer for each in some} for some in (heads, notable))
            where = f", all in layer {notable[0].layer}" if len(own) == 1 < len(every) else ""
            count = f"{len(notable)} of {plural(len(heads), 'head')}" if notable else f"No head of {len(heads)}"
            sentence = f"{count} changed by more than {NOTABLE:g} bits{where}"
            sentence += f", most {self._name(most)}: {self._number(most.jensen_shannon)}"
        worth = f"Jensen-Shannon divergence, {over}. {WORTH}"
        return block(
            [[Segment(line, BOLD)] for line in wrap(sentence, self._room)]
            + [[Segment(line, DIM)] for line in wrap(worth, self._room)]
        )

    @property
    def _changed(self) -> list[HeadDifference]:
        return [each for each in self.difference.heads if (each.jensen_shannon or 0) >= CHANGED]

    def _name(self, of: HeadDifference | CellDifference) -> str:
        several = len({each.kind for each in self.difference.heads}) > 1
        return f"{of.kind} " * several + f"L{of.layer}H{of.head}"

    def _heads(self, on_elsewhere: str) -> list[Block]:
        """Return layers × heads of the divergence, beside the heads that changed most where that has room."""
        if not self._changed:
            return []
        listed = self._listed(self.top)
        notes = wrap(on_elsewhere, self._room) if self._elsewhere(self._changed) else []
        below = [block([[Segment(line, DIM)] for line in notes])] if notes else []
        if len(self.difference.heads) == 1:
            return [stack([listed, *below])]
        numbers: dict[str, dict[tuple[int, int], float | None]] = {}
        for each in self.difference.heads:
            numbers.setdefault(each.kind, {})[each.layer, each.head] = each.jensen_shannon
        most = self._changed[0].jensen_shannon or 0
        scale = Scale.up_to(most, "sqrt")
        digits = min(self.precision, 3 if most >= _FINE else DIGITS)
        maps = [
            TitledMap("bits" + f" · {kind}" * (len(numbers) > 1), "", HeadMap.of(own), scale)
            for kind, own in numbers.items()
        ]
        lines = 10**6 if self.height is None else self.height // 2
        for width in (self._room - listed.width - _BETWEEN, self._room):
            grids = stack(side_by_side(maps, self.palette, max(width, 1), lines, digits), gap=1)
            if grids.width <= width and len(grids.lines) <= lines:
                break
        if self.height is not None:
            listed = self._listed(min(self.top, max(len(grids.lines) - 2, _FEW)))
        if grids.width + _BETWEEN + listed.width <= self._room:
            return [stack([hstack([grids, listed], _BETWEEN), *below])]
        return [grids, stack([listed, *below])]

    def _listed(self, count: int) -> Block:
        """Return the heads that changed most, and their weight on tokens that are not shared."""
        heads = self._changed[:count]
        columns = [Column("head", [self._name(each) for each in heads], BOLD, "<")]
        columns.append(self._numbers("bits", [each.jensen_shannon for each in heads]))
        return ranking([*columns, *self._elsewhere(heads)], len(self._changed) - len(heads), self._room)

    def _elsewhere(self, found: Sequence[HeadDifference]) -> list[Column]:
        """Return the columns of the weight that is on no shared token; none where no head has any."""
        if not any(each.elsewhere and max(each.elsewhere) > 0 for each in self.difference.heads):
            return []
        sides = zip(*(each.elsewhere or (None, None) for each in found), strict=True)
        return [self._numbers(f"elsewhere {name}", values) for name, values in zip(NAMES, sides, strict=True)]

    def _on_elsewhere(self, difference: Difference) -> str:
        """Return what the weight elsewhere is, and what becomes of it."""
        layers = [layer for pair in difference.layers for layer in (pair.first, pair.second)]
        is_whole = all(pair.columns.is_whole for pair in difference.layers)
        where = [] if is_whole else ["on tokens only one sentence has"]
        where += ["in sinks"] if any(layer.sinks is not None for layer in layers) else []
        return f"elsewhere: weight {' or '.join(where) or 'that rows lack of 1'} (counted as one extra cell)"

    def _cells(self, difference: Difference, most: int) -> list[Block]:
        """Return the cells that changed most, as many as there is room for."""
        cells = [each for each in difference.cells if abs(each.difference) >= CHANGED][: max(most, 0)]
        if not cells:
            return []
        pairs = [difference.pair(each) for each in cells]
        queries = [self._both(pair.rows, each.query) for pair, each in zip(pairs, cells, strict=True)]
        keys = [self._both(pair.columns, each.key) for pair, each in zip(pairs, cells, strict=True)]
        columns = [Column("cells", [self._name(each) for each in cells], BOLD, "<")]
        columns += [Column("query", queries, align="<"), Column("key", keys, align="<")]
        weights = zip(*(each.weights for each in cells), strict=True)
        columns += [self._numbers(f"weight {name}", values) for name, values in zip(NAMES, weights, strict=True)]
        changes = [self._number(each.difference, "+") for each in cells]
        styles = [self.palette.ink(each.difference, Scale.around_zero(1.0)) or BOLD for each in cells]
        return [table([*columns, Column(CHANGE, changes, styles)], self._room)]

    def _maps(self, difference: Difference, lines: int) -> list[Block]:
        """Return the maps of the head that changed most; none where no head did, or so many lines do not hold them."""
        maps = []
        for head in self._changed[:1]:
            note = f" · the most changed head, {self._number(head.jensen_shannon)} bits"
            title = block([[Segment(self._name(head), BOLD), Segment(note, DIM)]])
            pair = next(pair for pair in difference.layers if pair.layer_kind == (head.layer, head.kind))
            drawn = maps_of(pair, head.head, self.palette, self._room, self.ramp, self.height and lines - 2)
            maps = [stack([title, drawn])]
        return [one for one in maps if len(one.lines) < lines]

    def _both(self, aligned: Alignment, place: tuple[int, int]) -> str:
        """Return a shared token under its position, or both of them where they differ."""
        first, second = place
        index = str(first) if first == second else f"{first}/{second}"
        return f"{index} {self._label(aligned.first[first].label)}"

    def _numbers(self, title: str, values: Iterable[float | None]) -> Column:
        return Column(title, [self._number(value) for value in values])

    def _number(self, value: float | None, sign: str = "") -> str:
        if not value:
            return "–" if value is None else "0"  # exactly; 0.0000 is a small number rounded
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
