"""What the model said of a look, as far as it has come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from attncli.explore.view_state import Limits, ViewState
from attncli.trace.trace import sequences

if TYPE_CHECKING:
    from attncli.analysis.diff import HeadDifference
    from attncli.analysis.heads import HeadReport
    from attncli.render.explore.layer_view import LayerViewCache
    from attncli.trace.tokens import Tokens
    from attncli.trace.trace import Trace


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
        return Limits(self.layers_of(layer.kind), tuple(layers), layer.heads, *self.recorded.sides(layer))
