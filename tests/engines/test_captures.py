"""Captures that the model of their run completes: norms, projections and rotation, against transformers' own."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import faults
import numpy as np
import pytest
import torch
from refusals import refused
from running import Run
from safetensors.numpy import save_file
from transformers import AutoModelForCausalLM

from attncli.engines import load_saved

CAPTURE = {"format": "attncli.capture/1"}
BUILDERS: dict[str, Callable[[Path], Path]] = {"normed": faults.save_normed, "biased": faults.save_biased}


@pytest.fixture(scope="module", params=BUILDERS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return BUILDERS[request.param](tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def run(checkpoint: Path) -> tuple[list[Any], list[Any]]:
    """The hidden states and the attention weights of transformers."""
    model = AutoModelForCausalLM.from_pretrained(checkpoint, attn_implementation="eager", dtype="float32")
    with torch.no_grad():
        made = model(torch.tensor([faults.IDS]), output_hidden_states=True, output_attentions=True)
    return [states[0].numpy() for states in made.hidden_states], [weights[0].numpy() for weights in made.attentions]


def inputs(states: list[Any]) -> dict[str, Any]:
    return {f"layers.{index}.input": array for index, array in enumerate(states[:-1])}


def test_hidden_states_alone_give_the_weights(checkpoint: Path, run: Any, tmp_path: Path) -> None:
    states, weights = run
    ids = {"tokens": np.array(faults.IDS)}
    save_file(inputs(states) | ids, tmp_path / "states.safetensors", metadata=CAPTURE)
    vllm = {"hidden_states": np.stack(states, 1), "token_ids": ids["tokens"]}
    save_file(vllm, tmp_path / "vllm.safetensors")
    for name in ("states", "vllm"):
        trace = load_saved(tmp_path / f"{name}.safetensors", str(checkpoint))
        assert [token.text for token in trace.key_tokens] == faults.TEXT.split()
        assert [layer.layer for layer in trace.layers] == [0, 1, 2, 3]
        for layer, expected in zip(trace.layers, weights, strict=True):
            np.testing.assert_allclose(layer.weights, expected, atol=1e-5)


def test_positions_rotate_what_is_not_rotated(checkpoint: Path, run: Any, tmp_path: Path) -> None:
    """Rotation is relative: positions from 5 on give the same weights, and other q and k."""
    _, weights = run
    port = faults.Port.of(checkpoint)
    unrotated = port.run(faults.IDS, [replace(how, rotated=0) for how in port.right])[0]
    ids = {"tokens": np.array(faults.IDS), "positions": np.arange(5, 5 + len(faults.IDS))}
    tensors = {f"layers.0.{name}": np.ascontiguousarray(unrotated[name]) for name in "qkv"}
    save_file(tensors | ids, tmp_path / "before.safetensors", metadata=CAPTURE | {"rotated": "before"})
    trace = load_saved(tmp_path / "before.safetensors", str(checkpoint))
    np.testing.assert_allclose(trace.layer(0).weights, weights[0], atol=1e-5)
    shifted = [replace(how, shift=5) for how in port.right]
    np.testing.assert_allclose(trace.layer(0).q, port.run(faults.IDS, shifted)[0]["q"], atol=1e-5)


def test_what_is_of_another_model_is_refused(attn: Run, checkpoint: Path, run: Any, tmp_path: Path) -> None:
    states, _ = run
    width = states[0].shape[1]
    wrong = {
        f"layers.0.input has width {width - 1}": {"layers.0.input": np.ascontiguousarray(states[0][:, 1:])},
        "it holds layer 7, and the model has layers 0 to 3": {"layers.7.input": states[0]},
        "heads of width 5; the model has 4 heads": {f"layers.0.{one}": np.ones((3, 2, 5), np.float32) for one in "qk"},
        "holds neither q and k nor the input": {"layers.0.v": np.ones((2, 3, 5), np.float32)},
        "output of the last layer alone": {"layers.4.input": states[0]},
    }  # fmt: skip
    for words, tensors in wrong.items():
        save_file(tensors, tmp_path / "wrong.safetensors", metadata=CAPTURE)
        refused(attn("inspect", "-m", checkpoint, "--from", tmp_path / "wrong.safetensors"), 5, words)
    some = {"hidden_states": np.stack(states[:2], 1), "token_ids": np.array(faults.IDS)}
    save_file(some, tmp_path / "wrong.safetensors")
    refused(
        attn("heads", "-m", checkpoint, "--from", tmp_path / "wrong.safetensors"), 5,
        "it has the hidden states of 2 layers, and the model has 4; extract those of layers 0 to 3",
    )  # fmt: skip


def test_commands_complete_a_capture(attn: Run, checkpoint: Path, run: Any, tmp_path: Path) -> None:
    path = tmp_path / "states.safetensors"
    save_file(inputs(run[0]) | {"tokens": np.array(faults.IDS)}, path, metadata=CAPTURE)
    for command in ("inspect", "heads", "why -q w55 --layer 2 --head 1", "tokens"):
        ran = attn(*command.split(), "-m", checkpoint, "--from", path)
        assert (ran.code, ran.err) == (0, ""), ran.err
        assert "w55" in ran.out or command == "heads"
    ran = attn("diff", "-m", checkpoint, "--from", path, "--from", path, "-F", "json")
    assert (ran.code, ran.json["schema"]) == (0, "attncli.diff/1"), ran.err
    refused(attn("inspect", "--from", path, "-m", checkpoint, "--engine", "transformers"), 4, "native engine")
