"""The whole view of a trace, as a person reads it: what ran, tokens, shapes, numbers, pictures, proof.

What is shown by default depends on how much there is: one query row is walked through in digits; a short
sentence has the first head's matrices and every head's map; a long one has pooled maps alone, on one screen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from rich.console import RenderableType
from rich.segment import Segment
from rich.text import Text

from attncli.attention import row_blocks
from attncli.render.axes import MARK, Axis, mark_note, titled
from attncli.render.block import Block, beside, block, stack
from attncli.render.heatmap import COMFORTABLE, Picture, extent_of, heatmaps, legend, picture_of
from attncli.render.matrix import DIGITS, Matrix, number_text, side_by_side
from attncli.render.palette import BOLD, DIM, Palette, Scale
from attncli.render.screen import Fit, Screen
from attncli.render.summaries import headline, metrics_table, proof_line, shapes_table, token_list
from attncli.render.tables import Column, table
from attncli.text import layers_named
from attncli.trace.layer import HeadTrace, LayerTrace
from attncli.trace.ranking import Heaviest, drawn_cells, top_keys
from attncli.trace.tokens import Tokens
from attncli.trace.trace import Trace, sequences
from attncli.trace.view import Cells, Columns, View

if TYPE_CHECKING:
    from jaxtyping import Bool


def top_keys_table(
    heads: Sequence[tuple[HeadTrace, Axis]],
    keys: Columns,
    columns: Axis,
    wanted: Heaviest,
    width: int | None,
    precision: int | None,
) -> Block:
    """Return a line for each query of each head: its heaviest keys with their weights, and what these add up to.

    Args:
        heads: each with its query axis.
        keys: which key columns count.
        columns: the axis of these.
        wanted: which keys of each query.
        width: cells in a line; None is as many as it takes.
        precision: digits after the point; None is as many as the matrices have at the most.
    """
    digits = DIGITS if precision is None else precision
    tops = [list(top_keys(head, keys, wanted)) for head, _ in heads]
    places = max(len(top) for listed in tops for top, _ in listed)
    if wanted.most is not None:
        places = min(wanted.most, len(columns))
    names = [str(head.layer.head_label(head.head)) for head, _ in heads]
    widest = max(map(len, names))
    queries = [
        f"{name:>{widest}}  {query}" for name, (_, axis) in zip(names, heads, strict=True) for query in _names(axis)
    ]
    sums, entries = [], []
    for top, weights in (found for listed in tops for found in listed):
        sums.append(number_text(float(weights.sum()), digits) if len(top) else "")
        entries.append([
            f"{columns.indices[key]} {columns.labels[key]} {number_text(weight, digits)}"
            for key, weight in zip(top, weights.tolist(), strict=True)
        ])  # fmt: skip
    ranks = [Column(str(place + 1), [(*found, *[""] * places)[place] for found in entries]) for place in range(places)]
    counted = "keys" if wanted.most is None else f"{places} heaviest keys" if places > 1 else "heaviest key"
    measured = heads[0][0].layer.measure.removesuffix("s")  # weight or norm
    bound = "" if wanted.least is None else f" with a {measured} of {wanted.least} or more"
    title = block([[Segment(f"{counted} of each query{bound}", BOLD)]])
    return stack([title, table([Column("head query", queries, align="<"), Column("sum", sums, DIM), *ranks], width)])


def _names(axis: Axis) -> Iterator[str]:
    digits = axis.digits
    for place, (index, label) in enumerate(zip(axis.indices, axis.labels, strict=True)):
        yield f"{index:>{digits}} {label}" + (f" {MARK}" if place in axis.marked else "")


class Frame(NamedTuple):
    """Where one layer is drawn.

    Attributes:
        layer: the layer.
        cells: which of its cells are shown.
        blind: which of the rows shown may attend to no key, for each of its heads.
        rows: the query axis; a row that is blind in one of the heads is marked.
        columns: the key axis.
        fit: which heads' maps are drawn, and how many rows and columns a cell of them stands for.
    """

    layer: LayerTrace
    cells: Cells
    blind: Bool[np.ndarray, "H Q"]
    rows: Axis
    columns: Axis
    fit: Fit

    def blind_in(self, head: int) -> Bool[np.ndarray, "1 Q"]:
        """Return which rows may attend to no key in one head."""
        return self.blind[[self.layer.heads.index(head)]]


@dataclass(frozen=True)
class Layout:
    """A trace laid out for one output.

    Attributes:
        trace: what is shown.
        view: what of it is shown.
        palette: how cells look.
        width: cells in a line; None is as many as it takes.
        is_cut: whether columns of a matrix that is wider than such a line are left out.
    """

    trace: Trace
    view: View
    palette: Palette
    width: int | None
    is_cut: bool = True

    def renderables(self) -> Iterator[RenderableType]:
        """Yield the view, part by part; a blank line belongs between two parts."""
        trace = self.trace
        yield headline(trace.recorded, self.palette)
        if trace.origin is not None:
            yield Text(self.palette.fit("\n".join(trace.origin.rules)))
        wanted = self.view.parts(self._default())
        if "tokens" in wanted:
            yield self._tokens()
        for frame in self._frames:
            layer = frame.layer
            if len(trace.layers) > 1:
                yield Text(self.palette.fit(f"{titled('layer', layer.label)} · {layer.kind}"), BOLD)
            if "shapes" in wanted:
                yield shapes_table(trace, layer, self.palette, self.width)
            if "mask" in wanted:
                yield from self._mask(frame)
            if (heaviest := self._screen.heaviest) is not None:
                yield self._ranked(frame, heaviest)
            heads = (layer.head(index, frame.cells.rows) for index in frame.fit.heads)
            # The matrices share the colours of the maps.
            is_drawn = "heatmap" in wanted or ("weights" in wanted and self.palette.has_color)
            how = (frame.cells.of_columns, frame.fit.pool, self.view.no_sink)
            pictures = [picture_of(head, *how) for head in heads] if is_drawn else []
            scale = extent_of(pictures).scale(self.view.log)
            yield from self._numbers(frame, wanted - layer.missing, scale)
            if "heatmap" in wanted:
                yield self._maps(frame, pictures, scale)
            if "metrics" in wanted:
                yield metrics_table(trace, layer, self.palette, self.width, self.view.precision)
            if "proof" in wanted:
                yield proof_line(layer, self.palette)

    def notes(self) -> list[str]:
        """Return what was left out of the view, a sentence each."""
        if self.view.show is not None:
            return self._pooled_masks() if "mask" in self.view.show else []
        return list(self._screen.notes(self._frames[0].fit))

    def _pooled_masks(self) -> list[str]:
        found = [frame.fit.pool for frame in self._frames]
        pools = dict.fromkeys(f"{rows}×{keys}" for rows, keys in found if rows * keys > 1)
        said = f"each cell drawn of the mask stands for {' or '.join(pools)}; --query or -F json has all of them"
        return [said] if pools else []

    # --- what is there ---

    @cached_property
    def _frames(self) -> list[Frame]:
        return [self._frame(layer) for layer in self._screen.layers]

    def _frame(self, layer: LayerTrace) -> Frame:
        cells = self.view.cells(self.trace, layer)
        blind = layer.blind(cells.rows)
        predicted = self.trace.predicted
        rows = Axis.of_tokens(cells.row_tokens, cells.rows, self.palette, predicted).marking(blind)
        columns = Axis.of_tokens(cells.column_tokens, cells.columns, self.palette)
        return Frame(layer, cells, blind, rows, columns, self._screen.fit(layer, rows, columns))

    @property
    def _room(self) -> int:
        return self.width or COMFORTABLE

    @cached_property
    def _screen(self) -> Screen:
        return Screen(self.trace, self.view, self.palette, self.width)

    def _default(self) -> tuple[str, ...]:
        parts: tuple[str, ...] = ("tokens", "shapes")
        if self._screen.heaviest is not None:
            parts = ("shapes",) if self._screen.is_long else parts
        elif len(self._screen.rows) == 1:
            parts += ("embeddings", "q", "scores", "weights", "output")
        elif self._screen.is_long:
            parts = ("shapes", "heatmap")
        elif len(self.trace.layers) == 1:
            parts += ("scores", "weights", "heatmap")
        else:
            parts += ("heatmap",)
        parts = (*parts, "proof") if any(layer.proof for layer in self.trace.layers) else parts
        # What derived numbers are is said in words.
        return parts if self.trace.origin is None else tuple(part for part in parts if part != "shapes")

    def _digit_heads(self, layer: LayerTrace) -> tuple[int, ...]:
        """The heads whose matrices are printed: the first one, unless the parts or a single row were asked for."""
        is_asked = self.view.show is not None or len(self._screen.rows) == 1
        return layer.heads if is_asked else layer.heads[:1]

    # --- the parts ---

    def _tokens(self) -> RenderableType:
        trace = self.trace
        # Elsewhere there is no vocabulary, and words have pieces.
        has_ids = trace.source.kind in {"toy", "pretrained"} or bool(trace.key_tokens[0].pieces)
        found = {
            tokens for layer in trace.layers for tokens in sequences(layer.kind, trace.query_tokens, trace.key_tokens)
        }
        lists = {"queries": trace.query_tokens, "keys": trace.key_tokens}
        lists = {"tokens": found.pop()} if len(found) == 1 else lists
        lists |= self._own_positions()
        return stack([token_list(each, title, self.palette, self.width, has_ids) for title, each in lists.items()])

    def _own_positions(self) -> dict[str, Tokens]:
        """Return the positions of layers that have some of their own, those that are no tokens of the text."""
        found: dict[tuple[str, Tokens], list[int]] = {}
        for layer in self._screen.layers:
            sides = [("queries", layer.query_tokens), ("keys", layer.key_tokens)]
            if layer.query_tokens == layer.key_tokens:
                sides = [("positions", layer.key_tokens)]
            for side, own in sides:
                others = Tokens(token for token in own or () if not token.is_token)
                if others:
                    found.setdefault((side, others), []).append(layer.layer)
        return {f"{side} of {layers_named(layers)}": others for (side, others), layers in found.items()}

    def _mask(self, frame: Frame) -> Iterator[RenderableType]:
        """Yield the mask as `attn mask show` draws it, once for heads that are alike, and what it is like in numbers.

        What the numbers say of a part of the cells is no fact of the whole mask, so it has a title.
        """
        from attncli.render.masks import MaskDrawing

        layer, cells = frame.layer, frame.cells
        heads = list(layer.heads)
        blocks = row_blocks(np.array(cells.rows), layer.num_keys * len(heads))
        allowed = np.concatenate([layer.mask.rows(heads, rows)[..., cells.of_columns] for rows in blocks], axis=1)
        names = [f"head {head}" for head in heads] if len(allowed) > 1 else [""]
        blind, is_one = frame.blind[: len(allowed)], not layer.has_own_positions
        drawing = MaskDrawing(allowed, blind, names, frame.rows, frame.columns, layer.mask.past, is_one)
        name = "mask"
        if len(heads) == 1 < layer.num_heads:
            name += f" of head {heads[0]}"
        elif len(drawing.kinds) == 1 and len(heads) == layer.num_heads > 1:
            name += " of every head"
        said = self.palette.fit(f" · {layer.num_queries} queries × {layer.num_keys} keys · {layer.mask}")
        title = block([[Segment(name, BOLD), Segment(self.palette.shortened(said, self._room - len(name)), DIM)]])
        yield stack([title, drawing.picture(frame.fit.pool, self.palette, self._room)])
        is_part = allowed.shape[1:] != (layer.num_queries, layer.num_keys)
        yield from drawing.facts(self.palette, self._room, "of the cells shown" if is_part else "")

    def _ranked(self, frame: Frame, wanted: Heaviest) -> Block:
        """Return the heaviest keys of every query."""

        def table(lines_each: int) -> tuple[Block, int]:
            heads, axis = self._screen.listed(frame.layer, frame.rows, lines_each)
            marked = [axis.marking(frame.blind_in(head)[:, : len(axis)]) for head in heads]
            parts = [(frame.layer.head(head, axis.indices), own) for head, own in zip(heads, marked, strict=True)]
            room, precision = self.width, self.view.precision
            drawn = top_keys_table(parts, frame.cells.of_columns, frame.columns, wanted, room, precision)
            return drawn, (len(drawn.lines) - 1) // (len(heads) * len(axis) + 1)

        drawn, lines_each = table(1)
        return drawn if lines_each == 1 else table(lines_each)[0]

    def _numbers(self, frame: Frame, wanted: frozenset[str], scale: Scale) -> Iterator[RenderableType]:
        """Yield the matrices of the heads that are printed in digits, side by side as the width allows."""
        layer, cells, rows = frame.layer, frame.cells, frame.rows
        if "embeddings" in wanted and layer.inputs is not None:
            unmarked = replace(rows, marked=frozenset())  # an embedding attends to nothing yet
            yield self._drawn([self._vectors("embeddings", layer.inputs[cells.rows], unmarked)])
        for index in self._digit_heads(layer):
            head = layer.head(index, cells.rows)
            axes = (rows.marking(frame.blind_in(index)), frame.columns)
            matrices = list(self._matrices(head, cells.of_columns, wanted, axes, scale))
            if not matrices:
                continue
            mark = mark_note(frame.blind_in(index))
            note = self._head_note(layer, index, wanted) + (f" · {mark}" if mark else "")
            yield Text.assemble((titled("head", layer.head_label(index)), BOLD), (self.palette.fit(note), DIM))
            yield self._drawn(matrices)
        projected = layer.projected(cells.rows) if "output" in wanted else None
        if projected is not None:
            yield self._drawn([self._vectors("projected: concatenated heads·W_o", projected, rows)])

    def _head_note(self, layer: LayerTrace, head: int, wanted: frozenset[str]) -> str:
        heads = f" of {layer.num_heads}" if layer.head_label(head) == head else ""
        if layer.num_groups < layer.num_heads:
            heads += f", reads kv head {layer.head(head).key_head} of {layer.num_groups}"
        if len(self._digit_heads(layer)) < len(layer.heads):
            heads += f"; --head {layer.heads[1]} has another in digits"
        is_cells = wanted & {"scores", "weights"}
        return heads + (" · rows are queries, columns keys" if is_cells else "")

    def _matrices(
        self, head: HeadTrace, keys: Columns, wanted: frozenset[str], axes: tuple[Axis, Axis], scale: Scale
    ) -> Iterator[Matrix]:
        rows, columns = axes
        if "q" in wanted:
            yield self._vectors("q", head.q, rows)
        if "k" in wanted:
            yield self._vectors("k", head.k[keys], columns)
        if "v" in wanted:
            yield self._vectors("v", head.v[keys], columns)
        if "scores" in wanted:
            title = "scores, before the mask" if head.layer.scores is None else "scores, masked"
            yield Matrix(title, head.scores[:, keys], rows, columns, head.mask[:, keys])
        if "weights" in wanted:
            shown = drawn_cells(head)[:, keys]
            title = head.layer.measure
            yield Matrix(title, head.weights[:, keys], rows, columns, shown, hide_masked=True, scale=scale)
        if "output" in wanted:
            yield self._vectors("output: weights·V", head.output, rows)

    def _vectors(self, title: str, values: np.ndarray[tuple[int, int], np.dtype[np.float32]], rows: Axis) -> Matrix:
        return Matrix(title, values, rows, Axis.of_dimensions(values.shape[1]), what="dimension")

    def _drawn(self, matrices: list[Matrix]) -> Block:
        is_cut = self.is_cut and self.width is not None
        return side_by_side(matrices, self.palette, self._room, is_cut, self.view.precision)

    def _maps(self, frame: Frame, pictures: list[Picture], scale: Scale) -> RenderableType:
        fit, title = frame.fit, frame.layer.measure
        maps = heatmaps(pictures, frame.rows, frame.columns, fit.pool, self.palette, self._room, scale, fit.strips)
        title += " of every head" if len(pictures) == frame.layer.num_heads > 1 else ""
        if fit.pool != (1, 1):
            title += f", largest of {fit.pool[0]}×{fit.pool[1]}"
        title = self.palette.fit(title)
        keys = frame.columns.indices
        marks = [*extent_of(pictures).said, mark_note(frame.blind), "- below the range" if scale.is_cut else ""]
        if self.view.no_sink and 0 in keys:
            marks.append(f"+ beyond the range, which leaves out key 0 {frame.columns.labels[keys.index(0)]}")
        key = legend(scale, marks, self.palette, self.width)
        header = [Block([[Segment(title, BOLD)]], len(title)), key]
        is_narrow = self.width is not None and sum(part.width + 3 for part in header) > self.width
        return stack([*header, maps] if is_narrow else [beside(header, 3), maps])
