"""Stages of one cell of a head, and of the row of its query.

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

    ByKey = Float[np.ndarray, " K"]
    ByDimension = Float[np.ndarray, " D"]
    Number = np.floating


class SoftmaxTerms(NamedTuple):
    """Numerators and denominator of a row's softmax."""

    highest: Number  # the largest of the masked scores and the sink, subtracted from each before the exponential
    exponentials: ByKey  # exp(masked score − highest)
    total: Number  # their sum, the sink's included
    sink: Number | None  # exp(sink − highest); None without a sink


def _of_head(array: str, meaning: str) -> Any:
    """Make a property of a row: the only row of its head's array."""
    return property(lambda row: getattr(row.head, array)[0], doc=meaning)


def _of_row(array: str, meaning: str) -> Any:
    """Make a property of a cell: the number of its row's array at its key."""

    def read(cell: AttentionCell) -> Any:
        values = getattr(cell.row, array)
        return None if values is None else values[cell.key.index]

    return property(read, doc=meaning)


@dataclass(frozen=True)
class AttentionRow:
    """Attention of one query of one head; arrays are over the keys, `[K]`, or None where the layer lacks them."""

    head: HeadTrace  # with this query as its only row
    query: Token  # the token that attends
    keys: Tokens  # the tokens that it attends to

    scores = _of_head("scores", "Scaled, biased and softcapped, before the mask; recorded ones are -inf where masked.")
    allowed = _of_head("mask", "Booleans: the keys that the mask allows.")
    weights = _of_head("weights", "Softmax of the masked scores.")

    def __repr__(self) -> str:
        return f"AttentionRow({self.label}, {quoted(self.query.text)} to {plural(len(self.keys), 'key')})"

    @property
    def label(self) -> str:
        """The layer and the head in words."""
        return f"layer {self.layer.layer}, head {self.head.head}"

    @property
    def layer(self) -> LayerTrace:
        """The layer."""
        return self.head.layer

    @property
    def is_blind(self) -> bool:
        """Whether the mask allows no key."""
        return not self.allowed.any()

    @cached_property
    def products(self) -> ByKey | None:
        """q·k."""
        is_known = not {"q", "k"} & self.layer.missing
        return attention.dot_products(self.head.q[None], self.head.k[None])[0, 0] if is_known else None

    @cached_property
    def masked(self) -> ByKey:
        """Input of the softmax: the scores, and the fill of the forbidden cells."""
        return attention.masked_scores(self.head.scores[None], self.head.mask[None], self.layer.fill)[0, 0]

    @cached_property
    def softmax(self) -> SoftmaxTerms | None:
        """Numerators and denominator; None where a watched model's row has no key, whose fill was not recorded."""
        if self.is_blind and self.layer.recorded_weights is not None:
            return None
        parts = attention.softmax_parts(self.masked[None, None], self.head.stages.sinks)
        highest, exponentials, total = (part[0, 0] for part in parts)
        sink = None if self.sink is None else np.exp(self.sink - highest[0])
        return SoftmaxTerms(highest[0], exponentials, total[0], sink)

    @property
    def sink(self) -> Number | None:
        """The logit of the sink; None without one."""
        sinks = self.head.stages.sinks
        return None if sinks is None else sinks.flat[0]

    @property
    def sink_weight(self) -> Number | None:
        """The weight that the sink takes; None without a sink."""
        parts = self.softmax
        return None if parts is None or parts.sink is None else parts.sink / parts.total

    @cached_property
    def _values(self) -> Float[np.ndarray, "K Dv"] | None:
        # A dump without values has some of width zero.
        return None if "v" in self.layer.missing or not self.head.v.shape[-1] else self.head.v

    @cached_property
    def value_norms(self) -> ByKey | None:
        """‖v‖, the length of every value."""
        return None if self._values is None else attention.vector_norms(self._values)

    @cached_property
    def contribution_norms(self) -> ByKey | None:
        """‖w·v‖, how much of every value is carried."""
        with np.errstate(invalid="ignore", over="ignore"):
            return None if self.value_norms is None else np.abs(self.weights) * self.value_norms

    @cached_property
    def output_norm(self) -> Number | None:
        """The length of the row's output, Σ w·v."""
        return None if self._values is None else attention.vector_norms(self.head.output)[0]

    @cached_property
    def output_shares(self) -> ByKey | None:
        """w·v projected on the output, over ‖output‖, which add up to 1; an output of length 0 has none."""
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

    @property
    def heaviest(self) -> Token:
        """The first of the ranked keys."""
        return self.keys[int(self.ranked[0])]


@dataclass(frozen=True)
class AttentionCell:
    """One query and one key of one head; numbers are the row's at this key, or None where the layer lacks them."""

    row: AttentionRow  # of the query
    key: Token  # the token that is attended to

    dot_product = _of_row("products", "q·k.")
    score = _of_row("scores", "The score before the mask; a recorded one is -inf where masked.")
    masked = _of_row("masked", "Input of the softmax.")
    weight = _of_row("weights", "The weight.")
    value_norm = _of_row("value_norms", "‖v‖.")
    contribution_norm = _of_row("contribution_norms", "‖w·v‖.")
    output_share = _of_row("output_shares", "Its share of the output's norm.")

    def __repr__(self) -> str:
        tokens = f"{quoted(self.row.query.text)} to {quoted(self.key.text)}"
        return f"AttentionCell({self.row.label}, {tokens}, weight {self.weight:.4g})"

    @property
    def q(self) -> ByDimension | None:
        """The query's vector, as the dot product takes it."""
        return None if "q" in self.row.layer.missing else self.row.head.q[0]

    @property
    def k(self) -> ByDimension | None:
        """The key's vector, as the dot product takes it."""
        return None if "k" in self.row.layer.missing else self.row.head.k[self.key.index]

    @cached_property
    def products(self) -> ByDimension | None:
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
    def scaled(self) -> Number | None:
        """q·k times the scale; None where more than that went into the scores, or nothing is known of it."""
        scale, product = self.row.layer.scale, self.dot_product
        with np.errstate(over="ignore", invalid="ignore"):
            return None if scale is None or product is None else product * product.dtype.type(scale)

    @property
    def bias(self) -> Number | None:
        """The number added to the scaled product; None without a bias."""
        layer, cell = self.row.layer, (self.row.head.head, self.row.query.index, self.key.index)
        return None if layer.bias is None else np.broadcast_to(layer.bias, layer.cells)[cell]

    @property
    def allowed(self) -> bool:
        """Whether the mask allows this cell."""
        return bool(self.row.allowed[self.key.index])

    @property
    def exponential(self) -> Number | None:
        """exp(input of the softmax − the row's highest)."""
        return None if self.row.softmax is None else self.row.softmax.exponentials[self.key.index]
