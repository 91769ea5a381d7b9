"""What is computed on a device comes to the CPU after the pass; here the CPU is the device."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from architectures import tiny_model
from conformance import opened, save

from attncli.engines.torch import memory, recorder

pytestmark = pytest.mark.usefixtures("by_transformers")

TEXTS = ["w23 w42 w17 w88", "w9 w8 w7 w6", "w31 w3", "w5 w6 w7 w8"]  # three of one length


# Those that call the attention function (rotary positions, a bias, sinks, values side by side), which run once more to
# be compared; and those whose softmax is traced.
@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, "float32") for name in ("llama", "t5", "gpt_oss", "diffllama", "bloom", "longformer")]
    + [("llama", "bfloat16")],
)
def test_a_batch_on_a_device_is_copied_after_the_pass_and_shows_what_it_shows_on_the_cpu(
    name: str, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tiny_model(name), tmp_path)
    source = opened(tmp_path, "all", dtype=dtype)
    target = "w5 w6 w7" if source.is_encoder_decoder else None
    expected = list(source.traces(TEXTS, None, target))
    copied: list[int] = []
    copy = recorder._on_cpu

    def counted(call: Any, copies: dict[int, torch.Tensor]) -> Any:
        copied.append(torch.is_inference_mode_enabled())
        return copy(call, copies)

    monkeypatch.setattr(recorder, "_is_on_cpu", lambda _: False)
    monkeypatch.setattr(recorder, "_on_cpu", counted)
    found = list(source.traces(TEXTS, None, target))
    assert copied == [False] * len(expected[0].layers) * 2  # two lengths, each after its pass
    for ours, theirs in zip(found, expected, strict=True):
        for layer, other in zip(ours.layers, theirs.layers, strict=True):
            for what in ("q", "k", "v", "bias", "sinks", "scores", "weights", "scale", "fill", "heads", "proof"):
                np.testing.assert_equal(getattr(layer, what), getattr(other, what), err_msg=f"{layer.label} {what}")
            assert str(layer.mask) == str(other.mask)


def test_less_fits_where_what_was_recorded_waits_to_be_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_available", lambda _: 1e9)
    model = tiny_model("llama")
    near, far = (
        memory.room_for(
            SimpleNamespace(config=model.config, dtype=torch.float32, device=torch.device(name)), 50, 6, False
        )
        for name in ("cpu", "cuda")
    )
    assert near > far > near / 3
