"""Two traces compared, as a person reads it: what they share, which heads and cells changed most, and their maps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from textwrap import wrap

from rich.console import RenderableType
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from attncli.analysis.alignment import NAMES, Alignment
from attncli.analysis.diff import Difference, HeadDifference
from attncli.render.axes import LONGEST_LABEL
from attncli.render.block import Block, block, grid, stack
from attncli.render.changed_maps import CHANGE, maps_of
from attncli.render.heatmap import COMFORTABLE, MOST
from attncli.render.matrix import DIGITS
from attncli.render.palette import BOLD, DIM, Palette
from attncli.render.summaries import headline, proof_line

_FEW = 3  # query rows that are named
_LISTED = 12  # tokens that are not shared, of a long sequence

Row = list[tuple[str, Style | None]]


@dataclass(frozen=True)
class Changes:
    """A comparison laid out for one output.

    Attributes:
        difference: what is shown.
        palette: how cells look.
        width: cells in a line; None is as many as it takes.
        precision: digits after the point.
        top: how many heads are listed.
        maps: how many heads are drawn.
    """

    difference: Difference
    palette: Palette
    width: int | None
    precision: int = DIGITS
    top: int = 10
    maps: int = 1

    def renderables(self) -> Iterator[RenderableType]:
        """Yield the view, part by part; a blank line belongs between two parts."""
        difference = self.difference
        titles = [headline(trace, self.palette) for trace in (difference.first, difference.second)]
        if titles[0] == titles[1]:
            yield titles[0]
        else:
            yield Text("\n").join(
                Text.assemble((f"{name}  ", BOLD), title) for name, title in zip(NAMES, titles, strict=True)
            )
        if difference.queries == difference.keys:
            yield self._alignment(difference.keys, "tokens")
        else:
            yield stack([self._alignment(difference.queries, "queries"), self._alignment(difference.keys, "keys")])
        yield from self._heads()
        yield from self._cells()
        for head in difference.heads[: self.maps]:
            if head.jensen_shannon:
                yield self._title(head)
                yield maps_of(difference.pair(head), head.head, self.palette, self._room)
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
        names: list[Row] = [[(text, DIM)] for text in (f"{title} {NAMES[0]}", f"{title} {NAMES[1]}", "shared")]
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
            said = f"{name}  {len(tokens)} tokens" + (f", only here: {listed}{more}" if others else "")
            parts += wrap(said, self._room)
        return block([[Segment(part, None if number else BOLD)] for number, part in enumerate(parts)])

    def _label(self, label: str) -> str:
        return self.palette.shortened(label, LONGEST_LABEL)

    # --- which heads and cells ---

    def _heads(self) -> Iterator[RenderableType]:
        """Yield the ranking of the heads."""
        difference = self.difference
        heads = difference.heads
        title = f"heads that changed most, of {len(heads)}"
        said = f" · Jensen-Shannon divergence, 0 to 1 bit · {self._mean_over()}"
        yield Text.assemble((title, BOLD), (self.palette.fit(said), DIM))
        has_kinds = len({each.kind for each in heads}) > 1
        has_others = any(each.elsewhere and max(each.elsewhere) > 0 for each in heads)
        names = ["layer", *(["kind"] if has_kinds else []), "head", "divergence"]
        names += [f"elsewhere {name}" for name in NAMES] if has_others else []
        table: list[Row] = [[(name, DIM) for name in names]]
        for each in heads[: self.top]:
            numbers = [each.jensen_shannon, *((each.elsewhere or (None, None)) if has_others else ())]
            row: Row = [(str(each.layer), BOLD), *([(each.kind, None)] if has_kinds else []), (str(each.head), BOLD)]
            table.append([*row, *((self._number(value), None) for value in numbers)])
        parts = [grid(table, ">" * len(names), self._room)]
        if has_others:
            parts.append(self._elsewhere())
        yield stack(parts)

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
        cells = self.difference.cells
        if not cells:
            has_rows = any(each.rows for each in self.difference.heads)
            yield Text("no cell that both have has changed" if has_rows else "no cell could be compared")
            return
        has_kinds = len({pair.first.kind for pair in self.difference.layers}) > 1
        names = ["layer", *(["kind"] if has_kinds else []), "head", "query", "key", *NAMES]
        table: list[Row] = [[(name, DIM) for name in [*names, self.palette.fit(CHANGE)]]]
        for each in cells:
            pair = self.difference.pair(each)
            row: Row = [(str(each.layer), BOLD), *([(each.kind, None)] if has_kinds else []), (str(each.head), BOLD)]
            row += [(self._both(pair.rows, each.query), None), (self._both(pair.columns, each.key), None)]
            row += [(self._number(weight), None) for weight in each.weights]
            table.append([*row, (self.palette.fit(self._number(each.difference, "+")), BOLD)])
        align = ">" * (len(names) - 4) + "<<" + ">>>"
        yield Text("cells that changed most", BOLD)
        yield grid(table, align, self._room)

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
        said = f"elsewhere: weight {' or '.join(where) or 'that rows lack of 1'}; to the divergence it is one more cell"
        return block([[Segment(line, DIM)] for line in wrap(self.palette.fit(said), self._room)])

    def _title(self, head: HeadDifference) -> Text:
        own = "" if head.kind == "self" else f"{head.kind} "
        note = f" · {self._number(head.jensen_shannon)} bits"
        return Text.assemble((f"{own}layer {head.layer} head {head.head}", BOLD), (self.palette.fit(note), DIM))
