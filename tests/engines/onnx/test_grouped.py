"""GroupQueryAttention, as onnxruntime-genai writes decoders: against plain NumPy, at once and with a cache."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, save_model

import attncli

T, HEADS, GROUPS, WIDTH = 7, 4, 2, 16
RANDOM = np.random.default_rng(0)
TABLE = RANDOM.standard_normal((T, 32)).astype(np.float32)
PROJECTION = RANDOM.standard_normal((32, (HEADS + 2 * GROUPS) * WIDTH)).astype(np.float32) / 8
SINKS = np.float32([0.5, -1, 2, 0])
ANGLES = np.arange(16)[:, None] * 100 ** (-np.arange(WIDTH // 2) / (WIDTH // 2))
ADDED = RANDOM.standard_normal((1, 1, T, T)).astype(np.float32)
IDS = " ".join(map(str, range(T)))


def graph(path: Path, is_packed: bool, others: dict[str, str], **how: Any) -> str:
    """Write a graph of one operator, whose lengths are those of the attention mask."""
    constants = {
        "table": TABLE, "projection": PROJECTION, "ends": np.array([HEADS, GROUPS, GROUPS]) * WIDTH, "sinks": SINKS,
        "cos_cache": np.cos(ANGLES).astype(np.float32), "sin_cache": np.sin(ANGLES).astype(np.float32),
        "added": ADDED, "one": np.array([1]), "first": np.array(1),
    }  # fmt: skip
    projections = ["joint", "", ""] if is_packed else ["q", "k", "v"]
    last = [others.get(name, "") for name in ("position_ids", "added", "sinks")]
    cache = [f"past_key_values.0.{part}" for part in ("key", "value")]
    inputs = [*projections, *cache, "lengths", "total", "cos_cache", "sin_cache", *last]
    presents = [name.replace("past_key_values", "present") for name in cache]
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["x"]),
        helper.make_node("MatMul", ["x", "projection"], ["joint"]),
        helper.make_node("Split", ["joint", "ends"], ["q", "k", "v"], axis=-1),
        helper.make_node("ReduceSum", ["attention_mask", "one"], ["counts"], keepdims=0),
        helper.make_node("Sub", ["counts", "first"], ["before"]),
        helper.make_node("Cast", ["before"], ["lengths"], to=TensorProto.INT32),
        helper.make_node("Shape", ["attention_mask"], ["shape"]),
        helper.make_node("Gather", ["shape", "first"], ["size"]),
        helper.make_node("Cast", ["size"], ["total"], to=TensorProto.INT32),
        helper.make_node(
            "GroupQueryAttention", inputs, ["y", *presents], domain="com.microsoft",
            num_heads=HEADS, kv_num_heads=GROUPS, **how,
        ),
    ]  # fmt: skip
    ids = [
        helper.make_tensor_value_info(name, TensorProto.INT64, [1, None])
        for name in ("input_ids", "attention_mask", "position_ids")
    ]
    sizes, float_ = [None, GROUPS, None, WIDTH], TensorProto.FLOAT
    past, made = ([helper.make_tensor_value_info(name, float_, sizes) for name in names] for names in (cache, presents))
    made.insert(0, helper.make_tensor_value_info("y", float_, [1, None, HEADS * WIDTH]))
    tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    versions = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    whole = helper.make_graph(nodes, "g", [*ids, *past], made, tensors)
    save_model(helper.make_model(whole, opset_imports=versions, ir_version=10), path / "model.onnx")
    return str(path / "model.onnx")


def rotated(x: np.ndarray, is_interleaved: bool) -> np.ndarray:
    """Turn pairs of dimensions as complex numbers."""
    turned, half = x.copy(), WIDTH // 2
    first, second = (slice(0, None, 2), slice(1, None, 2)) if is_interleaved else (slice(half), slice(half, None))
    pairs = (x[..., first] + 1j * x[..., second]) * np.exp(1j * ANGLES[:T])
    turned[..., first], turned[..., second] = pairs.real, pairs.imag
    return turned


def expected(how: dict[str, Any], has_bias: bool, has_sinks: bool) -> np.ndarray:
    joint = (TABLE[:T] @ PROJECTION).reshape(T, -1, WIDTH).swapaxes(0, 1)
    q, k = joint[:HEADS], joint[HEADS : HEADS + GROUPS]
    if how.get("do_rotary"):
        q, k = (rotated(array, bool(how.get("rotary_interleaved"))) for array in (q, k))
    scores = np.einsum("hqd,hkd->hqk", q, k.repeat(2, axis=0)) * how.get("scale", WIDTH**-0.5)
    if cap := how.get("softcap"):
        scores = cap * np.tanh(scores / cap)
    scores = scores + (ADDED[0] if has_bias else 0)
    query, key = np.indices((T, T))
    allowed = (key <= query) & (key > query - how.get("local_window_size", T))
    powers = np.where(allowed, np.exp(scores), 0)
    sinks = np.exp(SINKS) if has_sinks else np.full(HEADS, float(how.get("smooth_softmax", 0)))
    return powers / (powers.sum(-1, keepdims=True) + sinks[:, None, None])


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "rotated": {"do_rotary": 1},
    "interleaved": {"do_rotary": 1, "rotary_interleaved": 1},
    "window": {"do_rotary": 1, "local_window_size": 3},
    "softcap": {"softcap": 2.0, "scale": 0.5},
    "smooth": {"do_rotary": 1, "smooth_softmax": 1},
}
OTHERS: dict[str, dict[str, str]] = {
    "positions": {"position_ids": "position_ids"}, "bias": {"added": "added"}, "sinks": {"sinks": "sinks"}
}  # fmt: skip


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("name", [*CASES, *OTHERS])
def test_operator(name: str, is_packed: bool, tmp_path: Path) -> None:
    how = CASES.get(name, {"do_rotary": 1})
    source = attncli.open_source(graph(tmp_path, is_packed, OTHERS.get(name, {}), **how), ids=True)
    layer, weights = source.trace(IDS)[0], expected(how, name == "bias", name == "sinks")
    np.testing.assert_allclose(layer.weights, weights, atol=1e-5)
    assert layer.k.shape == (GROUPS, T, WIDTH)
    assert layer.is_proven("float32")
    if name != "bias":  # which is that of the whole text
        start = 0
        for (part,) in source.in_steps(IDS):
            end = start + part.num_queries
            np.testing.assert_allclose(part.weights, weights[:, start:end, :end], atol=1e-5)
            start = end
        assert start == T
