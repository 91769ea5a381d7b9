"""The parts that the views of a trace are put together from: tokens, masks, numbers, maps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from rich.console import RenderableType
from rich.segment import Segment
from rich.style import Style

from attncli.attention import row_blocks
from attncli.render.axes import MARK, Axis, mark_note, titled
from attncli.render.block import COMFORTABLE, Block, Column, block, hstack, in_words, stack, table
from attncli.render.cell_grid import HALF, NARROW, GridCell
from attncli.render.heatmap import Extent, Heatmap, cell_of, heatmap_of, heatmaps, scale_of_layer
from attncli.render.legend import legend
from attncli.render.matrix import DIGITS, Matrix, number_text, side_by_side
from attncli.render.palette import BOLD, DIM, Palette, Scale
from attncli.render.sections import token_list
from attncli.trace.layer import HeadTrace, LayerTrace
from attncli.trace.top_keys import drawn_cells, top_keys
from attncli.trace.trace import Trace, sequences
from attncli.trace.view import Cells, Columns, View

if TYPE_CHECKING:
    from jaxtyping import Bool


WALK = ("embeddings", "q", "scores", "weights", "output")  # from a query to what it becomes


class MatrixFrame(NamedTuple):
    """Where one layer is drawn.

    Attributes:
        layer: the layer.
        cells: which of its cells are shown.
        blind: which of the rows shown may attend to no key, for each of its heads.
        rows: the query axis; a row that is blind in one of the heads is marked.
        columns: the key axis.
    """

    layer: LayerTrace
    cells: Cells
    blind: Bool[np.ndarray, "H Q"]
    rows: Axis
    columns: Axis

    def blind_in(self, head: int) -> Bool[np.ndarray, "1 Q"]:
        """Return which rows may attend to no key in one head."""
        return self.blind[[self.layer.heads.index(head)]]


@dataclass(frozen=True)
class Components:
    """The parts of a trace's view."""

    trace: Trace
    view: View
    palette: Palette
    width: int | None

    @property
    def room(self) -> int:
        """Cells in a line, where nothing sets a width too."""
        return self.width or COMFORTABLE

    def frame(self, layer: LayerTrace) -> MatrixFrame:
        """Return where a layer is drawn."""
        cells = self.view.cells(self.trace, layer)
        blind = layer.fully_masked(cells.rows)
        predicted = self.trace.predicted
        rows = Axis.of_tokens(cells.row_tokens, cells.rows, self.palette, predicted).marking(blind)
        return MatrixFrame(layer, cells, blind, rows, Axis.of_tokens(cells.column_tokens, cells.columns, self.palette))

    def tokens(self, has_ids: bool = True, most: int | None = None) -> Block:
        """Return the tokens of the text.

        Ids stand below them where there are some; of more than `most` lines the middle is counted.
        """
        trace = self.trace
        # Elsewhere there is no vocabulary, and words have pieces.
        has_ids &= trace.source.kind in {"toy", "pretrained"} or bool(trace.key_tokens[0].pieces)
        found = {
            tokens for layer in trace.layers for tokens in sequences(layer.kind, trace.query_tokens, trace.key_tokens)
        }
        lists = {"queries": trace.query_tokens, "keys": trace.key_tokens}
        lists = {"tokens": found.pop()} if len(found) == 1 else lists
        return stack(token_list(each, title, self.palette, self.width, has_ids, most) for title, each in lists.items())

    def mask(self, frame: MatrixFrame, pool: tuple[int, int]) -> Iterator[RenderableType]:
        """Yield the mask as `attn mask show` draws it, once for heads that are alike, and what it is like in numbers.

        What the numbers say of a part of the cells is no fact of the whole mask, so it has a title.
        """
        from attncli.render.masks import MaskPicture

        layer, cells = frame.layer, frame.cells
        heads = list(layer.heads)
        blocks = row_blocks(np.array(cells.rows), layer.num_keys * len(heads))
        allowed = np.concatenate([layer.mask.rows(heads, rows)[..., cells.of_columns] for rows in blocks], axis=1)
        names = [f"head {head}" for head in heads] if len(allowed) > 1 else [""]
        blind = frame.blind[: len(allowed)]
        drawing = MaskPicture(allowed, blind, names, frame.rows, frame.columns, layer.mask.past)
        name = "mask"
        if len(heads) == 1 < layer.num_heads:
            name += f" of head {heads[0]}"
        elif len(drawing.kinds) == 1 and len(heads) == layer.num_heads > 1:
            name += " of every head"
        facts = self.palette.fit(f" · {layer.num_queries} queries × {layer.num_keys} keys · {layer.mask}")
        title = block([[Segment(name, BOLD), Segment(self.palette.shortened(facts, self.room - len(name)), DIM)]])
        yield stack([title, drawing.picture(pool, self.palette, self.room)])
        is_part = allowed.shape[1:] != (layer.num_queries, layer.num_keys)
        yield from drawing.facts(self.palette, self.room, "of the cells shown" if is_part else "")

    def ranked(
        self, frame: MatrixFrame, most: int, heads: Sequence[int] | None = None, queries: int | None = None
    ) -> Block:
        """Return the heaviest keys of the queries of heads."""
        heads = frame.layer.heads if heads is None else heads
        shown = frame.rows if queries is None else frame.rows.first(queries)
        precision = DIGITS if self.view.precision is None else self.view.precision
        columns, places = frame.columns, min(most, len(frame.columns))
        names = [str(frame.layer.head_label(head)) for head in heads]
        rows, sums, entries = [], [], []
        for head, name in zip(heads, names, strict=True):
            axis = shown.marking(frame.blind_in(head)[:, : len(shown)])
            found = top_keys(frame.layer.head(head, axis.indices), frame.cells.of_columns, most)
            for place, (keys, weights) in enumerate(found):
                mark = f" {MARK}" if place in axis.marked else ""
                query = f"{axis.indices[place]:>{axis.digits}} {axis.labels[place]}{mark}"
                rows.append(f"{name:>{max(map(len, names))}}  {query}")
                sums.append(number_text(float(weights.sum()), precision) if len(keys) else "")
                entries.append([
                    f"{columns.indices[key]} {columns.labels[key]} {number_text(weight, precision)}"
                    for key, weight in zip(keys, weights.tolist(), strict=True)
                ])  # fmt: skip
        ranks = [
            Column(str(rank + 1), [(*listed, *[""] * places)[rank] for listed in entries]) for rank in range(places)
        ]
        title = f"{places} heaviest keys of each query" if places > 1 else "heaviest key of each query"
        listed = table([Column("head query", rows, align="<"), Column("sum", sums, DIM), *ranks], self.width)
        return stack([block([[Segment(title, BOLD)]]), listed])

    def digits(
        self, frame: MatrixFrame, head: int, wanted: frozenset[str], scale: Scale | None = None, note: str = ""
    ) -> Block | None:
        """Return the matrices of a head under its title; None where nothing of what is wanted is a matrix."""
        layer = frame.layer
        axes = (frame.rows.marking(frame.blind_in(head)), frame.columns)
        matrices = list(_matrices(layer.head(head, frame.cells.rows), frame.cells.of_columns, wanted, axes, scale))
        if not matrices:
            return None
        heads = f" of {layer.num_heads}" if layer.head_label(head) == head else ""
        if layer.num_groups < layer.num_heads:
            heads += f", reads kv head {layer.head(head).key_head} of {layer.num_groups}"
        facts = [heads + note]
        facts += ["rows are queries, columns keys"] * bool(wanted & {"scores", "weights"})
        facts += [mark for mark in [mark_note(frame.blind_in(head))] if mark]
        title = titled("head", layer.head_label(head))
        lines = wrap_block(title, self.palette.fit(" · ".join(facts)), self.width)
        return stack([lines, self._drawn(matrices)])

    def maps(
        self,
        title: str,
        frame: MatrixFrame,
        pictures: Sequence[Heatmap],
        pool: tuple[int, int],
        scale: Scale,
        cell: GridCell,
    ) -> Block:
        """Return the maps of heads under what their cells mean."""
        marks = [*Extent.joined([picture.extent for picture in pictures]).mark_notes, mark_note(frame.blind)]
        key = legend(scale, marks, self.palette, self.width, cell.columns, cell == HALF)
        header = [wrap_block(self.palette.fit(title), "", self.width), key]
        is_narrow = self.width is not None and sum(part.width + 3 for part in header) > self.width
        drawn = heatmaps(pictures, frame.rows, frame.columns, pool, self.palette, self.room, scale, cell)
        return stack([*header, drawn] if is_narrow else [hstack(header, 3), drawn])

    def cells(self, frame: MatrixFrame, wanted: frozenset[str], has_all_heads: bool) -> Iterator[Block]:
        """Yield the matrices of the heads that are printed in digits, and the maps, which share their colours.

        All heads are printed in digits, or the first one.
        """
        layer, cells = frame.layer, frame.cells
        rows = 1 if self.view.chooses_rows(self.trace) else -(-len(frame.rows) // (self.room - frame.rows.width - 2))
        pool = rows, -(-len(frame.columns) // (self.room - frame.rows.width - 2))
        pictures: dict[int, Heatmap] = {}
        if "heatmap" in wanted or ("weights" in wanted and self.palette.has_color):
            pictures = {head: heatmap_of(layer.head(head, cells.rows), cells.of_columns, pool) for head in layer.heads}
        scale = scale_of_layer(self.trace, self.view, layer, pictures) if pictures else None
        if "embeddings" in wanted and layer.inputs is not None:
            unmarked = replace(frame.rows, marked=frozenset())  # an embedding attends to nothing yet
            yield self._drawn([_vectors("embeddings", layer.inputs[cells.rows], unmarked)])
        heads = layer.heads if has_all_heads else layer.heads[:1]
        note = f"; --head {layer.heads[1]} has another in digits" if len(heads) < len(layer.heads) else ""
        for head in heads:
            if (digits := self.digits(frame, head, wanted, scale, note)) is not None:
                yield digits
        if "output" in wanted and (projected := layer.projected(cells.rows)) is not None:
            yield self._drawn([_vectors("projected: concatenated heads·W_o", projected, frame.rows)])
        if "heatmap" in wanted and scale is not None:
            shown = list(pictures.values())
            small = HALF if self.palette.has_halves else NARROW
            cell = cell_of(shown, frame.rows, frame.columns, pool, self.room, small)
            title = layer.measure + " of every head" * (len(shown) == layer.num_heads > 1)
            title += f", largest of {pool[0]}×{pool[1]}" * (pool != (1, 1))
            yield self.maps(title, frame, shown, pool, scale, cell)

    def _drawn(self, matrices: Sequence[Matrix]) -> Block:
        return side_by_side(matrices, self.palette, self.width, self.view.precision)


def layer_title(layer: LayerTrace) -> str:
    """Return what a layer is called, and what attends to what in it."""
    return f"{titled('layer', layer.label)} · {layer.kind}"


def wrap_block(title: str, facts: str, width: int | None, style: Style | None = DIM) -> Block:
    """Return a title and what is said behind it, in as many lines as that takes."""
    first, *more = in_words(title + facts, width)
    lines = [[Segment(first[: len(title)], BOLD), Segment(first[len(title) :], style)]]
    return block([*lines, *([Segment(line, style)] for line in more)])


def _matrices(
    head: HeadTrace, keys: Columns, wanted: frozenset[str], axes: tuple[Axis, Axis], scale: Scale | None
) -> Iterator[Matrix]:
    rows, columns = axes
    if "q" in wanted:
        yield _vectors("q", head.q, rows)
    if "k" in wanted:
        yield _vectors("k", head.k[keys], columns)
    if "v" in wanted:
        yield _vectors("v", head.v[keys], columns)
    if "scores" in wanted:
        title = "scores, before the mask" if head.layer.recorded_scores is None else "scores, masked"
        yield Matrix(title, head.scores[:, keys], rows, columns, head.mask[:, keys])
    if "weights" in wanted:
        shown = drawn_cells(head)[:, keys]
        title = head.layer.measure
        yield Matrix(title, head.weights[:, keys], rows, columns, shown, hide_masked=True, scale=scale)
    if "output" in wanted:
        yield _vectors("output: weights·V", head.output, rows)


def _vectors(title: str, values: np.ndarray[tuple[int, int], np.dtype[np.float32]], rows: Axis) -> Matrix:
    return Matrix(title, values, rows, Axis.of_dimensions(values.shape[1]))
