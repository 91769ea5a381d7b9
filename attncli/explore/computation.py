"""Computation of a view in stages: tokens, the layer shown, then the metrics of all layers; nothing twice."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from attncli.analysis.derive import derive
from attncli.analysis.heads import HeadReport, survey
from attncli.analysis.metrics import HeadKey, Label, most_telling, strongest
from attncli.errors import AttnError, UsageError
from attncli.explore.view_state import Limits, ViewState, last_word
from attncli.render.explore.layer_view import LayerViewCache
from attncli.text import visible
from attncli.trace.trace import Trace, sequences
from attncli.trace.view import View

if TYPE_CHECKING:
    from attncli.engines.interactive import InteractiveSource, Query
    from attncli.trace.tokens import Tokens


@dataclass(frozen=True)
class ComputedView:
    """Result of a computation, which grows with each stage.

    Attributes:
        look: the view that was asked for, within the limits.
        layers: of the model.
        tokens: the queries and the keys; None where the text cannot be read.
        recorded: the layer shown as the model computes it, all kinds that ran; None until it is there.
        sights: its weights, norms or rollout, ready to be drawn; one for each kind.
        survey: the metrics of all heads; None until they are there.
        is_whole: whether this is the last stage.
        failure: the error, in one sentence; empty without one.
    """

    look: ViewState
    layers: tuple[int, ...] = ()
    tokens: tuple[Tokens, Tokens] | None = None
    recorded: Trace | None = None
    sights: tuple[LayerViewCache, ...] = ()
    survey: HeadReport | None = None
    is_whole: bool = False
    failure: str = ""

    def serves(self, look: ViewState) -> bool:
        """Return whether its numbers are those of a view."""
        return self.look.needs == look.needs

    @property
    def most_telling(self) -> HeadKey | None:
        """The head with the strongest label; None without one."""
        return next(iter(most_telling([*self._labels], self._labels, 1)), None)

    def labels(self, sight: LayerViewCache) -> dict[int, str]:
        """Return the labels of the heads of a layer, as far as they are measured."""
        place = sight.layer.layer, sight.layer.kind
        return {key[2]: strongest(self._labels, key) for key in self._labels if key[:2] == place}

    @cached_property
    def _labels(self) -> dict[HeadKey, tuple[Label, ...]]:
        heads = self.survey.heads if self.survey else ()
        return {(each.layer, each.kind, each.head): each.labels for each in heads}

    def at_heaviest(self, look: ViewState) -> ViewState:
        """Return a view with the cursor on the last query and its heaviest key."""
        if (sight := self.sight(look.kind)) is None:
            return look
        query = last_word(sight.tokens[0])
        (values,), (allowed,) = sight.cells(look.head, range(query, query + 1))[1:3]
        return replace(look, query=query, key=int(np.where(allowed, values, -np.inf).argmax()))

    def sight(self, kind: str | None = None) -> LayerViewCache | None:
        """Return the layer of a kind, or of the first that ran, ready to be drawn; None if it is not there."""
        own = (sight for sight in self.sights if kind in (None, sight.layer.kind))
        return next(own, self.sights[0] if self.sights else None)

    def layers_of(self, kind: str) -> tuple[int, ...]:
        """Return the layers that have a kind of attention; all of them until that is measured."""
        if self.survey is None:
            return self.layers
        layers = {head.layer for head in self.survey.heads if head.kind == kind}
        return tuple(layer for layer in self.layers if layer in layers)

    def limits(self, kind: str | None = None) -> Limits:
        """Return the layers, heads and tokens that can be shown with a kind of attention."""
        if self.recorded is None:
            sides = () if self.tokens is None else sequences(kind or "", *self.tokens)
            return Limits(self.layers, (), (), *sides)
        layers = {layer.kind: layer for layer in self.recorded.layers}
        layer = layers.get(kind or "", self.recorded.layers[0])
        return Limits(self.layers_of(layer.kind), tuple(layers), layer.heads, *self.recorded.sides(layer))


@dataclass
class _TextCache:
    """Results for one text.

    Attributes:
        tokens: its queries and its keys.
        trace: of all layers; None until it is recorded.
        survey: the metrics of all heads; None until they are measured.
    """

    tokens: tuple[Tokens, Tokens]
    trace: Trace | None = None
    survey: HeadReport | None = None


class IncrementalComputation:
    """A model, with the results for its last text."""

    def __init__(self, model: InteractiveSource) -> None:
        self._model = model
        self._cached: tuple[Query, _TextCache] | None = None

    def results(self, look: ViewState) -> Iterator[ComputedView]:
        """Yield the result of each stage; the last one is whole, or has a failure.

        Nothing is raised. The caller may stop between any two stages.
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
        """Return in words how the next token changes without a head, or without one cell of it.

        Raises:
            AttnError: the model does not predict.
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
        if self._cached is None or self._cached[0] != look.question:
            self._cached = look.question, _TextCache(self._model.tokens(look.question))
        cache = self._cached[1]
        yield (answer := replace(answer, tokens=cache.tokens, survey=cache.survey))
        trace = cache.trace = cache.trace or self._model.trace(look.question)
        answer = replace(answer, recorded=_part(trace, [look.layer]))
        try:
            shown = _numbers(trace, look)
            answer = replace(answer, sights=tuple(LayerViewCache(shown, layer) for layer in shown.layers))
            if sight := answer.sight(look.kind):
                sight.prepare()
        except AttnError as error:  # its heads can be measured all the same
            answer = replace(answer, failure=str(error))
        yield answer
        for sight in answer.sights:  # of the other kinds
            sight.prepare()
        if cache.survey is None:
            parts = []
            for layer in {layer.layer: None for layer in trace.layers}:
                parts.append(survey([_part(trace, [layer])], View()))
                yield answer  # where a newer text ends the computation
            heads = tuple(head for part in parts for head in part.heads)
            masks = tuple(dict.fromkeys(mask for part in parts for mask in part.masks))
            cache.survey = replace(parts[0], masks=masks, measured=len(heads), heads=heads)
            yield replace(answer, survey=cache.survey)


def reason(error: BaseException) -> str:
    """Return an error as a sentence."""
    if isinstance(error, AttnError):
        return str(error).replace(", or add --truncate", "").replace(", cut it with --truncate", "")  # not of explore
    if isinstance(error, MemoryError):
        return "out of memory; give fewer tokens"
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return f"this is a bug in attn, please report it: {visible(text[:300])}"


def _part(trace: Trace, layers: Collection[int]) -> Trace:
    return replace(trace, layers=tuple(layer for layer in trace.layers if layer.layer in layers))


def _numbers(trace: Trace, look: ViewState) -> Trace:
    """Return the layer shown, with the weights, norms or rollout of the view."""
    if look.numbers == "norms":
        return derive(_part(trace, [look.layer]), norms=True)
    if look.numbers == "rollout":
        trace = _part(trace, range(look.layer + 1))
        kind = look.kind or next(layer.kind for layer in trace.layers if layer.layer == look.layer)
        layers = tuple(layer for layer in trace.layers if layer.kind == kind)
        return derive(replace(trace, layers=layers), rollout=True, layer=look.layer)
    return _part(trace, [look.layer])
