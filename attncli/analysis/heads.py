"""`attncli.heads`: the metrics of every head, over one sentence or as many as there are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from attncli.analysis import NAMES, OF_ANY_TEXT, OF_PICTURES, Metric, names_for
from attncli.analysis.metrics import LABELS, MIXED, Label, by_name, labels_of, trace_metrics
from attncli.analysis.pairs import (
    PairedText,
    PairReport,
    PairScores,
    PairSource,
    PairStats,
    paired_items,
    read_pairs,
    source_options,
)
from attncli.analysis.summary import OF_TRACES, RunningMoments, RunStats, RunSummary, SentenceFacts, refuse_beside
from attncli.checkpoints.options import Choice, with_explicit_signature
from attncli.encoding.induction_probe import repeated_sequences
from attncli.encoding.pictures import pictures_alone
from attncli.engines import open_source
from attncli.engines.source import CorpusItem, trace_stream
from attncli.errors import Failure, InputMismatchError, UsageError, raise_on_failure
from attncli.text import as_list, did_you_mean, plural, span, visible
from attncli.trace.display import Displayed, Tabular
from attncli.trace.trace import Trace
from attncli.trace.view import View

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class HeadSummary:
    """Metrics and labels of one head."""

    layer: int  # index of its layer
    kind: str  # of the layer's attention
    head: int  # its index
    metrics: Mapping[str, float | None]  # means over the sentences in which each is defined; None is in none
    std: Mapping[str, float | None]  # sample standard deviations (n − 1) over these; None for fewer than two
    counts: Mapping[str, int]  # number of sentences in which each metric is defined
    labels: tuple[Label, ...] = ()  # the strongest first, of an induction test that one

    @property
    def label(self) -> str:
        """The name of its strongest label, or `mixed`."""
        return self.labels[0].name if self.labels else MIXED

    def __repr__(self) -> str:
        metrics = [f"{name} {value:.3g}" for name, value in self.metrics.items() if value is not None]
        facts = ", ".join([*(label.name for label in self.labels), *metrics])
        return f"HeadSummary(layer {self.layer}, {self.kind}, head {self.head}: {facts})"


@dataclass(frozen=True)
class HeadReport(RunSummary, Displayed, Tabular):
    """Metrics and labels of the heads of a source; a notebook shows it as `attn heads` does."""

    measured: int  # how many heads were measured
    heads: tuple[HeadSummary, ...]  # by layer, or as they were ranked
    names: tuple[Metric, ...] = OF_ANY_TEXT  # columns of tables and files, in order
    is_test: bool = False  # whether the sentences are repeated random tokens
    unsure: int = 0  # number of heads without a label since their query rows are too few to rule out chance

    def __repr__(self) -> str:
        run = f"{plural(self.sentences, 'sentence')} of {span(*self.tokens)} tokens"
        return f"HeadReport({self.source.title}, {plural(len(self.heads), 'head')}, {run})"

    def ranked(self, metric: Metric, *, reverse: bool = False, top: int | None = None) -> HeadReport:
        """Return the survey with the heads of the highest, or lowest, value first, and at most `top` of them.

        A head without the metric comes last either way; equal ones stay in order.

        Raises:
            UsageError: there is no such metric.
        """
        self._check(metric)
        sign = 1 if reverse else -1
        ranked = sorted(self.heads, key=lambda h: (h.metrics[metric] is None, sign * (h.metrics[metric] or 0.0)))
        return replace(self, heads=tuple(ranked[:top]))

    def by_label(self, top: int | None = None) -> HeadReport:
        """Return the survey with the heads grouped by label, the strongest first, mixed ones last; `top` of each."""
        groups: dict[str | None, list[HeadSummary]] = {name: [] for name in (*LABELS, None)}
        for head in sorted(self.heads, key=lambda head: -head.labels[0].gain if head.labels else 0.0):
            groups[head.labels[0].name if head.labels else None].append(head)
        return replace(self, heads=tuple(head for group in groups.values() for head in group[:top]))

    def only(self, names: Sequence[Metric]) -> HeadReport:
        """Return the survey with these columns alone. Raises UsageError: there is no such metric."""
        for name in names:
            self._check(name)
        return replace(self, names=tuple(dict.fromkeys(names)))

    def _check(self, metric: str) -> None:
        if metric not in NAMES:
            near = did_you_mean(metric, NAMES)
            raise UsageError(f"there is no metric '{visible(metric)}'; expected one of {', '.join(NAMES)}{near}")
        if self.heads and metric not in self.heads[0].metrics:
            why = "needs a picture, and no key is a cell of one"
            raise UsageError(f"the metric {metric} {why}; give --image or --grid")


@dataclass(frozen=True)
class SentenceMetrics(SentenceFacts):
    """Metrics of the heads in one sentence."""

    heads: Float[np.ndarray, "H M"]  # the metrics of the heads, in the order of `NAMES`
    uniform: Float[np.ndarray, "H M"]  # those of the uniform head in the place of each
    rows: Float[np.ndarray, "H M"]  # over how many query rows each is a mean

    @classmethod
    def of(cls, trace: Trace, view: View) -> SentenceMetrics:
        """Measure the heads of all layers over the rows that a view shows.

        Raises:
            UsageError: a query does not exist, or the trace is derived.
        """
        trace.check_recorded("heads")
        return cls(**vars(SentenceFacts.of_trace(trace)), **trace_metrics(trace, view)._asdict())


class HeadStats(RunStats):
    """Means and deviations of the metrics of heads over sentences of one source; no sentence is kept."""

    def __init__(self, is_test: bool = False) -> None:
        super().__init__()
        self._is_test = is_test
        self._measured, self._uniform = RunningMoments(), RunningMoments()
        self._rows: Float[np.ndarray, "H M"] | float = 0.0

    def add(self, sentence: SentenceFacts) -> None:
        """See `RunStats.add`."""
        assert isinstance(sentence, SentenceMetrics)
        super().add(sentence)
        self._measured.add(sentence.heads)
        self._uniform.add(sentence.uniform)
        self._rows = self._rows + sentence.rows

    def report(self) -> HeadReport:
        """Return the report. Raises InputError: there is no sentence."""
        summary, measured = vars(self.summary), self._measured
        names = names_for(bool(measured.count[:, -len(OF_PICTURES) :].any()))
        heads, unsure = [], 0
        arrays = measured.mean, measured.std, self._uniform.mean, np.asarray(self._rows)
        for (layer, kind, head), count, *of_head in zip(self.places, measured.count, *arrays, strict=True):
            metrics, std, baseline, rows = (by_name(names, values[: len(names)]) for values in of_head)
            labels = labels_of(metrics, baseline, rows)
            unsure += not labels and bool(labels_of(metrics, baseline, {}))
            if self._is_test:  # which asks for this label, also of heads that are a sink elsewhere
                labels = tuple(sorted(labels, key=lambda label: label.name != "induction"))
            counts = dict(zip(names, count.tolist(), strict=False))
            heads.append(HeadSummary(layer, kind, head, metrics, std, counts, labels))
        return HeadReport(
            **summary, measured=len(heads), heads=tuple(heads), names=names, is_test=self._is_test, unsure=unsure
        )


def survey(traces: Iterable[Trace], view: View, *, is_test: bool = False) -> HeadReport:
    """Return the metrics of every head over traces of one source; no trace is kept.

    Raises:
        UsageError: a query does not exist, a trace is derived, or the traces have not the same heads.
        InputError: there is no trace.
    """
    stats = HeadStats(is_test)
    for trace in traces:
        stats.add(SentenceMetrics.of(trace, view))
    return stats.report()


@overload
def heads(
    texts: str | Iterable[str] | Trace = ...,
    model: str | None = ...,
    *,
    pair: str | None = ...,
    target: str | None = ...,
    queries: str | int | Iterable[str | int] = ...,
    layer: Choice = ...,
    induction: bool = ...,
    pairs: None = ...,
    **options: Any,
) -> HeadReport: ...


@overload
def heads(*, model: str | None = ..., layer: Choice = ..., pairs: PairSource, **options: Any) -> PairReport: ...


@with_explicit_signature(open_source)
def heads(
    texts: str | Iterable[str] | Trace = "",
    model: str | None = None,
    *,
    pair: str | None = None,
    target: str | None = None,
    queries: str | int | Iterable[str | int] = (),
    layer: Choice = "all",
    induction: bool = False,
    pairs: PairSource | None = None,
    **options: Any,
) -> HeadReport | PairReport:
    """Return the metrics of every head over one sentence, over many, or of a trace that is there already.

        survey = attncli.heads(["time flies like an arrow", "fruit flies like a banana"], model="gpt2")
        survey.ranked("induction", top=10).heads[0].metrics["induction"]
        survey.by_label().heads[0].labels       # what a head does, in words
        attncli.heads(model="demo", pairs="coreference.jsonl").heads[0].hits    # of the best head

    Sentences are read one after the other and forgotten; only their sums are kept.

    Args:
        texts: a sentence, several, or a trace.
        model: a checkpoint's folder or hub name, or `demo`; None is the toy layer.
        pair: a second text in the same sequence as each sentence.
        target: the text whose queries attend to each sentence's keys.
        queries: the query rows that count, a token, its index, or several; none are all rows.
        layer: which layers.
        induction: run on repeated random tokens of the model's own vocabulary, in place of texts.
        pairs: a file of texts with queries and their right keys, or its lines; how often each head finds these.
        options: what `attncli.inspect` takes besides.

    Raises:
        UsageError: an option does not exist or does not apply, or a query does not exist.
        LoadError: the checkpoint cannot be loaded.
        InputError: a sentence cannot be read, or there is none.
    """
    view, more = View(queries=tuple(as_list(queries))), dict[str, Any](options)
    given = {"a text": texts or None, "pair": pair, "target": target, "queries": view.queries or None}
    if induction:
        refuse_beside("induction, which draws its own tokens", {**given, "queries": None, "pairs": pairs})
        texts = repeated_sequences(model)
    elif pairs is not None:
        refuse_beside("pairs, which have their own texts", given)
        return _paired(read_pairs(pairs), model, layer, options)
    elif isinstance(texts, Trace):
        chosen = None if layer == "all" else layer
        refuse_beside(OF_TRACES, {"model": model, "pair": pair, "target": target, "layer": chosen, **more})
        return survey([texts], view)
    elif model is not None and more.get("image"):
        texts = pictures_alone(texts, more) or texts
    source = open_source(model, layer=layer, **more)
    numbered = (CorpusItem(number, text) for number, text in enumerate(as_list(texts), start=1))
    traces = raise_on_failure(trace_stream(source, numbered, pair, target), is_alone=isinstance(texts, str))
    return survey((trace for _, trace in traces), view, is_test=induction)


def _paired(texts: Sequence[PairedText], model: str | None, layer: Choice, options: Mapping[str, Any]) -> PairReport:
    source = open_source(model, layer=layer, **{**source_options(texts, options.get("image")), **options})
    by_number = {text.number: text for text in texts}
    stats = PairStats()
    for number, trace in raise_on_failure(trace_stream(source, paired_items(texts), None, None)):
        try:
            stats.add(PairScores.of(trace, by_number[number]))
        except InputMismatchError as error:
            raise InputMismatchError(Failure(str(error)).of(number)) from None
    return stats.report()
