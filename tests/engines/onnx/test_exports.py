"""Weights of exported models, against those of transformers' eager attention."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx_exports import IDS, PICTURE, TARGET, Exporter, exported, merged, optimized, weights_of, with_past

import attncli

TEXT, TARGET_TEXT = " ".join(map(str, IDS)), " ".join(map(str, TARGET[1:]))


def trace_of(path: Path, name: str = "") -> Any:
    if name == "vit":
        return attncli.inspect("", str(path), layer="all", image=str(path.parent / PICTURE))
    return attncli.inspect(TEXT, str(path), layer="all", ids=True, target=TARGET_TEXT if name == "t5" else None)


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


# Each cell is read as exported, and again as onnxruntime's optimizer leaves it. It has the operators of attention that
# this writes for eager and for sdpa, or the optimizer's error. Slow cells run with the tests marked system.
CELLS = {
    ("bert", "torchscript"): ("Attention", "none"),
    ("bert", "dynamo"): ("none", "none"),
    ("gpt2", "torchscript"): ("none", "none"),
    ("gpt2", "dynamo"): ("IndexError", "IndexError"),
    ("llama", "torchscript"): ("none", "none"),
    ("llama", "dynamo"): ("none", "none"),
    ("llama with past", "torchscript"): ("none", "none"),
    ("llama with past", "dynamo"): ("none", "none"),
    ("mistral", "torchscript"): ("none", "none"),
    ("mistral", "dynamo"): ("none", "none"),
    ("t5", "torchscript"): ("none", "none"),
    ("t5", "dynamo"): ("none", "none"),
    ("vit", "torchscript"): ("none", "none"),
    ("vit", "dynamo"): ("none", "none"),
}
EACH = [
    pytest.param(*cell, attention, fused, marks=[pytest.mark.system] * ((cell[1], attention) == ("dynamo", "eager")))
    for cell, operators in CELLS.items()
    for attention, fused in zip(("eager", "sdpa"), operators, strict=True)
]


@pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning")  # of an optimizer that raises
@pytest.mark.parametrize(("name", "exporter", "attention", "fused"), EACH)
def test_cell(name: str, exporter: Exporter, attention: str, fused: str, tmp_path: Path) -> None:
    model = name.removesuffix(" with past")
    export = exported if model == name else with_past
    path, expected = export(tmp_path, model, attention, exporter), weights_of(model)
    check(trace_of(path, name), expected)
    kind, heads = (model, 2) if model in ("bert", "gpt2", "t5", "vit") else ("gpt2", 4)
    files = [path] if path.is_file() else sorted(path.glob("*.onnx"))
    if fused == "IndexError":  # a version that optimizes it, and what attn reads then, shall be noticed
        with pytest.raises(IndexError):
            optimized(path, kind, heads)
        return
    operators = {node.op_type for file in files for node in onnx.load(optimized(file, kind, heads)).graph.node}
    assert (",".join(sorted(one for one in operators if "Attention" in one)) or "none") == fused
    check(trace_of(path, name), expected)


@pytest.mark.system
def test_attention_operator_of_dynamo(tmp_path: Path) -> None:
    path = exported(tmp_path, "llama", "sdpa", "dynamo", opset_version=23)
    assert "Attention" in {node.op_type for node in onnx.load(path).graph.node}
    check(trace_of(path), weights_of("llama"))


def test_multihead_attention_of_the_optimizer(tmp_path: Path) -> None:
    path = optimized(exported(tmp_path, "bert"), "bert", 2, use_multi_head_attention=True)
    assert "MultiHeadAttention" in {node.op_type for node in onnx.load(path).graph.node}
    check(trace_of(path), weights_of("bert"))


def test_softcap(tmp_path: Path) -> None:
    trace = trace_of(exported(tmp_path, "gemma2"))
    check(trace, weights_of("gemma2"))
    assert [layer.softcap for layer in trace] == [50, 50]


def test_merged_decoder(tmp_path: Path) -> None:
    check(trace_of(merged(with_past(tmp_path, "llama"))), weights_of("llama"))
