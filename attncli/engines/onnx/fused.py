"""Attention as one operator of a graph: its inputs stay in the graph, and attn computes its weights of them.

<https://onnx.ai/onnx/operators/onnx__Attention.html>
<https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md>
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import NodeProto, helper

from attncli.engines.onnx.graph import Graph, attributes
from attncli.engines.onnx.patterns import Arrays, AttentionArrays, GraphAttention, by_heads
from attncli.errors import NotExposedError
from attncli.masks.conventions import read_as
from attncli.text import visible

if TYPE_CHECKING:
    from jaxtyping import Float

# The inputs of each operator, in their order; `Attention` of onnxruntime projects its queries, keys and values itself.
_INPUTS: dict[tuple[str, str], tuple[str, ...]] = {
    ("", "Attention"): ("query", "key", "value", "mask"),
    ("com.microsoft", "Attention"): ("key", "projection", "bias", "padding", "past", "mask"),
    ("com.microsoft", "MultiHeadAttention"): ("query", "key", "value", "bias", "padding", "mask"),
}


def fused_attention(graph: Graph, node: NodeProto) -> GraphAttention | None:
    """Return the attention of one operator, None for any other; NotExposedError for one that hides it."""
    if "Attention" not in node.op_type:
        return None
    how, domain = attributes(node), node.domain.removeprefix("ai.onnx")
    names = _INPUTS.get((domain, node.op_type), ())
    roles = {role: name for role, name in zip(names, node.input, strict=False) if name}
    needed = {"key", "projection", "bias"} if "projection" in names else {"query", "key", "value"}
    if not needed <= roles.keys() or "past" in roles or how.get("do_rotary") or any(node.input[len(names) + 2 :]):
        hides = f"{visible(node.op_type)} at {visible(node.name or node.output[0])} hides its attention"
        again = "export again with attn_implementation='eager', and without an optimizer of onnxruntime"
        raise NotExposedError(f"the operator {hides}; {again}")
    nodes: tuple[NodeProto, ...] = ()
    if "projection" in roles:
        products, roles["joint"] = (f"{node.output[0]}.{name}" for name in ("products", "joint"))
        nodes = (
            helper.make_node("MatMul", [roles["key"], roles.pop("projection")], [products]),
            helper.make_node("Add", [products, roles.pop("bias")], [roles["joint"]]),
        )
    if not domain:
        roles["weights"] = graph.show_weights(node)
    return GraphAttention(roles | {"output": node.output[0]}, partial(_read, how), nodes)


def _read(how: Mapping[str, Any], inputs: Arrays) -> AttentionArrays:
    """Return the arrays of an operator's inputs and its output, by its attributes."""
    heads = how.get("num_heads") or how.get("q_num_heads", 0)
    if "joint" in inputs:
        widths = how.get("qkv_hidden_sizes") or [inputs["joint"].shape[-1] // 3] * 3
        parts = np.split(inputs["joint"], np.cumsum(widths)[:2], axis=-1)
    else:
        parts = [inputs[name] for name in ("query", "key", "value")]
    q, k, v = map(_split, parts, (heads, *[how.get("kv_num_heads", heads)] * 2))
    if "bias" in inputs:
        ends = np.cumsum([heads * array.shape[-1] for array in (q, k)])
        biases = (part.reshape(heads, 1, -1).astype(np.float32) for part in np.split(inputs["bias"], ends))
        q, k, v = (array + bias for array, bias in zip((q, k, v), biases, strict=True))
    allowed, bias = _masked(how, inputs, (q.shape[1], k.shape[1]))
    scale, softcap = how.get("scale") or 1 / math.sqrt(q.shape[-1]), how.get("softcap") or None
    weights = by_heads(inputs["weights"]) if "weights" in inputs else None
    return AttentionArrays(q, k, v, scale, allowed, _split(inputs["output"], len(q)), bias, softcap, weights=weights)


def _masked(how: Mapping[str, Any], inputs: Arrays, cells: tuple[int, int]) -> tuple[Any, Any]:
    """Return what an operator's mask, padding and attributes allow together, and what the mask adds besides."""
    values = inputs.get("mask", np.zeros(cells, np.float32))
    values = np.broadcast_to(values, (*values.shape[:-2], *cells)).reshape(-1, *cells)
    is_boolean = values.dtype == bool
    allowed = values if is_boolean else read_as(values.astype(np.float32), "additive").allowed
    bias = np.where(allowed & (not is_boolean), values, 0).astype(np.float32)
    if (padding := inputs.get("padding")) is not None:  # a mask of the keys, or their number
        allowed = allowed & (padding[0] != 0 if padding.ndim > 1 else np.arange(cells[1]) < padding[0])
    if how.get("is_causal") or how.get("unidirectional"):
        allowed = allowed & np.tri(*cells, cells[1] - cells[0], dtype=bool)
    return allowed, bias if bias.any() else None


def _split(array: np.ndarray[Any, Any], heads: int) -> Float[np.ndarray, "H T D"]:
    """Return an array of one sentence by its heads, which may still be side by side: `[1, T, H·D]`."""
    return by_heads(array if array.ndim == 4 else array.reshape(*array.shape[:2], heads, -1).swapaxes(1, 2))
