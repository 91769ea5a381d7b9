"""Weights of exported models, against those of transformers' eager attention."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx_exports import IDS, TARGET, exported, merged, optimized, weights_of, with_past

import attncli

TEXT, TARGET_TEXT = " ".join(map(str, IDS)), " ".join(map(str, TARGET[1:]))
MODELS = ["bert", "gpt2", "llama", "mistral"]


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


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", MODELS)
def test_torchscript(name: str, attention: str, tmp_path: Path) -> None:
    check(trace_of(exported(tmp_path, name, attention)), weights_of(name))


@pytest.mark.parametrize(
    ("attention", "exporter"), [("eager", "torchscript"), ("sdpa", "torchscript"), ("sdpa", "dynamo")]
)
def test_past(attention: str, exporter: str, tmp_path: Path) -> None:
    check(trace_of(with_past(tmp_path, "llama", attention, exporter)), weights_of("llama"))


@pytest.mark.parametrize(
    ("attention", "exporter"), [("eager", "torchscript"), ("sdpa", "torchscript"), ("eager", "dynamo")]
)
def test_t5(attention: str, exporter: str, tmp_path: Path) -> None:
    check(trace_of(exported(tmp_path, "t5", attention, exporter), target=TARGET_TEXT), weights_of("t5"))


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


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize(("name", "kind"), [("bert", "bert"), ("gpt2", "gpt2"), ("llama", "gpt2"), ("t5", "t5")])
def test_fusion_of_onnxruntime(name: str, kind: str, attention: str, tmp_path: Path) -> None:
    path = exported(tmp_path, name, attention)
    for file in [path] if path.is_file() else sorted(path.glob("*.onnx")):
        optimized(file, kind, 4 if name == "llama" else 2)
    check(trace_of(path, target=TARGET_TEXT if name == "t5" else None), weights_of(name))
