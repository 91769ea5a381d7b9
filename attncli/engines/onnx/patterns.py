"""Attention written out in a graph: MatMul → scale, softcap, bias, mask → Softmax → MatMul.

Both exporters of torch write that for eager and for sdpa attention. The latter scales queries and keys by √scale each,
and guards the weights of queries that see no key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attncli.attention import FORBIDDEN_BELOW, attention_scores, dot_products
from attncli.engines.onnx.graph import Graph, attributes

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from onnx import NodeProto

Arrays = Mapping[str, np.ndarray[Any, Any]]  # tensors by their names

_PRODUCTS = ("MatMul", "FusedMatMul")
_SAME_NUMBERS = ("Cast", "Dropout", "Identity", "Reshape", "Squeeze", "Unsqueeze")
_DEEPEST = 12  # nodes between the product and the Softmax


class AttentionArrays(NamedTuple):
    """Arrays of one layer, as a graph computed them."""

    q: Float[np.ndarray, "H Q D"] | None
    k: Float[np.ndarray, "Hkv K D"] | None
    v: Float[np.ndarray, "Hkv K Dv"]
    scale: float | None
    allowed: Bool[np.ndarray, "#H Q K"]
    output: Float[np.ndarray, "H Q Dv"]
    bias: Float[np.ndarray, "#H Q K"] | None = None
    softcap: float | None = None
    scores: Float[np.ndarray, "H Q K"] | None = None
    weights: Float[np.ndarray, "H Q K"] | None = None
    sinks: Float[np.ndarray, " H"] | None = None
    fill: float = -np.inf


class Step(NamedTuple):
    """Operation on the scores before the Softmax."""

    operator: str  # Mul, Div, Add, Sub or Tanh
    tensor: str = ""  # the other operand


@dataclass(frozen=True)
class WrittenAttention:
    """Tensors of one attention of a graph.

    Attributes:
        name: name of the Softmax.
        q: queries, `[…, Q, D]`.
        k: keys, `[…, K, D]`, or `[…, D, K]` where they are transposed.
        v: values, `[…, K, Dv]`.
        scores: the input of the Softmax.
        weights: what multiplies the values.
        output: weights·V.
        steps: operations from q·k to the scores, in order.
        factor: what a fused product multiplies q·k by.
    """

    name: str
    q: str
    k: str
    v: str
    scores: str
    weights: str
    output: str
    steps: tuple[Step, ...]
    factor: float
    is_transposed: bool

    @property
    def tensors(self) -> Iterator[str]:
        """Names of the tensors that `read` needs."""
        yield from (self.q, self.k, self.v, self.scores, self.weights, self.output)
        yield from (step.tensor for step in self.steps if step.tensor)

    @property
    def nodes(self) -> tuple[NodeProto, ...]:
        """No further nodes."""
        return ()

    def read(self, arrays: Arrays) -> AttentionArrays:
        """Return the arrays; without a scale, and with the scores, where q·k and the steps do not give the scores."""
        q, k, v, scores, weights, output = (
            by_heads(arrays[name]) for name in (self.q, self.k, self.v, self.scores, self.weights, self.output)
        )
        if self.is_transposed:
            k = k.swapaxes(-1, -2)
        allowed = ~(scores <= FORBIDDEN_BELOW)
        read = AttentionArrays(q, k, v, None, allowed, output, scores=np.where(allowed, scores, -np.inf), weights=weights)
        scale, bias, softcap = self._terms(arrays)
        if scale is None:
            return read
        if bias is not None:
            bias = np.where(allowed if len(bias) > 1 else allowed.any(axis=0, keepdims=True), bias, np.float32(0))
            bias = bias if bias.any() else None
        shared = k.repeat(len(q) // len(k), axis=0)
        derived = attention_scores(dot_products(q, shared), scale, bias, softcap)
        largest = max(float(np.abs(scores[allowed]).max(initial=0)), 1.0)
        rounding = 1e-4 if arrays[self.scores].dtype == np.float32 else 2e-2
        if float(np.abs(derived - scores)[allowed].max(initial=0)) > rounding * largest:
            return read
        return read._replace(scale=scale, bias=bias, softcap=softcap)

    def _terms(self, arrays: Arrays) -> tuple[float | None, Float[np.ndarray, "#H Q K"] | None, float | None]:
        """Return scale, bias and softcap of the steps; no scale where they are of another form."""
        scale, softcap, is_bounded = self.factor, None, False
        bias: Any = None
        for operator, name in self.steps:
            if operator == "Tanh":
                is_bounded = True
                continue
            value = arrays[name].astype(np.float32)
            if operator == "Add":
                plane = by_heads(np.broadcast_to(value, (1,) * (2 - value.ndim) + value.shape))
                if not is_bounded:
                    bias = plane if bias is None else bias + plane
                elif ((plane != 0) & (plane > FORBIDDEN_BELOW)).any():
                    return None, None, None
                continue
            if operator not in ("Mul", "Div") or value.size != 1 or softcap is not None:
                return None, None, None
            factor = float(value.item()) if operator == "Mul" else 1 / float(value.item())
            softcap = factor if is_bounded else None
            scale, bias = scale * factor, None if bias is None else bias * np.float32(factor)
        return (None if is_bounded and softcap is None else scale), bias, softcap


def written_attention(graph: Graph, node: NodeProto) -> WrittenAttention | None:
    """Return the attention around a Softmax that weighs values; None for any other node."""
    if node.op_type != "Softmax" or (weighed := _weighed(graph, node.output[0])) is None:
        return None
    found = _scored(graph, node.input[0])
    return None if found is None else _written(graph, node, weighed, *found)


def _written(
    graph: Graph, softmax: NodeProto, weighed: NodeProto, product: NodeProto, steps: tuple[Step, ...]
) -> WrittenAttention:
    how = attributes(product)
    (q, k), is_transposed = product.input, not how.get("transB", 0)
    q, of_queries = _unscaled(graph, q)
    k, of_keys = _unscaled(graph, k)
    inner = graph.producers.get(k)
    if inner is not None and inner.op_type == "Transpose" and list(attributes(inner)["perm"])[-2:] == [3, 2]:
        k, more = _unscaled(graph, inner.input[0])
        is_transposed, of_keys = not is_transposed, of_keys + more
    return WrittenAttention(
        softmax.name or softmax.output[0], q, k, weighed.input[1], softmax.input[0], weighed.input[0],
        weighed.output[0], (*of_queries, *of_keys, *steps), how.get("alpha", 1.0), is_transposed,
    )  # fmt: skip


def _weighed(graph: Graph, name: str) -> NodeProto | None:
    """Return the product of weights and values, which follows a Softmax."""
    for node in graph.consumers.get(name, ()):
        if node.op_type in _PRODUCTS:
            if node.input[0] == name and not graph.is_constant(node.input[1]):
                return node
        elif node.op_type in (*_SAME_NUMBERS, "Where", "Slice"):
            if (product := _weighed(graph, node.output[0])) is not None:
                return product
    return None


def _scored(graph: Graph, name: str, depth: int = 0) -> tuple[NodeProto, tuple[Step, ...]] | None:
    """Return the product of queries and keys behind a tensor, and the steps from it to there."""
    node = graph.producers.get(name)
    if node is None or depth > _DEEPEST:
        return None
    if node.op_type in _PRODUCTS:
        return None if any(map(graph.is_constant, node.input)) else (node, ())
    if node.op_type in (*_SAME_NUMBERS, "Tanh"):
        found = _scored(graph, node.input[0], depth + 1)
        return found and (found[0], found[1] + (Step("Tanh"),) * (node.op_type == "Tanh"))
    if node.op_type == "Where":  # where the mask is, the scores show it
        return next(filter(None, (_scored(graph, side, depth + 1) for side in node.input[1:])), None)
    if node.op_type in ("Add", "Mul", "Div", "Sub", "Max"):
        for side, other in (node.input, reversed(node.input)):
            if (found := _scored(graph, side, depth + 1)) is not None:
                return found[0], (*found[1], Step(node.op_type, other))
    return None


def _unscaled(graph: Graph, name: str) -> tuple[str, tuple[Step, ...]]:
    """Return a tensor before it was multiplied or divided by numbers, and these steps."""
    steps: tuple[Step, ...] = ()
    while (node := graph.producers.get(name)) is not None and node.op_type in ("Mul", "Div"):
        numbers = [graph.is_number(side) for side in node.input]
        if numbers == [False, True]:
            name, other = node.input
        elif numbers == [True, False] and node.op_type == "Mul":
            other, name = node.input
        else:
            break
        steps = (Step(node.op_type, other), *steps)
    return name, steps


def by_heads(array: np.ndarray[Any, Any]) -> Float[np.ndarray, "H _ _"]:
    """Return an array of one sentence as float32, with one axis of heads."""
    return np.asarray(array, np.float32).reshape(-1, *array.shape[-2:])
