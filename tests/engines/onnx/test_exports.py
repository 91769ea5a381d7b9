"""Weights of exported models, against those of transformers' eager attention."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_exports import IDS, TARGET, exported, weights_of, with_past

import attncli

TEXT, TARGET_TEXT = " ".join(map(str, IDS)), " ".join(map(str, TARGET))
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
