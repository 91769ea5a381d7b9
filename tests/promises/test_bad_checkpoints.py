"""Checkpoints that cannot be shown: what is wrong with them, in one sentence, and no file left behind."""

import json
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import WITHOUT_ATTENTION, tiny_model
from conformance import save
from refusals import INPUT, LOAD, NOT_EXPOSED, Evil
from running import program
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, PreTrainedTokenizerFast
from transformers.models.llama.modeling_llama import LlamaMLP

from attncli.engines.torch.refused import _REFUSED

pytestmark = pytest.mark.usefixtures("by_transformers")

Run = Callable[..., Any]
TEXT = "w7 w8 w9"


@pytest.fixture(autouse=True)
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder to run in, and nothing in it afterwards."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    yield folder
    assert list(folder.iterdir()) == []


@pytest.fixture
def checkpoint(tmp_path: Path) -> Callable[..., Path]:
    """A tiny checkpoint, to be damaged."""

    def made(name: str = "llama", **sizes: int) -> Path:
        folder = tmp_path / name
        torch.manual_seed(0)
        model = AutoModel.from_config(AutoConfig.for_model(name, **sizes)) if sizes else tiny_model(name)
        save(model, folder)
        PreTrainedTokenizerFast(
            tokenizer_file=str(folder / "tokenizer.json"), unk_token="<unk>", pad_token="<pad>"
        ).save_pretrained(folder)
        return folder

    return made


Made = Callable[..., Path]


def refused(attn: Run, code: int, folder: str | Path, *words: str, more: tuple[str, ...] = ()) -> str:
    """Check that a run ends as every bad request does, with an output file and without.

    Returns what it says, without the folder, whose name has words of the test in it.
    """
    said = []
    for output in ((), ("-o", "out.json"), ("-o", "out.jsonl"), ("--save", "trace.safetensors")):
        ran = attn("inspect", TEXT, "-m", folder, *more, *output)
        assert ran.code == code, ran.err
        assert ran.out == ""
        assert os.listdir() == []
        said.append(ran.err)
    assert len(set(said)) == 1
    (line,) = said[0].splitlines()
    assert line.startswith("attn: ")
    assert "Traceback" not in line
    assert str(folder) in line or code != LOAD
    line = line.replace(str(folder), "FOLDER")
    for word in words:
        assert word in line
    return line


def test_transformers_cannot_run_without_docstrings(checkpoint: Made) -> None:
    command = ("inspect", TEXT, "-m", checkpoint(), "-F", "json")
    for engine, code in (("native", 0), ("transformers", LOAD)):
        ran = program(*command, "--engine", engine, env=os.environ | {"PYTHONOPTIMIZE": "2"})
        assert ran.returncode == code
        said = "attn: transformers needs the docstrings that python -OO leaves out; run with PYTHONOPTIMIZE=1\n"
        assert ran.stderr == (said if code else "")


# --- files that are missing or do not fit ------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert"])
def test_a_checkpoint_without_a_tokenizer_is_refused_and_none_is_made_up(
    name: str, attn: Run, checkpoint: Made
) -> None:
    folder = checkpoint(name)
    for path in folder.glob("tokenizer*"):
        path.unlink()
    refused(attn, LOAD, folder, "tokenizer")


def test_weights_of_another_shape_are_refused_in_the_layers_that_are_asked_for(attn: Run, checkpoint: Made) -> None:
    folder = checkpoint()
    tensors = load_file(folder / "model.safetensors")
    tensors["layers.1.self_attn.k_proj.weight"] = torch.ones(5, 7)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    words = ("layers.1.self_attn.k_proj.weight", "[5, 7]", "[16, 32]", "do not fit its config.json")
    for layers in ("1", "2", "all"):
        refused(attn, LOAD, folder, *words, more=("-l", layers))
    assert attn("inspect", TEXT, "-m", folder, "-l", "0").code == 0  # that layer is not read


# --- pickles -----------------------------------------------------------------------------------------------


def pickled(folder: Path, *more: tuple[str, Any], zipped: bool = True) -> Path:
    """Turn a checkpoint into one of a pickle alone."""
    tensors: dict[str, Any] = load_file(folder / "model.safetensors") | dict(more)
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
    return folder


def sharded(folder: Path) -> Path:
    """Turn a checkpoint into one of a pickle in parts."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    part = "pytorch_model-00001-of-00001.bin"
    torch.save(tensors, folder / part)
    index = {"metadata": {}, "weight_map": dict.fromkeys(tensors, part)}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    return folder


@pytest.mark.parametrize("turned", [pickled, sharded])
def test_the_tensors_of_a_checkpoint_that_is_a_pickle_are_read(
    turned: Callable[[Path], Path], attn: Run, checkpoint: Made
) -> None:
    folder = checkpoint()
    arguments = ("inspect", TEXT, "-m", folder, "-l", "all", "-F", "json", "--show", "q,k,v,weights")
    expected = attn(*arguments)
    turned(folder)
    ran = attn(*arguments)
    assert (ran.code, ran.err, ran.out) == (0, "", expected.out)


@pytest.mark.parametrize("form", ["zip", "legacy", "bare"])
def test_a_malicious_pickle_is_refused_and_nothing_of_it_runs(
    form: str, attn: Run, checkpoint: Made, tmp_path: Path
) -> None:
    trace = tmp_path / "ran"
    folder = pickled(checkpoint(), ("evil", Evil(trace)), zipped=form == "zip")
    if form == "bare":
        (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Evil(trace)))
    line = refused(attn, LOAD, folder)
    assert not trace.exists()
    # The folder is complete; its file is not what one should load.
    assert "folder is complete" not in line
    assert "pickle" in line or "pytorch_model.bin" in line


# --- models that have no attention, or read no text --------------------------------------------------------


@pytest.mark.parametrize("name", WITHOUT_ATTENTION)
def test_a_model_without_attention_layers_is_said_to_have_none(name: str, attn: Run, checkpoint: Made) -> None:
    line = refused(attn, NOT_EXPOSED, checkpoint(name), "no text model with attention layers", name)
    assert "folder is complete" not in line


OTHER_SENSES: dict[str, dict[str, Any]] = {
    "vit": {},
    "whisper": {},
    "wav2vec2": {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 128,
        "conv_dim": [32, 32], "conv_kernel": [3, 3], "conv_stride": [2, 2], "num_feat_extract_layers": 2,
        "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER_SENSES)
def test_a_model_of_images_or_audio_is_said_not_to_read_text(name: str, attn: Run, checkpoint: Made) -> None:
    folder = checkpoint(name, **OTHER_SENSES[name])
    says = "a sound into its text part" if name == "whisper" else ", not text"  # which has a decoder of texts
    for more in ((), ("--target", "w7 w8")):
        refused(attn, NOT_EXPOSED, folder, f"({name}) reads ", says, more=more)


def test_positions_that_are_not_known_are_said(attn: Run, checkpoint: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(_REFUSED, "deepseek_v4")  # as if its blocks were not known
    refused(attn, NOT_EXPOSED, checkpoint("deepseek_v4"), "layer 1", "positions that are no tokens", more=("-l", "1"))


# --- while it runs -----------------------------------------------------------------------------------------


def raising(error: BaseException) -> Callable[..., Any]:
    def forward(*_: Any) -> Any:
        raise error

    return forward


@pytest.mark.parametrize(
    "error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")]
)
def test_memory_that_runs_out_is_said_with_what_did_not_fit(
    error: BaseException, attn: Run, checkpoint: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = checkpoint()
    monkeypatch.setattr(LlamaMLP, "forward", raising(error))
    refused(attn, INPUT, folder, "3 tokens", "do not fit into memory", "shorten the text", more=("-l", "1"))


def test_the_allocator_of_the_cpu_that_gives_up_is_out_of_memory_too(
    attn: Run, checkpoint: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forward(self: Any, hidden: torch.Tensor) -> torch.Tensor:
        return torch.empty(2**50)  # a petabyte: torch raises a RuntimeError, no OutOfMemoryError

    folder = checkpoint()
    monkeypatch.setattr(LlamaMLP, "forward", forward)
    refused(attn, INPUT, folder, "do not fit into memory", more=("-l", "1"))


def test_weights_that_do_not_fit_into_memory_are_said(
    attn: Run, checkpoint: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = checkpoint()
    monkeypatch.setattr(LlamaMLP, "__init__", raising(MemoryError()))
    refused(attn, INPUT, folder, "FOLDER does not fit into the memory")


@pytest.mark.parametrize(
    "error",
    [RuntimeError("a mat has no\nshape. Do this instead"), KeyError("key"), AssertionError(), TypeError("\x1b[2J")],
)
def test_a_model_whose_own_code_raises_is_said_to_have(
    error: BaseException, attn: Run, checkpoint: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = checkpoint()
    monkeypatch.setattr(LlamaMLP, "forward", raising(error))
    line = refused(attn, NOT_EXPOSED, folder, "llama", more=("-l", "1"))
    assert "\x1b" not in line
    assert type(error).__name__ in line or "a mat has no shape" in line or "key" in line or "x1b" in line


def test_an_error_of_the_model_comes_once(attn: Run, checkpoint: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = checkpoint()
    monkeypatch.setattr(LlamaMLP, "forward", raising(MemoryError()))
    ran = attn("inspect", "w7 w8", "w9", "-m", folder, "-l", "1", "-F", "jsonl")
    assert (ran.code, ran.out) == (INPUT, "")
    assert [line[:18] for line in ran.err.splitlines()] == ["attn: sentence 1: ", "attn: sentence 2: "]
