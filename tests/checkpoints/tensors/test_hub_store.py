"""A checkpoint whose tensors are fetched by ranges, from a hub of our own: how much, how often, and what goes wrong."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hub import NAME, TOKEN, Asked, Hub
from huggingface_hub.utils import _http
from running import Run
from safetensors.numpy import load_file, save_file
from safetensors.torch import load_file as torch_tensors
from safetensors.torch import save_file as save_torch

from attncli.checkpoints.tensors import hub_store

ASK = ("inspect", "-m", NAME, "time flies like an arrow", "-F", "json")
WEIGHTS = "model.safetensors"
NEAR = hub_store.NEAR


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    waits: list[float] = []
    monkeypatch.setattr(_http, "time", SimpleNamespace(sleep=waits.append))
    return waits


@pytest.fixture
def hub(tiny_llama: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    shutil.copytree(tiny_llama, tmp_path / "files")
    weights = tmp_path / "files" / WEIGHTS
    save_file({**load_file(weights), "head": np.zeros(1 << 20, np.float32)}, weights, metadata={"format": "pt"})
    monkeypatch.setattr(hub_store, "NEAR", 0)
    monkeypatch.setattr(hub_store, "WHOLE", 0)
    with Hub({NAME: tmp_path / "files"}) as served:
        served.reach(tmp_path / "home", monkeypatch)
        yield served


def layers(ran: Any) -> Any:
    assert ran.code == 0, ran.err
    return ran.json["layers"]


def refusal(ran: Any) -> str:
    assert (ran.code, ran.out, ran.err.count("\n")) == (3, "", 1), ran.err
    return ran.err


def weights(hub: Hub) -> list[Asked]:
    return [one for one in hub.requests if one.path.endswith(".safetensors") and one.host == "storage"]


def fetched(hub: Hub) -> list[int]:
    ranges = [one.range for one in weights(hub) if one.range and one.range[0]]  # the header is asked for by itself
    return [byte for first, last in ranges for byte in range(first, last + 1)]


def bytes_of(hub: Hub, *names: str) -> list[int]:
    data = (hub.folder / WEIGHTS).read_bytes()
    header = json.loads(data[8 : (start := 8 + int.from_bytes(data[:8], "little"))])
    places = [header[name]["data_offsets"] for name in names]
    return [start + byte for begin, end in places for byte in range(begin, end)]


@pytest.mark.parametrize(("engine", "layer"), [("native", "2"), ("transformers", "0")])
def test_the_numbers_are_those_of_the_folder(engine: str, layer: str, hub: Hub, attn: Run, tiny_llama: str) -> None:
    how = ("--engine", engine, "-l", layer)
    assert layers(attn(*ASK, *how)) == layers(attn("inspect", "-m", tiny_llama, *ASK[3:], *how))
    assert {one.host for one in weights(hub)} >= {"storage"}
    assert all(one.range for one in weights(hub))
    small = {one.path.rpartition("/")[2] for one in hub.requests if one.method == "GET" and one.path.endswith(".json")}
    hub.requests.clear()
    layers(attn(*ASK, *how))  # what is small is in the local cache
    again = {one.path.rpartition("/")[2] for one in hub.requests if one.method == "GET" and one.path.endswith(".json")}
    assert small == {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}
    assert not again


def test_nothing_but_what_the_layer_takes_is_fetched(hub: Hub, attn: Run) -> None:
    layers(attn(*ASK))
    first, *others = weights(hub)
    assert first.range == (0, (1 << 16) - 1)
    parts = ("input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    of_tensors = bytes_of(hub, *(f"model.layers.0.{part}.weight" for part in parts))
    of_rows = bytes_of(hub, "model.embed_tokens.weight")[2 * 96 : 7 * 96]  # of the five words
    assert sorted(fetched(hub)) == sorted(of_tensors + of_rows)
    assert len(others) == 4  # the five rows stand beside each other


def test_offline_says_what_is_missing(hub: Hub, attn: Run) -> None:
    layers(attn(*ASK))
    hub.requests.clear()
    reason = "the weights of somebody/tiny are not all in the local cache; run `hf download`"
    assert reason in refusal(attn(*ASK, "--offline"))
    assert hub.requests == []


def test_a_small_file_is_fetched_whole(hub: Hub, attn: Run, tiny_llama: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(Path(tiny_llama) / WEIGHTS, hub.folder)
    hub.etags.clear()
    expected = layers(attn("inspect", "-m", tiny_llama, *ASK[3:], "-l", "all"))
    assert layers(attn(*ASK, "-l", "all")) == expected
    (whole,) = [one for one in weights(hub) if not one.range]
    assert whole.sent == (hub.folder / WEIGHTS).stat().st_size
    hub.requests.clear()
    assert layers(attn(*ASK, "-l", "all")) == layers(attn(*ASK, "-l", "all", "--offline")) == expected
    assert hub.requests == []
    shutil.rmtree(hub.folder.parent / "home")
    monkeypatch.setattr(hub_store, "WHOLE", 1 << 25)
    layers(attn(*ASK))
    assert [one.range for one in weights(hub)] == [None]


def test_shards_that_nothing_is_read_of_are_not_opened(hub: Hub, attn: Run, tiny_llama: str) -> None:
    tensors = load_file(hub.folder / WEIGHTS)
    (hub.folder / WEIGHTS).unlink()
    shard = {name: "b" if ".layers.1." in name or ".layers.2." in name else "a" for name in tensors}
    for each in "ab":
        some = {name: value for name, value in tensors.items() if shard[name] == each}
        save_file(some, hub.folder / f"{each}.safetensors")
    index = {"weight_map": {name: f"{each}.safetensors" for name, each in shard.items()}}
    (hub.folder / f"{WEIGHTS}.index.json").write_text(json.dumps(index))
    assert layers(attn(*ASK)) == layers(attn("inspect", "-m", tiny_llama, *ASK[3:]))
    assert {one.path for one in weights(hub)} == {f"/{NAME}/a.safetensors"}
    # One that is here whole is read there.
    (snapshot,) = (hub.folder.parent / "home" / "hub").glob("models--*/snapshots/*")
    shutil.copy(hub.folder / "b.safetensors", snapshot)
    hub.requests.clear()
    last = ("-l", "2")
    assert layers(attn(*ASK, *last)) == layers(attn("inspect", "-m", tiny_llama, *ASK[3:], *last))
    assert not [one for one in weights(hub) if one.path.endswith("b.safetensors")]
    # What the index says has to be so.
    index["weight_map"]["model.layers.1.input_layernorm.weight"] = "a.safetensors"
    (snapshot / f"{WEIGHTS}.index.json").unlink()
    (snapshot / f"{WEIGHTS}.index.json").write_text(json.dumps(index))
    reason = "a.safetensors has no model.layers.1.input_layernorm.weight, although the index lists it"
    assert reason in refusal(attn(*ASK, *last))


def test_cut_connections_and_busy_servers_are_retried(hub: Hub, attn: Run, tiny_llama: str, slept: list[float]) -> None:
    answers = iter([700, (429, {"Retry-After": "7"}), (503, {}), (500, {})])
    hub.trouble = lambda one: next(answers, None) if one.path.endswith(".safetensors") else None
    assert layers(attn(*ASK)) == layers(attn("inspect", "-m", tiny_llama, *ASK[3:]))
    assert next(answers, None) is None
    assert slept


def test_the_cache_needs_no_hub(hub: Hub, attn: Run, slept: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_store, "WHOLE", 1 << 25)
    how = ("--engine", "transformers")
    there = layers(attn(*ASK, *how))
    hub.trouble = lambda one: 0
    assert layers(attn(*ASK, *how)) == there


def test_a_server_that_sends_nothing_ends_in_one_sentence(hub: Hub, attn: Run, slept: list[float]) -> None:
    hub.trouble = lambda one: 0 if one.host == "storage" else None
    reason = f"attn: the model of '{NAME}' was not found on the hub or in the local cache"
    assert refusal(attn(*ASK)).startswith(reason)
    assert slept


def test_a_token_goes_to_the_hub_alone(hub: Hub, attn: Run, tiny_llama: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.is_gated = True
    assert "for a gated model hf auth login" in refusal(attn(*ASK))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert layers(attn(*ASK)) == layers(attn("inspect", "-m", tiny_llama, *ASK[3:]))
    message = {(one.host, one.token) for one in hub.requests if one.status in (200, 206, 302)}
    assert message == {("hub", True), ("storage", False)}


def test_a_server_that_knows_no_ranges_is_said_to_know_none(hub: Hub, attn: Run) -> None:
    hub.takes_ranges = False
    assert f"the server does not send ranges of {WEIGHTS} of {NAME}; run `hf download`" in refusal(attn(*ASK))


def test_a_damaged_header_is_one_sentence(hub: Hub, attn: Run) -> None:
    whole = (hub.folder / WEIGHTS).read_bytes()
    for data in (b"", whole[:100], b"\xff" * 8 + whole[8:], whole[:9] + b"x" + whole[10:], whole + b"x"):
        (hub.folder / WEIGHTS).write_bytes(data)
        hub.commit = f"{int(hub.commit) + 1:040}"
        shutil.rmtree(hub.folder.parent / "home", ignore_errors=True)
        assert f"the weights {WEIGHTS} of {NAME} cannot be read" in refusal(attn(*ASK))


@pytest.mark.parametrize("engine", ["native", "transformers"])
def test_quantized_tensors_are_fetched_as_their_codes(engine: str, hub: Hub, attn: Run) -> None:
    held = torch_tensors(hub.folder / WEIGHTS)
    for name in [name for name in held if name.endswith("q_proj.weight")]:
        held[name] = (held[name] * 8).to(torch.float8_e4m3fn)
        held[name + "_scale_inv"] = torch.full((1, 1), 0.125)
    save_torch(held, hub.folder / WEIGHTS, metadata={"format": "pt"})
    config = json.loads((hub.folder / "config.json").read_text())
    message = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    (hub.folder / "config.json").write_text(json.dumps(config | {"quantization_config": message}))
    expected = layers(attn("inspect", "-m", hub.folder, *ASK[3:], "--engine", engine))
    assert layers(attn(*ASK, "--engine", engine)) == expected
    assert all(one.range for one in weights(hub))
