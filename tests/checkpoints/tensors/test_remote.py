"""A checkpoint whose tensors are fetched by parts, from a hub of our own: how much, how often, of which version."""

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from architectures import tiny_model
from conformance import save_for_auto
from hub import COMMIT, NAME, TOKEN, Asked, Hub
from huggingface_hub.utils import _http
from running import on_terminal, text_shown
from safetensors.numpy import load_file, save_file
from safetensors.torch import load_file as torch_tensors
from safetensors.torch import save_file as save_torch

import attncli
from attncli.checkpoints.hub_snapshot import checkout
from attncli.checkpoints.options import LoadOptions
from attncli.checkpoints.tensors import hub_reader, remote
from attncli.checkpoints.tensors.cache import held, place
from attncli.engines import open_source
from attncli.errors import LoadError
from attncli.trace.store import load

Run = Callable[..., Any]
ASK = ("inspect", "-m", NAME, "time flies like an arrow", "-F", "json")
WEIGHTS = "model.safetensors"
NEAR = remote.NEAR


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What would have been waited for before asking again."""
    waits: list[float] = []
    clock = SimpleNamespace(sleep=waits.append)
    monkeypatch.setattr(hub_reader, "time", clock)
    monkeypatch.setattr(_http, "time", clock)
    return waits


@pytest.fixture
def hub(tiny_llama: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    shutil.copytree(tiny_llama, tmp_path / "files")
    monkeypatch.setattr(remote, "NEAR", 0)  # in models as small as these everything is near
    with Hub({NAME: tmp_path / "files"}) as served:
        served.reach(tmp_path / "home", monkeypatch)
        yield served


def layers(ran: Any) -> Any:
    assert ran.code == 0, ran.err
    return ran.json["layers"]


def weights(hub: Hub) -> list[Asked]:
    """The requests for bytes of weights."""
    return [one for one in hub.asked if one.path.endswith(".safetensors") and one.method == "GET"]


def fetched(hub: Hub) -> list[int]:
    """The bytes of tensors that were asked for, each as often as it was."""
    ranges = [one.range for one in weights(hub) if one.range and one.range[0]]  # the header is asked for by itself
    return [byte for first, last in ranges for byte in range(first, last + 1)]


def bytes_of(hub: Hub, *names: str) -> list[int]:
    """The bytes of the file that are those of some tensors."""
    data = (hub.folder / WEIGHTS).read_bytes()
    header = json.loads(data[8 : (start := 8 + int.from_bytes(data[:8], "little"))])
    places = [header[name]["data_offsets"] for name in names]
    return [start + byte for begin, end in places for byte in range(begin, end)]


V = "model.layers.0.self_attn.v_proj.weight"


def values_fetched(hub: Hub) -> bool:
    """Return whether V of layer 0 was fetched, each byte of it once; no byte of it was if it was not."""
    values = set(bytes_of(hub, V))
    asked = sorted(byte for byte in fetched(hub) if byte in values)
    assert asked in ([], sorted(values))
    return bool(asked)


@pytest.mark.parametrize("engine", ["native", "transformers"])
@pytest.mark.parametrize("layer", ["0", "2"])
def test_the_numbers_are_those_of_the_folder_and_the_second_run_asks_nothing(
    engine: str, layer: str, hub: Hub, attn: Run, tiny_llama: str
) -> None:
    how = ("--engine", engine, "-l", layer)
    expected = layers(attn("inspect", "-m", tiny_llama, *ASK[3:], *how))
    assert layers(attn(*ASK, *how)) == expected
    assert weights(hub)
    assert {one.host for one in weights(hub)} == {"storage"}
    hub.asked.clear()
    assert layers(attn(*ASK, *how)) == expected
    assert hub.asked == []
    assert layers(attn(*ASK, *how, "--offline")) == expected


def test_nothing_but_what_the_layer_takes_is_fetched(hub: Hub, attn: Run) -> None:
    save_file({**load_file(hub.folder / WEIGHTS), "head": np.zeros(1 << 15, np.float32)}, hub.folder / WEIGHTS)
    layers(attn(*ASK))
    first, *others = weights(hub)
    assert first.range == (0, (1 << 16) - 1)
    parts = ("input_layernorm", "self_attn.q_proj", "self_attn.k_proj")
    of_tensors = bytes_of(hub, *(f"model.layers.0.{part}.weight" for part in parts))
    of_rows = bytes_of(hub, "model.embed_tokens.weight")[2 * 96 : 7 * 96]  # of the five words
    assert sorted(fetched(hub)) == sorted(of_tensors + of_rows)
    assert len(others) == 4  # the five rows stand beside each other
    names = {one.path.rpartition("/")[2] for one in hub.asked if one.method == "GET"}
    assert names == {"config.json", "tokenizer.json", "tokenizer_config.json", COMMIT, WEIGHTS}


@pytest.mark.parametrize(
    ("how", "takes_values"),
    [
        (("inspect",), False),
        (("inspect", "--show", "tokens,shapes,q,k,scores,mask,weights,heatmap,metrics,proof"), False),
        (("inspect", "-F", "jsonl", "--query", "time"), False),
        (("inspect", "-F", "tsv"), False),
        (("inspect", "-o", "page.html"), False),
        (("inspect", "--words"), False),
        (("inspect", "--rollout", "-l", "0"), False),
        (("heads", "-l", "0"), False),
        (("diff", "time banana arrow", "-l", "0"), False),
        (("inspect", "--show", "v"), True),
        (("inspect", "--show", "output", "-F", "json"), True),
        (("inspect", "--query", "flies"), True),
        (("inspect", "--query", "1:2"), True),
        (("inspect", "--norms"), True),
        (("inspect", "--save", "trace.safetensors"), True),
        (("why", "--query", "flies"), True),
    ],
    ids=lambda how: " ".join(how) if isinstance(how, tuple) else "",
)
def test_values_are_fetched_where_somebody_reads_them(
    how: tuple[str, ...], takes_values: bool, hub: Hub, attn: Run, tiny_llama: str, folder: Path
) -> None:
    command, *more = how
    ran = attn(command, "-m", NAME, "time flies like", *more)
    assert ran.code == 0, ran.err
    assert values_fetched(hub) == takes_values
    if command == "inspect" and takes_values:
        # With the other tensors, before anything is computed: the rows of the embedding come after them.
        assert fetched(hub)[-1] in bytes_of(hub, "model.embed_tokens.weight")
    known = attn(command, "-m", tiny_llama, "time flies like", *more)
    assert ran.out.replace(NAME, tiny_llama) == known.out


@pytest.mark.parametrize("text", ["time", "time flies"])
def test_values_that_were_not_fetched_come_when_they_are_read(text: str, hub: Hub, attn: Run, tiny_llama: str) -> None:
    # Of one token every stage is shown, the output too.
    ran = attn("inspect", "-m", NAME, text)
    assert ("output: weights·V" in ran.out) == values_fetched(hub) == (text == "time")
    assert ran.out.replace(NAME, tiny_llama) == attn("inspect", "-m", tiny_llama, text, "--query", "0:").out


def test_a_trace_without_its_values_is_saved_and_copied_whole(hub: Hub, tiny_llama: str, tmp_path: Path) -> None:
    known = open_source(model=tiny_llama, engine="transformers").trace("time flies").layers[0].v
    assert attncli.heads("time flies", model=NAME, layers=0).sentences == 1
    trace = open_source(model=NAME, values=False).trace("time flies")
    assert not values_fetched(hub)
    assert trace.layers[0].shapes["v"] == [2, 2, 4]
    assert trace.layers[0].capture == "exact"
    assert not values_fetched(hub)
    copied = pickle.loads(pickle.dumps(trace.layers[0])).v
    assert type(copied) is np.ndarray
    trace.save(tmp_path / "trace.safetensors")
    for values in (copied, load(tmp_path / "trace.safetensors").layers[0].v, trace.layers[0].v):
        np.testing.assert_allclose(values, known, atol=1e-6)
    assert values_fetched(hub)


def test_values_that_are_not_to_be_had_end_in_one_sentence(hub: Hub, attn: Run) -> None:
    layers(attn(*ASK))
    for how in (("--show", "v"), ("--show", "output", "-F", "json"), ("--query", "flies")):
        ran = attn("inspect", "-m", NAME, "time flies", *how, "--offline")
        assert (ran.code, ran.out, ran.err.count("\n")) == (3, "", 1)
        assert "of the weights of somebody/tiny are not in the cache of tensors, and offline" in ran.err
    layer = open_source(model=NAME, values=False, offline=True).trace("time flies").layers[0]
    with pytest.raises(LoadError, match="not in the cache of tensors, and offline"):
        layer.head(0).output  # noqa: B018


def test_values_that_no_run_reads_are_looked_at_all_the_same(hub: Hub, attn: Run) -> None:
    tensors = load_file(hub.folder / WEIGHTS)
    save_file({**tensors, V: tensors[V][:, :-1].copy()}, hub.folder / WEIGHTS)
    ran = attn(*ASK, "--engine", "native")
    assert (ran.code, ran.err.count("\n")) == (3, 1)
    assert "v_proj.weight has shape [8, 23], the model expects [8, 24]" in ran.err
    hub.etags.clear()
    shutil.rmtree(place())
    save_file({name: value for name, value in tensors.items() if name != V}, hub.folder / WEIGHTS)
    ran = attn(*ASK, "--engine", "native")
    assert (ran.code, ran.err.count("\n")) == (4, 1)
    assert f"its weights have no {V.removeprefix('model.')} that it reads" in ran.err


def test_the_many_tensors_of_a_layer_come_in_few_requests_of_a_bounded_size(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = np.random.default_rng(0)
    names = [f"experts.{index}.{part}_proj" for index in range(256) for part in ("down", "gate", "up")]
    wanted = {f"layers.1.{name}.weight": generator.random((16, 32), np.float32) for name in names}
    # Which nobody asks for, and stand between them.
    between = {name.replace("weight", "input_scale"): np.zeros(1, np.float32) for name in wanted}
    others = {f"layers.{index}.mlp.weight": np.zeros((1 << 15,), np.float32) for index in (0, 2)}
    save_file(wanted | between | others, hub.folder / WEIGHTS)
    folder = checkout(NAME, LoadOptions())
    assert folder is not None
    monkeypatch.setattr(remote, "NEAR", 1 << 10)
    largest = 1 << 18
    monkeypatch.setattr(remote, "LARGEST", largest)
    store = remote.Remote(folder, LoadOptions())
    hub.asked.clear()
    store.prepare(wanted)
    requests = [one.range for one in weights(hub) if one.range]
    total = sum(each.nbytes for each in wanted.values())
    assert total // largest < len(requests) < 2 * total // largest
    assert max(last + 1 - first for first, last in requests) <= largest
    assert total <= sum(one.sent for one in weights(hub)) < total * 1.01
    hub.asked.clear()
    assert all(np.array_equal(store.read(name), expected) for name, expected in wanted.items())
    assert hub.asked == []
    # What an interrupted run has left is asked for as it was then.
    (first, *_, last) = sorted(place().rglob("[0-9]*-*"), key=lambda path: int(path.name.partition("-")[0]))[1:]
    begin, end = map(int, first.name.split("-"))
    (first.parent / f"{first.name}.part").write_bytes(first.read_bytes()[:1000])
    for path in (first, last):
        path.unlink()
    remote.Remote(folder, LoadOptions()).prepare(wanted)
    assert {one.range for one in weights(hub)} >= {(begin + 1000, end - 1)}
    assert len(weights(hub)) == 2


def test_a_second_sentence_asks_for_the_rows_that_it_has_more(hub: Hub, attn: Run) -> None:
    layers(attn(*ASK))
    hub.asked.clear()
    ran = attn("inspect", "-m", NAME, "time flies", "an arrow banana", "-F", "jsonl")
    assert ran.code == 0
    assert [one.sent for one in weights(hub)] == [96]


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
    (snapshot,) = (place().parents[1] / "hub").glob("models--*/snapshots/*")
    shutil.copy(hub.folder / "b.safetensors", snapshot)
    hub.asked.clear()
    last = ("-l", "2")
    assert layers(attn(*ASK, *last)) == layers(attn("inspect", "-m", tiny_llama, *ASK[3:], *last))
    assert {one.path for one in weights(hub)} == {f"/{NAME}/a.safetensors"}
    # What the index says has to be so.
    index["weight_map"]["model.layers.1.input_layernorm.weight"] = "a.safetensors"
    (snapshot / f"{WEIGHTS}.index.json").unlink()
    (snapshot / f"{WEIGHTS}.index.json").write_text(json.dumps(index))
    ran = attn(*ASK, *last)
    assert (ran.code, ran.err.count("\n")) == (3, 1)
    assert "a.safetensors has no model.layers.1.input_layernorm.weight, which the index says is in it" in ran.err


@pytest.mark.parametrize("where", ["storage", "hub"])
def test_a_connection_that_is_cut_is_asked_for_the_rest(
    where: str, hub: Hub, attn: Run, tiny_llama: str, slept: list[float]
) -> None:
    hub.has_storage = where == "storage"
    hub.trouble = lambda one: 700 if one.path.endswith(".safetensors") and one.method == "GET" else None
    expected = layers(attn("inspect", "-m", tiny_llama, *ASK[3:]))
    assert layers(attn(*ASK)) == expected
    begins = [one.range[0] for one in weights(hub) if one.range]
    assert begins[:3] == [0, 700, 1400]
    assert slept
    assert set(slept) == {1.0}  # each time something had come


def test_a_server_that_sends_nothing_ends_in_one_sentence(hub: Hub, attn: Run, slept: list[float]) -> None:
    hub.trouble = lambda one: 0 if one.host == "storage" else None
    ran = attn(*ASK)
    assert (ran.code, ran.err.count("\n")) == (3, 1)
    assert ran.err.startswith(f"attn: the hub could not be reached, the model of '{NAME}' is not in the local cache")
    assert slept == [1.0, 2.0, 4.0, 8.0, 8.0]


def test_a_server_that_is_busy_is_asked_again_when_it_says(
    hub: Hub, attn: Run, tiny_llama: str, slept: list[float]
) -> None:
    answers = iter([(429, {"Retry-After": "7"}), (503, {}), (500, {})])
    hub.trouble = lambda one: next(answers, None) if one.path.endswith(".safetensors") else None
    assert layers(attn(*ASK)) == layers(attn("inspect", "-m", tiny_llama, *ASK[3:]))
    assert slept[0] == 8.0
    assert [one.status for one in hub.asked if one.path.endswith(".safetensors")][:4] == [429, 503, 500, 302]


def test_an_address_that_has_expired_is_asked_for_anew(
    hub: Hub, attn: Run, tiny_llama: str, slept: list[float]
) -> None:
    answers = iter([None, (403, {}), (403, {})])
    hub.trouble = lambda one: next(answers, None) if one.host == "storage" else None
    assert layers(attn(*ASK)) == layers(attn("inspect", "-m", tiny_llama, *ASK[3:]))
    assert sum(one.method == "HEAD" and one.path.endswith(WEIGHTS) for one in hub.asked) >= 2


def test_a_token_goes_to_the_hub_alone(hub: Hub, attn: Run, tiny_llama: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.is_gated = True
    ran = attn(*ASK)
    assert (ran.code, ran.err.count("\n")) == (3, 1)
    assert "it is gated; ask for access on its page on the hub" in ran.err
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert layers(attn(*ASK)) == layers(attn("inspect", "-m", tiny_llama, *ASK[3:]))
    said = {(one.host, one.token) for one in hub.asked if one.status in (200, 206, 302)}
    assert said == {("hub", True), ("storage", False)}


@pytest.mark.parametrize("status", [401, 403, 404])
def test_weights_that_are_refused_are_one_sentence(status: int, hub: Hub, attn: Run, slept: list[float]) -> None:
    hub.trouble = lambda one: (status, {}) if one.path.endswith(".safetensors") else None
    ran = attn(*ASK)
    assert (ran.code, ran.err.count("\n")) == (3, 1), ran.err
    assert str(status) in ran.err


def test_a_server_that_knows_no_ranges_is_not_read_to_the_end(hub: Hub, attn: Run, slept: list[float]) -> None:
    hub.takes_ranges = False
    (hub.folder / WEIGHTS).write_bytes((hub.folder / WEIGHTS).read_bytes().ljust(1 << 26, b"\0"))
    ran = attn(*ASK)
    assert (ran.code, ran.err.count("\n")) == (3, 1)
    assert f"the server sends {WEIGHTS} of {NAME} whole where a part of it was asked for; --whole-files" in ran.err
    assert hub.sent(WEIGHTS) < 1 << 25


def changed(hub: Hub, attn: Run, tiny_llama: str, *more: str) -> None:
    """Expect one sentence, and the new numbers afterwards."""
    ran = attn(*ASK, *more)
    assert (ran.code, ran.err.count("\n")) == (3, 1), ran.err
    assert f"{WEIGHTS} of {NAME} is not what it was when a part of it was fetched (commit 111111111111)" in ran.err
    hub.trouble = lambda _: None
    shutil.copytree(tiny_llama, hub.folder.parent / "now")
    shutil.copy(hub.folder / WEIGHTS, hub.folder.parent / "now")
    expected = layers(attn("inspect", "-m", hub.folder.parent / "now", *ASK[3:], *more))
    assert layers(attn(*ASK, *more)) == expected


def other_weights(hub: Hub) -> None:
    save_file({name: value + 1 for name, value in load_file(hub.folder / WEIGHTS).items()}, hub.folder / WEIGHTS)
    hub.etags.clear()


def test_a_file_that_changed_since_the_last_run_is_noticed(hub: Hub, attn: Run, tiny_llama: str) -> None:
    layers(attn(*ASK))
    other_weights(hub)
    changed(hub, attn, tiny_llama, "-l", "1")


@pytest.mark.parametrize("has_storage", [True, False])
def test_a_file_that_changes_between_two_requests_is_noticed(
    has_storage: bool, hub: Hub, attn: Run, tiny_llama: str
) -> None:
    hub.has_storage = has_storage
    count = iter(range(1000))

    def change(one: Asked) -> None:
        if one.path.endswith(".safetensors") and one.method == "GET" and next(count) == 1:
            other_weights(hub)

    hub.trouble = change
    changed(hub, attn, tiny_llama)


def test_a_file_that_became_smaller_is_noticed(hub: Hub, attn: Run) -> None:
    whole = (hub.folder / WEIGHTS).read_bytes()
    layers(attn(*ASK))
    (hub.folder / WEIGHTS).write_bytes(whole[:3000])  # under the same ETag
    for _ in range(2):
        ran = attn(*ASK, "-l", "2")
        assert (ran.code, ran.err.count("\n")) == (3, 1)
    hub.trouble = lambda one: (416, {}) if one.host == "storage" else None
    assert "is not what it was" in attn(*ASK, "-l", "2").err
    hub.trouble = lambda _: None
    (hub.folder / WEIGHTS).write_bytes(whole)
    assert layers(attn(*ASK, "-l", "2"))


def test_another_commit_than_was_asked_for_is_noticed(hub: Hub, attn: Run) -> None:
    layers(attn(*ASK))
    hub.commit = "2" * 40
    ran = attn(*ASK, "-l", "2")
    assert (ran.code, ran.err.count("\n")) == (3, 1)
    assert "does not say" in ran.err
    assert layers(attn(*ASK))  # what is here is of one version


def test_a_damaged_header_is_one_sentence_and_is_not_kept(hub: Hub, attn: Run) -> None:
    whole = (hub.folder / WEIGHTS).read_bytes()
    for data in (b"", whole[:100], b"\xff" * 8 + whole[8:], whole[:9] + b"x" + whole[10:], whole + b"x"):
        (hub.folder / WEIGHTS).write_bytes(data)
        hub.etags.clear()
        ran = attn(*ASK)
        assert (ran.code, ran.err.count("\n")) == (3, 1), ran.err
        assert f"the weights {WEIGHTS} of {NAME} cannot be read" in ran.err or "is not what it was" in ran.err
    assert held() == 0


def test_offline_says_what_is_missing(hub: Hub, attn: Run) -> None:
    layers(attn(*ASK))
    hub.asked.clear()
    ran = attn(*ASK, "-l", "2", "--offline")
    assert (ran.code, hub.asked) == (3, [])
    assert ran.err.startswith(
        "attn: 36 kB of the weights of somebody/tiny are not in the cache of tensors, and offline"
    )


def test_a_branch_is_asked_once_and_a_commit_is_taken_as_it_is(hub: Hub, attn: Run) -> None:
    layers(attn(*ASK, "--revision", COMMIT))
    assert all(f"/{COMMIT}" in one.path for one in hub.asked if one.host == "hub" and one.path != "/")
    hub.asked.clear()
    layers(attn(*ASK, "--revision", COMMIT))
    assert hub.asked == []
    layers(attn(*ASK, "--revision", "v1"))
    assert [one.path for one in hub.asked] == [f"/{NAME}/resolve/v1/config.json"]


def test_whole_files_are_downloaded_as_transformers_does(hub: Hub, attn: Run) -> None:
    expected = layers(attn(*ASK))
    hub.asked.clear()
    assert layers(attn(*ASK, "--whole-files")) == expected
    assert hub.sent(WEIGHTS) == (hub.folder / WEIGHTS).stat().st_size
    shutil.rmtree(place())
    hub.asked.clear()
    assert layers(attn(*ASK)) == expected
    assert hub.asked == []


def test_much_is_not_fetched_without_a_yes(hub: Hub, attn: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "MOST_UNASKED", 5000)
    ran = attn(*ASK, "-l", "1")
    said = f"attn: 21 kB of the weights of {NAME} are fetched from the hub for this; --yes agrees to that\n"
    assert (ran.code, ran.err) == (2, said)
    assert hub.sent(WEIGHTS) == 1 << 16 or hub.sent(WEIGHTS) == (hub.folder / WEIGHTS).stat().st_size
    assert attn("check", "-m", NAME, "time flies").code == 2
    assert layers(attn(*ASK, "-l", "1", "--yes"))
    assert layers(attn(*ASK, "-l", "1"))  # it is here now


def test_the_cache_has_a_limit(hub: Hub, attn: Run) -> None:
    layers(attn(*ASK, "-l", "2"))
    before = held()
    layers(attn("inspect", "-m", NAME, "time flies banana", "-F", "json", "--cache-limit", "10 kB"))
    assert held() < 10_000 < before
    ran = attn(*ASK, "--cache-limit", "much")
    assert (ran.code, ran.err) == (2, "attn: --cache-limit 'much': expected a size such as 500MB or 20GB\n")


def test_it_is_shown_with_its_place_and_size(hub: Hub, attn: Run) -> None:
    layers(attn(*ASK))
    said = attn("config", "-F", "json").json["cache"]
    assert said == {"tensors": str(place()), "bytes": held()}
    assert str(place()) in attn("config").out


def environment(hub: Hub, home: Path) -> dict[str, str]:
    return os.environ | hub.environment | {"HF_HOME": str(home)}


@pytest.mark.parametrize("moment", [0, 1, 2])
def test_a_run_that_is_killed_and_repeated_gives_the_same_numbers(
    moment: int, hub: Hub, attn: Run, tiny_llama: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "NEAR", NEAR)  # as in the run that is killed
    runs: list[subprocess.Popen[bytes]] = []
    count = iter(range(1000))

    def kill(one: Asked) -> int | None:
        """Break off after some bytes; when it asks for the others, kill it."""
        number = next(count) if one.host == "storage" else -1
        if number > moment:
            runs[0].kill()
        return 100 if number == moment else None

    hub.trouble = kill
    command = [sys.executable, "-m", "attncli", *ASK]
    runs.append(subprocess.Popen(command, env=environment(hub, tmp_path / "home"), stdout=subprocess.DEVNULL))
    assert runs[0].wait() == -signal.SIGKILL
    hub.trouble = lambda _: None
    hub.asked.clear()
    assert layers(attn(*ASK)) == layers(attn("inspect", "-m", tiny_llama, *ASK[3:]))
    assert not list(place().rglob("*.part"))


def test_two_runs_at_once_fetch_each_tensor_once(hub: Hub, tmp_path: Path) -> None:
    hub.pause = 0.05
    given = {"stdout": subprocess.PIPE, "env": environment(hub, tmp_path / "home"), "text": True}
    runs: list[Any] = [subprocess.Popen([sys.executable, "-m", "attncli", *ASK], **given) for _ in range(2)]
    one, other = (run.communicate()[0] for run in runs)
    assert [run.returncode for run in runs] == [0, 0]
    assert one == other
    assert json.loads(one)
    tensors = [one.range for one in weights(hub) if one.range and one.range[0]]
    assert len(tensors) == len(set(tensors)) == 2


def test_a_person_at_a_terminal_sees_how_far_it_is(hub: Hub, tmp_path: Path) -> None:
    hub.pause = 0.1
    code, _, shown = on_terminal(*ASK, **hub.environment, HF_HOME=str(tmp_path / "home"))
    assert code == 0
    assert f"fetching {NAME}: 17 kB of 17 kB" in text_shown(shown)
    assert "━━━━" in text_shown(shown)


def sparse(folder: Path) -> int:
    """A Llama of 8 billion parameters in its usual files, which take no room; return their bytes."""
    hidden, between, count = 4096, 14336, 32
    layer = {
        "input_layernorm": [hidden], "mlp.down_proj": [hidden, between], "mlp.gate_proj": [between, hidden],
        "mlp.up_proj": [between, hidden], "post_attention_layernorm": [hidden], "self_attn.k_proj": [1024, hidden],
        "self_attn.o_proj": [hidden, hidden], "self_attn.q_proj": [hidden, hidden], "self_attn.v_proj": [1024, hidden],
    }  # fmt: skip
    shapes = {f"model.layers.{index}.{name}.weight": shape for index in range(count) for name, shape in layer.items()}
    shapes |= {"model.embed_tokens.weight": [128256, hidden], "model.norm.weight": [hidden]}
    shapes |= {"lm_head.weight": [128256, hidden]}
    files: dict[str, dict[str, list[int]]] = {}
    for number, (name, shape) in enumerate(sorted(shapes.items())):
        files.setdefault(f"model-{1 + number // 74:05}-of-00004.safetensors", {})[name] = shape
    total = 0
    for file, some in files.items():
        header, end = {}, 0
        for name, shape in some.items():
            begin, end = end, end + 2 * int(np.prod(shape))
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
        said = json.dumps(header).encode()
        (folder / file).write_bytes(len(said).to_bytes(8, "little") + said)
        os.truncate(folder / file, 8 + len(said) + end)
        total += 8 + len(said) + end
    index = {"weight_map": {name: file for file, some in files.items() for name in some}}
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps(index))
    config = json.loads((folder / "config.json").read_text())
    config |= {"hidden_size": hidden, "intermediate_size": between, "num_hidden_layers": count, "vocab_size": 128256}
    config |= {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
    (folder / "config.json").write_text(json.dumps(config))
    return total


def test_layer_0_of_a_llama_of_8_billion_parameters_takes_42_megabytes(
    hub: Hub, attn: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "NEAR", NEAR)
    (hub.folder / WEIGHTS).unlink()
    total = sparse(hub.folder)
    assert total > 16_000_000_000
    shapes = layers(attn(*ASK))[0]["shapes"]
    assert (shapes["q"], shapes["k"], shapes["v"]) == ([32, 5, 128], [8, 5, 128], [8, 5, 128])
    # Wq and Wk in two bytes a number, and little else.
    assert 0 <= sum(one.sent for one in hub.asked) - 2 * 4096 * (4096 + 1024) < 200_000
    assert held() < total / 100 / 3
    hub.asked.clear()
    assert layers(attn(*ASK))
    assert hub.asked == []
    assert layers(attn(*ASK, "--show", "v"))[0]["heads"][0]["v"]
    assert sum(one.sent for one in weights(hub)) == 2 * 4096 * 1024
    hub.asked.clear()
    assert layers(attn(*ASK, "--show", "output", "--offline"))[0]["heads"][0]["output"]
    ran = attn(*ASK, "-l", "31")
    assert (ran.code, ran.err) == (
        2,
        f"attn: 13.5 GB of the weights of {NAME} are fetched from the hub for this; --yes agrees to that\n",
    )


ANSWERING = """
import os, pty, sys
pid, parent = pty.fork()
if pid == 0:
    from attncli.checkpoints.tensors import remote
    remote.MOST_UNASKED = 1000
    sys.argv = ["attn", *sys.argv[2:]]
    from attncli.__main__ import main
    main()
answer, shown = sys.argv[1], b""
while True:
    try:
        read = os.read(parent, 65536)
    except OSError:
        break
    if not read:
        break
    shown += read
    if answer and b"[y/N] " in shown:
        os.write(parent, answer.encode() + b"\\n")
        answer = ""
sys.stdout.buffer.write(shown)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("no", 2)])
def test_a_person_at_a_terminal_is_asked(answer: str, code: int, hub: Hub, tmp_path: Path) -> None:
    command = [sys.executable, "-c", ANSWERING, answer, *ASK, "-o", str(tmp_path / "out.json")]
    ran = subprocess.run(command, env=environment(hub, tmp_path / "home"), capture_output=True, text=True, check=False)
    assert ran.returncode == code, ran.stdout
    assert f"attn: 17 kB of the weights of {NAME} are fetched from the hub for this; go on? [y/N]" in ran.stdout
    assert (tmp_path / "out.json").exists() == (code == 0)


@pytest.mark.parametrize("name", ["gpt_bigcode", "qwen3_moe", "t5", "jamba"])
def test_a_model_of_any_family_is_loaded_from_the_tensors_that_it_has(name: str, hub: Hub, attn: Run) -> None:
    shutil.rmtree(hub.folder)
    hub.folder.mkdir()
    save_for_auto(tiny_model(name), hub.folder)
    how = ("w1 w2 w3", "-F", "json", "--engine", "transformers", "-l", "1")
    assert layers(attn("inspect", "-m", NAME, *how)) == layers(attn("inspect", "-m", hub.folder, *how))
    tensors = load_file(hub.folder / WEIGHTS)
    held_here = sum(one.sent for one in weights(hub) if one.range and one.range[0])
    assert 0 < held_here < sum(each.nbytes for each in tensors.values())


@pytest.mark.parametrize(
    "how",
    [{"generate": 2}, {"device_map": "cpu"}, {"layers": 1, "engine": "verify"}, {"dtype": "bfloat16"}],
    ids=lambda how: next(iter(how)),
)
def test_whatever_a_run_loads_is_what_the_folder_holds(how: dict[str, Any], hub: Hub) -> None:
    fetched, read = (open_source(model=name, **how).trace("time flies") for name in (NAME, str(hub.folder)))
    assert fetched.key_tokens == read.key_tokens
    for one, other in zip(fetched.layers, read.layers, strict=True):
        assert all(np.array_equal(getattr(one, name), getattr(other, name)) for name in "qkv")


def test_a_checkpoint_on_the_hub_is_checked(hub: Hub, attn: Run) -> None:
    fetched, read = (attn("check", "-m", name, "time flies", "-F", "json") for name in (NAME, hub.folder))
    assert (fetched.code, fetched.json["findings"]) == (read.code, read.json["findings"])


@pytest.mark.parametrize("engine", ["native", "transformers"])
def test_quantized_tensors_are_fetched_as_their_codes(engine: str, hub: Hub, attn: Run) -> None:
    held = torch_tensors(hub.folder / WEIGHTS)
    for name in [name for name in held if name.endswith("q_proj.weight")]:
        held[name] = (held[name] * 8).to(torch.float8_e4m3fn)
        held[name + "_scale_inv"] = torch.full((1, 1), 0.125)
    save_torch(held, hub.folder / WEIGHTS, metadata={"format": "pt"})
    config = json.loads((hub.folder / "config.json").read_text())
    said = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    (hub.folder / "config.json").write_text(json.dumps(config | {"quantization_config": said}))
    expected = layers(attn("inspect", "-m", hub.folder, *ASK[3:], "--engine", engine))
    assert layers(attn(*ASK, "--engine", engine)) == expected
    assert all(one.range for one in weights(hub))
