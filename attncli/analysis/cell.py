"""One cell of a head taken apart, stage by stage, and the row that it stands in.

    weight = exp(score − highest) / total        score = softcap(q·k · scale + bias)        q·k = Σ_d q_d · k_d

The sum over dimensions is what the neuron view of BertViz draws (Vig 2019, "A Multiscale Visualization of Attention
in the Transformer Model"); ‖w·v‖ is the norm of what is carried (Kobayashi et al. 2020, "Attention is Not Only a
Weight"), before the output projection.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attncli import attention
from attncli.text import plural, quoted
from attncli.trace.layer import HeadTrace, LayerTrace
from attncli.trace.tokens import Token, Tokens

if TYPE_CHECKING:
    from jaxtyping import Float, Int


class SoftmaxTerms(NamedTuple):
    """What a row's softmax divides by what.

    Attributes:
        highest: the largest of the masked scores and the sink, which is taken from each before the exponential.
        exponentials: exp(masked score − highest), `[K]`.
        total: their sum, the sink's included.
        sink: exp(sink − highest); None without a sink.
    """

    highest: np.floating
    exponentials: Float[np.ndarray, " K"]
    total: np.floating
    sink: np.floating | None


@dataclass(frozen=True)
class AttentionRow:
    """How one query of one head divides its attention.

    Arrays are over the keys, `[K]`; an array that the layer cannot give is None.

    Attributes:
        head: the head, with this query as its only row.
        query: the token that attends.
        keys: the tokens that it attends to.
    """

    head: HeadTrace
    query: Token
    keys: Tokens

    def __repr__(self) -> str:
        return f"AttentionRow({_place(self)}, {quoted(self.query.text)} to {plural(len(self.keys), 'key')})"

    @property
    def layer(self) -> LayerTrace:
        """The layer."""
        return self.head.layer

    @property
    def scores(self) -> Float[np.ndarray, " K"]:
        """Scaled, biased and softcapped, before the mask; recorded ones are −inf where masked."""
        return self.head.scores[0]

    @property
    def allowed(self) -> Any:
        """Which keys the mask allows, booleans."""
        return self.head.mask[0]

    @property
    def weights(self) -> Float[np.ndarray, " K"]:
        """Softmax of the masked scores."""
        return self.head.weights[0]

    @property
    def is_blind(self) -> bool:
        """Whether the mask allows no key."""
        return not self.allowed.any()

    @cached_property
    def products(self) -> Float[np.ndarray, " K"] | None:
        """q·k."""
        if {"q", "k"} & self.layer.missing:
            return None
        return attention.dot_products(self.head.q[None], self.head.k[None])[0, 0]

    @cached_property
    def masked(self) -> Float[np.ndarray, " K"]:
        """What the softmax receives: the scores, and what fills the forbidden cells."""
        return attention.masked_scores(self.head.scores[None], self.head.mask[None], self.layer.fill)[0, 0]

    @cached_property
    def softmax(self) -> SoftmaxTerms | None:
        """Numerators and denominator; None where a watched model's row has no key, whose fill was not recorded."""
        if self.is_blind and self.layer.recorded_weights is not None:
            return None
        highest, exponentials, totals = attention.softmax_parts(self.masked[None, None], self.head.stages.sinks)
        sink = None if self.sink is None else np.exp(self.sink - highest[0, 0, 0])
        return SoftmaxTerms(highest[0, 0, 0], exponentials[0, 0], totals[0, 0, 0], sink)

    @property
    def sink(self) -> np.floating | None:
        """The logit of the sink; None without one."""
        sinks = self.head.stages.sinks
        return None if sinks is None else sinks.flat[0]

    @property
    def sink_weight(self) -> np.floating | None:
        """The weight that the sink takes; None without a sink."""
        parts = self.softmax
        return None if parts is None or parts.sink is None else parts.sink / parts.total

    @cached_property
    def _values(self) -> Float[np.ndarray, "K Dv"] | None:
        # A dump without values has some of width zero.
        return None if "v" in self.layer.missing or not self.head.v.shape[-1] else self.head.v

    @cached_property
    def value_norms(self) -> Float[np.ndarray, " K"] | None:
        """‖v‖, the length of every value."""
        return None if self._values is None else attention.vector_norms(self._values)

    @cached_property
    def contribution_norms(self) -> Float[np.ndarray, " K"] | None:
        """‖w·v‖, how much of every value is carried."""
        with np.errstate(invalid="ignore", over="ignore"):
            return None if self.value_norms is None else np.abs(self.weights) * self.value_norms

    @cached_property
    def output_norm(self) -> np.floating | None:
        """The length of the row's output, Σ w·v."""
        return None if self._values is None else attention.vector_norms(self.head.output)[0]

    @cached_property
    def output_shares(self) -> Float[np.ndarray, " K"] | None:
        """Each key's share of the output's norm: w·v projected on the output, over ‖output‖.

        The shares of a row add up to 1; a negative one points away from the output. An output of length 0 has none.
        """
        if self._values is None or not self.output_norm:
            return None
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            direction = self.head.output[0] / self.output_norm
            return self.weights * (self._values @ direction) / self.output_norm

    @cached_property
    def ranked(self) -> Int[np.ndarray, " K"]:
        """The keys by weight, the largest first; NaN before all numbers, masked keys after allowed ones."""
        weights = np.where(np.isnan(self.weights), np.inf, self.weights)
        return np.lexsort((~self.allowed, -weights))


def _place(row: AttentionRow) -> str:
    return f"layer {row.layer.layer}, head {row.head.head}"


@dataclass(frozen=True)
class AttentionCell:
    """One query and one key of one head.

    Numbers are what the row has at this key; one that the layer cannot give is None.

    Attributes:
        row: the query's row.
        key: the token that is attended to.
    """

    row: AttentionRow
    key: Token

    def __repr__(self) -> str:
        tokens = f"{quoted(self.row.query.text)} to {quoted(self.key.text)}"
        return f"AttentionCell({_place(self.row)}, {tokens}, weight {self.weight:.4g})"

    @property
    def q(self) -> Float[np.ndarray, " D"] | None:
        """The query's vector, as the dot product takes it."""
        return None if "q" in self.row.layer.missing else self.row.head.q[0]

    @property
    def k(self) -> Float[np.ndarray, " D"] | None:
        """The key's vector, as the dot product takes it."""
        return None if "k" in self.row.layer.missing else self.row.head.k[self.key.index]

    @cached_property
    def products(self) -> Float[np.ndarray, " D"] | None:
        """q_d · k_d of every dimension, which sum up to the dot product."""
        if self.q is None or self.k is None:
            return None
        with np.errstate(invalid="ignore", over="ignore"):
            return self.q * self.k

    @property
    def ranked(self) -> Int[np.ndarray, " D"]:
        """The dimensions by |q_d · k_d|, the largest first; NaN before all numbers."""
        assert self.products is not None
        sizes = np.where(np.isnan(self.products), np.inf, np.abs(self.products))
        return np.argsort(-sizes, kind="stable")

    @property
    def dot_product(self) -> np.floating | None:
        """q·k."""
        return self._at(self.row.products)

    @property
    def scaled(self) -> np.floating | None:
        """q·k times the scale; None where more than that went into the scores, or nothing is known of it."""
        scale, product = self.row.layer.scale, self.dot_product
        with np.errstate(over="ignore", invalid="ignore"):
            return None if scale is None or product is None else product * product.dtype.type(scale)

    @property
    def bias(self) -> np.floating | None:
        """What is added to the scaled product; None without a bias."""
        layer, row = self.row.layer, self.row
        if layer.bias is None:
            return None
        return np.broadcast_to(layer.bias, layer.cells)[row.head.head, row.query.index, self.key.index]

    @property
    def score(self) -> np.floating:
        """The score before the mask; a recorded one is −inf where masked."""
        return self.row.scores[self.key.index]

    @property
    def allowed(self) -> bool:
        """Whether the mask allows this cell."""
        return bool(self.row.allowed[self.key.index])

    @property
    def masked(self) -> np.floating:
        """What the softmax receives."""
        return self.row.masked[self.key.index]

    @property
    def exponential(self) -> np.floating | None:
        """exp(what the softmax receives − the row's highest)."""
        return None if self.row.softmax is None else self.row.softmax.exponentials[self.key.index]

    @property
    def weight(self) -> np.floating:
        """The weight."""
        return self.row.weights[self.key.index]

    @property
    def value_norm(self) -> np.floating | None:
        """‖v‖."""
        return self._at(self.row.value_norms)

    @property
    def contribution_norm(self) -> np.floating | None:
        """‖w·v‖."""
        return self._at(self.row.contribution_norms)

    @property
    def output_share(self) -> np.floating | None:
        """Its share of the output's norm."""
        return self._at(self.row.output_shares)

    def _at(self, values: Float[np.ndarray, " K"] | None) -> np.floating | None:
        return None if values is None else values[self.key.index]
