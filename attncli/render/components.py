"""The parts that the views of a trace are put together from: tokens, masks, numbers, sentences, maps."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from rich.console import RenderableType
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from attncli.analysis.labels import HeadKey, Label, labels_of_heads, strongest
from attncli.attention import row_blocks
from attncli.render.axes import MARK, Axis, mark_note, titled
from attncli.render.block import COMFORTABLE, Block, Column, block, flowing, hstack, in_words, stack, table
from attncli.render.cell_grid import HALF, GridCell
from attncli.render.fit import LONG, Bounds
from attncli.render.heatmap import Extent, Heatmap, heatmaps, scale_of_layer
from attncli.render.legend import legend, mark_line, ramp_line
from attncli.render.matrix import DIGITS, Matrix, number_text, side_by_side
from attncli.render.palette import BOLD, DIM, Palette, Scale
from attncli.render.sections import token_list
from attncli.render.sentence import QUERY, SentenceLine, distant_keys, head_lines, head_name, height, sentence
from attncli.trace.layer import HeadTrace, LayerTrace
from attncli.trace.top_keys import drawn_cells, top_keys
from attncli.trace.trace import Trace, sequences
from attncli.trace.view import Cells, Columns, View

if TYPE_CHECKING:
    from jaxtyping import Bool

    from attncli.render.picture import PictureView
    from attncli.trace.tokens import Token


READ_ALOUD = 10  # queries of a long text
_SPOKEN_KEYS = 3  # of each of them
_FEW_HEADS = 4  # whose sentence is shown rather than all tokens of a long one
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

    @property
    def is_causal(self) -> bool:
        """Whether the first query sees no key behind it."""
        layer = self.layer
        first = layer.mask.rows(list(layer.heads), np.array([0]))
        return layer.kind != "cross" and layer.num_keys > 1 and not first[..., layer.mask.past + 1 :].any()

    def of_heads(self, heads: Collection[HeadKey]) -> MatrixFrame:
        """Return where some of the heads are drawn."""
        layer = self.layer
        own = tuple(head for head in layer.heads if (layer.layer, layer.kind, head) in heads)
        return self._replace(layer=replace(layer, heads=own), blind=self.blind[np.isin(layer.heads, own)])

    def blind_in(self, head: int) -> Bool[np.ndarray, "1 Q"]:
        """Return which rows may attend to no key in one head."""
        return self.blind[[self.layer.heads.index(head)]]


@dataclass(frozen=True, eq=False, repr=False)
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

    @cached_property
    def frames(self) -> list[MatrixFrame]:
        """Where each layer is drawn."""
        axes = {kind: self._axes(cells) for kind, cells in self._cells.items()}
        return [self._frame(layer, self._cells[layer.kind], *axes[layer.kind]) for layer in self.trace.layers]

    @cached_property
    def _cells(self) -> dict[str, Cells]:
        """Which cells of each kind of layer are shown."""
        layers = {layer.kind: layer for layer in self.trace.layers}
        return {kind: self.view.cells(self.trace, layer) for kind, layer in layers.items()}

    @cached_property
    def longest(self) -> int:
        """How many rows or columns the largest matrix has."""
        return max(max(len(cells.rows), len(cells.columns)) for cells in self._cells.values())

    @property
    def has_one_row(self) -> bool:
        """Whether a single query is shown."""
        return all(len(frame.rows) == 1 for frame in self.frames)

    def _axes(self, cells: Cells) -> tuple[Axis, Axis]:
        rows = Axis.of_tokens(cells.row_tokens, cells.rows, self.palette, self.trace.predicted)
        return rows, Axis.of_tokens(cells.column_tokens, cells.columns, self.palette)

    def _frame(self, layer: LayerTrace, cells: Cells, rows: Axis, columns: Axis) -> MatrixFrame:
        blind = layer.fully_masked(cells.rows)
        return MatrixFrame(layer, cells, blind, rows.marking(blind), columns)

    @cached_property
    def labels(self) -> dict[HeadKey, tuple[Label, ...]]:
        """What heads do."""
        return labels_of_heads(self.trace)

    def rows_read_aloud(self, frame: MatrixFrame) -> range:
        """Return the places of the rows that are read: the last ones of a long text, the last one of a picture."""
        most = 1 if self.trace.has_images(frame.layer) else len(frame.rows)
        return range(len(frame.rows))[-(READ_ALOUD if most > LONG else most) :]

    def in_words(self, frame: MatrixFrame) -> Iterator[Text]:
        """Yield what queries of each head attend to, as sentences, to be read aloud."""
        layer, axis, precision = frame.layer, frame.columns, self.view.precision
        cells = [self.trace.layout(role).cells if self.trace.has_images(layer) else {} for role in ("query", "key")]
        names = [
            _in_words(cells[1].get(index)) or (name if axis.labels.count(name) == 1 else f"{name} {index}")
            for index, name in zip(axis.indices, axis.labels, strict=True)
        ]
        rows = self.rows_read_aloud(frame)
        for head in layer.heads:
            kind = "" if self.trace.target is None else f" {layer.kind}"
            place = f"{titled('layer', layer.label)}{kind} {titled('head', layer.head_label(head))}"
            lines = [", ".join(filter(None, (place, strongest(self.labels, (layer.layer, layer.kind, head)))))]
            for row, keys, weights in _heaviest(frame, head, rows, self.view.top_keys or _SPOKEN_KEYS):
                numbers = [number_text(weight, 2 if precision is None else precision) for weight in weights]
                # A number that is all zeros says nothing, but of the first key, which says that all are so small.
                listed = ", ".join(
                    f"{number} {names[key]}"
                    for place, (key, number) in enumerate(zip(keys, numbers, strict=True))
                    if place == 0 or number.strip("0.-")
                )
                query = _in_words(cells[0].get(frame.rows.indices[row])) or frame.rows.labels[row]
                lines.append(f"query {frame.rows.indices[row]} {query}: {listed or 'no key'}")
            yield Text("\n".join(lines))

    def tokens(self, has_ids: bool = True, most: int | None = None) -> Block:
        """Return the tokens of the text, or those of the rows and keys that are shown.

        Ids stand below them where there are some; of more than `most` lines the middle is counted.
        """
        trace = self.trace
        # Elsewhere there is no vocabulary, and words have pieces.
        has_ids &= trace.source.kind in {"toy", "pretrained"} or bool(trace.key_tokens[0].pieces)
        found = {
            tokens for layer in trace.layers for tokens in sequences(layer.kind, trace.query_tokens, trace.key_tokens)
        }
        rows, columns = self._places
        lists = {"queries": (trace.query_tokens, rows), "keys": (trace.key_tokens, columns)}
        lists = {"tokens": (found.pop(), rows | columns)} if len(found) == 1 else lists
        return stack(
            token_list([tokens[place] for place in sorted(places)], title, self.palette, self.width, has_ids, most)
            for title, (tokens, places) in lists.items()
            if places
        )

    @cached_property
    def _places(self) -> tuple[set[int], set[int]]:
        """The rows that are shown, and the keys, or of chosen rows the heaviest ones where only these are."""
        trace, view = self.trace, self.view
        rows, columns = set(view.rows(trace)), set(view.columns(trace))
        if self.has_image_keys and not view.keys:  # cells have names that say nothing more
            rows, columns = set(self._outside_pictures(rows, "query")), set(self._outside_pictures(columns))
        if view.top_keys is None or not view.queries:
            return rows, columns
        heads = [(frame, head) for frame in self.frames for head in frame.layer.heads]
        found = [_heaviest(frame, head, range(len(frame.rows)), view.top_keys) for frame, head in heads]
        listed = zip(heads, found, strict=True)
        return rows, {frame.cells.columns[key] for (frame, _), own in listed for _, keys, _ in own for key in keys}

    def has_sentence(self, frame: MatrixFrame) -> bool:
        """Whether the last query that is shown is one to look at: of a causal model, or a chosen one."""
        return (frame.is_causal or bool(self.view.queries)) and len(frame.columns) > 1

    def sentence(self, frames: Sequence[MatrixFrame], lines: int, has_legend: bool = False) -> tuple[Block, int]:
        """Return what the last query attends to, on the colours of the weights, and how many heads are shown.

        As many heads are shown as so many lines have room for, those first with most weight on one key that was
        chosen, or is distant. Of a long sentence rather the heaviest tokens for four heads than all of them for one.
        """
        frame = frames[0]
        query, places = frame.cells.rows[-1], frame.cells.columns
        is_one = frame.cells.row_tokens == frame.cells.column_tokens
        place = query if is_one else None
        keys = list(frame.cells.columns) if self.view.keys else distant_keys(frame.cells.column_tokens, place)
        if self.has_image_keys:  # which show their cells
            places = self._outside_pictures(places) or self._outside_pictures(range(frame.layer.num_keys))
        columns = frame.cells._replace(columns=places).of_columns
        tokens = [frame.cells.column_tokens[place] for place in places]
        marks = {place: QUERY for place, token in enumerate(tokens) if is_one and token.index == query}
        heads = [
            line._replace(weights=line.weights[columns], allowed=line.allowed[columns])
            for line in head_lines([one.layer for one in frames], query, keys, self.labels)
        ]
        who = f"{frame.rows.indices[-1]} {frame.rows.labels[-1]}"
        title = [Segment(who, BOLD), Segment(f" {_relation(frame.layer)}", DIM)]
        if has_legend:
            return self._sentence_of([title, *self._sentence_key(heads)], tokens, heads, marks, lines)
        every = sum(len(each.layer.heads) for each in self.frames if each.layer.kind == frame.layer.kind)
        return self._sentence_of([title, *self._ramp_of_words], tokens, heads, marks, lines, every)

    @property
    def _ramp_of_words(self) -> list[list[Segment]]:
        """Legend of the words below a picture, whose colours differ."""
        has_other = self.has_image_keys and self.palette.has_color
        return [ramp_line(self.scale, self.palette, self.width, 1)] if has_other else []

    def _sentence_of(
        self,
        title: Sequence[list[Segment]],
        tokens: Sequence[Token],
        heads: Sequence[SentenceLine],
        marks: Mapping[int, str],
        lines: int,
        every: int = 0,
    ) -> tuple[Block, int]:
        """Return the sentence of as many heads as fit, whose title counts them where there are more."""

        def titled_with(count: int) -> Block:
            return flowing([*title, *[[Segment(f"{count} of {every} heads", DIM)]] * (count < every)], self.room)

        palette, header = self.palette, titled_with(max(every - 1, 0))
        above = 0 if palette.has_color else 1  # the sentence itself
        left = max(lines - len(header.lines), 1)
        whole = height(tokens, heads[0], palette, self.room, marks)
        few = len(heads) if len(heads) < every else min(len(heads), _FEW_HEADS)  # all whose maps are drawn, of more
        most = max(min(whole, left // (few + above)), 1)
        count = min(max(left // most - above, 1), len(heads))
        shown = sentence(tokens, heads[:count], palette, self.scale, self.room, marks, most)
        return stack([titled_with(count), shown]), count

    def _sentence_key(self, heads: Sequence[SentenceLine]) -> Iterator[list[Segment]]:
        """Yield what the colours of tokens mean, and in which order the heads stand."""
        scale, palette = self.scale, self.palette
        if palette.has_color:
            yield ramp_line(scale, palette, self.width, 1)
            weights, allowed = (np.array([getattr(line, name) for line in heads]) for name in ("weights", "allowed"))
            for note in Extent.of(weights, allowed).notes_on(scale):
                if not note.startswith("·"):  # a masked token is dim
                    yield mark_line(note, palette, scale, True)
        if len(heads) > 1:
            name = self.frames[0].layer.measure.removesuffix("s")
            keys = self.frames[0].columns.labels
            which = "a distant token" if not self.view.keys else "one key" if len(keys) > 1 else keys[0]
            yield [Segment(palette.label(f"largest {name} on {which} first"), DIM)]

    @cached_property
    def scale(self) -> Scale:
        """Which weight each colour stands for, of all layers alike."""
        scales = [scale_of_layer(self.trace, self.view, layer) for layer in self.trace.layers]
        return max(scales, key=lambda scale: scale.high)

    @property
    def has_image_keys(self) -> bool:
        """Whether keys are cells of pictures, so that these show attention best."""
        return self.trace.has_image_keys

    def _outside_pictures(self, places: Iterable[int], role: Literal["query", "key"] = "key") -> list[int]:
        """Return the places that are no cell of a picture."""
        cells = self.trace.layout(role).cells
        return [place for place in places if place not in cells]

    @cached_property
    def _of_pictures(self) -> list[MatrixFrame]:
        """The layers that look at pictures."""
        return [frame for frame in self.frames if frame.layer.kind in ("self", "cross")]

    def picture(self, lines: int) -> tuple[Block, int]:
        """Return pictures under the weights of as many heads as fit, and how many heads they are."""
        return self.look.drawn(Bounds(lines, self.room))

    @cached_property
    def look(self) -> PictureView:
        """Look of all heads at the pictures, from one query."""
        from attncli.render.picture import CHOSEN, OWN, HeadLook, PictureView

        query, layer, layout = self._picture_query, self._of_pictures[0].layer, self.trace.layout("key")
        looks = []
        for frame in self._of_pictures:
            for head in frame.layer.heads:
                name, _, own = head_name(frame.layer, head).partition(" ")
                row = frame.layer.head(head, [query])
                name = f"{name} {own}" if len(self._of_pictures) > 1 else own
                looks.append(HeadLook(name, row.weights[0], drawn_cells(row)[0]))
        weights = [np.nan_to_num(one.weights[grid.positions]).max() for one in looks for grid in layout.grids]
        scale = Scale.up_to(float(max(weights)), self.view.ramp)
        keys = self.view.columns(self.trace) if self.view.keys else []
        marks = dict.fromkeys(keys, CHOSEN) | ({query: OWN} if layer.kind == "self" else {})
        cell = self.trace.layout("query").cells.get(query)
        names = (str(query), self.palette.label(self.trace.query_tokens[query].label), cell)
        title = " ".join(filter(None, dict.fromkeys(names))), _relation(layer)
        return PictureView(title, looks, layout, marks, self.palette, scale, layer.measure == "weights", keys)

    @property
    def _picture_query(self) -> int:
        """The query that looks: the last one, or of a model that is not causal, unless some were chosen, the class."""
        first = self._of_pictures[0]
        rows = first.cells.rows
        is_last = first.is_causal or self.view.chooses_rows(self.trace)
        return rows[-1] if is_last else [*self._outside_pictures(rows, "query"), rows[-1]][0]

    def beside_pictures(self, lines: int) -> Block | None:
        """Return what the query of pictures attends to in the text around them; None without a text."""
        first = self._of_pictures[0]
        has_text = len(self._outside_pictures(range(first.layer.num_keys))) > 1
        is_last = self._picture_query == first.cells.rows[-1]
        return self.sentence(self._of_pictures, lines)[0] if has_text and is_last else None

    def mask(self, frame: MatrixFrame, pool: tuple[int, int]) -> Iterator[RenderableType]:
        """Yield the mask as `attn mask show` draws it, once for heads that are alike, and what it is like.

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
        facts = f" · {layer.num_queries} queries × {layer.num_keys} keys · {layer.mask}"
        title = block([[Segment(name, BOLD), Segment(self.palette.shortened(facts, self.room - len(name)), DIM)]])
        yield stack([title, drawing.picture(pool, self.palette, self.room)])
        is_part = allowed.shape[1:] != (layer.num_queries, layer.num_keys)
        yield drawing.facts(self.palette, self.room, "of the cells shown" if is_part else "")

    def ranked(self, frame: MatrixFrame, most: int, count: int | None = None) -> Block:
        """Return the heaviest keys of the queries of heads, of the first so many of them."""
        precision = DIGITS if self.view.precision is None else self.view.precision
        columns, places = frame.columns, min(most, len(frame.columns))
        names = {head: str(frame.layer.head_label(head)) for head in frame.layer.heads}
        rows, sums, entries = list[str](), list[str](), list[list[str]]()
        for head, name in names.items():
            axis = frame.rows.marking(frame.blind_in(head))
            shown = range(len(axis))[: None if count is None else count - len(rows)]
            for place, keys, weights in _heaviest(frame, head, shown, most):
                mark = f" {MARK}" if place in axis.marked else ""
                query = f"{axis.indices[place]:>{axis.digits}} {axis.labels[place]}{mark}"
                rows.append(f"{name:>{max(map(len, names.values()))}}  {query}")
                sums.append(number_text(float(np.sum(weights, dtype=np.float32)), precision) if keys else "")
                entries.append([
                    f"{columns.indices[key]} {columns.labels[key]} {number_text(weight, precision)}"
                    for key, weight in zip(keys, weights, strict=True)
                ])  # fmt: skip
        ranks = [
            Column(str(rank + 1), [(*listed, *[""] * places)[rank] for listed in entries]) for rank in range(places)
        ]
        title = f"{places} heaviest keys of each query" if places > 1 else "heaviest key of each query"
        listed = table([Column("head query", rows, align="<"), Column("sum", sums, DIM), *ranks], self.width)
        return stack([block([[Segment(title, BOLD)]]), listed])

    def digits(self, frame: MatrixFrame, head: int, wanted: frozenset[str]) -> Block | None:
        """Return the matrices of a head under its title; None where nothing of what is wanted is a matrix."""
        layer = frame.layer
        axes = (frame.rows.marking(frame.blind_in(head)), frame.columns)
        scale = self.scale if self.palette.has_color else None
        matrices = list(_matrices(layer.head(head, frame.cells.rows), frame.cells.of_columns, wanted, axes, scale))
        if not matrices:
            return None
        heads = f" of {layer.num_heads}" if layer.head_label(head) == head else ""
        if layer.num_groups < layer.num_heads:
            heads += f", reads kv head {layer.head(head).key_head} of {layer.num_groups}"
        if self._digit_heads(layer) != layer.heads:
            heads += f" (numbers of another head: --head {layer.heads[1]})"
        facts = [heads]
        facts += ["rows are queries, columns keys"] * bool(wanted & {"scores", "weights"})
        facts += [mark for mark in [mark_note(frame.blind_in(head))] if mark]
        title = titled("head", layer.head_label(head))
        lines = wrap_block(title, " · ".join(facts), self.width)
        return stack([lines, self._drawn(matrices)])

    def maps(
        self, title: str, frame: MatrixFrame, pictures: Sequence[Heatmap], pool: tuple[int, int], cell: GridCell
    ) -> Block:
        """Return the maps of heads under what their cells mean."""
        extent, scale = Extent.joined([picture.extent for picture in pictures]), self.scale
        marks = [*extent.notes_on(scale), mark_note(frame.blind)]
        key = legend(scale, marks, self.palette, self.width, min(cell.columns, 2), cell == HALF)
        header = [wrap_block(title, "", self.width), key]
        is_narrow = self.width is not None and sum(part.width + 3 for part in header) > self.width
        drawn = heatmaps(pictures, frame.rows, frame.columns, pool, self.palette, self.room, scale, cell)
        return stack([*header, drawn] if is_narrow else [hstack(header, 3), drawn])

    def _digit_heads(self, layer: LayerTrace) -> Sequence[int]:
        return layer.heads if self.view.show is not None or self.has_one_row else layer.heads[:1]

    def cells(self, frame: MatrixFrame, wanted: frozenset[str]) -> Iterator[Block]:
        """Yield the matrices of the heads that are printed in digits, which are all or the first one."""
        layer, cells = frame.layer, frame.cells
        if "embeddings" in wanted and layer.inputs is not None:
            unmarked = replace(frame.rows, marked=frozenset())  # an embedding attends to nothing yet
            yield self._drawn([_vectors("embeddings", layer.inputs[cells.rows], unmarked)])
        for head in self._digit_heads(layer):
            if (digits := self.digits(frame, head, wanted)) is not None:
                yield digits
        if "output" in wanted and (projected := layer.projected(cells.rows)) is not None:
            yield self._drawn([_vectors("projected: concatenated heads·W_o", projected, frame.rows)])

    def _drawn(self, matrices: Sequence[Matrix]) -> Block:
        return side_by_side(matrices, self.palette, self.width, self.view.precision)


def _in_words(cell: str | None) -> str:
    """Return what is read aloud of the name of a cell; empty for what is none."""
    return re.sub(r"\br(\d+)c(\d+)", r"row \1 column \2", cell or "")


def _relation(layer: LayerTrace) -> str:
    """Return what stands between a query and its keys."""
    return "attends to" if layer.measure == "weights" else f"has {layer.measure} from"


def layer_title(layer: LayerTrace) -> str:
    """Return what a layer is called, and what attends to what in it."""
    return f"{titled('layer', layer.label)} · {layer.kind}"


def _heaviest(frame: MatrixFrame, head: int, rows: range, most: int) -> Iterator[tuple[int, list[int], list[float]]]:
    """Yield the heaviest keys of some rows of a head: the place of each row, and its keys and their weights."""
    if not rows:
        return
    chosen = [frame.cells.rows[row] for row in rows]
    found = top_keys(frame.layer.head(head, chosen), frame.cells.of_columns, most)
    for row, (keys, weights) in zip(rows, found, strict=True):
        yield row, keys.tolist(), weights.tolist()


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
