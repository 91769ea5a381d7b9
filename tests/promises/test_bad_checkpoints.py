"""Checkpoints that cannot be shown: what is wrong with them, in one sentence, and no file left behind."""

import json
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import refusals
import torch
from architectures import WITHOUT_ATTENTION, tiny_model
from conformance import save
from refusals import INPUT, LOAD, NOT_EXPOSED, Evil
from running import program
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, PreTrainedTokenizerFast
from transformers.models.llama.modeling_llama import LlamaMLP

from attncli.engines.torch import _REFUSED

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

    def made(name: str = "llama") -> Path:
        folder = tmp_path / name
        torch.manual_seed(0)
        save(tiny_model(name), folder)
        PreTrainedTokenizerFast(
            tokenizer_file=str(folder / "tokenizer.json"), unk_token="<unk>", pad_token="<pad>"
        ).save_pretrained(folder)
        return folder

    return made


Made = Callable[..., Path]


def refused(attn: Run, code: int, folder: str | Path, *words: str, more: tuple[str, ...] = ()) -> str:
    """Check that a run ends as every bad request does, and leaves no file.

    Returns what it says, without the folder, whose name has words of the test in it.
    """
    ran = attn("inspect", TEXT, "-m", folder, *more, "-o", "out.jsonl", "--save", "trace.safetensors")
    refusals.refused(ran, code)
    assert os.listdir() == []
    assert str(folder) in ran.err or code != LOAD
    line: str = ran.err.replace(str(folder), "FOLDER")
    for word in words:
        assert word in line
    return line


def test_transformers_cannot_run_without_docstrings(checkpoint: Made) -> None:
    command = ("inspect", TEXT, "-m", checkpoint(), "--engine", "transformers")
    ran = program(*command, env=os.environ | {"PYTHONOPTIMIZE": "2"})
    assert ran.returncode == LOAD
    message = "attn: transformers needs the docstrings that python -OO leaves out; run with PYTHONOPTIMIZE=1\n"
    assert ran.stderr == message


# --- files that are missing or do not fit ------------------------------------------------------------------


def test_weights_of_another_shape_are_refused_in_the_layers_that_are_asked_for(attn: Run, checkpoint: Made) -> None:
    folder = checkpoint()
    tensors = load_file(folder / "model.safetensors")
    tensors["layers.1.self_attn.k_proj.weight"] = torch.ones(5, 7)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    words = ("layers.1.self_attn.k_proj.weight", "[5, 7]", "[16, 32]", "do not fit its config.json")
    refused(attn, LOAD, folder, *words, more=("-l", "2"))
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


@pytest.mark.parametrize("form", ["zip", "bare"])
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
    line = refused(attn, NOT_EXPOSED, checkpoint(name), "no attention layers over text", name)
    assert "folder is complete" not in line


@pytest.mark.parametrize("name", ["vit", "whisper"])
def test_a_model_of_images_or_audio_is_said_not_to_read_text(name: str, attn: Run, tmp_path: Path) -> None:
    save(AutoModel.from_config(AutoConfig.for_model(name)), tmp_path / name)
    says = "a sound into its text part" if name == "whisper" else ", not text"  # which has a decoder of texts
    refused(attn, NOT_EXPOSED, tmp_path / name, f"({name}) reads ", says)
    if name == "whisper":
        return
    for path in (tmp_path / name).glob("tokenizer*"):
        path.unlink()
    code = attn("inspect", TEXT, "-m", tmp_path / name).code
    assert code in (LOAD, NOT_EXPOSED)
    assert "folder is complete" not in refused(attn, code, tmp_path / name, "text")  # it is


def test_positions_that_are_not_known_are_said(attn: Run, checkpoint: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(_REFUSED, "deepseek_v4")  # as if its blocks were not known
    refused(attn, NOT_EXPOSED, checkpoint("deepseek_v4"), "layer 1", "positions without a token", more=("-l", "1"))


# --- while it runs -----------------------------------------------------------------------------------------


def raising(error: BaseException) -> Callable[..., Any]:
    def forward(*_: Any) -> Any:
        raise error

    return forward


@pytest.mark.parametrize(
    "forward",
    [
        raising(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")),
        lambda *_: torch.empty(2**50),  # a petabyte: torch raises a RuntimeError, no OutOfMemoryError
    ],
)
def test_memory_that_runs_out_is_said_with_what_did_not_fit(
    forward: Callable[..., Any], attn: Run, checkpoint: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = checkpoint()
    monkeypatch.setattr(LlamaMLP, "forward", forward)
    refused(attn, INPUT, folder, "3 tokens", "do not fit into memory", "shorten the text", more=("-l", "1"))


@pytest.mark.parametrize("error", [RuntimeError("a mat has no\nshape. Do this instead"), TypeError("\x1b[2J")])
def test_a_model_whose_own_code_raises_is_said_to_have(
    error: BaseException, attn: Run, checkpoint: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = checkpoint()
    monkeypatch.setattr(LlamaMLP, "forward", raising(error))
    line = refused(attn, NOT_EXPOSED, folder, "llama", more=("-l", "1"))
    assert "a mat has no shape" in line or "x1b" in line
    assert attn("inspect", TEXT, "-m", folder, "-l", "0").code == 0  # below the one that raises
