"""What a user gets wrong: one sentence on stderr with the facts, the exit code of its kind, and no file left behind."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from architectures import WITHOUT_ATTENTION, tiny_model
from conformance import save, save_for_auto
from refusals import ESCAPE, INPUT, LOAD, NOT_EXPOSED, USAGE, left_in, raw, refused
from running import Ran, program
from safetensors.numpy import load_file, save_file
from transformers import AutoConfig, AutoModel
from transformers.models.llama.modeling_llama import LlamaMLP
from typer.testing import CliRunner

from attncli.cli.app import app

Run = Callable[..., Any]
TEXT = "time flies like"
LONG_NAME = "n" * 300

# Arguments of `attn inspect`, the exit code, and what the sentence must contain. Checkpoints are refused below.
BAD: list[tuple[list[str], int, *tuple[str, ...]]] = [
    ([""], INPUT, "the sentence is empty"),
    ([TEXT, "--pair", ""], INPUT, "the pair is empty"),
    ([TEXT, "--target", " "], INPUT, "the target is empty"),
    ([TEXT + " \udcff"], INPUT, "not valid UTF-8"),
    ([TEXT, "-l", "3"], USAGE, "--layer 3 is out of range"),
    ([TEXT, "-H", "4"], USAGE, "--head 4 is out of range", "4 heads, 0..3"),
    ([TEXT, "-H", "3-1"], USAGE, "backwards", "1-3"),
    ([TEXT, "-q", "fliess"], USAGE, "--query 'fliess'", "did you mean 'flies'?"),
    ([TEXT, "--mask", "causal & windwo(2)"], USAGE, "'windwo'", "did you mean 'window'", "character 10"),
    ([TEXT, "--mask", "causal &"], USAGE, "at the end"),
    ([TEXT, "--mask", "window(0)"], USAGE, "from 1"),
    ([TEXT, "--mask", "~" * 500 + "causal"], USAGE, "nested"),
    ([TEXT, "--mask", "docs(1,1)"], INPUT, "covers 2 positions", "has 3"),
    ([TEXT, "--mask", "missing.npy"], INPUT, "missing.npy does not exist"),
    (["--file", "missing.txt"], INPUT, "cannot read missing.txt"),
    (["--file", "."], INPUT, "the folder . holds no file"),
    (["--file", "missing.txt", "--column", "x"], USAGE, "--column does not apply to miss"),
    (["--from", "missing.safetensors"], INPUT, "missing.safetensors does not exist"),
    (["--from", "."], INPUT, "folder"),
    *(([TEXT, option, LONG_NAME], LOAD) for option in ("-m", "--vocab")),
    ([TEXT, "--num-heads", "5"], USAGE, "does not divide into 5 heads"),
    ([TEXT, "--d-model", "400000000"], USAGE, "give smaller ones"),
    ([TEXT, "--vocab-size", "2"], USAGE, "3 different words"),
    ([TEXT, "--scale", "big"], USAGE, "--scale 'big'", "sqrt, none or a number"),
    ([TEXT, "--seed", "1e3"], USAGE, "'--seed': expected a whole number; see"),
    ([TEXT, "--precision", "1" * 5000], USAGE, "'--precision': expected a whole number"),
    ([TEXT, "--width", "3"], USAGE, "'--width': expected at least 40; see"),
    ([TEXT, "-o", ""], USAGE, "--output: the file name is empty"),
    ([TEXT, "-o", "missing/out.json"], INPUT, "cannot write missing/out.json"),
    ([TEXT, "--save", "."], INPUT, "cannot write ."),
    ([TEXT, "-o", "x.json", "--save", "x.json"], USAGE),
    ([TEXT, "--project", "none", "--d-k", "3"], USAGE, "--d-k does not apply"),
    ([TEXT, "--device", "cpu"], USAGE, "--device", "toy layer"),
    ([TEXT, "--show", "weights,wieghts"], USAGE, "--show 'wieghts'", "heatmap"),
    ([TEXT, "-F", "xml"], USAGE, "'xml'", "jsonl"),
    ([TEXT, "--vocab", "."], LOAD, "holds no tokenizer.json"),
    ([TEXT, "-q", "arrow", "--save", "t.safetensors"], USAGE, "--query 'arrow'"),
    ([TEXT, "-m", "no-one/nothing"], LOAD, "'no-one/nothing'", "in the local cache"),
    ([TEXT, "-m", "."], LOAD, "no config.json"),
    ([TEXT, "-m", ".", "--seed", "1"], USAGE, "--seed", "does not apply to --model"),
    ([TEXT, "-m", ".", "--dtype", "int8"], USAGE, "--dtype", "bfloat16"),
    # Escape sequences are shown, wherever they stand.
    (["--file", ESCAPE], INPUT, "\\x1b[31mred"),
    ([TEXT, "-o", f"{ESCAPE}/x.json"], INPUT),
    ([TEXT, "--mask", f'file("{ESCAPE}.npy")'], INPUT),
    ([TEXT, "--mask", ESCAPE], USAGE),
    ([TEXT, "-m", ESCAPE], LOAD),
    ([TEXT, f"--{ESCAPE}"], USAGE),
    ([f"time {ESCAPE}", "-q", "arrow", "--mask", "~full"], USAGE),
]


@pytest.mark.parametrize("row", BAD, ids=lambda row: " ".join(row[0])[:60].encode("unicode_escape").decode())
def test_a_bad_request_is_one_sentence_and_an_exit_code(attn: Run, folder: Path, row: Any) -> None:
    arguments, code, *facts = row
    more = () if {"-o", "-F"} & {*arguments} else ("-o", "out.jsonl")
    refused(attn("inspect", *arguments, *more), code, *facts)
    assert left_in(folder) == []


# --- mask files --------------------------------------------------------------------------------------------

BAD_MASKS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "an archive.npy": (lambda path: np.savez(path.open("wb"), mask=np.ones((3, 3))), "mask file"),
    "objects.npy": (lambda path: np.save(path, np.array([[None]]), allow_pickle=True), "cannot be read"),
    "one axis.npy": (lambda path: np.save(path, np.ones(3)), "shape [3]"),
    "four axes.npy": (lambda path: np.save(path, np.ones((1, 1, 3, 3))), "shape [1, 1, 3, 3]"),
    "no rows.npy": (lambda path: np.save(path, np.ones((0, 3))), "shape [0, 3]"),
    "complex.npy": (lambda path: np.save(path, np.zeros((3, 3), complex)), "holds complex128"),
    "numbers.npy": (lambda path: np.save(path, np.tile([0, 1, 2], (3, 1))), "holds the values 0, 1, 2"),
    "two.pt": (lambda path: torch.save({"a": torch.ones(1), "b": torch.ones(1)}, path), "cannot be read"),
    "past the end.safetensors": (lambda path: path.write_bytes(b"\xff" * 8 + b"{}"), "cannot be read"),
    "a folder.npy": (Path.mkdir, "cannot be read"),
}


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("name", BAD_MASKS)
def test_a_mask_file_that_holds_no_mask_is_refused(attn: Run, tmp_path: Path, name: str) -> None:
    write, fact = BAD_MASKS[name]
    write(tmp_path / name)
    refused(attn("inspect", TEXT, "--mask", f'causal & file("{tmp_path / name}")'), INPUT, name, fact)


# --- checkpoints -------------------------------------------------------------------------------------------


@pytest.fixture
def checkpoint(tiny_llama: str, tmp_path: Path) -> Path:
    """A copy of the tiny decoder, to be damaged."""
    return Path(shutil.copytree(tiny_llama, tmp_path / "checkpoint"))


def rewritten(folder: Path, **changes: np.ndarray[Any, Any] | None) -> None:
    tensors = load_file(folder / "model.safetensors") | {f"model.layers.1.{name}": one for name, one in changes.items()}
    kept_tensors = {name: one for name, one in tensors.items() if one is not None}
    save_file(kept_tensors, folder / "model.safetensors", metadata={"format": "pt"})


Q_PROJECTION, SQUARE = "self_attn.q_proj.weight", np.ones((5, 5), np.float32)
DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "truncated weights": (lambda f: os.truncate(f / "model.safetensors", 5000), "model"),
    "missing weights": (lambda f: (f / "model.safetensors").unlink(), "model.safetensors"),
    "a missing tensor": (lambda f: rewritten(f, **{Q_PROJECTION: None}), f"layers.1.{Q_PROJECTION}"),
    "another shape": (
        lambda f: rewritten(f, **{Q_PROJECTION: np.ones((5, 5), np.float32)}),
        f"layers.1.{Q_PROJECTION}",
    ),
    "no tokenizer": (lambda f: [path.unlink() for path in f.glob("tokenizer*")], "none of tokenizer.json, tokenizer."),
    "no JSON": (lambda f: (f / "config.json").write_text("{"), "config.json cannot be read"),
    "an empty configuration": (lambda f: (f / "config.json").write_text("{}"), "configuration"),
    "unknown": (lambda f: (f / "config.json").write_text('{"model_type": "frobnicator"}'), "frobnicator"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_checkpoint_is_named_with_what_is_wrong(attn: Run, checkpoint: Path, folder: Path, name: str) -> None:
    damage, fact = DAMAGE[name]
    damage(checkpoint)
    refused(attn("inspect", TEXT, "-m", checkpoint, "-l", "all", "-o", "out.json"), LOAD, str(checkpoint), fact)
    assert left_in(folder) == []


def test_the_libraries_below_add_nothing_to_stderr(checkpoint: Path) -> None:
    rewritten(checkpoint, **{Q_PROJECTION: SQUARE})
    ran = program("inspect", TEXT, "-m", checkpoint, "-l", "1", "--engine", "transformers")
    refused(Ran(ran.returncode, ran.stdout, ran.stderr), LOAD, "[5, 5]", "do not fit its config.json")


def test_layers_and_heads_are_checked_before_weights_and_tokenizer_are_read(attn: Run, checkpoint: Path) -> None:
    for path in [checkpoint / "model.safetensors", *checkpoint.glob("tokenizer*")]:
        path.unlink()
    refused(attn("inspect", TEXT, "-m", checkpoint, "-l", "3"), USAGE, "--layer 3 is out of range", "3 layers, 0..2")
    refused(attn("inspect", TEXT, "-m", checkpoint, "-H", "6"), USAGE, "--head 6 is out of range", "6 heads, 0..5")


def test_a_word_that_only_the_model_lacks_is_warned_about(attn: Run, tiny_llama: str) -> None:
    ran = attn("inspect", "time zeppelin flies zeppelin \x1b[31m \x07 quark", "-m", tiny_llama, "-F", "json")
    assert ran.code == 0
    assert ran.err.startswith("attn: warning: ")
    assert ran.err.count("\n") == ran.err.count("'zeppelin'") == 1
    assert raw(ran.err) == raw(ran.out) == set()
    assert [token["text"] for token in ran.json["key_tokens"]].count("<unk>") >= 3


def test_a_device_that_is_not_there_is_refused(attn: Run, tiny_llama: str) -> None:
    for device in ("cuda:99", "abacus"):
        ran = attn("inspect", TEXT, "-m", tiny_llama, "--device", device)
        refused(ran, LOAD, f"--device {device}", "; give --device cpu")


@pytest.mark.parametrize("name", [sorted(WITHOUT_ATTENTION)[0], "vit", "whisper"])
def test_a_model_without_attention_over_text_is_named(name: str, attn: Run, tmp_path: Path) -> None:
    if name in WITHOUT_ATTENTION:
        save_for_auto(tiny_model(name), tmp_path / name)
        facts = ["no attention layers over text", name]
    else:
        save(AutoModel.from_config(AutoConfig.for_model(name)), tmp_path / name)
        facts = [f"({name}) reads ", "a sound into its text part" if name == "whisper" else ", not text"]
    refused(attn("inspect", TEXT, "-m", tmp_path / name), NOT_EXPOSED, *facts)


# --- while it runs -----------------------------------------------------------------------------------------


def raising(error: BaseException) -> Callable[..., Any]:
    def forward(*_: Any) -> Any:
        raise error

    return forward


@pytest.mark.usefixtures("by_transformers")
@pytest.mark.parametrize(
    ("method", "forward", "code", "facts"),
    [
        (
            "forward",
            raising(torch.OutOfMemoryError("CUDA out of memory")),
            INPUT,
            ("3 tokens", "do not fit into memory"),
        ),
        ("forward", lambda *_: torch.empty(2**50), INPUT, ("do not fit into memory", "shorten the text")),
        ("__init__", raising(MemoryError()), INPUT, ("does not fit into the memory",)),
        (
            "forward",
            raising(RuntimeError("a mat has no\nshape. Do this")),
            NOT_EXPOSED,
            ("llama", "a mat has no shape"),
        ),
        ("forward", raising(TypeError("\x1b[2J")), NOT_EXPOSED, ("llama", "x1b")),
    ],
)
def test_what_a_model_raises_is_a_sentence(
    method: str, forward: Any, code: int, facts: tuple[str, ...], attn: Run, checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(LlamaMLP, method, forward)
    refused(attn("inspect", TEXT, "-m", checkpoint, "-l", "1"), code, *facts)


# --- bugs, and messages that quote much ----------------------------------------------------------------------


@pytest.mark.parametrize("error", [KeyError("\x1b[31mred"), OSError(5, "Input/output error")])
def test_a_bug_is_called_one_and_its_traceback_is_a_variable_away(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attncli.trace.view.View.check", raising(error))
    ran, traced = (CliRunner().invoke(app, ["inspect", TEXT], env={"ATTN_DEBUG": value}) for value in ("", "1"))
    assert (ran.exit_code, ran.stdout, ran.stderr.count("\n")) == (5, "", 1)
    assert ran.stderr.startswith("attn: this is a bug in attn, please report it: ")
    assert f"{type(error).__name__}: " in ran.stderr
    assert traced.stderr.startswith("Traceback (most recent call last):\n")
    assert traced.stderr.endswith(ran.stderr)
    assert "\x1b" not in ran.stderr + traced.stderr


def test_a_file_that_fails_while_it_is_read_is_no_bug(attn: Run) -> None:
    ran = attn("inspect", "--file", "/proc/self/mem")  # whose first page nobody may read
    assert (ran.code, ran.out, ran.err) == (5, "", "attn: cannot read /proc/self/mem: Input/output error\n")


def test_a_message_does_not_quote_more_than_anyone_reads(attn: Run, tiny_llama: str, tmp_path: Path) -> None:
    long = "a" * 5_000_000
    vectors = np.ones((2, 3), np.float32)
    save_file({"q": vectors, "k": vectors}, tmp_path / "dump.safetensors", metadata={"scale": long})
    save_file({}, tmp_path / "trace.safetensors", metadata={"attncli": json.dumps({"schema": long})})
    for arguments, last in {
        ("inspect", "-", "-m", tiny_llama): "attention there is to the unknown token",
        ("tokens", "-", "-m", tiny_llama): "attention there is to the unknown token",
        ("why", "-", "-q", "b", "-m", "toy"): "aaa",
        ("inspect", "--from", tmp_path / "dump.safetensors"): "expected a number",
        ("inspect", "--from", tmp_path / "trace.safetensors"): "reads attncli.trace/1",
    }.items():
        ran = attn(*arguments, stdin=long)
        assert ran.err.count("\n") == 1
        assert len(ran.err) < 2100
        assert "aaa" in ran.err[:200]
        assert last in ran.err[-100:]
