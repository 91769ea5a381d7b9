"""Two traces compared: what they share, which heads and cells changed most, and the maps of one head."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import TYPE_CHECKING

import numpy as np
from rich.console import RenderableType
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from attncli.analysis.alignment import NAMES, Alignment, LayerPair
from attncli.analysis.diff import CHANGED, NOTABLE, CellDifference, Difference, HeadDifference, weights_of
from attncli.render.block import (
    COMFORTABLE,
    Block,
    Bounds,
    Cell,
    Column,
    block,
    column_of,
    cost,
    grid,
    hstack,
    in_lines,
    lines_of,
    ranking,
    shortened,
    stack,
    table,
)
from attncli.render.heatmap import (
    GAP,
    MOST,
    Extent,
    Heatmap,
    heatmap_of,
    heatmaps,
    joined,
    legend,
    maps_and_list,
    pooling,
)
from attncli.render.matrix import LONGEST_LABEL, Axis, GridCell, mark_note, number_text
from attncli.render.palette import BOLD, DIM, SIGNS, Palette, Scale
from attncli.render.sections import cautioned, proof_line, what_ran
from attncli.text import plural, visible

if TYPE_CHECKING:
    from attncli.trace.view import Ramp

_WORTH = "0 = same weights, 0.05 = a tenth moved to a new key, 0.31 = half, 1 = no key in common."
_CHANGE = "B − A"
_WEIGHTS = "weights  "
_BETWEEN = 3  # cells between two maps
_LARGE = (GridCell(9, 1, 3), GridCell(7, 1, 3), GridCell(6, 1, 2), GridCell(6, 1, 1))  # cells with numbers
_AROUND = 5  # lines around the rows of maps: two legends, a title, ticks, a gap
_SCREEN = 24  # lines of maps with numbers, where no screen has more
_FEWEST = 6  # lines of heads
_FEW = 3  # query rows that are named
_FINE = 0.01  # bits; less has another digit


def _maps_of(pair: LayerPair, head: int, palette: Palette, room: int, ramp: Ramp | None, lines: int | None) -> Block:
    """Return the maps of A, of B and of the change under what their cells mean, as large as fits."""
    layers, places = (pair.first, pair.second), list(zip(*pair.chosen, strict=True))
    blind = [layer.fully_masked(rows)[[layer.heads.index(head)]] for layer, rows in zip(layers, places, strict=True)]
    sides = [(getattr(pair.rows, side), getattr(pair.columns, side)) for side in ("first", "second")]
    columns = [*(range(len(keys)) for _, keys in sides), [mine for mine, _ in pair.columns.pairs]]
    axes = [
        (Axis.of_tokens(queries, rows).marking(own), Axis.of_tokens(keys, shown))
        for (queries, keys), rows, shown, own in zip(
            [*sides, sides[0]], [*places, places[0]], columns, [*blind, blind[0] | blind[1]], strict=True
        )
    ]
    cell = next((each for each in _LARGE if _fits(each, axes, room, (lines or _SCREEN) - _AROUND)), None)
    widest = max(rows.width + 2 + len(columns) for rows, columns in axes)
    across = 3 if cell or widest <= (room + _BETWEEN) // 3 - _BETWEEN else 1
    share = room if cell else (room + _BETWEEN) // across - _BETWEEN
    high = (
        MOST if lines is None else max(lines - _AROUND, _AROUND) * across // 3 - 2
    )  # of maps that are above each other
    found = [(rows, pooling(rows, keys, share)) for rows, keys in axes]
    pools = [(max(down, -(-len(rows) // max(high, 1))), wide) for rows, (down, wide) in found]
    pictures = [
        heatmap_of(layer.head(head, rows), slice(None), pool)._replace(title=name)
        for layer, rows, pool, name in zip(layers, places, pools, NAMES, strict=False)
    ]
    common, change = Extent.joined([picture.extent for picture in pictures]), _change(pair, head, pools[2])
    weights, signed = Scale.up_to(1.0, ramp), Scale.around_zero(change.extent.highest, ramp)
    drawn = [
        heatmaps([picture], *axis, pool, palette, share, scale, cell)
        for picture, axis, pool, scale in zip([*pictures, change], axes, pools, [weights, weights, signed], strict=True)
    ]
    rows, keys = axes[2]
    is_wide = drawn[2].width >= rows.width + GAP + 2 * len(keys.pooled(pools[2][1]))
    more = [f"{sign} more in {name}" for sign, name in zip("-+", NAMES, strict=True)]
    more += [mark for mark in change.extent.mark_notes if mark not in common.marks]
    left = room - len(_WEIGHTS)
    legends = {
        _WEIGHTS: legend(weights, [*common.mark_notes, mark_note(blind[0] | blind[1])], palette, left),
        _CHANGE: legend(signed, more, palette, left, 1 + is_wide),
    }
    above = [hstack([Block([[Segment(name, BOLD)]], len(_WEIGHTS)), scale], 0) for name, scale in legends.items()]
    if (sizes := list(dict.fromkeys(f"{rows}×{columns}" for rows, columns in pools))) != ["1×1"]:
        above.append(block([[Segment(f"a cell is the strongest of {' or '.join(sizes)}", DIM)]]))
    maps = stack((hstack(line, _BETWEEN) for line in in_lines(drawn, _BETWEEN, room)), gap=1)
    return stack([*above, maps])


def _fits(cell: GridCell, axes: Sequence[tuple[Axis, Axis]], room: int, lines: int) -> bool:
    widths = [rows.width + GAP + cell.columns * len(columns) + _BETWEEN for rows, columns in axes]
    return sum(widths) <= room + _BETWEEN and all(cell.lines * len(rows) <= lines for rows, _ in axes)


def _change(pair: LayerPair, head: int, pool: tuple[int, int]) -> Heatmap:
    """Return the difference of a head on the shared tokens; its rows are pooled as they are derived."""
    parts = []
    for blocks in pair.blocks(head):
        first, second = weights_of(pair, blocks)
        drawn = [block.drawn[:, keys] for block, keys in zip(blocks, pair.keys, strict=True)]
        with np.errstate(invalid="ignore"):
            values = second - first
        allowed = drawn[0] | drawn[1]
        parts.append(
            Heatmap("", values, allowed, Extent.of(np.abs(values), allowed)).pooled(1, pool[1], is_signed=True)
        )
    return joined(_CHANGE, parts).pooled(pool[0], 1, is_signed=True)


@dataclass(frozen=True)
class DiffView:
    """A comparison laid out for one output: of the heads the `top` are listed. A `height` of None shows all of it."""

    difference: Difference
    palette: Palette
    width: int | None
    precision: int | None = None
    top: int = 10
    ramp: Ramp | None = None
    height: int | None = None

    def renderables(self) -> list[RenderableType]:
        """Return the view, part by part; a blank line belongs between two parts."""
        difference = self.difference
        head: list[RenderableType] = [self._headline(), self._summary()]
        tokens = [self._alignment(difference.keys, "tokens")]
        if difference.queries != difference.keys:
            tokens = [self._alignment(difference.queries, "queries"), self._alignment(difference.keys, "keys")]
        proven = [layer for pair in difference.layers for layer in (pair.first, pair.second) if layer.proof]
        worst = max(proven, key=lambda layer: layer.proof.max_abs_error if layer.proof else 0, default=None)
        proof = [] if worst is None else [proof_line(worst)]
        if self.height is None:
            cells, maps = self._cells(len(difference.cells)), self._maps(10**6)
            return [*head, stack(tokens), *self._heads(10**6), *cells, *maps, *proof]
        left = self.height + 1 - lines_of([*head, *proof], self._room)
        heads = self._heads(max(min(max(self.height // 4, 10), left - cost(tokens) - 1), _FEWEST))
        left -= cost(heads)
        shown = [stack(tokens)] if cost(tokens) <= left else []
        maps = self._maps(left - cost(shown) - 3)
        cells = self._cells(left - cost(shown) - cost(maps) - 2 - 2 * (not shown or not maps))
        kinds = {"the tokens": shown, "the cells that changed most": cells, "three maps": maps}
        left_out = [name for name, part in kinds.items() if not part and (name == "the tokens" or self._changed)]
        note = Text(f"--all shows {' and '.join(left_out)}", DIM)
        left -= cost(shown) + cost(maps) + cost(cells)
        is_noted = bool(left_out) and left >= lines_of([note], self._room)
        return [*head, *shown, *heads, *cells, *maps, *proof, *[note] * is_noted]

    @property
    def _room(self) -> int:
        return self.width or COMFORTABLE

    # --- what the two share ---

    def _headline(self) -> Text:
        traces = (self.difference.first, self.difference.second)
        lines, sources = [what_ran(trace) for trace in traces], [trace.source for trace in traces]
        if lines[0] == lines[1] and sources[0].model != sources[1].model:  # paths that end alike
            lines = [
                Text.assemble(line, f" · {visible(one.model or '')}") for line, one in zip(lines, sources, strict=True)
            ]
        named = (Text.assemble((f"{name}  ", BOLD), line) for name, line in zip(NAMES, lines, strict=True))
        return cautioned(lines[0] if lines[0] == lines[1] else Text("\n").join(named), sources)

    def _alignment(self, aligned: Alignment, title: str) -> Block:
        sides = (aligned.first, aligned.second)
        if max(map(len, sides)) > MOST or self.palette.is_read_aloud:
            counts = (f"{len(tokens)} in {name}" for name, tokens in zip(NAMES, sides, strict=True))
            return block([[Segment(f"{title}: {len(aligned.pairs)} shared, {', '.join(counts)}")]])
        shared, columns = set(aligned.pairs), list(aligned.columns())
        names: list[list[Cell]] = [[(text, DIM)] for text in (f"{title} {NAMES[0]}", f"{title} {NAMES[1]}", "shared")]
        for column in columns:
            for tokens, index, row in zip(sides, column, names[:2], strict=True):
                label = "" if index is None else f"{index} {shortened(tokens[index].label, LONGEST_LABEL)}"
                row.append((label, None if column in shared else DIM))
            names[2].append(("=" if column in shared else "", DIM))
        if aligned.is_whole and [text for text, _ in names[0][1:]] == [text for text, _ in names[1][1:]]:
            names = [[(title, BOLD), *names[0][1:]]]
        return grid([column_of(cells, "<") for cells in zip(*names, strict=True)], self._room)

    # --- which heads and cells ---

    def _summary(self) -> Block:
        heads, changed = self.difference.heads, self._changed
        most = heads[0].jensen_shannon
        notable = [each for each in changed if (each.jensen_shannon or 0) > NOTABLE]
        if most is None:
            sentence = "No query row could be compared"
        elif not changed:
            at_most = f"at most {most:.1e} bits ({self._name(heads[0])}), which is rounding"
            sentence = f"No head of {len(heads)} changed: {at_most if most else 'the weights are the same'}"
        else:
            every, own = ({each.layer for each in some} for some in (heads, notable))
            where = f", all in layer {notable[0].layer}" if len(own) == 1 < len(every) else ""
            count = f"{len(notable)} of {plural(len(heads), 'head')}" if notable else f"No head of {len(heads)}"
            sentence = f"{count} changed by more than {NOTABLE:g} bits{where}. "
            sentence += f"{self._name(heads[0])} changed most: {self._number(most, self._digits)} bits"
        worth = f"Jensen-Shannon divergence, {self._rows_compared()}. {_WORTH}{self._unshared_note()}"
        return block(
            [[Segment(line, BOLD)] for line in wrap(sentence, self._room)]
            + [[Segment(line, DIM)] for line in wrap(worth, self._room)]
        )

    def _rows_compared(self) -> str:
        compared, pair = sorted({each.rows for each in self.difference.heads}), self.difference.layers[0]
        is_named = len({each.chosen for each in self.difference.layers}) == 1 and compared == [len(pair.chosen)]
        if not is_named or len(pair.chosen) > _FEW:
            return f"mean over {' or '.join(map(str, compared))} query rows"
        names = ", ".join(self._both(pair.rows, place) for place in pair.chosen)
        return f"mean over the query rows {names}" if len(pair.chosen) > 1 else f"query row {names}"

    @property
    def _changed(self) -> list[HeadDifference]:
        return [each for each in self.difference.heads if (each.jensen_shannon or 0) >= CHANGED]

    @property
    def _digits(self) -> int:
        is_fine = (self.difference.heads[0].jensen_shannon or 0) < _FINE
        return self.precision if self.precision is not None else 4 if is_fine else 3

    def _name(self, of: HeadDifference | CellDifference) -> str:
        several = len({each.kind for each in self.difference.heads}) > 1
        return f"{of.kind} " * several + f"L{of.layer}H{of.head}"

    def _heads(self, lines: int) -> list[Block]:
        """Return layers × heads of the divergence, next to the heads that changed most where that has room."""
        if not self._changed:
            return []
        listed = self._listed(self.top)
        if len(self.difference.heads) == 1 or self.palette.is_read_aloud:
            return [listed]
        kinds = list(dict.fromkeys(each.kind for each in self.difference.heads))
        maps = {
            "bits" + f" · {kind}" * (len(kinds) > 1): {
                (each.layer, each.head): each.jensen_shannon for each in self.difference.heads if each.kind == kind
            }
            for kind in kinds
        }
        scale = Scale.up_to(self._changed[0].jensen_shannon or 0, "sqrt")
        bounds = Bounds(lines, self._room)
        both = maps_and_list(
            maps, scale, self.palette, bounds, self._digits, lambda count: self._listed(min(count, self.top))
        )
        return [both]

    def _listed(self, count: int) -> Block:
        heads = self._changed[:count]
        columns = [Column("head", [self._name(each) for each in heads], BOLD, "<")]
        columns.append(Column("bits", [self._number(each.jensen_shannon, self._digits) for each in heads]))
        return ranking(columns, len(self._changed) - len(heads), self._room, self.palette)

    def _unshared_note(self) -> str:
        """Return how weight on tokens that are not shared counts; empty without any."""
        if not any(each.elsewhere and max(each.elsewhere) > 0 for each in self.difference.heads):
            return ""
        layers = [layer for pair in self.difference.layers for layer in (pair.first, pair.second)]
        is_whole = all(pair.columns.is_whole for pair in self.difference.layers)
        where = [] if is_whole else ["on tokens only one sentence has"]
        where += ["in sinks"] if any(layer.sinks is not None for layer in layers) else []
        return f" Weight {' or '.join(where) or 'that rows lack of 1'} counts as one extra cell."

    def _cells(self, most: int) -> list[Block]:
        cells = [each for each in self.difference.cells if abs(each.difference) >= CHANGED][: max(most, 0)]
        if not cells:
            return []
        pairs = [self.difference.pair(each) for each in cells]
        queries = [self._both(pair.rows, each.query) for pair, each in zip(pairs, cells, strict=True)]
        keys = [self._both(pair.columns, each.key) for pair, each in zip(pairs, cells, strict=True)]
        columns = [Column("cells", [self._name(each) for each in cells], BOLD, "<")]
        columns += [Column("query", queries, align="<"), Column("key", keys, align="<")]
        weights = zip(*(each.weights for each in cells), strict=True)
        columns += [self._weights(f"weight {name}", values) for name, values in zip(NAMES, weights, strict=True)]
        styles = [SIGNS[each.difference > 0] if self.palette.has_color else BOLD for each in cells]
        columns.append(self._weights(_CHANGE, [each.difference for each in cells], styles))
        return [table(columns, self._room, self.palette)]

    def _maps(self, lines: int) -> list[Block]:
        """Return the maps of the head that changed most; empty where no head did, or they do not fit."""
        maps = []
        for head in [] if self.palette.is_read_aloud else self._changed[:1]:
            note = f" · the most changed head, {self._number(head.jensen_shannon, self._digits)} bits"
            title = block([[Segment(self._name(head), BOLD), Segment(note, DIM)]])
            pair = next(pair for pair in self.difference.layers if pair.layer_kind == (head.layer, head.kind))
            drawn = _maps_of(pair, head.head, self.palette, self._room, self.ramp, self.height and lines - 1)
            maps = [stack([title, drawn])]
        return [one for one in maps if len(one.lines) <= lines]

    def _both(self, aligned: Alignment, place: tuple[int, int]) -> str:
        first, second = place
        index = str(first) if first == second else f"{first}/{second}"
        return f"{index} {shortened(aligned.first[first].label, LONGEST_LABEL)}"

    def _weights(
        self, title: str, values: Iterable[float | None], styles: Sequence[Style | None] | None = None
    ) -> Column:
        digits = 2 if self.precision is None else self.precision
        sign = "+" if title == _CHANGE else ""
        return Column(title, [self._number(value, digits, sign) for value in values], styles)

    def _number(self, value: float | None, digits: int, sign: str = "") -> str:
        return "–" if value is None else number_text(value, digits, sign=sign)
