"""Metrics and labels of heads, over the query rows that have a key to attend to and are no padding.

Most metrics are sums of weights, each times a factor that its cell has by the tokens alone. Factors are made once for
all heads of all layers that see the same cells, a block of query rows at a time, and one product gives these metrics.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attncli import attention
from attncli.analysis import NAMES, OF_ANY_TEXT, OF_PICTURES, Metric, names_for
from attncli.masks.expressions import Atom, RuleMask, leaves
from attncli.trace.layer import HeadTrace, LayerTrace, Stages, stages_of
from attncli.trace.trace import Trace
from attncli.trace.view import View

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    from attncli.analysis.picture_metrics import PictureCells


_LINEAR = NAMES[NAMES.index("distance") : NAMES.index("max_weight")]  # in the weights
_TINY = np.finfo(np.float32).tiny
_ROWS = 32  # of a block at least; with fewer, BLAS does little more than lay out the keys


class TraceMetrics(NamedTuple):
    """Metrics of the heads of one sentence, by layer."""

    heads: Float[np.ndarray, "N M"]  # of every head, in the order of `NAMES`; NaN is one that is not defined
    uniform: Float[np.ndarray, "N M"]  # of the head that gives every allowed key the same weight, in place of each
    rows: Float[np.ndarray, "N M"]  # over how many query rows each metric of a head is a mean; NaN where it is none


def trace_metrics(trace: Trace, view: View | None = None) -> TraceMetrics:
    """Return every metric of every head, over all query rows or those that a view shows.

    Raises:
        InputMismatchError: the view wants a query that does not exist, or leaves none.
    """
    owners = np.repeat(np.arange(len(trace.layers)), [len(layer.heads) for layer in trace.layers])  # layer of each head
    result = TraceMetrics(*np.empty((3, len(owners), len(NAMES)), np.float32))
    alike: dict[Hashable, list[int]] = {}  # layers that see the same cells: tokens and mask give one thing for them
    for number, layer in enumerate(trace.layers):
        alike.setdefault(_cells_key(layer, number), []).append(number)
    for numbers in alike.values():
        layers, places = [trace.layers[number] for number in numbers], np.isin(owners, numbers)
        rows = np.arange(layers[0].num_queries) if view is None else np.array(view.cells(trace, layers[0]).rows)
        result.heads[places], result.uniform[places], result.rows[places] = _of_layers(trace, layers, rows)
    return result


def _cells_key(layer: LayerTrace, number: int) -> Hashable:
    mask = layer.mask  # a rule of atoms is one for all heads, and can be compared with another
    if isinstance(mask, RuleMask) and all(isinstance(leaf, Atom) for leaf in leaves(mask.expression)):
        return layer.kind, layer.cells[1:], layer.missing, mask.expression, mask.past
    return number


def _of_layers(trace: Trace, layers: Sequence[LayerTrace], rows: Int[np.ndarray, " R"]) -> TraceMetrics:
    """Return the metrics of layers that see the same cells."""
    first = layers[0]
    # Where the heads have masks of their own, so have the uniform ones in their places.
    of_uniform = first.heads if len(first.mask.rows(list(first.heads), rows[:1])) > 1 else first.heads[:1]
    pictures = _picture_cells(trace, first)
    measured = MetricSums(sum(len(layer.heads) for layer in layers), rows, pictures)
    uniform = MetricSums(len(of_uniform), rows, pictures)
    together = min(len(first.heads), max(attention.CELLS // (_ROWS * first.num_keys), 1))
    for block_rows in attention.row_blocks(rows, first.num_keys * together):
        cells = _cell_factors(trace, first, block_rows, pictures)
        measured.add(cells, (block for layer in layers for block in stages_of(layer, layer.heads, block_rows)))
        blocks = stages_of(first, of_uniform, block_rows)
        uniform.add(cells, (UniformBaseline(first, block.heads, block_rows) for block in blocks))
    return TraceMetrics(measured.means(), uniform.means(measured), measured.rows())


def head_metrics(trace: Trace, layer: LayerTrace, head: HeadTrace) -> dict[str, float | None]:
    """Return every metric of one head; one that is not defined for this sentence is None, never 0.

    Where other keys follow those of the queries' own sequence, weights are those on the sequence, and `distance` is
    None. Metrics of pictures are there where the trace has grids.
    """
    pictures = _picture_cells(trace, layer)
    sums = MetricSums(1, np.array(head.queries, int), pictures)
    for block in head.blocks():
        sums.add(_cell_factors(trace, layer, block.queries, pictures), [block.stages])
    names = names_for(bool(trace.grids))
    return by_name(names, sums.means()[0][: len(names)])


def _picture_cells(trace: Trace, layer: LayerTrace) -> PictureCells | None:
    """Return the positions of a layer that are cells of pictures; None where none is."""
    if not trace.grids:
        return None
    from attncli.analysis.picture_metrics import PictureCells

    return PictureCells.of(trace, layer)


def by_name(names: Sequence[Metric], values: Float[np.ndarray, " M"]) -> dict[str, float | None]:
    """Return one number a metric as a dictionary; NaN becomes None."""
    digits = [str(value) for value in values.astype(np.float32)]  # the shortest ones: a float32 has no more to give
    return {name: None if text == "nan" else float(text) for name, text in zip(names, digits, strict=True)}


class UniformBaseline(Stages):
    """Heads that give every allowed key the same weight, and have no scores."""

    @cached_property
    def weights(self) -> Float[np.ndarray, "H Q K"]:
        """One over the number of allowed keys; NaN in a row that has none."""
        allowed = self.mask.astype(np.float32)
        with np.errstate(invalid="ignore"):
            return allowed / allowed.sum(axis=-1, keepdims=True)


def countable_rows(block: Stages) -> Bool[np.ndarray, "#H Q"]:
    """Return which query rows count if they hold numbers alone: those that have a key and are no padding."""
    layer, has_key = block.layer, np.bitwise_or.reduce(block.mask, axis=-1)
    if layer.kind == "cross" or layer.num_queries != layer.num_keys:
        return has_key
    return has_key & ~layer.mask.padding()[block.queries]


class CellFactors(NamedTuple):
    """Factors of the weights of some query rows, by the tokens alone."""

    factors: Float[np.ndarray, "F Q K"]  # of the weight of each cell, for each metric that is a sum of weights
    has: Bool[np.ndarray, "Q M"]  # the rows that have each metric but the last of any text, which is no mean over rows


def _cell_factors(
    trace: Trace, layer: LayerTrace, queries: Int[np.ndarray, " Q"], pictures: PictureCells | None
) -> CellFactors:
    factors = np.zeros((len(_LINEAR), len(queries), layer.num_keys), np.float32)
    has = np.ones((len(queries), len(OF_ANY_TEXT) - 1), bool)
    has[:, [NAMES.index(name) for name in _LINEAR]] = False
    for name, rows, by_key in _factors(trace, layer, queries, pictures):
        factors[_LINEAR.index(name), :, : by_key.shape[-1]] = by_key
        has[:, NAMES.index(name)] = rows
    return CellFactors(factors, has)


def _factors(
    trace: Trace, layer: LayerTrace, queries: Int[np.ndarray, " Q"], pictures: PictureCells | None
) -> Iterator[tuple[Metric, Bool[np.ndarray, "#Q"], Float[np.ndarray, "#Q T"] | Bool[np.ndarray, "#Q T"]]]:
    """Yield metric by metric the query rows that have it, and what it multiplies the weights of the first keys by."""
    query_tokens, key_tokens = trace.sides(layer)
    special = np.array([token.special for token in key_tokens])
    row, everywhere = queries[:, None], np.array([True])
    count = len(query_tokens)
    is_one_sequence = layer.kind != "cross" and key_tokens[:count] == tuple(query_tokens)
    has_sink = queries >= int(is_one_sequence)  # the weight of the first position on itself is no sink
    yield "sink", has_sink, has_sink[:, None]
    if special.any():
        yield "special", everywhere, special
    if special[1:].any():
        yield "separator", everywhere, special & (np.arange(len(special)) > 0)
    if not is_one_sequence:
        return
    offset = np.arange(count) - row
    if count == layer.num_keys:
        yield "distance", everywhere, np.abs(offset)
    yield "self", everywhere, offset == 0
    yield "previous", queries >= 1, offset == -1
    yield "next", queries < count - 1, offset == 1
    ids = np.array(query_tokens.ids)
    earlier = (ids[row] == ids) & (offset < 0)
    if pictures is not None:  # all their cells have one id, and none is a copy of another
        earlier &= ~(pictures.queries | pictures.queries[row])
    repeats = earlier.any(axis=-1)
    if repeats.any():
        yield "duplicate", repeats, earlier
        # An earlier position is never the last one, so every one has a position after it.
        yield "induction", repeats, np.pad(earlier[:, :-1], ((0, 0), (1, 0)))


class MetricSums:
    """Sums of the metrics of some heads over query rows, a block at a time."""

    def __init__(self, heads: int, rows: Int[np.ndarray, " R"], pictures: PictureCells | None = None) -> None:
        self._totals = np.zeros((heads, len(OF_ANY_TEXT) - 1))
        self._counts = np.zeros((heads, len(OF_ANY_TEXT) - 1), int)
        self._highest = np.full(heads, -np.inf)
        self._pictures = None
        if pictures is not None:
            from attncli.analysis.picture_metrics import PictureSums  # which a text alone need not wait for

            self._pictures = PictureSums(pictures, rows, heads)

    def add(self, cells: CellFactors, blocks: Iterable[Stages]) -> None:
        """Take in some rows of all heads, some heads at a time."""
        start = 0
        for block in blocks:
            heads = slice(start, start := start + len(block.heads))
            weights = block.weights
            logarithms = np.maximum(weights, _TINY)
            entropies = -np.vecdot(weights, np.log(logarithms, out=logarithms))
            largest, highest = weights.max(axis=-1), None
            if not isinstance(block, UniformBaseline) and "scores" not in block.layer.missing:
                highest = np.where(block.mask, block.scores, -np.inf).max(axis=-1)
            with np.errstate(invalid="ignore"):  # of weights that are no numbers
                linear = weights.transpose(1, 0, 2) @ cells.factors.transpose(1, 2, 0)  # [Q, H, M]
            values = np.empty((*linear.shape[:2], len(OF_ANY_TEXT) - 1), linear.dtype)
            values[..., 0], values[..., 1] = entropies.T, np.exp(entropies).T
            values[..., 2:-1], values[..., -1] = linear, largest.T
            counted = countable_rows(block)
            if (odd := np.isnan(entropies)).any():
                counted = counted & ~odd
            if not counted.all():
                values = np.where(counted.T[..., None], values, 0)
                highest = None if highest is None else np.where(counted, highest, -np.inf)
            if self._pictures is not None:
                self._pictures.add(heads, block.queries, weights, block.mask & counted[..., None])
            self._totals[heads] += values.sum(axis=0, dtype=float)
            self._counts[heads] += counted.astype(int) @ cells.has
            if highest is not None:
                self._highest[heads] = np.maximum(self._highest[heads], highest.max(axis=-1, initial=-np.inf))

    def rows(self) -> Float[np.ndarray, "N M"]:
        """Return the number of rows that each metric is a mean over; NaN where it is no mean."""
        counts = np.full((len(self._counts), len(NAMES)), np.nan, np.float32)
        counts[:, : self._counts.shape[1]] = self._counts
        return counts

    def means(self, regions_of: MetricSums | None = None) -> Float[np.ndarray, "N M"]:
        """Return every metric, with the `region` of other heads if given; NaN is one that is not defined."""
        with np.errstate(invalid="ignore"):  # 0/0 is the NaN of what is not defined
            means = self._totals / self._counts
        highest = np.where(np.isneginf(self._highest), np.nan, self._highest)
        of_text = np.column_stack([means, highest])
        of_pictures = np.full((len(means), len(OF_PICTURES)), np.nan)
        if self._pictures is not None:
            of_pictures = self._pictures.metrics(None if regions_of is None else regions_of._pictures)
            of_text = np.broadcast_to(of_text, (len(of_pictures), of_text.shape[1]))
        return np.column_stack([of_text, of_pictures]).astype(np.float32)


# --- labels: the metrics in which a head is far from one that weighs every allowed key alike ---------------
# A label has a gain: how much of the way from that uniform head to the best that there could be a head has gone. For a
# share of weight it is Cohen's κ, (observed − expected) / (1 − expected), where the uniform head is what chance gives
# (Cohen 1960, "A coefficient of agreement for nominal scales").

# The gain from which a head has a label: the threshold of the detectors of ARENA's chapter on induction heads.
LEAST = 0.4
LEAST_OF_PLACE = 0.6  # of `localization`: on small grids chance alone puts half of the weight into one place
# Query rows times the keys that uniform attention gives each; on no more than these a label may be chance. Of heads
# with random scores one in ten is a `sink` on 3 tokens under a causal mask, and fewer than one in a hundred on 5.
CHANCE_CELLS = 10
MIXED = "mixed"  # in place of a label

HeadKey = tuple[int, str, int]  # its layer, the kind of attention, and its index


class Label(NamedTuple):
    """One thing that a head does."""

    name: str  # one of `LABELS`
    score: float  # the head's metric: a weight; of `local` a distance in positions, of `broad` a number of keys
    baseline: float  # the same of the uniform head under the same mask
    gain: float  # from 0, which is the uniform head (of `broad` a head that attends to one key), to 1


# Labels that go by a weight, and their metrics.
WEIGHTS: dict[str, Metric] = {
    name: name for name in ("previous", "next", "self", "sink", "duplicate", "induction", "separator")
} | {"localization": "region", "visual sink": "visual_sink"}

LABELS = {
    "previous": "the token before",
    "next": "the token after",
    "self": "itself",
    "sink": "the first token",
    "duplicate": "earlier copies of the same token",
    "induction": "the token after an earlier copy",
    "separator": "special tokens but the first",
    "localization": "one place in a picture",
    "visual sink": "the same cell of a picture in every row",
    "local": "tokens close by",
    "broad": "most tokens, about equally",
}
"""The keys that a head with each label attends to."""

SAY_LITTLE = {"self", "sink", "separator", "visual sink", "broad"}  # of heads that attend so in every sentence
_MOST_CELLS = 2**26
_NEIGHBOURS = {"previous", "next", "self"}
_HABIT = 0.75  # of the gain of `localization`, from which `visual sink` explains it


def labels_of(
    metrics: Mapping[str, float | None], baselines: Mapping[str, float | None], rows: Mapping[str, float | None]
) -> tuple[Label, ...]:
    """Return the labels of a head by its metrics and those of the uniform head, the highest gain first.

    `local` is given without a neighbour, `broad` without any, and `localization` where the head does not always attend
    there. On `CHANCE_CELLS` rows × keys or fewer there is no label.
    """

    def label(name: str, metric: Metric, best: float | None) -> list[Label]:
        """Return the label if the head has it; the best of `broad` is the baseline, and one key the least."""
        score, baseline = metrics.get(metric), baselines.get(metric)
        if score is None or baseline is None:
            return []
        start, end = (1.0, baseline) if best is None else (baseline, best)
        gain = round((score - start) / (end - start), 7) if start != end else 0.0  # the digits of a float32
        least = LEAST_OF_PLACE if name == "localization" else LEAST
        # Uniform attention gives each of n keys 1/n, so that its weight tells n.
        keys = baseline and 1 / baseline if name in WEIGHTS else baselines.get("effective_keys")
        count = rows.get(metric)
        is_chance = keys and count and round(count * keys) <= CHANCE_CELLS
        return [Label(name, score, baseline, gain)] if gain >= least and not is_chance else []

    labels = [item for name, metric in WEIGHTS.items() for item in label(name, metric, 1.0)]
    names = {item.name for item in labels}
    if not _NEIGHBOURS & names:
        labels += label("local", "distance", 0.0)
    sink = max((item.gain for item in labels if item.name == "visual sink"), default=0.0)
    labels = [item for item in labels if item.name != "localization" or sink < _HABIT * item.gain]
    return tuple(sorted(labels or label("broad", "effective_keys", None), key=lambda each_label: -each_label.gain))


def labels_of_heads(trace: Trace) -> dict[HeadKey, tuple[Label, ...]]:
    """Return the labels of the heads of a sentence; derived weights have none, nor have texts of many cells."""
    cells = sum(len(layer.heads) * layer.num_queries * layer.num_keys for layer in trace.layers)
    if cells > _MOST_CELLS or any(layer.derived is not None for layer in trace.layers):
        return {}
    heads = [(layer.layer, layer.kind, head) for layer in trace.layers for head in layer.heads]
    with np.errstate(invalid="ignore"):  # of weights that are infinite or NaN
        metrics = trace_metrics(trace)
    return {
        head: labels_of(*(by_name(NAMES, values) for values in of_head))
        for head, *of_head in zip(heads, *metrics, strict=True)
    }


def strongest(labels: Mapping[HeadKey, Sequence[Label]], head: HeadKey) -> str:
    """Return the first label of a head, or `mixed`; empty where labels are unknown."""
    return next((label.name for label in labels[head]), MIXED) if head in labels else ""


def most_telling(heads: Sequence[HeadKey], labels: Mapping[HeadKey, Sequence[Label]], count: int) -> set[HeadKey]:
    """Return this number of heads: the strongest of each label, then others, and last those of `SAY_LITTLE`."""
    names = {head: next((label.name for label in labels.get(head, ())), "") for head in heads}
    by_gain = sorted(heads, key=lambda head: -max((label.gain for label in labels.get(head, ())), default=0))
    firsts = {name: head for head in reversed(by_gain) if (name := names[head])}

    def rank(head: HeadKey) -> tuple[int, int]:
        says_little = names[head] in SAY_LITTLE
        if head in firsts.values():
            return 0, says_little
        return 1, 2 if says_little else int(not names[head])

    return {*sorted(by_gain, key=rank)[:count]}
