"""Attention written out in a graph: MatMul → scale, softcap, bias, mask → Softmax → MatMul.

Both exporters of torch write so. Of sdpa they scale queries and keys by √scale each, and guard queries without keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attncli.attention import FORBIDDEN_BELOW, attention_scores, dot_products
from attncli.checkpoints.onnx_graph import attributes
from attncli.engines.onnx.graph import Graph
from attncli.errors import NotExposedError

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from onnx import NodeProto

Arrays = Mapping[str, np.ndarray[Any, Any]]
Steps = list[tuple[str, str]]  # operators on the products of queries and keys, each with its other operand

_PRODUCTS = ("MatMul", "FusedMatMul")
_SAME_NUMBERS = ("Cast", "DequantizeLinear", "Dropout", "Identity", "QuantizeLinear", "Reshape", "Squeeze", "Unsqueeze")
_DEEPEST = 12  # nodes between the product and the Softmax
_MOST_NODES = 32  # that follow a Softmax before the product


class AttentionArrays(NamedTuple):
    """Arrays of one layer, as a graph computed them."""

    q: Float[np.ndarray, "H Q D"]
    k: Float[np.ndarray, "Hkv K D"]
    v: Float[np.ndarray, "Hkv K Dv"]
    scale: float | None  # None where q·k with it does not give the scores
    allowed: Bool[np.ndarray, "#H Q K"]
    output: Float[np.ndarray, "H Q Dv"]  # weights·V
    bias: Float[np.ndarray, "#H Q K"] | None = None
    softcap: float | None = None
    sinks: Float[np.ndarray, " H"] | None = None
    scores: Float[np.ndarray, "H Q K"] | None = None  # where there is no scale
    weights: Float[np.ndarray, "H Q K"] | None = None  # None where the graph shows none


class GraphAttention(NamedTuple):
    """One attention of a graph."""

    tensors: Mapping[str, str]  # names of the tensors that are read, by their roles
    read: Callable[[Arrays], AttentionArrays]  # of these tensors, by their roles
    nodes: tuple[NodeProto, ...] = ()  # further nodes, which compute some of them
    layer: int = 0  # among those of its kind
    kind: str = "self"  # or `encoder`, `decoder`, `cross`


def written_attention(graph: Graph, node: NodeProto) -> GraphAttention | None:
    """Return the attention around a Softmax that weighs values; None for any other node."""
    weighed = _weighed(graph, node.output[0]) if node.op_type == "Softmax" else None
    if weighed is None or (scored := _scored(graph, node.input[0])) is None:
        return None
    product, steps = scored
    how, (q, k), scaled = attributes(product), product.input, [_unscaled(graph, name) for name in product.input]
    if all(of_side for _, of_side in scaled):  # √scale each, as of sdpa; of one side it is part of the model
        (q, of_queries), (k, of_keys) = scaled
        steps = [*of_queries, *of_keys, *steps]
    roles = {"query": q, "key": k, "value": weighed.input[1], "scores": node.input[0], "weights": weighed.input[0]}
    roles |= {f"step {number}": operand for number, (_, operand) in enumerate(steps) if operand}
    read = partial(_read, [operator for operator, _ in steps], how.get("alpha", 1.0), not how.get("transB", 0))
    return GraphAttention(roles | {"output": weighed.output[0]}, read)


def _read(operators: list[str], factor: float, is_transposed: bool, arrays: Arrays) -> AttentionArrays:
    """Return the arrays; without a scale, but with the scores, where q·k and the steps do not give these."""
    names = ("query", "key", "value", "scores", "weights", "output")
    q, k, v, scores, weights, output = (by_heads(arrays[name]) for name in names)
    if is_transposed:
        k = k.swapaxes(-1, -2)
    allowed = ~(scores <= FORBIDDEN_BELOW)
    scale, softcap, is_bounded = factor, None, False
    bias: Any = np.zeros((1, 1, 1), np.float32)
    for number, operator in enumerate(operators):
        value = arrays.get(f"step {number}", bias[:1, :1, :1]).astype(np.float32)
        if operator == "Tanh":
            is_bounded = True
        elif operator == "Add" and not is_bounded:
            bias = bias + by_heads(np.broadcast_to(value, (1,) * (2 - value.ndim) + value.shape))
        elif operator in ("Mul", "Div") and value.size == 1:
            by = float(value.item()) if operator == "Mul" else 1 / float(value.item())
            scale, bias, softcap = scale * by, bias * np.float32(by), by if is_bounded else None
    bias = np.where(allowed if len(bias) > 1 else allowed.any(axis=0, keepdims=True), bias, np.float32(0))
    added = bias if bias.any() else None
    derived = attention_scores(dot_products(q, k.repeat(len(q) // len(k), axis=0)), scale, added, softcap)
    read = AttentionArrays(q, k, v, scale, allowed, output, added, softcap, weights=weights)
    apart = np.abs(derived - scores)[allowed].max(initial=0)
    largest = max(np.abs(scores[allowed]).max(initial=0), 1.0)
    # Steps that are not followed above show here; scores that were quantized are the graph's, and q·k is near them.
    is_near, seen = "DequantizeLinear" in operators, np.where(allowed, scores, np.float32(-np.inf))
    if not apart <= (0.2 if is_near else 1e-4 if arrays["scores"].itemsize >= 4 else 2e-2) * largest:
        return read._replace(scale=None, bias=None, softcap=None, scores=seen)
    return read._replace(scores=seen) if is_near else read


def _weighed(graph: Graph, name: str) -> NodeProto | None:
    """Return the product of weights and values, which follows a Softmax."""
    names = [name]
    for made in names:  # it grows
        for node in graph.consumers.get(made, ()):
            if node.op_type in _PRODUCTS and node.input[0] == made and not graph.is_constant(node.input[1]):
                return node
            if node.op_type in (*_SAME_NUMBERS, "Mul", "Slice", "Where") and len(names) < _MOST_NODES:
                names.append(node.output[0])
    return None


def _scored(graph: Graph, name: str, depth: int = 0) -> tuple[NodeProto, Steps] | None:
    """Return the product of queries and keys that scores are made of, and the steps from it to them."""
    node = graph.producers.get(name)
    if node is None or depth > _DEEPEST:
        return None
    if node.op_type in _PRODUCTS:
        return None if any(map(graph.is_constant, node.input)) else (node, [])
    sides: list[tuple[str, str]] = []
    if node.op_type in (*_SAME_NUMBERS, "Tanh"):
        sides = [(node.input[0], "")]
    elif node.op_type == "Where":  # the scores show the mask
        sides = [(name, "") for name in node.input[1:]]
    elif node.op_type in ("Add", "Mul", "Div", "Sub", "Max"):
        sides = [(node.input[0], node.input[1]), (node.input[1], node.input[0])]
    for side, other in sides:
        if (scored := _scored(graph, side, depth + 1)) is not None:
            return scored[0], [*scored[1], (node.op_type, other)]
    return None


def _unscaled(graph: Graph, name: str) -> tuple[str, Steps]:
    """Return a tensor before it was multiplied or divided by numbers, and these steps."""
    steps: Steps = []
    while (node := graph.producers.get(name)) is not None and node.op_type in ("Mul", "Div"):
        sides = [side for side in node.input if not graph.is_number(side)]
        if len(sides) != 1 or (node.op_type == "Div" and sides[0] != node.input[0]):
            break
        (name,) = sides
        steps.insert(0, (node.op_type, next(side for side in node.input if side != name)))
    return name, steps


def by_heads(array: np.ndarray[Any, Any]) -> Float[np.ndarray, "H _ _"]:
    """Return an array of one sentence as float32, with one axis of heads; NotExposedError for several windows."""
    if array.ndim > 3 and prod(array.shape[:-3]) != 1:
        raise NotExposedError(f"a layer attends within {len(array)} windows, and attn shows attention among all tokens")
    return np.asarray(array, np.float32).reshape(-1, *array.shape[-2:])
