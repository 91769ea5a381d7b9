"""Parts of the views of a trace: tokens, masks, numbers, sentences, pictures."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from rich.console import RenderableType
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from attncli.analysis.metrics import HeadKey, Label, labels_of_heads, strongest
from attncli.attention import row_blocks
from attncli.render.block import (
    COMFORTABLE,
    LONG,
    Block,
    Column,
    block,
    flowing,
    in_words,
    ranking,
    shortened,
    stack,
    table,
    width_of,
)
from attncli.render.heatmap import ramp_line, scale_of_layer
from attncli.render.matrix import MARK, Axis, Matrix, mark_note, number_text, side_by_side, titled
from attncli.render.palette import BOLD, DIM, HINT, Palette, Scale
from attncli.render.sections import token_list
from attncli.render.sentence import QUERY, SentenceLine, distant_keys, head_lines, head_name, height, sentence
from attncli.text import visible
from attncli.trace.layer import HeadTrace, LayerTrace, heaviest
from attncli.trace.tokens import Token, Tokens
from attncli.trace.trace import Trace
from attncli.trace.view import Cells, Columns, View

if TYPE_CHECKING:
    from jaxtyping import Bool

    from attncli.render.picture import PictureView

READ_ALOUD = 10  # queries of a long text
_FEW_KEYS = 3  # of a query
_FEW_HEADS = 4  # whose sentence is shown rather than all tokens of a long one
TEN = 10  # heads of a query, where no screen has room for more
WALK = ("embeddings", "q", "scores", "weights", "output")  # from a query to what it becomes


class MatrixFrame(NamedTuple):
    """One layer, and its cells that are drawn."""

    layer: LayerTrace
    cells: Cells
    blind: Bool[np.ndarray, "H Q"]  # the rows that may attend to no key, for each head
    rows: Axis  # a row that is blind in one of the heads is marked
    columns: Axis

    @property
    def is_causal(self) -> bool:
        """Whether the first query sees no key behind it."""
        layer = self.layer
        first = layer.mask.rows(list(layer.heads), np.array([0]))
        return layer.kind != "cross" and layer.num_keys > 1 and not first[..., layer.mask.past + 1 :].any()

    def of_heads(self, heads: Collection[HeadKey]) -> MatrixFrame:
        """Return the frame of some of the heads."""
        layer = self.layer
        own = tuple(head for head in layer.heads if (layer.layer, layer.kind, head) in heads)
        return self._replace(layer=replace(layer, heads=own), blind=self.blind[np.isin(layer.heads, own)])

    def blind_in(self, head: int) -> Bool[np.ndarray, "1 Q"]:
        """Return which rows may attend to no key in one head."""
        return self.blind[[self.layer.heads.index(head)]]


class _Query(NamedTuple):
    """The last query: its name, the keys that it may attend to, and the weights that heads give them."""

    title: list[Segment]
    tokens: list[Token]
    marks: dict[int, str]
    heads: list[SentenceLine]


@dataclass(frozen=True, eq=False, repr=False)
class Components:
    """Parts of a trace's view, each in a room of `width` cells, or of as many as it takes."""

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
        """The drawn cells of each layer."""
        axes = {}
        for kind, cells in self._cells.items():
            rows = Axis.of_tokens(cells.row_tokens, cells.rows, self.trace.predicted)
            axes[kind] = cells, rows, Axis.of_tokens(cells.column_tokens, cells.columns)
        frames = []
        for layer in self.trace.layers:
            cells, rows, columns = axes[layer.kind]
            blind = layer.fully_masked(cells.rows)
            frames.append(MatrixFrame(layer, cells, blind, rows.marking(blind), columns))
        return frames

    @cached_property
    def _cells(self) -> dict[str, Cells]:
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

    @cached_property
    def labels(self) -> dict[HeadKey, tuple[Label, ...]]:
        """The labels of heads."""
        return labels_of_heads(self.trace)

    @cached_property
    def scale(self) -> Scale:
        """The weight of each colour, in all layers alike."""
        scales = [scale_of_layer(self.trace, self.view, layer) for layer in self.trace.layers]
        return max(scales, key=lambda scale: scale.high)

    # --- tokens ---

    def tokens(self, has_ids: bool = True, most: int | None = None) -> Block:
        """Return the tokens of the rows and keys that are shown, and their ids, in at most `most` lines."""
        trace, view = self.trace, self.view
        # Elsewhere there is no vocabulary, and words have pieces.
        has_ids &= trace.source.kind in {"toy", "pretrained"} or bool(trace.key_tokens[0].pieces)
        rows, columns = set(view.rows(trace)), set(view.columns(trace))
        if trace.has_image_keys and not view.keys:  # cells of pictures have names that say nothing more
            rows, columns = set(self._outside_pictures(rows, "query")), set(self._outside_pictures(columns))
        lists = {"queries": (trace.query_tokens, rows), "keys": (trace.key_tokens, columns)}
        if trace.query_tokens == trace.key_tokens:
            lists = {"tokens": (trace.key_tokens, rows | columns)}
        return stack(
            token_list([tokens[place] for place in sorted(places)], title, self.width, has_ids, most)
            for title, (tokens, places) in lists.items()
            if places
        )

    # --- words ---

    def rows_read_aloud(self, frame: MatrixFrame) -> range:
        """Return the places of the rows that are read: of a long text the last ones, with a picture the last one."""
        most = 1 if self.trace.has_images(frame.layer) else len(frame.rows)
        return range(len(frame.rows))[-(READ_ALOUD if most > LONG else most) :]

    def in_words(self, frame: MatrixFrame) -> Iterator[Text]:
        """Yield what queries of each head attend to, as sentences, to be read aloud."""
        layer, axis = frame.layer, frame.columns
        cells = [self.trace.layout(role).cells if self.trace.has_images(layer) else {} for role in ("query", "key")]
        names = [
            _in_words(cells[1].get(index)) or (name if axis.labels.count(name) == 1 else f"{name} {index}")
            for index, name in zip(axis.indices, axis.labels, strict=True)
        ]
        for head in layer.heads:
            kind = "" if self.trace.target is None else f" {layer.kind}"
            place = f"{titled('layer', layer.label)}{kind} {titled('head', layer.head_label(head))}"
            lines = [", ".join(filter(None, (place, strongest(self.labels, (layer.layer, layer.kind, head)))))]
            found = _heaviest(frame, head, self.rows_read_aloud(frame), self.view.top_keys or _FEW_KEYS)
            for row, keys, weights in found:
                numbers = [self._digits(weight) for weight in weights]
                # A number that is all zeros says nothing, but of the first key, which says that all are so small.
                listed = ", ".join(
                    f"{number} {names[key]}"
                    for place, (key, number) in enumerate(zip(keys, numbers, strict=True))
                    if place == 0 or number.strip("0.-")
                )
                query = _in_words(cells[0].get(frame.rows.indices[row])) or frame.rows.labels[row]
                lines.append(f"query {frame.rows.indices[row]} {query}: {listed or 'no key'}")
            yield Text("\n".join(lines))

    # --- one query ---

    def has_sentence(self, frame: MatrixFrame) -> bool:
        """Whether the last query that is shown is one to look at: of a causal model, or a chosen one."""
        return (frame.is_causal or bool(self.view.queries)) and len(frame.columns) > 1

    def _query(self, frames: Sequence[MatrixFrame]) -> _Query:
        """Return the last query in layers of one kind, heads first with most weight on a chosen or distant key."""
        frame = frames[0]
        query, places, tokens = frame.cells.rows[-1], frame.cells.columns, frame.cells.column_tokens
        is_one = frame.cells.row_tokens == tokens
        keys = places if self.view.keys else distant_keys(tokens, query if is_one else None)
        if self.trace.has_image_keys:  # which show their cells
            places = self._outside_pictures(places) or self._outside_pictures(range(frame.layer.num_keys))
        columns = frame.cells._replace(columns=places).of_columns
        marks = {place: QUERY for place, index in enumerate(places) if is_one and index == query}
        found = head_lines([one.layer for one in frames], query, keys, self.labels)
        heads = [one._replace(weights=one.weights[columns], allowed=one.allowed[columns]) for one in found]
        title = [
            Segment(f"{frame.rows.indices[-1]} {frame.rows.labels[-1]}", BOLD),
            Segment(f" {_relation(frame.layer)}", DIM),
        ]
        return _Query(title, [tokens[place] for place in places], marks, heads)

    def sentence(self, frames: Sequence[MatrixFrame], lines: int, every: int = 0) -> Block:
        """Return the tokens on the colours of the weights of the last query, for as many of `every` head as fit.

        Of a long sentence rather the heaviest tokens are shown for four heads than all of them for one.
        """
        if not self.palette.has_color:
            return self.heads_of_query(frames, lines, every)
        title, tokens, marks, heads = self._query(frames)
        # The colours of words mean something else than those of a picture above them.
        parts = [title, *[ramp_line(self.scale, self.palette, self.width, 1)] * self.trace.has_image_keys]
        left = max(lines - len(flowing(parts, self.room).lines), 1)
        whole = height(tokens, heads[0], self.room, marks)
        most = max(min(whole, left // min(len(heads), _FEW_HEADS)), 1)
        count = min(max(left // most, 1), len(heads))
        header = flowing([*parts, *[[Segment(f"{count} of {every} heads", DIM)]] * (count < every)], self.room)
        return stack([header, sentence(tokens, heads[:count], self.palette, self.scale, self.room, marks, most)])

    def heads_of_query(self, frames: Sequence[MatrixFrame], lines: int | None, every: int = 0) -> Block:
        """Return a line for each of as many heads as fit: its label, and the heaviest keys of the last query."""
        title, tokens, _, heads = self._query(frames)
        every, labels = every or len(heads), frames[0].columns.labels
        which = "a distant token" if not self.view.keys else "one key" if len(labels) > 1 else labels[0]
        above = flowing([title, *[[Segment(f"sorted by weight on {which}", DIM)]] * (every > 1)], self.room)
        if lines is not None and every > (left := lines - len(above.lines) - 1):
            heads = heads[: max(left - 1, 1)]
        columns = [Column("head", [head.name for head in heads], BOLD, "<")]
        columns += [Column("label", [head.label for head in heads], DIM, "<")] * any(head.label for head in heads)
        labels, rows = Axis.of_tokens(Tokens(tokens), range(len(tokens))).labels, []
        for head in heads:
            places = heaviest(head.weights[None], head.allowed[None], _FEW_KEYS)[0].tolist()
            rows.append((places, head.weights[places].tolist()))
        names = [f"{token.index} {label}" for token, label in zip(tokens, labels, strict=True)]
        columns = self._with_keys(columns, rows, names, self.room)
        return stack([above, ranking(columns, every - len(heads), self.room)])

    def _with_keys(
        self,
        columns: list[Column],
        rows: Sequence[tuple[Sequence[int], Sequence[float]]],
        names: Sequence[str],
        width: int | None,
    ) -> list[Column]:
        """Return columns, and behind them the keys of each row and their weights, as many as fit."""
        measure = self.frames[0].layer.measure.removesuffix("s")
        for rank in range(max((len(keys) for keys, _ in rows), default=0)):
            texts = [names[keys[rank]] if rank < len(keys) else "" for keys, _ in rows]
            weights = [own[rank] if rank < len(own) else None for _, own in rows]
            numbers = ["" if weight is None else self._digits(weight) for weight in weights]
            inks = [None if weight is None else self._ink(weight) for weight in weights]
            titles = ("then", "") if rank else ("heaviest key", measure)
            more = [Column(titles[0], texts, DIM if rank else None, "<"), Column(titles[1], numbers, inks)]
            if rank and width is not None and width_of([*columns, *more]) > width + 2:
                break
            columns = [*columns, *more]
        return columns

    def _digits(self, weight: float) -> str:
        return number_text(weight, 2 if self.view.precision is None else self.view.precision)

    def _ink(self, weight: float) -> Style | None:
        cells = self.palette.cells(np.array([[weight]]), np.ones((1, 1), bool), self.scale, 1)
        return cells[0][0][1] if self.palette.has_color else None

    def ranked(self, frame: MatrixFrame, most: int) -> Block:
        """Return the heaviest keys of the queries of heads."""
        queries, rows = list[str](), list[tuple[list[int], list[float]]]()
        names = {head: str(frame.layer.head_label(head)) for head in frame.layer.heads}
        for head, name in names.items():
            axis = frame.rows.marking(frame.blind_in(head))
            for place, keys, weights in _heaviest(frame, head, range(len(axis)), most):
                mark = f" {MARK}" if place in axis.marked else ""
                query = f"{axis.indices[place]:>{axis.digits}} {axis.labels[place]}{mark}"
                queries.append(f"{name:>{max(map(len, names.values()))}}  {query}")
                rows.append((keys, weights))
        called = [f"{at} {label}" for at, label in zip(frame.columns.indices, frame.columns.labels, strict=True)]
        sums = Column("sum", [self._digits(sum(weights)) if weights else "" for _, weights in rows], DIM)
        columns = self._with_keys([Column("head query", queries, align="<"), sums], rows, called, None)
        count = max((len(keys) for keys, _ in rows), default=0)
        title = f"{count} heaviest keys of each query" if count > 1 else "heaviest key of each query"
        return stack([block([[Segment(title, BOLD)]]), table(columns, self.width)])

    # --- pictures ---

    def _outside_pictures(self, places: Iterable[int], role: Literal["query", "key"] = "key") -> list[int]:
        cells = self.trace.layout(role).cells
        return [place for place in places if place not in cells]

    @cached_property
    def _of_pictures(self) -> list[MatrixFrame]:
        return [frame for frame in self.frames if frame.layer.kind in ("self", "cross")]

    @property
    def _picture_query(self) -> int:
        """The query that looks: the last one, or of a model that is not causal, unless some were chosen, the class."""
        first = self._of_pictures[0]
        rows, is_last = first.cells.rows, first.is_causal or self.view.chooses_rows(self.trace)
        return rows[-1] if is_last else [*self._outside_pictures(rows, "query"), rows[-1]][0]

    @cached_property
    def look(self) -> PictureView:
        """Pictures under the weights of one query in each head."""
        from attncli.render.picture import CHOSEN, OWN, HeadLook, PictureView

        query, layer, layout, looks = self._picture_query, self._of_pictures[0].layer, self.trace.layout("key"), []
        for frame in self._of_pictures:
            for head in frame.layer.heads:
                name, row = head_name(frame.layer, head), frame.layer.head(head, [query])
                name = name if len(self._of_pictures) > 1 else re.sub(r"^L\d+", "", name)
                looks.append(HeadLook(name, row.weights[0], row.drawn[0]))
        weights = [np.nan_to_num(one.weights[grid.positions]).max() for one in looks for grid in layout.grids]
        scale = Scale.up_to(float(max(weights)), self.view.ramp)
        keys = self.view.columns(self.trace) if self.view.keys else []
        marks = dict.fromkeys(keys, CHOSEN) | ({query: OWN} if layer.kind == "self" else {})
        cell = self.trace.layout("query").cells.get(query)
        names = (str(query), visible(self.trace.query_tokens[query].label), cell)
        title = " ".join(filter(None, dict.fromkeys(names))), _relation(layer)
        return PictureView(title, looks, layout, marks, self.palette, scale, layer.measure == "weights", keys)

    def text_of_pictures(self, lines: int) -> Block | None:
        """Return what the query of pictures attends to in the text around them; None without a text."""
        first = self._of_pictures[0]
        has_text = len(self._outside_pictures(range(first.layer.num_keys))) > 1
        is_last = self._picture_query == first.cells.rows[-1]
        every = sum(len(frame.layer.heads) for frame in self._of_pictures)
        return self.sentence(self._of_pictures, lines, every) if has_text and is_last else None

    # --- masks and numbers ---

    def mask(self, frame: MatrixFrame, pool: tuple[int, int]) -> Iterator[RenderableType]:
        """Yield the mask as `attn mask show` draws it, once for heads that are alike, and its numbers."""
        from attncli.render.masks import MaskPicture

        layer, cells = frame.layer, frame.cells
        heads = list(layer.heads)
        blocks = row_blocks(np.array(cells.rows), layer.num_keys * len(heads))
        allowed = np.concatenate([layer.mask.rows(heads, rows)[..., cells.of_columns] for rows in blocks], axis=1)
        names = [f"head {head}" for head in heads] if len(allowed) > 1 else [""]
        drawing = MaskPicture(allowed, frame.blind[: len(allowed)], names, frame.rows, frame.columns, layer.mask.past)
        name = "mask"
        if len(heads) == 1 < layer.num_heads:
            name += f" of head {heads[0]}"
        elif len(drawing.kinds) == 1 and len(heads) == layer.num_heads > 1:
            name += " of every head"
        facts = f" · {layer.num_queries} queries × {layer.num_keys} keys · {layer.mask}"
        title = block([[Segment(name, BOLD), Segment(shortened(facts, self.room - len(name)), DIM)]])
        yield stack([title, drawing.picture(pool, self.palette, self.room)])
        is_part = allowed.shape[1:] != (layer.num_queries, layer.num_keys)
        yield drawing.facts(self.room, "of the cells shown" if is_part else "")

    def digits(self, frame: MatrixFrame, head: int, wanted: frozenset[str]) -> Block | None:
        """Return the matrices of a head under its title; None where nothing of what is wanted is a matrix."""
        layer, scale = frame.layer, self.scale if self.palette.has_color else None
        axes = (frame.rows.marking(frame.blind_in(head)), frame.columns)
        matrices = list(_matrices(layer.head(head, frame.cells.rows), frame.cells.of_columns, wanted, axes, scale))
        if not matrices:
            return None
        facts = [f" of {layer.num_heads}" if layer.head_label(head) == head else ""]
        if layer.num_groups < layer.num_heads:
            facts[0] += f", reads kv head {layer.head(head).key_head} of {layer.num_groups}"
        facts += ["rows are queries, columns keys"] * bool(wanted & {"scores", "weights"})
        facts += filter(None, [mark_note(frame.blind_in(head))])
        title = wrap_block(titled("head", layer.head_label(head)), " · ".join(facts), self.width)
        return stack([title, self._drawn(matrices)])

    def _digit_heads(self, layer: LayerTrace) -> Sequence[int]:
        return layer.heads if self.view.show is not None or self.has_one_row else layer.heads[:1]

    def cells(self, frame: MatrixFrame, wanted: frozenset[str]) -> Iterator[RenderableType]:
        """Yield the matrices of the heads that are printed in digits, which are all or the first one."""
        layer, cells = frame.layer, frame.cells
        if "embeddings" in wanted and layer.inputs is not None:
            unmarked = replace(frame.rows, marked=frozenset())  # an embedding attends to nothing yet
            yield self._drawn([_vectors("embeddings", layer.inputs[cells.rows], unmarked)])
        for head in self._digit_heads(layer):
            if (digits := self.digits(frame, head, wanted)) is not None:
                yield digits
                if self._digit_heads(layer) != layer.heads:
                    yield Text(f"numbers of another head: --head {layer.heads[1]}", HINT)
        if "output" in wanted and (projected := layer.projected(cells.rows)) is not None:
            yield self._drawn([_vectors("projected: concatenated heads·W_o", projected, frame.rows)])

    def _drawn(self, matrices: Sequence[Matrix]) -> Block:
        return side_by_side(matrices, self.palette, self.width, self.view.precision)


def _in_words(cell: str | None) -> str:
    return re.sub(r"\br(\d+)c(\d+)", r"row \1 column \2", cell or "")


def _relation(layer: LayerTrace) -> str:
    return "attends to" if layer.measure == "weights" else f"has {layer.measure} from"


def layer_title(layer: LayerTrace) -> str:
    """Return a layer's name, and its kind of attention."""
    return f"{titled('layer', layer.label)} · {layer.kind}"


def _heaviest(frame: MatrixFrame, head: int, rows: range, most: int) -> Iterator[tuple[int, list[int], list[float]]]:
    chosen = [frame.cells.rows[row] for row in rows]
    found = frame.layer.head(head, chosen).top_keys(frame.cells.of_columns, most)
    for row, (keys, weights) in zip(rows, found, strict=True):
        yield row, keys.tolist(), weights.tolist()


def wrap_block(title: str, facts: str, width: int | None, style: Style | None = DIM) -> Block:
    """Return a title and facts behind it, in as many lines as that takes."""
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
        shown = head.drawn[:, keys]
        yield Matrix(head.layer.measure, head.weights[:, keys], rows, columns, shown, hide_masked=True, scale=scale)
    if "output" in wanted:
        yield _vectors("output: weights·V", head.output, rows)


def _vectors(title: str, values: np.ndarray[tuple[int, int], np.dtype[np.float32]], rows: Axis) -> Matrix:
    dimensions = range(values.shape[1])
    return Matrix(title, values, rows, Axis(tuple(map(str, dimensions)), tuple(dimensions)))
