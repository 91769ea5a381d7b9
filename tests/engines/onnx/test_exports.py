"""Weights of exported models, against those of transformers' eager attention."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx_exports import IDS, TARGET, exported, merged, optimized, weights_of, with_past

import attncli

TEXT, TARGET_TEXT = " ".join(map(str, IDS)), " ".join(map(str, TARGET[1:]))
MODELS = ["bert", "gpt2", "llama", "llama with past", "mistral", "t5"]


def trace_of(path: Path, **options: Any) -> Any:
    return attncli.inspect(TEXT, str(path), layer="all", ids=True, **options)


def check(trace: Any, expected: dict[str, list[Any]]) -> None:
    assert [layer.kind for layer in trace] == [kind for index in range(2) for kind in expected]
    for layer in trace:
        weights = expected[layer.kind][layer.layer]
        np.testing.assert_allclose(layer.weights, weights, atol=1e-5)
        assert layer.scale is not None, "the scores are not q·k·scale"
        masked = np.where(layer.allowed, layer.scores, -np.inf)
        softmax = np.exp(masked - masked.max(-1, keepdims=True))
        np.testing.assert_allclose(softmax / softmax.sum(-1, keepdims=True), weights, atol=1e-5)
        assert layer.is_proven("float32")


# Each cell is read as exported, and as onnxruntime's optimizer leaves it: the attention operators of that are listed.
FUSED = {("bert", "eager"): {"Attention"}}


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", MODELS)
def test_torchscript(name: str, attention: str, tmp_path: Path) -> None:
    model = name.removesuffix(" with past")
    path = exported(tmp_path, name, attention) if model == name else with_past(tmp_path, model, attention)
    expected, target = weights_of(model), TARGET_TEXT if name == "t5" else None
    check(trace_of(path, target=target), expected)
    kind, heads = {"bert": ("bert", 2), "t5": ("t5", 2), "gpt2": ("gpt2", 2)}.get(name, ("gpt2", 4))
    operators = set[str]()
    for file in [path] if path.is_file() else sorted(path.glob("*.onnx")):
        operators |= {node.op_type for node in onnx.load(optimized(file, kind, heads)).graph.node}
    assert {one for one in operators if "Attention" in one} == FUSED.get((name, attention), set())
    check(trace_of(path, target=target), expected)


def test_multihead_attention_of_the_optimizer(tmp_path: Path) -> None:
    path = optimized(exported(tmp_path, "bert"), "bert", 2, use_multi_head_attention=True)
    assert "MultiHeadAttention" in {node.op_type for node in onnx.load(path).graph.node}
    check(trace_of(path), weights_of("bert"))


def test_past_of_dynamo(tmp_path: Path) -> None:
    check(trace_of(with_past(tmp_path, "llama", "sdpa", "dynamo")), weights_of("llama"))


def test_t5_of_dynamo(tmp_path: Path) -> None:
    check(trace_of(exported(tmp_path, "t5", "eager", "dynamo"), target=TARGET_TEXT), weights_of("t5"))


def test_softcap(tmp_path: Path) -> None:
    trace = trace_of(exported(tmp_path, "gemma2"))
    check(trace, weights_of("gemma2"))
    assert [layer.softcap for layer in trace] == [50, 50]


def test_merged_decoder(tmp_path: Path) -> None:
    check(trace_of(merged(with_past(tmp_path, "llama"))), weights_of("llama"))


DYNAMO = [("bert", "sdpa", 18), ("gpt2", "eager", 18), ("mistral", "sdpa", 18), ("llama", "sdpa", 23)]


@pytest.mark.parametrize(("name", "attention", "opset"), DYNAMO)
def test_dynamo(name: str, attention: str, opset: int, tmp_path: Path) -> None:
    path = exported(tmp_path, name, attention, "dynamo", opset_version=opset)
    operators = {node.op_type for node in onnx.load(path).graph.node}
    assert ("Attention" in operators) == (opset == 23)
    check(trace_of(path), weights_of(name))
