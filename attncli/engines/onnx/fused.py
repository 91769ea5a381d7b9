"""Attention as one operator of a graph: its inputs stay in the graph, and attn computes the weights of them again.

<https://onnx.ai/onnx/operators/onnx__Attention.html>
<https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md>
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import NodeProto, helper

from attncli.engines.onnx.graph import Graph, attributes
from attncli.engines.onnx.patterns import Arrays, AttentionArrays, by_heads
from attncli.errors import NotExposedError
from attncli.masks.conventions import read_as
from attncli.text import visible

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

Inputs = Mapping[str, np.ndarray[Any, Any]]  # of an operator, and outputs of it, by their names there
_SHOWN_WEIGHTS = 3  # the mode in which the standard operator shows its weights


@dataclass(frozen=True)
class FusedAttention:
    """One operator that attends.

    Attributes:
        name: name of the node.
        roles: the tensors that `read` needs, by their names in the operator's documentation.
        how: attributes of the node.
        reader: reads the arrays of an operator of this kind.
        nodes: nodes that compute more of the inputs.
    """

    name: str
    roles: Mapping[str, str]
    how: Mapping[str, Any]
    reader: Callable[[Inputs, Mapping[str, Any]], AttentionArrays]
    nodes: tuple[NodeProto, ...] = field(default=())

    @property
    def q(self) -> str:
        """Name of a tensor that depends on what the queries depend on."""
        return self.roles["query"]

    @property
    def k(self) -> str:
        """Name of a tensor that depends on what the keys depend on."""
        return self.roles["key"]

    @property
    def tensors(self) -> Iterator[str]:
        """Names of the tensors that `read` needs."""
        yield from self.roles.values()

    def read(self, arrays: Arrays) -> AttentionArrays:
        """Return the arrays of the layer."""
        return self.reader({role: arrays[name] for role, name in self.roles.items()}, self.how)


def fused_attention(graph: Graph, node: NodeProto) -> FusedAttention | None:
    """Return the attention of a fused operator, None for any other; NotExposedError for one that hides it."""
    if "Attention" not in node.op_type:
        return None
    entry = _OPERATORS.get((node.domain.removeprefix("ai.onnx"), node.op_type))
    how, where = attributes(node), visible(node.name or node.output[0])
    if entry is None or any(how.get(name) for name in ("do_rotary_interleaved", "smooth_softmax")):
        raise _hidden(node.op_type, where)
    names, reader = entry
    roles = {role: name for role, name in zip(names, node.input, strict=False) if name}
    if node.op_type == "Attention" and not node.domain:
        roles["weights"] = graph.show(node, 4, qk_matmul_output_mode=_SHOWN_WEIGHTS)
    elif node.op_type == "Attention":
        return _projected(node, roles, how, where, reader)
    if len(node.output) > 1 and node.output[1]:
        roles["present_key"], roles["present_value"] = node.output[1:3]
    elif "past_key" in roles or node.op_type == "GroupQueryAttention":
        raise _hidden(node.op_type, where)
    return FusedAttention(where, roles | {"output": node.output[0]}, how, reader)


def _projected(
    node: NodeProto, roles: dict[str, str], how: dict[str, Any], where: str, reader: Any
) -> FusedAttention:
    """Return onnxruntime's Attention, with nodes that project its queries, keys and values."""
    if not {"input", "weights"} <= roles.keys() or how.get("do_rotary") or "past" in roles:
        raise _hidden(node.op_type, where)
    projected, joint = f"{node.output[0]}.projected", f"{node.output[0]}.joint"
    nodes = [helper.make_node("MatMul", [roles["input"], roles.pop("weights")], [projected])]
    if "bias" in roles:
        nodes.append(helper.make_node("Add", [projected, roles.pop("bias")], [joint]))
        projected = joint
    roles |= {"query": projected, "key": roles.pop("input"), "output": node.output[0]}
    return FusedAttention(where, roles, how, reader, tuple(nodes))


def _hidden(operator: str, where: str) -> NotExposedError:
    again = "export the model again without it: attn_implementation='eager', and no optimizer of onnxruntime"
    return NotExposedError(f"the operator {visible(operator)} at {where} hides its attention; {again}")


def _standard(given: Inputs, how: Mapping[str, Any]) -> AttentionArrays:
    """Read the operator Attention of ONNX, from version 23 on."""
    q = _split(given["query"], how.get("q_num_heads"))
    k, v = (
        _split(given[f"present_{name}"] if f"present_{name}" in given else given[name], how.get("kv_num_heads"))
        for name in ("key", "value")
    )
    allowed, bias, fill = _masked(given.get("attn_mask"), True, q.shape[1], k.shape[1])
    if how.get("is_causal", 0):
        past = given["past_key"].shape[-2] if "past_key" in given else 0
        allowed = allowed & np.tri(q.shape[1], k.shape[1], past, dtype=bool)
    weights = by_heads(given["weights"])
    scale, softcap = how.get("scale") or 1 / math.sqrt(q.shape[-1]), how.get("softcap") or None
    output = _split(given["output"], len(q))
    return AttentionArrays(q, k, v, scale, allowed, output, bias, softcap, weights=weights, fill=fill)


def _joint(given: Inputs, how: Mapping[str, Any]) -> AttentionArrays:
    """Read onnxruntime's Attention, whose queries, keys and values are side by side."""
    heads, joint = how["num_heads"], given["query"]
    widths = how.get("qkv_hidden_sizes") or [joint.shape[-1] // 3] * 3
    q, k, v = (_split(part, heads) for part in np.split(joint, np.cumsum(widths)[:2], axis=-1))
    return _of_runtime(given, how, q, k, v, given.get("mask_index"))


def _several(given: Inputs, how: Mapping[str, Any]) -> AttentionArrays:
    """Read onnxruntime's MultiHeadAttention."""
    heads, query = how["num_heads"], given["query"]
    if query.ndim == 5:  # one after the other for each head
        q, k, v = (by_heads(query[:, :, :, part].swapaxes(1, 2)) for part in range(3))
    elif given["key"].ndim == 5:
        q = _split(query, heads)
        k, v = (by_heads(given["key"][:, :, :, part].swapaxes(1, 2)) for part in range(2))
    else:
        q, k, v = (_split(given[name], heads) for name in ("query", "key", "value"))
    if "bias" in given:
        ends = np.cumsum([array.shape[0] * array.shape[-1] for array in (q, k)])
        biases = (part.reshape(heads, 1, -1) for part in np.split(given["bias"].astype(np.float32), ends))
        q, k, v = (array + bias for array, bias in zip((q, k, v), biases, strict=True))
    if "present_key" in given:
        k, v = by_heads(given["present_key"]), by_heads(given["present_value"])
    return _of_runtime(given, how, q, k, v, given.get("key_padding_mask"))


def _of_runtime(
    given: Inputs, how: Mapping[str, Any], q: Any, k: Any, v: Any, padding: np.ndarray[Any, Any] | None
) -> AttentionArrays:
    queries, keys = q.shape[1], k.shape[1]
    allowed, bias, fill = _masked(given.get("attention_bias"), False, queries, keys)
    if padding is not None:
        if padding.ndim == 1:  # how many keys there are, and perhaps the first one
            start = int(padding[1]) if len(padding) > 1 else 0
            present = (np.arange(keys) < padding[0]) & (np.arange(keys) >= start)
        else:
            present = padding[0] != 0
        allowed = allowed & present
        fill = how.get("mask_filter_value", -10_000.0)
    if how.get("unidirectional", 0):
        allowed = allowed & np.tri(queries, keys, keys - queries, dtype=bool)
    scale = how.get("scale") or 1 / math.sqrt(q.shape[-1])
    return AttentionArrays(q, k, v, scale, allowed, _split(given["output"], len(q)), bias, fill=fill)


def _grouped(given: Inputs, how: Mapping[str, Any]) -> AttentionArrays:
    """Read onnxruntime's GroupQueryAttention, which rotates its queries itself, and gives the rotated keys out."""
    heads, query = how["num_heads"], given["query"]
    k, v = by_heads(given["present_key"]), by_heads(given["present_value"])
    q = _split(query[..., : heads * k.shape[-1]], heads)  # keys and values may follow in the same tensor
    queries = q.shape[1]
    k, v = k[:, :queries], v[:, :queries]  # the cache may be longer than what is in it
    if how.get("do_rotary", 0):
        cos, sin = (given[name][:queries].astype(np.float32) for name in ("cos_cache", "sin_cache"))
        q = _rotated(q, cos, sin, bool(how.get("rotary_interleaved", 0)))
    allowed, bias, fill = _masked(given.get("attention_bias"), False, queries, queries)
    allowed = allowed & np.tri(queries, dtype=bool)
    if (window := how.get("local_window_size", -1)) > 0:
        allowed = allowed & ~np.tri(queries, k=-window, dtype=bool)
    scale, sinks = how.get("scale") or 1 / math.sqrt(q.shape[-1]), given.get("head_sink")
    return AttentionArrays(
        q, k, v, scale, allowed, _split(given["output"], heads), bias, how.get("softcap") or None,
        sinks=None if sinks is None else sinks.astype(np.float32), fill=fill,
    )  # fmt: skip


def _rotated(
    q: Float[np.ndarray, "H Q D"], cos: Float[np.ndarray, "Q R"], sin: Float[np.ndarray, "Q R"], interleaved: bool
) -> Float[np.ndarray, "H Q D"]:
    turned, width = q.copy(), cos.shape[-1]
    sides = (slice(0, 2 * width, 2), slice(1, 2 * width, 2)) if interleaved else (slice(width), slice(width, 2 * width))
    first, second = (q[..., side] for side in sides)
    turned[..., sides[0]], turned[..., sides[1]] = first * cos - second * sin, second * cos + first * sin
    return turned


def _split(array: np.ndarray[Any, Any], heads: int | None) -> Float[np.ndarray, "H T D"]:
    """Return an array of one sentence by its heads, which may still be side by side: `[1, T, H·D]`."""
    if array.ndim == 4:
        return by_heads(array)
    return by_heads(array.reshape(*array.shape[:2], heads, -1).swapaxes(1, 2))


def _masked(
    values: np.ndarray[Any, Any] | None, may_be_boolean: bool, queries: int, keys: int
) -> tuple[Bool[np.ndarray, "#H Q K"], Float[np.ndarray, "#H Q K"] | None, float]:
    """Return what a mask allows, the numbers that it adds besides, and the number that it forbids with."""
    if values is None:
        return np.ones((1, queries, keys), bool), None, -np.inf
    is_boolean = may_be_boolean and values.dtype == bool
    plane = values.reshape(-1, *values.shape[-2:])
    reading = read_as(plane if is_boolean else plane.astype(np.float32), "attend" if is_boolean else "additive")
    allowed = np.broadcast_to(reading.allowed, (len(plane), queries, keys))
    added = None if is_boolean else np.where(reading.allowed, plane, 0).astype(np.float32)
    bias = None if added is None or not added.any() else np.array(np.broadcast_to(added, allowed.shape))
    return allowed, bias, reading.fills[0] if len(reading.fills) == 1 else -np.inf


# The readers of the operators, and the names of their inputs.
_OPERATORS: dict[tuple[str, str], tuple[tuple[str, ...], Callable[[Inputs, Mapping[str, Any]], AttentionArrays]]] = {
    ("", "Attention"): (("query", "key", "value", "attn_mask", "past_key", "past_value"), _standard),
    ("com.microsoft", "Attention"): (
        ("input", "weights", "bias", "mask_index", "past", "attention_bias"), _joint
    ),
    ("com.microsoft", "MultiHeadAttention"): (
        ("query", "key", "value", "bias", "key_padding_mask", "attention_bias", "past_key", "past_value"), _several
    ),
    ("com.microsoft", "GroupQueryAttention"): (
        (
            "query", "key", "value", "past_key", "past_value", "seqlens_k", "total_sequence_length", "cos_cache",
            "sin_cache", "position_ids", "attention_bias", "head_sink",
        ),
        _grouped,
    ),
}  # fmt: skip
