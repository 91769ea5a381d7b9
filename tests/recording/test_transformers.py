"""Models of transformers that run inside a program: seen whole, with the weights that `attn inspect` shows for them."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from architectures import tiny_inputs, tiny_model
from conformance import calmed, opened, save, stacked, words

from attncli.recording.call import AttentionCall
from attncli.recording.to_trace import traces
from attncli.recording.watch import watching
from attncli.trace.trace import Trace


def inspected(name: str, folder: Path, inputs: dict[str, torch.Tensor]) -> Trace:
    save(calmed(tiny_model(name)), folder)
    text, target = (words(inputs.get(key)) for key in ("input_ids", "decoder_input_ids"))
    return opened(folder, "all").trace(text or "", target=target)


def ran(name: str, implementation: str, inputs: dict[str, torch.Tensor]) -> list[tuple[AttentionCall, Trace]]:
    """Run a model as a user's program does, and return what was seen."""
    model = calmed(tiny_model(name, attn_implementation=implementation))
    seen: list[tuple[AttentionCall, Trace]] = []

    def take(call: AttentionCall) -> None:
        (trace,) = traces(call)
        seen.append((call, trace))

    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        # transformers compiles flex attention, and what is compiled runs eagerly while it is watched.
        with torch.compiler.set_stance("force_eager"):
            expected = model(**inputs)
        with watching(take):
            output = model(**inputs)
    assert torch.equal(output[0], expected[0])
    return seen


APIS = {"eager": "softmax", "sdpa": "sdpa", "flex_attention": "flex"}
CASES = [
    *((name, way) for name in ("bert", "gpt2", "llama", "t5") for way in ("eager", "sdpa")),
    *((name, "flex_attention") for name in ("bert", "llama", "t5")),  # GPT-2 refuses it
    *((name, "eager") for name in ("gemma2", "bloom", "gptj", "deberta-v2")),
]


@pytest.mark.parametrize(("name", "implementation"), CASES, ids=str)
def test_a_model_is_seen_whole(name: str, implementation: str, tmp_path: Path) -> None:
    inputs: dict[str, Any] = tiny_inputs(tiny_model(name).config)
    trace = inspected(name, tmp_path, inputs)
    seen = ran(name, implementation, inputs)
    assert {call.api for call, _ in seen} == {APIS[implementation]}
    assert len(seen) == len(trace.layers)
    for kind in dict.fromkeys(layer.kind for layer in trace.layers):
        expected = [layer for layer in trace.layers if layer.kind == kind]
        found = [each.layer(0) for call, each in seen if kind == _kind(call.place.module or "", kind)]
        assert len(found) == len(expected)
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(stacked(ours), stacked(theirs), atol=1e-6)


def _kind(module: str, kind: str) -> str:
    """The kind of layer that the name of one of T5's modules says."""
    if kind == "self":
        return "self"
    if "EncDec" in module:
        return "cross"
    return "encoder" if module.startswith("encoder") else "decoder"
