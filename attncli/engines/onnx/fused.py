"""Attention as one operator of a graph: its inputs stay in the graph, and attn computes its weights of them.

<https://onnx.ai/onnx/operators/onnx__Attention.html>
<https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md>
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from onnx import NodeProto, helper

from attncli.checkpoints.onnx_graph import attributes
from attncli.engines.numpy.ops import rotated_by
from attncli.engines.onnx.graph import Graph
from attncli.engines.onnx.patterns import Arrays, AttentionArrays, GraphAttention, by_heads
from attncli.errors import NotExposedError
from attncli.masks.conventions import read_as
from attncli.text import visible

if TYPE_CHECKING:
    from jaxtyping import Float


class _Operator(NamedTuple):
    """Names of the inputs and outputs that are read of an operator, in their order."""

    inputs: tuple[str, ...]
    needed: int  # of the inputs, the first ones
    outputs: tuple[str, ...]  # behind the first
    giving: Mapping[str, int] = {}  # attributes with which its weights are an output


_CACHE = ("present_key", "present_value")
# `Attention` of onnxruntime projects its queries, keys and values itself.
_OPERATORS: dict[tuple[str, str], _Operator] = {
    ("", "Attention"): _Operator(
        ("query", "key", "value", "mask", "past_key", "past_value"), 3, (*_CACHE, "weights"),
        {"qk_matmul_output_mode": 3},
    ),
    ("com.microsoft", "Attention"): _Operator(
        ("key", "projection", "bias", "padding", "past", "mask"), 3, ("present",)
    ),
    ("com.microsoft", "MultiHeadAttention"): _Operator(
        ("query", "key", "value", "bias", "padding", "mask", "past_key", "past_value"), 3, _CACHE
    ),
    ("com.microsoft", "GroupQueryAttention"): _Operator(
        ("query", "key", "value", "past_key", "past_value", "lengths", "past_total", "cos", "sin", "positions",
         "mask", "sinks"), 1, (*_CACHE, "weights"), {"qk_output": 2},
    ),
}  # fmt: skip


def fused_attention(graph: Graph, node: NodeProto) -> GraphAttention | None:
    """Return the attention of one operator, None for any other; NotExposedError for one that hides it."""
    if "Attention" not in node.op_type:
        return None
    how, domain = attributes(node), node.domain.removeprefix("ai.onnx")
    operator = _OPERATORS.get((domain, node.op_type), _Operator((), 1, ()))
    roles = {role: name for role, name in zip(operator.inputs, node.input, strict=False) if name}
    is_read = {*operator.inputs[: operator.needed]} <= roles.keys() and not any(node.input[len(operator.inputs) :])
    if not operator.inputs or not is_read or (how.get("do_rotary") and "cos" not in roles):
        hides = f"{visible(node.op_type)} at {visible(node.name or node.output[0])} hides its attention"
        again = "export again with attn_implementation='eager', and without an optimizer of onnxruntime"
        raise NotExposedError(f"the operator {hides}; {again}")
    past = [role for role in roles if role.startswith("past")]
    wanted = [bool(operator.giving if role == "weights" else past) for role in operator.outputs]
    if any(wanted):
        shown = zip(operator.outputs, graph.show(node, wanted, **operator.giving)[1:], wanted, strict=False)
        roles |= {role: name for role, name, is_wanted in shown if is_wanted}
    nodes: tuple[NodeProto, ...] = ()
    if "projection" in roles:
        products, roles["joint"] = (f"{node.output[0]}.{name}" for name in ("products", "joint"))
        nodes = (
            helper.make_node("MatMul", [roles["key"], roles.pop("projection")], [products]),
            helper.make_node("Add", [products, roles.pop("bias")], [roles["joint"]]),
        )
    read = partial(_read, {"causal": node.op_type == "GroupQueryAttention", **how})
    tensors = {role: name for role, name in roles.items() if role not in past}
    return GraphAttention(tensors | {"output": node.output[0]}, read, nodes)


def _read(how: Mapping[str, Any], inputs: Arrays) -> AttentionArrays:
    """Return the arrays of an operator's inputs and its output, by its attributes."""
    heads = how.get("num_heads") or how.get("q_num_heads", 0)
    kv_heads = how.get("kv_num_heads", heads)
    if "joint" in inputs:
        widths = how.get("qkv_hidden_sizes") or [inputs["joint"].shape[-1] // 3] * 3
        parts = np.split(inputs["joint"], np.cumsum(widths)[:2], axis=-1)
        q, k, v = (_split(part, heads) for part in parts)
    elif "key" in inputs:
        q, k, v = (_split(inputs[name], heads if name == "query" else kv_heads) for name in ("query", "key", "value"))
    else:  # side by side
        q, k, v = np.split(_split(inputs["query"], heads + 2 * kv_heads), [heads, heads + kv_heads])
    if "bias" in inputs:
        ends = np.cumsum([heads * array.shape[-1] for array in (q, k)])
        biases = (part.reshape(heads, 1, -1).astype(np.float32) for part in np.split(inputs["bias"], ends))
        q, k, v = (array + bias for array, bias in zip((q, k, v), biases, strict=True))
    if "present" in inputs or "present_key" in inputs:  # with those of the tokens before, and rotated
        k, v = map(by_heads, inputs["present"] if "present" in inputs else (inputs[name] for name in _CACHE))
    if how.get("do_rotary"):
        positions = inputs["positions"].ravel() if "positions" in inputs else np.arange(k.shape[1])[-q.shape[1] :]
        cos, sin = (inputs[name][positions].astype(np.float32) for name in ("cos", "sin"))
        q = rotated_by(q, cos, sin, bool(how.get("rotary_interleaved")))
    allowed, bias = _masked(how, inputs, (q.shape[1], k.shape[1]))
    scale, softcap = how.get("scale") or 1 / math.sqrt(q.shape[-1]), how.get("softcap") or None
    sinks = inputs.get("sinks", np.zeros(heads, np.float32) if how.get("smooth_softmax") else None)
    weights = by_heads(inputs["weights"]) if "weights" in inputs else None
    output = _split(inputs["output"], len(q))
    return AttentionArrays(q, k, v, scale, allowed, output, bias, softcap, sinks, weights=weights)


def _masked(how: Mapping[str, Any], inputs: Arrays, cells: tuple[int, int]) -> tuple[Any, Any]:
    """Return what an operator's mask, padding and attributes allow together, and what the mask adds besides."""
    values = inputs.get("mask", np.zeros(cells, np.float32))
    values = np.broadcast_to(values, (*values.shape[:-2], *cells)).reshape(-1, *cells)
    is_boolean = values.dtype == bool
    allowed = values if is_boolean else read_as(values.astype(np.float32), "additive").allowed
    bias = np.where(allowed & (not is_boolean), values, 0).astype(np.float32)
    if (padding := inputs.get("padding")) is not None:  # a mask of the keys, or their number
        allowed = allowed & (padding[0] != 0 if padding.ndim > 1 else np.arange(cells[1]) < padding[0])
    if "lengths" in inputs:  # the last key that is no padding
        allowed = allowed & (np.arange(cells[1]) <= inputs["lengths"].ravel()[0])
    past = cells[1] - cells[0]
    if how.get("is_causal") or how.get("unidirectional") or how.get("causal"):
        allowed = allowed & np.tri(*cells, past, dtype=bool)
    if (width := how.get("local_window_size", -1)) > 0:
        allowed = allowed & ~np.tri(*cells, past - width, dtype=bool)
    return allowed, bias if bias.any() else None


def _split(array: np.ndarray[Any, Any], heads: int) -> Float[np.ndarray, "H T D"]:
    """Return an array of one sentence by its heads, which may still be side by side: `[1, T, H·D]`."""
    return by_heads(array if array.ndim == 4 else array.reshape(*array.shape[:2], heads, -1).swapaxes(1, 2))
