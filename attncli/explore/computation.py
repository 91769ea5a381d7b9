"""From a look to its answer, in stages: first what one waits for, and nothing twice."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from attncli.analysis.derive import derive
from attncli.analysis.diff import diff
from attncli.analysis.heads import HeadReport, survey
from attncli.analysis.labels import HeadKey, most_telling
from attncli.errors import AttnError, UsageError
from attncli.explore.view_state import Limits, ViewState, last_word
from attncli.render.explore.layer_view import LayerViewCache
from attncli.text import visible
from attncli.trace.trace import Trace, sequences
from attncli.trace.view import View

if TYPE_CHECKING:
    from attncli.analysis.diff import HeadDifference
    from attncli.engines.interactive import InteractiveSource, Query
    from attncli.trace.tokens import Tokens


@dataclass(frozen=True)
class ComputedView:
    """An answer, which grows: tokens first, then the layer that is looked at, then the map of all layers.

    Attributes:
        look: what was looked at when it was asked for, within what there is.
        layers: those that can be looked at.
        tokens: what the queries and the keys are; None where the text cannot be read.
        recorded: the layer looked at as the model computes it, all kinds that ran; None until it is there.
        shown: the same, or its norms, or the rollout of one kind up to it; None where there are none.
        held: what is shown, of the question that is held.
        sights: what is shown, or how it differs from what is held, ready to be drawn; one for each kind.
        survey: the metrics of the heads of the layers that have been measured, by layer; None until there are some.
        measured: the layers that have been measured; of these, one that is not in the survey has no attention.
        changes: how far these heads are from those of the question that is held, as far as they have been compared.
        is_whole: whether nothing more will come.
        failure: what there is not, and why, in one sentence; empty where nothing is lacking.
    """

    look: ViewState
    layers: tuple[int, ...] = ()
    tokens: tuple[Tokens, Tokens] | None = None
    recorded: Trace | None = None
    shown: Trace | None = None
    held: Trace | None = None
    sights: tuple[LayerViewCache, ...] = ()
    survey: HeadReport | None = None
    measured: frozenset[int] = frozenset()
    changes: tuple[HeadDifference, ...] = ()
    is_whole: bool = False
    failure: str = ""

    def serves(self, look: ViewState) -> bool:
        """Return whether it is the answer to a look: the numbers that it has are those that are looked at."""
        return self.look.needs == look.needs

    @property
    def most_telling(self) -> HeadKey | None:
        """The head that shows most of what heads do, by its label, of those that are measured; None is none."""
        labels = {
            (each.layer, each.kind, each.head): each.labels for each in (self.survey.heads if self.survey else ())
        }
        return next(iter(most_telling([*labels], labels, 1)), None)

    def at_heaviest(self, look: ViewState) -> ViewState:
        """Return a look at a layer that is there with the cursor on what its last query attends to most.

        Where that is a cell of a picture, it is the first query, which stands for all of them.
        """
        if (sight := self.sight(look.kind)) is None:
            return look
        query = last_word(sight.tokens[0])
        is_cell = sight.layout is not None and query in sight.layout.cells
        return self.on_heaviest(replace(look, query=0 if is_cell else query))

    def on_heaviest(self, look: ViewState) -> ViewState:
        """Return a look at a layer that is there with the cursor on its query's heaviest key, of pictures a cell."""
        if (sight := self.sight(look.kind)) is None:
            return look
        (values,), (allowed,) = sight.cells(look.head, range(look.query, look.query + 1))[1:3]
        if sight.layout is not None:
            allowed = allowed & np.isin(np.arange(len(allowed)), [*sight.layout.cells])
        return replace(look, key=int(np.where(allowed, values, -np.inf).argmax()))

    def sight(self, kind: str | None = None) -> LayerViewCache | None:
        """Return what is drawn, of a kind or of the first one that ran; None if it is not there."""
        own = (sight for sight in self.sights if kind in (None, sight.layer.kind))
        return next(own, self.sights[0] if self.sights else None)

    def layers_of(self, kind: str) -> tuple[int, ...]:
        """Return the layers that have a kind of attention, and those of which that is not known yet."""
        found = {head.layer for head in self.survey.heads if head.kind == kind} if self.survey else set()
        return tuple(layer for layer in self.layers if layer in found or layer not in self.measured)

    def room(self, kind: str | None = None) -> Limits:
        """Return how far one can look, with this kind of attention in front of one."""
        if self.recorded is None:
            sides = () if self.tokens is None else sequences(kind or "", *self.tokens)
            return Limits(self.layers, (), (), *sides)
        layers = {layer.kind: layer for layer in self.recorded.layers}
        layer = layers.get(kind or "", self.recorded.layers[0])
        layout = self.recorded.layout("key") if self.recorded.has_images(layer) else None
        sides = self.recorded.sides(layer)
        return Limits(self.layers_of(layer.kind), tuple(layers), layer.heads, *sides, layout)


@dataclass
class _TextCache:
    """What has been computed of a question.

    Attributes:
        tokens: what its queries and its keys are.
        trace: of all layers; None until it is recorded.
        surveys: of each layer that was measured; None of one without attention.
        changes: of each layer that was compared, and with which question.
    """

    tokens: tuple[Tokens, Tokens]
    trace: Trace | None = None
    surveys: dict[int, HeadReport | None] = field(default_factory=dict)
    changes: dict[tuple[Query, int], tuple[HeadDifference, ...]] = field(default_factory=dict)

    def measure(self, trace: Trace, layer: int, question: Query | None, held: Trace | None) -> None:
        """Measure the heads of a layer, and compare them with those of a question that is held."""
        has_attention = any(each.layer == layer for each in trace.layers)
        if layer not in self.surveys:
            self.surveys[layer] = survey([_part(trace, [layer])], View()) if has_attention else None
        if question is not None and held is not None and (question, layer) not in self.changes:
            pair = (_part(each, [layer]) for each in (held, trace) if has_attention)
            self.changes[question, layer] = diff(*pair, top=0).heads if has_attention else ()

    def measured(self, answer: ComputedView, held: Query | None) -> ComputedView:
        """Return an answer with the heads of all layers that were measured, and how far they are from those held."""
        parts = [one for _, one in sorted(self.surveys.items()) if one is not None]
        heads = tuple(head for part in parts for head in part.heads)
        masks = tuple(dict.fromkeys(mask for part in parts for mask in part.masks))
        report = replace(parts[0], masks=masks, measured=len(heads), heads=heads) if parts else None
        changes = tuple(head for (question, _), found in self.changes.items() if question == held for head in found)
        return replace(answer, survey=report, measured=frozenset(self.surveys), changes=changes)


class IncrementalComputation:
    """A model that is looked at; what was computed of the question and of the held one stays for the next look."""

    def __init__(self, model: InteractiveSource) -> None:
        self._model = model
        self._caches: dict[Query, _TextCache] = {}

    def results(self, look: ViewState) -> Iterator[ComputedView]:
        """Yield the answer to a look, each time it has grown; the last one is whole, or says why it is not.

        Nothing is raised: what goes wrong is the answer's failure. One may stop between any two.
        """
        layers = tuple(self._model.layers)
        answer = ComputedView(look.within(Limits(layers)), layers)
        failure = ""
        try:
            for grown in self._stages(answer):
                answer = grown
                yield answer
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # whatever a model's own code raises
            failure = reason(error)
        yield replace(answer, is_whole=True, failure=failure or answer.failure)

    def cut(self, look: ViewState, is_cell: bool) -> str:
        """Return in words what the next token becomes without a head, or without one cell of it.

        Raises:
            AttnError: the model's prediction cannot be asked.
        """
        from attncli.analysis.ablation import AblationChoice, ablation

        question, place = look.question, f"L{look.layer}H{look.head}"
        if question.mask is not None:
            raise UsageError("x cuts under the model's own mask; press m and empty the mask")
        query, key = look.query or 0, look.key or 0
        edges = f"~(queries({query},{query + 1}) & keys({key},{key + 1}))" if is_cell else None
        found = ablation(self._model.predictor(), AblationChoice(head=place, edges=edges), question.text, question.pair)
        assert found.next is not None
        assert found.after is not None
        what = f"the weight of query {query} on key {key} in {place}" if is_cell else place
        before, after = np.exp(found.before), np.exp(found.after)
        return (
            f"without {what}: next token {visible(found.next.text)} {before:.2g} → {after:.2g}, "
            f"{found.after - found.before:+.2f} nats"
        )

    def _stages(self, answer: ComputedView) -> Iterator[ComputedView]:
        look = answer.look
        self._caches = {each: cache for each, cache in self._caches.items() if each in (look.question, look.held)}
        cache = self._about(look.question)
        answer = cache.measured(replace(answer, tokens=cache.tokens), look.held)
        yield answer
        trace = self._recorded(look.question)
        below = [layer for layer in self._model.layers if layer <= look.layer]
        shown = below if look.numbers == "rollout" else [look.layer]
        answer = replace(answer, recorded=_part(trace, [look.layer]))
        try:
            answer = _drawable(replace(answer, shown=_numbers(_part(trace, shown), look)))
        except AttnError as error:  # its heads can be measured all the same
            answer = replace(answer, failure=str(error))
        yield answer
        held = None
        if look.held is not None:
            try:
                of_held = self._recorded(look.held)
                answer = _drawable(replace(answer, held=_numbers(_part(of_held, shown), look)))
                cache.measure(trace, look.layer, look.held, of_held)
                held = look.held
            except AttnError as error:
                answer = replace(answer, failure=str(error))
            answer = cache.measured(answer, held)
            yield answer
        for sight in answer.sights:  # of the other kinds
            sight.prepare()
        for _ in self._all_heads(look, held):
            answer = cache.measured(answer, held)
            yield answer

    def _all_heads(self, look: ViewState, held: Query | None) -> Iterator[None]:
        """Measure the heads of every layer and compare them with the held ones, those of the nearest layers first."""
        cache, trace = self._about(look.question), self._recorded(look.question)
        of_held = None if held is None else self._recorded(held)
        for layer in sorted(self._model.layers, key=lambda layer: abs(layer - look.layer)):
            if layer not in cache.surveys or (held is not None and (held, layer) not in cache.changes):
                cache.measure(trace, layer, held, of_held)
                yield

    def _about(self, question: Query) -> _TextCache:
        """Return what has been computed of a question, which is its tokens at least."""
        if question not in self._caches:
            self._caches[question] = _TextCache(self._model.tokens(question))
        return self._caches[question]

    def _recorded(self, question: Query) -> Trace:
        """Return the attention of all layers, recorded once."""
        cache = self._about(question)
        if cache.trace is None:
            cache.trace = self._model.trace(question)
        return cache.trace


def reason(error: BaseException) -> str:
    """Return what went wrong, in a sentence."""
    if isinstance(error, AttnError):
        return str(error).replace(", or add --truncate", "").replace(", cut it with --truncate", "")  # not of explore
    if isinstance(error, MemoryError):
        return "out of memory; give fewer tokens"
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return f"this is a bug in attn, please report it: {visible(text[:300])}"


def _part(trace: Trace, layers: Collection[int]) -> Trace:
    return replace(trace, layers=tuple(layer for layer in trace.layers if layer.layer in layers))


def _numbers(trace: Trace, look: ViewState) -> Trace:
    """Return the trace with the numbers that are looked at."""
    if look.numbers == "norms":
        return derive(trace, norms=True)
    if look.numbers == "rollout":
        kind = look.kind or next(layer.kind for layer in trace.layers if layer.layer == look.layer)
        layers = tuple(layer for layer in trace.layers if layer.kind == kind)
        return derive(replace(trace, layers=layers), rollout=True, layer=look.layer)
    return trace


def _drawable(answer: ComputedView) -> ComputedView:
    """Return an answer with what drawing it needs, which of a long text takes too long for the thread that draws."""
    if answer.shown is None:
        return answer
    views = tuple(LayerViewCache(answer.shown, layer, answer.held) for layer in answer.shown.layers)
    answer = replace(answer, sights=views)
    if sight := answer.sight(answer.look.kind):
        sight.prepare()
    return answer
