"""`attn diff --first` with files: what both hold is compared, and all else refused in one sentence or noted."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from refusals import refused
from running import Run
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from transformers import AutoModelForCausalLM

import attncli
from attncli.analysis.agreement.compare import Agreement, Cause, Parting
from attncli.analysis.agreement.question import Cell

Tensors = dict[str, np.ndarray[Any, Any]]
TEXT = "time flies like an arrow"
NEAR = Cell(0.1, 1e-6, agrees=False)
FORMAT = {"format": "attncli.capture/1"}


@pytest.fixture(scope="module")
def files(tiny_llama: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of files of one right run, written from transformers."""
    folder = tmp_path_factory.mktemp("files")
    trace = attncli.inspect(TEXT, model=tiny_llama, layer="all")
    ids = np.array(trace.query_tokens.ids)
    model = AutoModelForCausalLM.from_pretrained(tiny_llama, dtype="float32")
    before: Tensors = {}
    for index, layer in enumerate(model.model.layers):
        for part in "qkv":
            width = trace.layers[0].q.shape[-1]

            def write(_: Any, __: Any, output: Any, name: str = f"layers.{index}.{part}", width: int = width) -> None:
                before[name] = output[0].view(len(ids), -1, width).transpose(0, 1).contiguous().numpy()

            getattr(layer.self_attn, f"{part}_proj").register_forward_hook(write)
    with torch.no_grad():
        states = model(torch.tensor(ids[None]), output_hidden_states=True).hidden_states[:-1]
    hidden = {f"layers.{index}.input": state[0].numpy() for index, state in enumerate(states)}
    after = {f"layers.{one.layer}.{name}": getattr(one, name) for one in trace.layers for name in "qkv"}
    keys = {name: array for name, array in after.items() if not name.endswith(".v")}
    for name, tensors in (
        ("keys", keys),
        ("states", hidden),
        ("before", before),
        ("after", after),
        ("all", hidden | before),
    ):
        rotated = {"rotated": "before" if name in ("before", "all") else "after"}
        save_file(tensors | {"tokens": ids}, folder / f"{name}.safetensors", metadata=FORMAT | rotated)
    vllm = {"hidden_states": np.stack([*hidden.values()], 1), "token_ids": ids}
    save_file(vllm, folder / "vllm.safetensors")
    save_file({"layers.0.input": hidden["layers.0.input"], "tokens": ids}, folder / "one.safetensors", metadata=FORMAT)
    return folder


def edited(path: Path, target: Path, change: Callable[[Tensors], Any], **metadata: str) -> Path:
    tensors = load_file(path)
    with safe_open(path, "np") as file:
        metadata = (file.metadata() or {}) | metadata
    change(tensors)
    contiguous = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    save_file(contiguous, target, metadata=metadata)
    return target


def sets(name: str, change: Callable[[Any], Any]) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.update({name: change(tensors[name])})


def token(id_: int) -> Callable[[Tensors], None]:
    return sets("tokens", lambda ids: np.r_[ids[:2], id_, ids[3:]])


# --- with a model -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["states", "before", "after", "all", "vllm"])
def test_a_right_run_agrees(name: str, files: Path, tiny_llama: str, attn: Run) -> None:
    ran = attn("diff", "--first", "-m", tiny_llama, "--from", files / f"{name}.safetensors", "-F", "json")
    assert (ran.code, ran.err.count("\n"), ran.json["partings"]) == (0, int(name == "vllm"), [])
    assert [layer["layer"] for layer in ran.json["layers"]] == [0, 1, 2]


REFUSED: dict[str, tuple[str, Callable[[Tensors], Any], str]] = {
    "a layer more": ("after", lambda t: t.update({"layers.9.q": t["layers.0.q"]}), "holds layer 9, and the model has"),
    "a large id": ("after", token(10**9), "the token id 1000000000 is none of "),
    "an odd id": ("vllm", sets("token_ids", lambda ids: np.r_[ids[:-1], 2**40]), "has the token id 1099511627776; "),
    "a negative id": ("after", token(-5), "has the token id -5; expected ids from 0 to 2"),
    "a short output": ("all", lambda t: t.update({"layers.1.output": t["layers.1.input"][:2]}), "has 2 rows; write"),
    "a narrow input": ("all", sets("layers.1.input", lambda x: x[:, :8]), "layers.1.input has width 8; the model has "),
    "heads of v": ("after", sets("layers.1.v", lambda v: v[..., :2]), "v of layer 1 has shape "),
    "one query": ("after", sets("layers.1.q", lambda q: q[:, -1:]), "layers.1.q has 1 row; write those of all"),
    "some hidden states": ("vllm", sets("hidden_states", lambda x: x[:, 1:]), "has the hidden states of 2 layers"),
    "a mask of other heads": (
        "after",
        lambda t: t.update({"layers.0.mask": np.ones((3, *t["layers.0.q"].shape[1:2] * 2), bool)}),
        "layers.0.mask",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_of_another_run_is_refused(name: str, files: Path, tiny_llama: str, tmp_path: Path, attn: Run) -> None:
    base, change, words = REFUSED[name]
    path = edited(files / f"{base}.safetensors", tmp_path / "edited.safetensors", change)
    refused(attn("diff", "--first", "-m", tiny_llama, "--from", path), 5, words)


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("states", 4, "states.safetensors holds hidden states, and "),
        ("vllm", 4, "vllm.safetensors holds hidden states, and "),
        ("before", 5, "before.safetensors has q and k before their rotation, and "),
    ],
)
def test_a_model_of_transformers_has_rotated_q_and_k_alone(
    name: str, code: int, words: str, files: Path, tiny_llama: str, attn: Run
) -> None:
    engine = ("--engine", "transformers", "-m", tiny_llama)
    refused(attn("diff", "--first", *engine, "--from", files / f"{name}.safetensors"), code, words)


@pytest.mark.parametrize(
    ("parting", "holds_last", "words"),
    [
        (Parting("rotation", [0], NEAR, Cause("rotary width", "0", "32", 0.0)), False, "need rotated: before in the"),
        (Parting("positions", [0], NEAR, Cause("positions", "1..4", "0..3", 0.0)), False, "lacks keys of the later"),
        (Parting("output", [2], NEAR), True, "transformers has the final norm in its last hidden states"),
    ],
)
def test_slips_of_a_program_are_noted(
    parting: Parting,
    holds_last: bool,
    words: str,
    files: Path,
    tiny_llama: str,
    monkeypatch: Any,
    attn: Run,
    tmp_path: Path,
) -> None:
    unexplained = Parting("output", [0], NEAR)
    found = Agreement(("a", "b"), "float32", partings=[parting, unexplained])
    monkeypatch.setattr("attncli.analysis.agreement.compare.compare", lambda *_: found)
    path = edited(
        files / "states.safetensors", tmp_path / "b.safetensors",
        lambda t: t.update({"layers.3.input": t["layers.2.input"]} if holds_last else {}),
    )  # fmt: skip
    ran = attn("diff", "--first", "-m", tiny_llama, "--from", path)
    assert (ran.code, ran.err.count("\n")) == (1, 1)
    assert words in ran.err


# --- two files --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "stages"),
    [
        ("states", "states", "input, output"),
        ("vllm", "vllm", "input, output"),
        ("vllm", "states", "input, output"),
        ("keys", "keys", "rotation"),
        ("before", "before", "projections, norm"),
        ("before", "all", "projections, norm"),
        ("all", "states", "input, output"),
    ],
)
def test_two_files_are_compared_in_what_both_hold(first: str, second: str, stages: str, files: Path, attn: Run) -> None:
    pair = [word for name in (first, second) for word in ("--from", files / f"{name}.safetensors")]
    ran = attn("diff", "--first", *pair)
    assert (ran.code, ran.err.count("does not number its layers")) == (0, int(first == "vllm"))
    states, last = f"compared: layers 0-1: {stages} · layer 2: input\n", f"compared: layers 0-2: {stages}\n"
    assert (states if "output" in stages else last) in ran.out


@pytest.mark.parametrize(
    ("base", "change", "first"),
    [
        ("states", sets("layers.0.input", lambda x: x * 1.01), "Layer 0, input: "),
        ("states", sets("layers.1.input", lambda x: x * 1.01), "Layer 0, output: "),
        ("all", sets("layers.1.input", lambda x: x * 1.01), "Layer 0, output: "),
        (
            "after",
            lambda t: t.update({f"layers.1.{name}": t[f"layers.1.{name}"] * 1.01 for name in "qk"}),
            "Layer 1, rota",
        ),
        ("keys", sets("layers.2.k", lambda k: k * 1.01), "Layer 2, projections: "),
    ],
)
def test_two_files_part_at_the_first_array_that_differs(
    base: str, change: Callable[[Tensors], Any], first: str, files: Path, tmp_path: Path, attn: Run
) -> None:
    right = files / f"{base}.safetensors"
    wrong = edited(right, tmp_path / "b.safetensors", change)
    ran = attn("diff", "--first", "--from", right, "--from", wrong)
    assert ran.code == 1
    assert first in ran.out


@pytest.mark.parametrize(
    ("first", "second", "code", "words"),
    [
        ("before", "after", 5, "before.safetensors has q and k before their rotation, and "),
        ("after", "before", 5, "before.safetensors has q and k before their rotation, and "),
        ("states", "after", 5, "hold no array in common; write q, k and v of all"),
        (
            "vllm",
            "one",
            5,
            "vllm.safetensors has the hidden states of 3 layers, and the other file of 1",
        ),
    ],
)
def test_two_files_that_nothing_can_compare_are_refused(
    first: str, second: str, code: int, words: str, files: Path, attn: Run
) -> None:
    pair = [word for name in (first, second) for word in ("--from", files / f"{name}.safetensors")]
    refused(attn("diff", "--first", *pair), code, words)
