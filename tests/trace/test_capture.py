"""Captures: files of an engine's arrays, read as a trace, and refused in one sentence where they make none."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused
from running import Run
from safetensors.numpy import save_file

import attncli
from attncli.errors import InputError, UsageError
from attncli.trace.capture import load_capture
from attncli.trace.selection import Indices

CAPTURE = {"format": "attncli.capture/1"}
Write = Callable[..., Path]


def vectors(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(sum(shape)).standard_normal(shape, dtype=np.float32)


@pytest.fixture
def capture(tmp_path: Path) -> Write:
    def write(tensors: dict[str, np.ndarray[Any, Any]], **metadata: str) -> Path:
        save_file(tensors, path := tmp_path / "capture.safetensors", metadata=CAPTURE | metadata)
        return path

    return write


def layer(index: int = 0, queries: int = 5) -> dict[str, np.ndarray[Any, Any]]:
    """Arrays of a layer of four heads, two of which share a key head, over five tokens."""
    arrays = {"q": vectors(4, queries, 3), "k": vectors(2, 5, 3), "v": vectors(2, 5, 6)}
    return {f"layers.{index}.{name}": array for name, array in arrays.items()}


def weights_of(q: Any, k: Any, scale: float, allowed: Any) -> Any:
    scores = np.where(allowed, q @ k.swapaxes(1, 2) * scale, -np.inf)
    exponentials = np.exp(scores - scores.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


@pytest.mark.parametrize("queries", [5, 2])
def test_rotated_q_k_and_v_are_a_trace(capture: Write, queries: int) -> None:
    tensors = layer(1, queries) | {"tokens": np.array([7, 8, 9, 7, 6])}
    trace = attncli.load(capture(tensors, rotated="after", dtype="bfloat16"))
    assert (trace.source.dtype, trace.source.layers, trace.key_tokens.ids) == ("bfloat16", 2, [7, 8, 9, 7, 6])
    assert [token.id for token in trace.query_tokens] == [7, 8, 9, 7, 6][-queries:]  # the last ones, as of a cache
    (read,) = trace.layers
    keys = np.repeat(tensors["layers.1.k"], 2, axis=0)
    allowed = np.tri(queries, 5, 5 - queries, dtype=bool)
    np.testing.assert_allclose(
        read.weights, weights_of(tensors["layers.1.q"], keys, 3**-0.5, allowed), rtol=1e-5, atol=1e-7
    )
    assert trace.notes == ("the capture holds no mask; attention here is causal",)


def test_its_own_mask_and_scale_come_first(capture: Write) -> None:
    mask = np.random.default_rng(0).random((4, 5, 5)) > 0.4
    mask[:, :, 0] = True
    tensors = layer() | {"layers.0.mask": mask, "layers.0.scale": np.array(0.25, np.float32)}
    trace = attncli.load(capture(tensors))
    keys = np.repeat(tensors["layers.0.k"], 2, axis=0)
    expected = weights_of(tensors["layers.0.q"], keys, 0.25, mask)
    np.testing.assert_allclose(trace.layer(0).weights, expected, rtol=1e-5, atol=1e-7)
    assert not trace.notes


def test_steps_of_a_cache_are_appended(capture: Write) -> None:
    whole = layer() | {"tokens": np.arange(5)}
    steps = {}
    for name, array in whole.items():
        axis = 0 if name == "tokens" else 1
        for step, part in enumerate(np.split(array, [3, 4], axis=axis)):
            steps[f"{name}.{step}"] = np.ascontiguousarray(part)
    appended, at_once = attncli.load(capture(steps)).layer(0).weights, attncli.load(capture(whole)).layer(0).weights
    np.testing.assert_array_equal(appended, at_once)


def test_only_the_chosen_layers_are_read(capture: Write) -> None:
    path = capture({**layer(0), **layer(2)}, dtype="float16")
    assert list(load_capture(path, Indices.of("layer", -1)).layers) == [2]
    assert [one.layer for one in attncli.load(path, layer=0).layers] == [0]
    with pytest.raises(UsageError, match="does not hold layer 1; it holds layers 0,2"):
        attncli.load(path, layer=1)


WRONG: dict[str, tuple[dict[str, Any], dict[str, str], str]] = {
    "a name": (layer() | {"layers.0.query": vectors(4, 5, 3)}, {}, "no tensor layers.0.query; expected layers.N.q"),
    "an id of a layer": (layer() | {"layers.0.tokens": np.arange(5)}, {}, "no tensor layers.0.tokens"),
    "no layer": ({"tokens": np.arange(5)}, {}, "holds no layer"),
    "axes": (layer() | {"layers.0.v": vectors(5, 6)}, {}, "v is float32 of shape [5, 6]; expected floats [H, T, D]"),
    "integers": (layer() | {"layers.0.k": np.ones((2, 5, 3), int)}, {}, "layers.0.k is int64"),
    "a mask of numbers": (layer() | {"layers.0.mask": vectors(5, 5)}, {}, "expected booleans [T, K] or [H, T, K]"),
    "a mask of another shape": (layer() | {"layers.0.mask": np.ones((3, 5, 5), bool)}, {}, "layers.0.mask"),
    "lengths": (layer() | {"tokens": np.arange(4)}, {}, "tokens has 4, layers.0.k has 5"),
    "heads": (layer() | {"layers.0.k": vectors(3, 5, 3), "layers.0.v": vectors(3, 5, 3)}, {}, "a multiple of Hkv"),
    "more queries than keys": (layer(queries=6), {}, "6 queries and 5 keys"),
    "steps": ({"layers.0.input.0": vectors(5, 6), "layers.0.input.2": vectors(5, 6)}, {}, "input.2; expected steps 0"),
    "a step and none": (layer() | {"layers.0.k.0": vectors(2, 5, 3)}, {}, "layers.0.k"),
    "the rotation": (layer(), {"rotated": "no"}, "has 'no'; expected before or after"),
    "the type": (layer(), {"dtype": "fp8"}, "has 'fp8'; expected float64, float32, bfloat16, float16, int8 or int4"),
    "rotated by a model": (layer(), {"rotated": "before"}, "not rotated yet; give the model that rotates them"),
    "hidden states alone": ({"layers.0.input": vectors(5, 6)}, {}, "of its input: -m MODEL"),
    "half of it": ({"layers.0.q": vectors(4, 5, 3), "tokens": np.arange(5)}, {}, "holds no q and k"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_captures_that_make_no_attention_are_refused(attn: Run, capture: Write, name: str) -> None:
    tensors, metadata, words = WRONG[name]
    refused(attn("inspect", "--from", capture(tensors, **metadata)), 5, words)


def test_a_saved_trace_is_no_capture(tmp_path: Path) -> None:
    attncli.inspect("time flies").save(tmp_path / "trace.safetensors")
    with pytest.raises(InputError, match=r"it is no capture; expected format attncli\.capture/1"):
        load_capture(tmp_path / "trace.safetensors")


@pytest.mark.parametrize("command", ["inspect", "heads", "why -q 3 --head 1", "mask show", "tokens", "mask check"])
def test_every_command_reads_a_capture(attn: Run, capture: Write, command: str) -> None:
    ran = attn(*command.split(), "--from", capture(layer() | {"tokens": np.array([7, 8, 9, 7, 6])}))
    assert (ran.code, "holds no mask" in ran.err or command.startswith(("mask", "tokens"))) == (0, True), ran.err
    assert ran.out


def test_diff_reads_two(attn: Run, capture: Write, tmp_path: Path) -> None:
    path = capture(layer() | {"tokens": np.arange(5)})
    other = layer() | {"layers.0.q": -layer()["layers.0.q"], "tokens": np.arange(5)}
    save_file(other, tmp_path / "other.safetensors", metadata=CAPTURE)
    ran = attn("diff", "--from", path, "--from", tmp_path / "other.safetensors", "-F", "json")
    assert (ran.code, ran.json["schema"]) == (0, "attncli.diff/1"), ran.err
