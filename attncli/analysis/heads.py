"""`attncli.heads`: the metrics of every head, over one sentence or as many as there are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.analysis.metric_names import NAMES, Metric
from attncli.analysis.metrics import by_name, layer_metrics
from attncli.errors import InputError, UsageError
from attncli.text import several
from attncli.trace.layer import LayerTrace
from attncli.trace.trace import Provenance, Trace
from attncli.trace.view import View

if TYPE_CHECKING:
    from jaxtyping import Float

    HeadKey = tuple[int, str, tuple[int, ...]]  # a layer, its kind, its heads


@dataclass(frozen=True)
class HeadSummary:
    """What one head does.

    Attributes:
        layer: index of its layer.
        kind: of the layer's attention.
        head: its index.
        metrics: each metric, its mean over the sentences in which it is defined; None is one that never is.
        std: the sample standard deviation (n − 1) over these sentences; None for fewer than two.
        counts: in how many sentences each metric is defined.
    """

    layer: int
    kind: str
    head: int
    metrics: Mapping[str, float | None]
    std: Mapping[str, float | None]
    counts: Mapping[str, int]


@dataclass(frozen=True)
class Survey:
    """What the heads of a source do.

    Attributes:
        source: what was run.
        sentences: how many sentences there were.
        tokens: the fewest and the most query tokens of one.
        masks: the masks of the layers, each once.
        measured: how many heads were measured.
        heads: one entry a head, by layer, or as they were ranked.
    """

    source: Provenance
    sentences: int
    tokens: tuple[int, int]
    masks: tuple[str, ...]
    measured: int
    heads: tuple[HeadSummary, ...]

    def ranked(self, metric: Metric, *, reverse: bool = False, top: int | None = None) -> Survey:
        """Return the survey with the heads of the highest value first.

        A head of which the metric is not defined stands last either way; equal ones stay in order.

        Args:
            metric: one of `attncli.analysis.metric_names.NAMES`.
            reverse: the lowest first.
            top: how many heads to keep; None is all of them.

        Raises:
            UsageError: there is no such metric.
        """
        if metric not in NAMES:
            raise UsageError(f"there is no metric {metric!r}; expected one of {', '.join(NAMES)}")
        sign = 1 if reverse else -1

        def place(head: HeadSummary) -> tuple[bool, float]:
            value = head.metrics[metric]
            return value is None, sign * (value or 0.0)

        return replace(self, heads=tuple(sorted(self.heads, key=place)[:top]))


class _Running:
    """Running mean and standard deviation of many numbers at once (Welford 1962), skipping NaN."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.count = np.zeros(shape, int)
        self.mean = np.zeros(shape)
        self._squares = np.zeros(shape)  # sum of squared distances from the mean

    def add(self, values: Float[np.ndarray, "H M"]) -> None:
        """Take in the numbers of one sentence; NaN is one that is not defined."""
        # From an infinite mean there is no way back, and no distance.
        moves = ~np.isnan(values) & np.isfinite(self.mean)
        self.count += ~np.isnan(values)
        with np.errstate(invalid="ignore"):
            before = np.where(moves, values - self.mean, 0)
            self.mean += before / np.maximum(self.count, 1)
            self._squares += before * np.where(moves, values - self.mean, 0)

    def summary(self, head: int) -> tuple[dict[str, float | None], dict[str, float | None], dict[str, int]]:
        """Return the means, the standard deviations and the counts of one head, by metric."""
        count = self.count[head]
        mean = np.where(count > 0, self.mean[head], np.nan)
        std = np.where(count > 1, np.sqrt(self._squares[head] / np.maximum(count - 1, 1)), np.nan)
        return by_name(mean), by_name(std), dict(zip(NAMES, count.tolist(), strict=True))


def survey(traces: Iterable[Trace], view: View) -> Survey:
    """Return the metrics of every head over traces of one source, none of which is kept; the view's rows count.

    Raises:
        UsageError: a query does not exist, a trace is derived, or the traces have not the same heads.
        InputError: there is no trace.
    """
    running: dict[HeadKey, _Running] = {}
    masks: dict[str, None] = {}
    lengths: list[int] = []
    sentences = 0
    source = None
    for trace in traces:
        trace.check_recorded("heads")
        sentences, source = sentences + 1, _shared(source or trace.source, trace.source)
        if running and [_place(layer) for layer in trace.layers] != list(running):
            raise UsageError("the traces have not the same layers and heads; survey each by itself")
        lengths = [min([*lengths, len(trace.query_tokens)]), max([*lengths, len(trace.query_tokens)])]
        for layer in trace.layers:
            masks[str(layer.mask)] = None
            values = layer_metrics(trace, layer, np.array(_rows(view, trace, layer, sentences)))
            running.setdefault(_place(layer), _Running(values.shape)).add(values)
    if source is None:
        raise InputError("there is no sentence to survey the heads of")
    summaries = [
        HeadSummary(layer, kind, head, *numbers.summary(index))
        for (layer, kind, heads), numbers in running.items()
        for index, head in enumerate(heads)
    ]
    return Survey(source, sentences, (lengths[0], lengths[1]), tuple(masks), len(summaries), tuple(summaries))


def _rows(view: View, trace: Trace, layer: LayerTrace, sentence: int) -> list[int]:
    try:
        return view.cells(trace, layer).rows
    except UsageError as error:
        raise UsageError(str(error) if sentence == 1 else f"sentence {sentence}: {error}") from None


def _shared(source: Provenance, other: Provenance) -> Provenance:
    """Return the source with the details that both share: each sentence has a toy vocabulary of its own."""
    details = {name: value for name, value in source.details.items() if other.details.get(name) == value}
    return source if len(details) == len(source.details) else replace(source, details=details)


def _place(layer: LayerTrace) -> HeadKey:
    return layer.layer, layer.kind, layer.heads


def heads(
    texts: str | Iterable[str] | Trace = "",
    *,
    pair: str | None = None,
    target: str | None = None,
    queries: str | int | Iterable[str | int] = (),
    layers: str | int | Iterable[int] | None = "all",
    **options: Any,
) -> Survey:
    """Return the metrics of every head over one sentence, over many, or of a trace that is there already.

        survey = attncli.heads(["time flies like an arrow", "fruit flies like a banana"], model="gpt2")
        survey.ranked("induction", top=10).heads[0].metrics["induction"]

    Sentences are read one after the other and forgotten; only their sums are kept.

    Args:
        texts: a sentence, several, or a trace; none beside a target that stands alone, see `attncli.inspect`.
        pair: a second text in the same sequence as each sentence.
        target: the text whose queries attend to each sentence's keys.
        queries: the query rows that count, a token, its index, or several; none are all rows.
        layers: which layers.
        options: what `attncli.inspect` takes besides.

    Raises:
        UsageError: an option does not exist or does not apply, or a query does not exist.
        LoadError: the checkpoint cannot be loaded.
        InputError: a sentence cannot be read, or there is none.
    """
    from attncli.errors import refusing
    from attncli.sources import open_source
    from attncli.sources.reading import given_by
    from attncli.sources.stream import traced

    view = View(queries=tuple(several(queries)))
    if isinstance(texts, Trace):
        given = {"pair": pair, "target": target, "layers": None if layers == "all" else layers, **options}
        if unused := [name for name, value in given.items() if value is not None]:
            raise UsageError(f"{unused[0]} does not apply to a trace, whose attention is already computed")
        return survey([texts], view)
    source = open_source(layers=layers, given=given_by(texts, target), values=False, **options)
    numbered = enumerate(several(texts), start=1)
    is_alone = isinstance(texts, str)
    return survey((trace for _, trace in refusing(traced(source, numbered, pair, target), is_alone)), view)
