"""Attention of fused operators, against the operator's own output and plain NumPy."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, save_model

import attncli
from attncli.errors import NotExposedError

T, HEADS, WIDTH = 5, 2, 3
SIZE = HEADS * WIDTH
RANDOM = np.random.default_rng(0)
STATES = RANDOM.standard_normal((1, T, SIZE)).astype(np.float32)
PROJECTION = RANDOM.standard_normal((SIZE, 3 * SIZE)).astype(np.float32)
BIAS = RANDOM.standard_normal(3 * SIZE).astype(np.float32)
ADDED = RANDOM.standard_normal((1, HEADS, T, T)).astype(np.float32)
CAUSAL = np.tri(T, dtype=bool)
IDS = " ".join(map(str, range(T)))


def trace(path: Path, operator: str, inputs: list[str], domain: str = "com.microsoft", **how: Any) -> Any:
    """Return the trace of a graph of one operator, whose inputs are constants or the projections q, k and v."""
    constants = {"states": STATES, "projection": PROJECTION, "bias": BIAS, "added": ADDED, "axis": np.array([-1])}
    constants |= {"keys": np.ones((1, T), np.int32), "ends": np.array([SIZE] * 3), "causal": CAUSAL[None, None]}
    constants["keys"][0, 3:] = 0
    constants["starts"] = np.array([T, 2], np.int32)
    nodes = [
        helper.make_node("Cast", ["input_ids"], ["ids"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["ids", "axis"], ["column"]),
        helper.make_node("Add", ["states", "column"], ["x"]),
        helper.make_node("MatMul", ["x", "projection"], ["joint"]),
        helper.make_node("Split", ["joint", "ends"], ["q", "k", "v"], axis=-1),
        helper.make_node(operator, inputs, ["y"], name="attend", domain=domain, **how),
    ]
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, [1, None])
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, None, SIZE])
    tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    versions = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph(nodes, "g", [ids], [made], tensors)
    save_model(helper.make_model(graph, opset_imports=versions, ir_version=10), path / "model.onnx")
    return attncli.inspect(IDS, str(path / "model.onnx"), ids=True)


def by_heads(array: np.ndarray) -> np.ndarray:
    return array.reshape(T, HEADS, WIDTH).transpose(1, 0, 2)


def expected(allowed: np.ndarray, bias: np.ndarray | float = 0, has_bias: bool = True) -> np.ndarray:
    joint = (STATES[0] + np.arange(T)[:, None]) @ PROJECTION + (BIAS if has_bias else 0)
    q, k, _ = (by_heads(part) for part in np.split(joint, 3, axis=-1))
    scores = np.where(allowed, q @ k.transpose(0, 2, 1) / np.sqrt(WIDTH) + bias, -np.inf)
    exponentials = np.exp(scores - scores.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


EVERY, KEYS = np.ones((T, T), bool), np.arange(T) < 3
OPERATORS: dict[str, tuple[str, list[str], dict[str, Any], np.ndarray, Any, bool]] = {
    "projected": ("Attention", ["x", "projection", "bias"], {"num_heads": HEADS}, EVERY, 0, True),
    "projected, padded": (
        "Attention", ["x", "projection", "bias", "keys"], {"num_heads": HEADS}, EVERY & KEYS, 0, True
    ),
    "projected, causal": (
        "Attention", ["x", "projection", "bias", "", "", "added"], {"num_heads": HEADS, "unidirectional": 1},
        CAUSAL, ADDED[0], True,
    ),
    "several": ("MultiHeadAttention", ["q", "k", "v"], {"num_heads": HEADS}, EVERY, 0, False),
    "several, padded": (
        "MultiHeadAttention", ["q", "k", "v", "bias", "keys", "added"], {"num_heads": HEADS}, EVERY & KEYS,
        ADDED[0], True,
    ),
    "standard": (
        "Attention", ["q", "k", "v", "causal"], {"q_num_heads": HEADS, "kv_num_heads": HEADS, "domain": ""}, CAUSAL,
        0, False,
    ),
    "standard, causal": (
        "Attention", ["q", "k", "v", "added"],
        {"q_num_heads": HEADS, "kv_num_heads": HEADS, "domain": "", "is_causal": 1}, CAUSAL, ADDED[0], False,
    ),
}  # fmt: skip


def test_a_mask_that_attn_does_not_read_is_refused(tmp_path: Path) -> None:
    padded = ["x", "projection", "bias", "starts"]  # the end of the keys, and their start
    with pytest.raises(NotExposedError, match="layer 0 attends otherwise than attn reads it"):
        trace(tmp_path, "Attention", padded, num_heads=HEADS)


@pytest.mark.parametrize("name", OPERATORS)
def test_operator(name: str, tmp_path: Path) -> None:
    operator, inputs, how, allowed, bias, has_bias = OPERATORS[name]
    layer = trace(tmp_path, operator, inputs, **how)[0]
    np.testing.assert_allclose(layer.weights, expected(allowed, bias, has_bias), atol=1e-5)
    assert (layer.allowed == allowed).all()
    assert layer.proof.max_abs_error < 1e-4 * layer.proof.magnitude


CACHE = {"past_key": [1, HEADS, None, WIDTH], "past_value": [1, HEADS, None, WIDTH]}
CACHED: dict[str, tuple[str, list[str], dict[str, Any], dict[str, Any]]] = {
    "projected": (
        "Attention", ["x", "projection", "bias", "", "past_0"], {"num_heads": HEADS, "unidirectional": 1},
        {"past_0": [2, 1, HEADS, None, WIDTH]},
    ),
    "several": (
        "MultiHeadAttention", ["q", "k", "v", "bias", "", "", *CACHE], {"num_heads": HEADS, "unidirectional": 1}, CACHE
    ),
    "standard": (
        "Attention", ["q", "k", "v", "", *CACHE],
        {"q_num_heads": HEADS, "kv_num_heads": HEADS, "is_causal": 1, "domain": ""}, CACHE,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CACHED)
def test_a_cache_is_read(name: str, tmp_path: Path) -> None:
    operator, inputs, how, past = CACHED[name]
    table = STATES[0] + np.arange(T, dtype=np.float32)[:, None]
    constants = {"table": table, "projection": PROJECTION, "bias": BIAS, "ends": np.array([SIZE] * 3)}
    presents = [one.replace("past", "present") for one in past]
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["x"]),
        helper.make_node("MatMul", ["x", "projection"], ["joint"]),
        helper.make_node("Split", ["joint", "ends"], ["q", "k", "v"], axis=-1),
        helper.make_node(operator, inputs, ["y", *presents], **{"domain": "com.microsoft", **how}),
    ]
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, [1, None])
    read = [helper.make_tensor_value_info(one, TensorProto.FLOAT, sizes) for one, sizes in past.items()]
    made = [helper.make_tensor_value_info(one, TensorProto.FLOAT, None) for one in ("y", *presents)]
    tensors = [numpy_helper.from_array(array, one) for one, array in constants.items()]
    versions = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph(nodes, "g", [ids, *read], made, tensors)
    save_model(helper.make_model(graph, opset_imports=versions, ir_version=10), tmp_path / "model.onnx")
    source = attncli.open_source(str(tmp_path / "model.onnx"), ids=True)
    weights = expected(CAUSAL, has_bias=name != "standard")
    np.testing.assert_allclose(source.trace(IDS)[0].weights, weights, atol=1e-5)
    start = 0
    for (layer,) in source.in_steps(IDS):
        end = start + layer.num_queries
        np.testing.assert_allclose(layer.weights, weights[:, start:end, :end], atol=1e-5)
        start = end
    assert start == T
