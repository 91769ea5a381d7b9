"""`attncli.heads`: the metrics of every head, over one sentence or as many as there are."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple, Unpack

import numpy as np

from attncli.analysis.induction import detections
from attncli.analysis.labels import LABELS, Label, labels_of
from attncli.analysis.metric_names import DETECTORS, NAMES, Metric
from attncli.analysis.metrics import by_name, trace_metrics
from attncli.analysis.statistics import QUANTILES, Moments, Statistics, settled
from attncli.checkpoints.signatures import Choice, SourceKeywords, spelling_out
from attncli.engines import open_source
from attncli.engines.source import MAX_GROUP
from attncli.errors import InputError, UsageError
from attncli.text import as_list, did_you_mean, plural, span, visible
from attncli.trace.display import Displayed, Tabular
from attncli.trace.trace import Provenance, Trace
from attncli.trace.view import View

if TYPE_CHECKING:
    from jaxtyping import Float


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
        ci95: the 95 % confidence interval of each mean; None where there is no deviation.
        quantiles: for each of `QUANTILES` of `attncli.analysis.statistics` the number of that rank, to 1 %.
        least: the least number of each metric.
        greatest: likewise.
    """

    layer: int
    kind: str
    head: int
    metrics: Mapping[str, float | None]
    std: Mapping[str, float | None]
    counts: Mapping[str, int]
    labels: tuple[Label, ...] = ()
    ci95: Mapping[str, tuple[float, float] | None] = field(default_factory=dict)
    quantiles: Mapping[float, Mapping[str, float | None]] = field(default_factory=dict)
    least: Mapping[str, float | None] = field(default_factory=dict)
    greatest: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def spreads(self) -> dict[str, Mapping[str, float | None]]:
        """What tells how far the numbers of a metric are apart, by the ends of its names in rows and data frames."""
        ends = [{name: None if found is None else found[end] for name, found in self.ci95.items()} for end in (0, 1)]
        quantiles = {f"p{100 * share:g}": values for share, values in self.quantiles.items()}
        return {"ci95_low": ends[0], "ci95_high": ends[1], "min": self.least, **quantiles, "max": self.greatest}

    def __repr__(self) -> str:
        known = [f"{name} {value:.3g}" for name, value in self.metrics.items() if value is not None]
        said = ", ".join([*(label.name for label in self.labels), *known])
        return f"HeadSummary(layer {self.layer}, {self.kind}, head {self.head}: {said})"


class Group(NamedTuple):
    """Sentences that have something in common.

    Attributes:
        by: the name of the column that says it.
        value: what it says of them; None of those of which it says nothing.
    """

    by: str
    value: str | None


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
        group: the sentences that it is over, if those are not all.
    """

    source: Provenance
    sentences: int
    tokens: tuple[int, int]
    masks: tuple[str, ...]
    measured: int
    heads: tuple[HeadSummary, ...]
    names: tuple[Metric, ...] = NAMES
    group: Group | None = None

    @property
    def is_test(self) -> bool:
        """Whether the sentences are repeated random tokens."""
        return DETECTORS[0] in self.heads[0].metrics

    def __repr__(self) -> str:
        run = f"{plural(self.sentences, 'sentence')} of {span(*self.tokens)} tokens"
        return f"Survey({self.source.title}, {plural(len(self.heads), 'head')}, {run})"

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


class HeadKey(NamedTuple):
    """A layer, and its heads.

    Attributes:
        layer: its index.
        kind: of its attention.
        heads: those that are measured.
    """

    layer: int
    kind: str
    heads: tuple[int, ...]


@dataclass(frozen=True)
class SurveyState:
    """What is known of the heads after some sentences; two states merge into that of all their sentences.

    Attributes:
        source: what was run.
        queries: which rows count; none are all.
        sentences: how many sentences there were.
        tokens: the fewest and the most query tokens of one.
        masks: the masks of the layers, each once.
        layers: whose heads were measured, and which of each; the heads of one follow those of another.
        names: of the metrics.
        measured: the metrics of the heads, `[H, M]`.
        uniform: those of `NAMES` of the uniform head in the place of each.
    """

    source: Provenance
    queries: tuple[str | int, ...]
    sentences: int
    tokens: tuple[int, int]
    masks: tuple[str, ...]
    layers: tuple[HeadKey, ...]
    names: tuple[Metric, ...]
    measured: Statistics
    uniform: Moments

    @classmethod
    def of(cls, traces: Sequence[_Measured], view: View) -> SurveyState:
        """Return the state after some sentences, at least one, of the same heads."""
        first = traces[0]
        lengths = [trace.length for trace in traces]
        return cls(
            reduce(_shared, (trace.source for trace in traces)),
            tuple(view.queries),
            len(traces),
            (min(lengths), max(lengths)),
            tuple(dict.fromkeys(mask for trace in traces for mask in trace.masks)),
            first.layers,
            first.names,
            Statistics.of(np.stack([trace.heads for trace in traces])),
            Moments.of(np.stack([trace.uniform for trace in traces])),
        )

    def check_alike(self, other: SurveyState) -> None:
        """Raise UsageError if the two are of other models, heads or metrics."""
        for name in ("kind", "model", "architecture", "dtype", "seed"):
            mine, others = getattr(self.source, name), getattr(other.source, name)
            if mine != others:
                raise UsageError(f"the one is of {name} {visible(str(mine))}, the other of {visible(str(others))}")
        if self.layers != other.layers:
            raise UsageError(_OTHER_HEADS)
        if self.names != other.names:
            raise UsageError("the one was measured on random tokens that come twice, the other was not")
        if self.queries != other.queries:
            raise UsageError("the rows of other queries were counted in the one than in the other")

    def merged(self, other: SurveyState) -> SurveyState:
        """Return the state after the sentences of both.

        Raises:
            UsageError: they are of other models, heads or metrics.
        """
        self.check_alike(other)
        return SurveyState(
            _shared(self.source, other.source),
            self.queries,
            self.sentences + other.sentences,
            (min(self.tokens[0], other.tokens[0]), max(self.tokens[1], other.tokens[1])),
            tuple(dict.fromkeys([*self.masks, *other.masks])),
            self.layers,
            self.names,
            self.measured.merged(other.measured),
            self.uniform.merged(other.uniform),
        )

    def survey(self, group: Group | None = None) -> Survey:
        """Return what a person reads of it."""
        found, names = self.measured, self.names
        moments = found.moments
        means, stds = settled(moments.means), settled(moments.std)
        low, high = settled(moments.means - moments.margin), settled(moments.means + moments.margin)
        quantiles = dict(zip(QUANTILES, found.quantiles(), strict=True))
        baselines = settled(self.uniform.means)
        summaries = []
        for row, (layer, kind, head) in enumerate(self.heads):
            metrics, ends = by_name(names, means[row]), (by_name(names, low[row]), by_name(names, high[row]))
            summaries.append(
                HeadSummary(
                    layer,
                    kind,
                    head,
                    metrics,
                    by_name(names, stds[row]),
                    dict(zip(names, moments.count[row].tolist(), strict=True)),
                    labels_of(metrics, by_name(NAMES, baselines[row])),
                    {name: _interval(ends[0][name], ends[1][name]) for name in names},
                    {share: by_name(names, values[row]) for share, values in quantiles.items()},
                    by_name(names, found.least[row]),
                    by_name(names, found.greatest[row]),
                )
            )
        measured = len(summaries)
        return Survey(self.source, self.sentences, self.tokens, self.masks, measured, tuple(summaries), names, group)

    @property
    def heads(self) -> Iterator[tuple[int, str, int]]:
        """Each head: its layer, the layer's kind, and its index."""
        return ((key.layer, key.kind, head) for key in self.layers for head in key.heads)


def _interval(low: float | None, high: float | None) -> tuple[float, float] | None:
    return None if low is None or high is None else (low, high)


_OTHER_HEADS = "the traces have not the same layers and heads; survey each by itself"


class _Measured(NamedTuple):
    """One sentence, of whose attention the metrics alone are kept."""

    source: Provenance
    length: int
    masks: tuple[str, ...]
    layers: tuple[HeadKey, ...]
    names: tuple[Metric, ...]
    heads: Float[np.ndarray, "H M"]
    uniform: Float[np.ndarray, "H N"]

    @classmethod
    def of(cls, trace: Trace, view: View, detects: bool) -> _Measured:
        """Return the metrics of the heads of all layers, and of the uniform head in the place of each."""
        heads, uniform = trace_metrics(trace, view)
        if detects:
            heads = np.hstack([heads, np.concatenate([detections(trace, layer) for layer in trace.layers])])
        masks = tuple(dict.fromkeys(str(layer.mask) for layer in trace.layers))
        layers = tuple(HeadKey(layer.layer, layer.kind, layer.heads) for layer in trace.layers)
        names = (*NAMES, *DETECTORS) if detects else NAMES
        return cls(trace.source, len(trace.query_tokens), masks, layers, names, heads, uniform)


@dataclass(frozen=True)
class SurveyStates:
    """The states of groups of sentences; without anything to group by, of all of them.

    Attributes:
        by: the name of what `Trace.kept` groups them by.
        groups: by its value as text; None are the sentences that have none.
    """

    by: str | None
    groups: Mapping[str | None, SurveyState]

    def merged(self, other: SurveyStates) -> SurveyStates:
        """Return the states after the sentences of both.

        Raises:
            UsageError: they are of other models, heads or metrics, or grouped by something else.
        """
        if not self.groups or not other.groups:
            return self if self.groups else other
        if self.by != other.by:
            raise UsageError(f"the one is {_grouped(self.by)}, the other {_grouped(other.by)}")
        groups = dict(self.groups)
        next(iter(groups.values())).check_alike(next(iter(other.groups.values())))
        for value, state in other.groups.items():
            groups[value] = groups[value].merged(state) if value in groups else state
        return SurveyStates(self.by, groups)

    def surveys(self) -> list[Survey]:
        """Return the survey of each group, by its name; that of the sentences without one stands last.

        Raises:
            InputError: there is no sentence.
        """
        if not self.groups:
            raise InputError("there is no sentence to survey the heads of")
        values = sorted(self.groups, key=lambda value: (value is None, value))
        return [self.groups[value].survey(None if self.by is None else Group(self.by, value)) for value in values]


def _grouped(by: str | None) -> str:
    return "in no groups" if by is None else f"grouped by {visible(by)}"


class Gathering:
    """Traces of one source, of which the metrics are kept until they become states; a batch of a corpus.

    Args:
        view: says which rows count.
        detects: whether the scores of TransformerLens's detectors are measured too.
        by: what of `Trace.kept` groups the sentences.
    """

    def __init__(self, view: View, *, detects: bool = False, by: str | None = None) -> None:
        self._view, self._detects, self._by = view, detects, by
        self._groups: dict[str | None, list[_Measured]] = {}

    def add(self, number: int, trace: Trace) -> None:
        """Measure the trace of the sentence with this number.

        Raises:
            UsageError: a query does not exist, the trace is derived, or has not the heads of those before it.
        """
        trace.check_recorded("heads")
        try:
            measured = _Measured.of(trace, self._view, self._detects)
        except UsageError as error:
            raise UsageError(str(error) if number == 1 else f"sentence {number}: {error}") from None
        if self._groups and measured.layers != next(iter(self._groups.values()))[0].layers:
            raise UsageError(_OTHER_HEADS)
        self._groups.setdefault(None if self._by is None else _as_text(trace.kept.get(self._by)), []).append(measured)

    def states(self) -> SurveyStates:
        """Return the states after these sentences."""
        return SurveyStates(
            self._by, {value: SurveyState.of(group, self._view) for value, group in self._groups.items()}
        )


def _as_text(value: str | float | bool | None) -> str | None:
    """Return the value of a group as JSON spells it, without quotes."""
    return value if value is None or isinstance(value, str) else json.dumps(value)


def survey(traces: Iterable[Trace], view: View, *, detects: bool = False) -> Survey:
    """Return the metrics of every head over traces of one source, none of which is kept; see `Gathering`.

    Raises:
        UsageError: a query does not exist, a trace is derived, or the traces have not the same heads.
        InputError: there is no trace.
    """
    states, batch = SurveyStates(None, {}), Gathering(view, detects=detects)
    for number, trace in enumerate(traces, start=1):
        batch.add(number, trace)
        if (number + 1) % min(1 << number.bit_length(), MAX_GROUP) == 0:  # the last one of a group of `windows`
            states, batch = states.merged(batch.states()), Gathering(view, detects=detects)
    (found,) = states.merged(batch.states()).surveys()
    return found


def _shared(source: Provenance, other: Provenance) -> Provenance:
    """Return the source with the details that both share: each sentence has a toy vocabulary of its own."""
    details = {name: value for name, value in source.details.items() if other.details.get(name) == value}
    return source if len(details) == len(source.details) else replace(source, details=details)


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
    from attncli.encoding.induction_probe import repeated_sequences
    from attncli.engines.source import CorpusItem, trace_stream
    from attncli.errors import raise_on_failure

    view = View(queries=tuple(as_list(queries)))
    if induction:
        for name, is_given in (("a text", texts != ""), ("pair", pair is not None), ("target", target is not None)):
            if is_given:
                raise UsageError(f"{name} does not apply to induction, which draws its tokens; drop one of them")
        texts = repeated_sequences(options.get("model"))
    if isinstance(texts, Trace):
        given = {"pair": pair, "target": target, "layers": None if layers == "all" else layers, **options}
        if unused := [name for name, value in given.items() if value is not None]:
            raise UsageError(f"{unused[0]} does not apply to a trace, whose attention is already computed")
        return survey([texts], view)
    source = open_source(layers=layers, values=False, **options)
    numbered = (CorpusItem(number, text) for number, text in enumerate(as_list(texts), start=1))
    is_alone = isinstance(texts, str)
    return survey(
        (trace for _, trace in raise_on_failure(trace_stream(source, numbered, pair, target), is_alone)),
        view,
        detects=induction,
    )
