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

_NOT_READ = ("do_rotary", "smooth_softmax", "k_quant_type", "v_quant_type")


def fused_attention(graph: Graph, node: NodeProto) -> GraphAttention | None:
    """Return the attention of one operator, None for any other; NotExposedError for one that hides it."""
    if "Attention" not in node.op_type:
        return None
    how, where = attributes(node), visible(node.name or node.output[0])
    hides = f"the operator {visible(node.op_type)} at {where} hides its attention"
    hidden = NotExposedError(f"{hides}; export again with attn_implementation='eager', and without an optimizer")
    names, reader = _OPERATORS.get((node.domain.removeprefix("ai.onnx"), node.op_type), ((), _standard))
    roles = {role: name for role, name in zip(names, node.input, strict=False) if name}
    if not roles or any(map(how.get, _NOT_READ)) or ("past" in roles) or (reader is _several and "value" not in roles):
        raise hidden
    nodes: tuple[NodeProto, ...] = ()
    if reader is _joint:
        products, joint = (f"{node.output[0]}.{name}" for name in ("products", "joint"))
        nodes = (
            helper.make_node("MatMul", [roles["key"], roles.pop("weights")], [products]),
            helper.make_node("Add", [products, roles.pop("bias")], [joint]),
        )
        roles["query"] = joint
    elif reader is _standard:
        roles["weights"] = graph.show_weights(node)
    return GraphAttention(roles | {"output": node.output[0]}, partial(reader, how), nodes)


def _standard(how: Mapping[str, Any], given: Arrays) -> AttentionArrays:
    """Read the operator Attention of ONNX, from version 23 on."""
    q = _split(given["query"], how.get("q_num_heads", 0))
    k, v = (_split(given[name], how.get("kv_num_heads", 0)) for name in ("key", "value"))
    read = _with_mask(how, given, q, k, v)
    return read._replace(softcap=how.get("softcap") or None, weights=by_heads(given["weights"]))


def _joint(how: Mapping[str, Any], given: Arrays) -> AttentionArrays:
    """Read onnxruntime's Attention, with queries, keys and values side by side."""
    widths = how.get("qkv_hidden_sizes") or [given["query"].shape[-1] // 3] * 3
    parts = np.split(given["query"], np.cumsum(widths)[:2], axis=-1)
    return _with_mask(how, given, *(_split(part, how["num_heads"]) for part in parts))


def _several(how: Mapping[str, Any], given: Arrays) -> AttentionArrays:
    """Read onnxruntime's MultiHeadAttention."""
    heads = how["num_heads"]
    q, k, v = (_split(given[name], heads) for name in ("query", "key", "value"))
    if "bias" in given:
        sizes = np.cumsum([heads * array.shape[-1] for array in (q, k)])
        biases = (part.reshape(heads, 1, -1).astype(np.float32) for part in np.split(given["bias"], sizes))
        q, k, v = (array + bias for array, bias in zip((q, k, v), biases, strict=True))
    return _with_mask(how, given, q, k, v)


def _with_mask(how: Mapping[str, Any], given: Arrays, q: Any, k: Any, v: Any) -> AttentionArrays:
    """Return arrays with the mask of all inputs that mask: an array, the padding, and an attribute."""
    cells = (q.shape[1], k.shape[1])
    values = given.get("mask", np.zeros(cells, np.float32))
    values = values.reshape(-1, *values.shape[-2:])
    is_boolean = values.dtype == bool
    reading = read_as(values if is_boolean else values.astype(np.float32), "attend" if is_boolean else "additive")
    allowed = np.broadcast_to(reading.allowed, (len(values), *cells))
    bias = np.broadcast_to(np.where(allowed, 0 if is_boolean else values, 0).astype(np.float32), allowed.shape)
    if (padding := given.get("padding")) is not None:
        present = padding[0] != 0 if padding.ndim > 1 else np.arange(cells[1]) < padding[0]
        allowed = allowed & present
    if how.get("is_causal") or how.get("unidirectional"):
        allowed = allowed & np.tri(*cells, cells[1] - cells[0], dtype=bool)
    scale = how.get("scale") or 1 / math.sqrt(q.shape[-1])
    output = _split(given["output"], len(q))
    return AttentionArrays(q, k, v, scale, allowed, output, bias if bias.any() else None)


def _split(array: np.ndarray[Any, Any], heads: int) -> Float[np.ndarray, "H T D"]:
    """Return an array of one sentence by its heads, which may still be side by side: `[1, T, H·D]`."""
    return by_heads(array if array.ndim == 4 else array.reshape(*array.shape[:2], heads, -1).swapaxes(1, 2))


# The inputs of each operator by their order, and its reader.
_OPERATORS = {
    ("", "Attention"): (("query", "key", "value", "mask"), _standard),
    ("com.microsoft", "Attention"): (("key", "weights", "bias", "padding", "past", "mask"), _joint),
    ("com.microsoft", "MultiHeadAttention"): (
        ("query", "key", "value", "bias", "padding", "mask"), _several
    ),
}  # fmt: skip
