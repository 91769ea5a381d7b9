"""`attncli.heads`: the metrics of every head, over one sentence or as many as there are."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Unpack

import numpy as np

from attncli.analysis.induction import detections
from attncli.analysis.labels import LABELS, Label, labels_of
from attncli.analysis.metric_names import DETECTORS, NAMES, Metric
from attncli.analysis.metrics import by_name, layer_metrics, uniform_metrics
from attncli.errors import InputError, UsageError
from attncli.masks.expressions import RuleMask
from attncli.sources import open_source
from attncli.sources.keywords import Choice, SourceKeywords, spelling_out
from attncli.text import counted, did_you_mean, several, span, visible
from attncli.trace.display import Displayed, Tabular
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
        labels: what it does, in words, the strongest first; none is nothing in particular.
    """

    layer: int
    kind: str
    head: int
    metrics: Mapping[str, float | None]
    std: Mapping[str, float | None]
    counts: Mapping[str, int]
    labels: tuple[Label, ...] = ()

    def __repr__(self) -> str:
        known = [f"{name} {value:.3g}" for name, value in self.metrics.items() if value is not None]
        said = ", ".join([*(label.name for label in self.labels), *known])
        return f"HeadSummary(layer {self.layer}, {self.kind}, head {self.head}: {said})"


@dataclass(frozen=True)
class Survey(Displayed, Tabular):
    """What the heads of a source do; a notebook shows it as `attn heads` does.

    Attributes:
        source: what was run.
        sentences: how many sentences there were.
        tokens: the fewest and the most query tokens of one.
        masks: the masks of the layers, each once.
        measured: how many heads were measured.
        heads: one entry a head, by layer, or as they were ranked.
        names: the metrics that tables and files have, in order; a head has all of them.
    """

    source: Provenance
    sentences: int
    tokens: tuple[int, int]
    masks: tuple[str, ...]
    measured: int
    heads: tuple[HeadSummary, ...]
    names: tuple[Metric, ...] = NAMES

    @property
    def is_test(self) -> bool:
        """Whether the sentences are repeated random tokens."""
        return DETECTORS[0] in self.heads[0].metrics

    def __repr__(self) -> str:
        run = f"{counted(self.sentences, 'sentence')} of {span(*self.tokens)} tokens"
        return f"Survey({self.source.title}, {counted(len(self.heads), 'head')}, {run})"

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
        self._check(metric)
        sign = 1 if reverse else -1

        def place(head: HeadSummary) -> tuple[bool, float]:
            value = head.metrics[metric]
            return value is None, sign * (value or 0.0)

        return replace(self, heads=tuple(sorted(self.heads, key=place)[:top]))

    def by_label(self, top: int | None = None) -> Survey:
        """Return the survey with the heads of one label beside each other, the strongest first; mixed ones stand last.

        Args:
            top: how many heads of each label to keep; None is all of them.
        """
        groups: dict[str | None, list[HeadSummary]] = {name: [] for name in (*LABELS, None)}
        for head in self.heads:
            groups[head.labels[0].name if head.labels else None].append(head)
        for group in groups.values():
            group.sort(key=lambda head: -head.labels[0].gain if head.labels else 0.0)
        return replace(self, heads=tuple(head for group in groups.values() for head in group[:top]))

    def only(self, names: Sequence[Metric]) -> Survey:
        """Return the survey with these columns alone.

        Raises:
            UsageError: there is no such metric.
        """
        for name in names:
            self._check(name)
        return replace(self, names=tuple(dict.fromkeys(names)))

    def _check(self, metric: str) -> None:
        known = [name for name in (*NAMES, *DETECTORS) if all(name in head.metrics for head in self.heads)]
        if metric in DETECTORS and metric not in known:
            raise UsageError(f"{metric} is measured on repeated random tokens; give --induction")
        if metric not in known:
            near = did_you_mean(metric, known)
            raise UsageError(f"there is no metric '{visible(metric)}'; expected one of {', '.join(known)}{near}")


class _Running:
    """Running mean and standard deviation of many numbers at once (Welford 1962), skipping NaN."""

    def __init__(self, names: Sequence[Metric], heads: int) -> None:
        shape = heads, len(names)
        self._names = names
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
        of_names = by_name(self._names, mean), by_name(self._names, std)
        return *of_names, dict(zip(self._names, count.tolist(), strict=True))


def survey(traces: Iterable[Trace], view: View, *, detects: bool = False) -> Survey:
    """Return the metrics of every head over traces of one source, none of which is kept; the view's rows count.

    Args:
        traces: one a sentence.
        view: says which rows count.
        detects: whether the scores of TransformerLens's detectors are measured too.

    Raises:
        UsageError: a query does not exist, a trace is derived, or the traces have not the same heads.
        InputError: there is no trace.
    """
    names = (*NAMES, *DETECTORS) if detects else NAMES
    running: dict[HeadKey, tuple[_Running, _Running]] = {}  # of the heads, and of the uniform head in their place
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
        uniform: dict[Hashable, Float[np.ndarray, "#H M"]] = {}
        for layer in trace.layers:
            masks[str(layer.mask)] = None
            rows = np.array(_rows(view, trace, layer, sentences))
            values = layer_metrics(trace, layer, rows)
            alike = _what_is_uniform(layer)
            if alike not in uniform:
                uniform[alike] = uniform_metrics(trace, layer, rows)
            both = running.setdefault(_place(layer), (_Running(names, len(values)), _Running(NAMES, len(values))))
            both[0].add(np.hstack([values, detections(trace, layer)]) if detects else values)
            both[1].add(np.broadcast_to(uniform[alike], values.shape))
    if source is None:
        raise InputError("there is no sentence to survey the heads of")
    summaries = []
    for (index, kind, heads), (measured, baseline) in running.items():
        for row, head in enumerate(heads):
            means, std, counts = measured.summary(row)
            labels = labels_of(means, baseline.summary(row)[0])
            summaries.append(HeadSummary(index, kind, head, means, std, counts, labels))
    return Survey(source, sentences, (lengths[0], lengths[1]), tuple(masks), len(summaries), tuple(summaries), names)


def _what_is_uniform(layer: LayerTrace) -> Hashable:
    """Return what the metrics of the uniform head depend on, in one sentence: layers that have it alike share them."""
    if isinstance(layer.mask, RuleMask) and not layer.has_own_positions:
        return layer.kind, str(layer.mask), layer.mask.past, layer.heads
    return layer.layer, layer.kind


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


@spelling_out(SourceKeywords, open_source)
def heads(
    texts: str | Iterable[str] | Trace = "",
    *,
    pair: str | None = None,
    target: str | None = None,
    queries: str | int | Iterable[str | int] = (),
    layers: Choice = "all",
    induction: bool = False,
    **options: Unpack[SourceKeywords],
) -> Survey:
    """Return the metrics of every head over one sentence, over many, or of a trace that is there already.

        survey = attncli.heads(["time flies like an arrow", "fruit flies like a banana"], model="gpt2")
        survey.ranked("induction", top=10).heads[0].metrics["induction"]
        survey.by_label().heads[0].labels       # what a head does, in words

    Sentences are read one after the other and forgotten; only their sums are kept.

    Args:
        texts: a sentence, several, or a trace; none beside a target that stands alone, see `attncli.inspect`.
        pair: a second text in the same sequence as each sentence.
        target: the text whose queries attend to each sentence's keys.
        queries: the query rows that count, a token, its index, or several; none are all rows.
        layers: which layers.
        induction: run on repeated random tokens of the model's own vocabulary, in place of texts.
        options: what `attncli.inspect` takes besides.

    Raises:
        UsageError: an option does not exist or does not apply, or a query does not exist.
        LoadError: the checkpoint cannot be loaded.
        InputError: a sentence cannot be read, or there is none.
    """
    from attncli.errors import refusing
    from attncli.sources.reading import given_by
    from attncli.sources.repeated import repeated
    from attncli.sources.stream import traced

    view = View(queries=tuple(several(queries)))
    if induction:
        for name, is_given in (("a text", texts != ""), ("pair", pair is not None), ("target", target is not None)):
            if is_given:
                raise UsageError(f"{name} does not apply to induction, which draws its tokens; drop one of them")
        texts = repeated(options.get("model"))
    if isinstance(texts, Trace):
        given = {"pair": pair, "target": target, "layers": None if layers == "all" else layers, **options}
        if unused := [name for name, value in given.items() if value is not None]:
            raise UsageError(f"{unused[0]} does not apply to a trace, whose attention is already computed")
        return survey([texts], view)
    source = open_source(layers=layers, given=given_by(texts, target), values=False, **options)
    numbered = enumerate(several(texts), start=1)
    is_alone = isinstance(texts, str)
    return survey(
        (trace for _, trace in refusing(traced(source, numbered, pair, target), is_alone)), view, detects=induction
    )
