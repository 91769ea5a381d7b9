"""What a user gets wrong: one clear sentence on stderr, the exit code of its kind, and no file left behind."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from refusals import ESCAPE, INPUT, LOAD, USAGE, left_in, raw, refused
from running import program
from safetensors.numpy import load_file, save_file

Run = Callable[..., Any]
TEXT = "time flies like"


# --- the toy layer -----------------------------------------------------------------------------------------

LONG_NAME = "n" * 300

BAD = {
    "empty text": ([""], INPUT, "the sentence is empty"),
    "empty pair": ([TEXT, "--pair", ""], INPUT, "the pair is empty"),
    "empty target": ([TEXT, "--target", " "], INPUT, "the target is empty"),
    "half a character": ([TEXT + " \udcff"], INPUT, "not valid UTF-8"),
    "a layer that is not there": ([TEXT, "-l", "3"], USAGE, "--layer 3 is out of range"),
    "a head that is not there": ([TEXT, "-H", "4"], USAGE, "--head 4 is out of range", "4 heads, 0..3"),
    "a range that runs backwards": ([TEXT, "-H", "3-1"], USAGE, "backwards", "1-3"),
    "no head at all": ([TEXT, "-H", ""], USAGE, "--head ''"),
    "a query that is not there": ([TEXT, "-q", "arrow"], USAGE, "--query 'arrow'", "time flies like"),
    "a query nearly there": ([TEXT, "-q", "fliess"], USAGE, "did you mean 'flies'?"),
    "an unknown mask": ([TEXT, "--mask", "casual"], USAGE, "unknown mask 'casual'", "did you mean 'causal'?"),
    "an unknown mask in the middle": ([TEXT, "--mask", "causal & windwo(2)"], USAGE, "'window'", "character 10"),
    "an empty mask": ([TEXT, "--mask", ""], USAGE, "mask ''"),
    "a mask that is cut off": ([TEXT, "--mask", "causal &"], USAGE, "at the end"),
    "a mask without its number": ([TEXT, "--mask", "window"], USAGE, "window(w)"),
    "a window of nothing": ([TEXT, "--mask", "window(0)"], USAGE, "from 1"),
    "a mask nested too deep": ([TEXT, "--mask", "~" * 500 + "causal"], USAGE, "nested"),
    "documents of another length": ([TEXT, "--mask", "docs(1,1)"], INPUT, "covers 2 positions", "has 3"),
    "a mask file that is missing": ([TEXT, "--mask", "missing.npy"], INPUT, "missing.npy does not exist"),
    "a mask file with a long name": ([TEXT, "--mask", LONG_NAME + ".npy"], INPUT, "cannot be read"),
    "an input file that is missing": (["--file", "missing.txt"], INPUT, "cannot read missing.txt"),
    "an input folder without files": (["--file", "."], INPUT, "the folder . holds no file"),
    "an option of other files": (["--file", "missing.txt", "--column", "x"], USAGE, "--column does not apply to miss"),
    "a trace that is missing": (["--from", "missing.safetensors"], INPUT, "missing.safetensors does not exist"),
    "a trace that is a folder": (["--from", "."], INPUT, "folder"),
    "a trace with a long name": (["--from", LONG_NAME], INPUT),
    "a checkpoint with a long name": ([TEXT, "-m", LONG_NAME], LOAD),
    "a tokenizer with a long name": ([TEXT, "--vocab", LONG_NAME], LOAD),
    "heads that do not divide": ([TEXT, "--num-heads", "5"], USAGE, "does not divide into 5 heads"),
    "no width": ([TEXT, "--d-model", "0"], USAGE, "--d-model 0"),
    "a width of millions": ([TEXT, "--d-model", "400000000"], USAGE, "give smaller ones"),
    "a vocabulary that is too small": ([TEXT, "--vocab-size", "2"], USAGE, "3 different words"),
    "a scale that is no number": ([TEXT, "--scale", "big"], USAGE, "--scale 'big'", "sqrt, none or a number"),
    "a seed below zero": ([TEXT, "--seed", "-1"], USAGE, "--seed -1"),
    "a seed in powers of ten": ([TEXT, "--seed", "1e3"], USAGE, "'--seed': expected a whole number; see"),
    "a precision of many digits": ([TEXT, "--precision", "1" * 5000], USAGE, "'--precision': expected a whole number"),
    "a width in bytes": ([TEXT, "--width", "\udcff"], USAGE, "'--width': expected a whole number; see"),
    "a line too narrow": ([TEXT, "--width", "3"], USAGE, "'--width': expected at least 40; see"),
    "an output without a name": ([TEXT, "-o", ""], USAGE, "--output: the file name is empty"),
    "a saved trace without a name": ([TEXT, "--save", ""], USAGE, "'--save': the file name is empty"),
    "an input file without a name": (["--file", ""], USAGE, "--file: the file name is empty"),
    "a trace without a name": (["--from", ""], USAGE, "'--from': the file name is empty"),
    "a width that does not apply": ([TEXT, "--project", "none", "--d-k", "3"], USAGE, "--d-k does not apply"),
    "special tokens of words": ([TEXT, "--no-special"], USAGE, "--no-special does not apply"),
    "a device for the toy layer": ([TEXT, "--device", "cpu"], USAGE, "--device", "toy layer"),
    "an unknown part": ([TEXT, "--show", "weights,wieghts"], USAGE, "--show 'wieghts'", "heatmap"),
    "an unknown format": ([TEXT, "-F", "xml"], USAGE, "'xml'", "jsonl"),
    "a tokenizer that is not there": ([TEXT, "--vocab", "no-one/nothing"], LOAD, "'no-one/nothing' was not found"),
    "a folder without a tokenizer": ([TEXT, "--vocab", "."], LOAD, "holds no tokenizer.json"),
    "a trace into a missing folder": ([TEXT, "--save", "missing/t.safetensors"], INPUT, "cannot write missing/t"),
    "a trace into a folder": ([TEXT, "--save", "."], INPUT, "cannot write ."),
    "an option of checkpoints": ([TEXT, "--offline"], USAGE, "--offline"),
    "special tokens of words that are hidden": ([TEXT, "--hide-special"], USAGE, "--hide-special"),
    "one file for two": ([TEXT, "-o", "x.json", "--save", "x.json"], USAGE),
    "draws of what is not projected": ([TEXT, "--project", "none", "--init", "uniform"], USAGE, "--init"),
    "a trace of a view that fails": ([TEXT, "-q", "arrow", "--save", "t.safetensors"], USAGE, "--query 'arrow'"),
}
ESCAPES = {
    "file": (["--file", ESCAPE], INPUT),
    "trace": (["--from", ESCAPE], INPUT),
    "output": ([TEXT, "-o", f"{ESCAPE}/x.json"], INPUT),
    "output ending": ([TEXT, "-o", f"x.{ESCAPE}"], USAGE),
    "trace to save": ([TEXT, "--save", f"{ESCAPE}/x.safetensors"], INPUT),
    "mask file": ([TEXT, "--mask", f"{ESCAPE}.npy"], INPUT),
    "mask expression": ([TEXT, "--mask", ESCAPE], USAGE),
    "mask file in an expression": ([TEXT, "--mask", f'file("{ESCAPE}.npy")'], INPUT),
    "model": ([TEXT, "-m", ESCAPE], LOAD),
    "tokenizer": ([TEXT, "--vocab", ESCAPE], LOAD),
    **{f"value of {option}": ([TEXT, option, ESCAPE], USAGE)
       for option in ("-q", "-k", "-l", "-H", "-F", "--show", "--scale", "--seed", "--init")},
    "option": ([TEXT, f"--{ESCAPE}"], USAGE),
    "token that is suggested": ([f"time {ESCAPE}", "-q", "arrow"], USAGE),
    "token of a blind row": ([f"time {ESCAPE}", "-q", "arrow", "--mask", "~full"], USAGE),
}  # fmt: skip
CHECKPOINTS = {
    "a name on the hub": (["-m", "no-one/nothing"], LOAD, "'no-one/nothing'", "in the local cache"),
    "a name that cannot be": (["-m", "a/b/c"], LOAD, "'a/b/c'"),
    "no name": (["-m", ""], LOAD),
    "a folder that is no checkpoint": (["-m", "."], LOAD, "no config.json"),
    "an option of the toy layer": (["-m", ".", "--seed", "1"], USAGE, "--seed", "does not apply to --model"),
    "an unknown dtype": (["-m", ".", "--dtype", "int8"], USAGE, "--dtype", "bfloat16"),
}
ALL_BAD: dict[str, Any] = BAD | {f"an escape sequence as the {name}": row for name, row in ESCAPES.items()}
ALL_BAD |= {f"checkpoint: {name}": ([TEXT, *arguments], *rest) for name, (arguments, *rest) in CHECKPOINTS.items()}


@pytest.mark.parametrize("name", ALL_BAD)
def test_a_bad_request_is_one_sentence_and_an_exit_code(attn: Run, folder: Path, name: str) -> None:
    arguments, code, *words = ALL_BAD[name]
    more = () if {"-o", "-F"} & {*arguments} else ("-o", "out.jsonl")
    refused(attn("inspect", *arguments, *more), code, *words)
    assert left_in(folder) == []


def test_an_output_that_cannot_be_written_is_said(attn: Run, folder: Path) -> None:
    for name in ("missing/out.json", "missing/out.tsv", "missing/out.txt", LONG_NAME + ".json"):
        refused(attn("inspect", TEXT, "-o", name), INPUT, "cannot write")
    (folder / "folder.json").mkdir()
    refused(attn("inspect", TEXT, "-o", "folder.json"), INPUT, "cannot write folder.json", "it is a folder")
    assert left_in(folder) == ["folder.json"]


# --- mask files --------------------------------------------------------------------------------------------


def npz(path: Path) -> None:
    with open(path, "wb") as stream:
        np.savez(stream, mask=np.ones((3, 3)))


BAD_MASKS: dict[str, tuple[str, Callable[[Path], Any], str]] = {
    "truncated": ("npy", lambda path: np.save(path, np.ones((3, 3))) or os.truncate(path, 140), "cannot be read"),
    "an archive": ("npy", npz, "mask file"),
    "objects": ("npy", lambda path: np.save(path, np.array([[None]]), allow_pickle=True), "cannot be read"),
    "one axis": ("npy", lambda path: np.save(path, np.ones(3)), "shape [3]"),
    "four axes": ("npy", lambda path: np.save(path, np.ones((1, 1, 3, 3))), "shape [1, 1, 3, 3]"),
    "a list of tensors": ("pt", lambda path: torch.save([torch.ones(2, 2)], path), "cannot be read"),
    "two tensors": ("pt", lambda path: torch.save({"a": torch.ones(1), "b": torch.ones(1)}, path), "cannot be read"),
    "a header past the end": ("safetensors", lambda path: path.write_bytes(b"\xff" * 8 + b"{}"), "cannot be read"),
    "complex numbers": ("npy", lambda path: np.save(path, np.zeros((3, 3), complex)), "holds complex128"),
    "no rows": ("npy", lambda path: np.save(path, np.ones((0, 3))), "shape [0, 3]"),
    "other numbers": ("npy", lambda path: np.save(path, np.tile([0, 1, 2], (3, 1))), "holds the values 0, 1, 2"),
    "a folder": ("npy", lambda path: path.mkdir(), "cannot be read"),
}


@pytest.mark.parametrize("name", BAD_MASKS)
def test_a_mask_file_that_holds_no_mask_is_refused(attn: Run, tmp_path: Path, name: str) -> None:
    ending, write, words = BAD_MASKS[name]
    path = tmp_path / f"mask.{ending}"
    write(path)
    refused(attn("inspect", TEXT, "--mask", f'causal & file("{path}")'), INPUT, str(path), words)


# --- checkpoints -------------------------------------------------------------------------------------------


@pytest.fixture
def checkpoint(tiny_llama: str, tmp_path: Path) -> Path:
    """A copy of the tiny decoder, to be damaged."""
    return Path(shutil.copytree(tiny_llama, tmp_path / "checkpoint"))


def rewritten(folder: Path, change: Callable[[dict[str, np.ndarray[Any, Any]]], Any]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


Q_PROJECTION = "model.layers.1.self_attn.q_proj.weight"

DAMAGE: dict[str, tuple[Callable[[Path], Any], list[str]]] = {
    "truncated weights": (lambda f: os.truncate(f / "model.safetensors", 5000), ["model"]),
    "missing weights": (lambda f: (f / "model.safetensors").unlink(), ["model.safetensors"]),
    "a missing tensor": (lambda f: rewritten(f, lambda t: t.pop(Q_PROJECTION)), ["layers.1.self_attn.q_proj.weight"]),
    "tensors of another model": (
        lambda f: save_file({"x": np.ones(2, np.float32)}, f / "model.safetensors", metadata={"format": "pt"}),
        ["lack"],
    ),
    "a tensor of another shape": (
        lambda f: rewritten(f, lambda t: t.update({Q_PROJECTION: np.ones((5, 5), np.float32)})),
        ["layers.1.self_attn.q_proj.weight"],
    ),
    "no tokenizer": (
        lambda f: [path.unlink() for path in f.glob("tokenizer*")],
        ["none of tokenizer.json, tokenizer.model, spiece.model, tekken.json, vocab.json, vocab.txt is there"],
    ),
    "a tokenizer that is no JSON": (lambda f: (f / "tokenizer.json").write_text("{"), ["tokenizer"]),
    "a configuration that is no JSON": (lambda f: (f / "config.json").write_text("{"), ["config.json cannot be read"]),
    "a configuration that is empty": (lambda f: (f / "config.json").write_text("{}"), ["configuration"]),
    "an architecture nobody knows": (
        lambda f: (f / "config.json").write_text('{"model_type": "frobnicator"}'),
        ["frobnicator"],
    ),
    "no configuration": (lambda f: (f / "config.json").unlink(), ["no config.json"]),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_checkpoint_is_named_with_what_is_wrong(attn: Run, checkpoint: Path, folder: Path, name: str) -> None:
    damage, words = DAMAGE[name]
    damage(checkpoint)
    refused(attn("inspect", TEXT, "-m", checkpoint, "-l", "all", "-o", "out.json"), LOAD, str(checkpoint), *words)
    assert left_in(folder) == []


def test_the_libraries_below_add_nothing_to_stderr(checkpoint: Path) -> None:
    damage, _ = DAMAGE["a tensor of another shape"]
    damage(checkpoint)
    ran = program("inspect", TEXT, "-m", checkpoint, "-l", "1")
    assert (ran.returncode, ran.stdout) == (LOAD, "")
    assert ran.stderr.startswith("attn: ")
    assert ran.stderr.count("\n") == 1


def test_a_checkpoint_is_told_from_its_name(attn: Run, checkpoint: Path) -> None:
    odd = checkpoint.with_name(os.fsdecode(b"mi\xffni"))
    odd.symlink_to(checkpoint)
    for command in (("inspect", TEXT, "-m"), ("inspect", TEXT, "--vocab")):
        assert attn(*command, checkpoint).code == 0
        refused(attn(*command, odd), LOAD, "the name", "mi\\udcffni is not UTF-8")


def test_a_file_is_no_checkpoint(attn: Run, checkpoint: Path) -> None:
    refused(attn("inspect", TEXT, "-m", checkpoint / "config.json"), LOAD, "is a file", "folder")


def test_layers_and_heads_are_checked_before_weights_and_tokenizer_are_read(attn: Run, checkpoint: Path) -> None:
    for path in [checkpoint / "model.safetensors", *checkpoint.glob("tokenizer*")]:
        path.unlink()
    refused(attn("inspect", TEXT, "-m", checkpoint, "-l", "3"), USAGE, "--layer 3 is out of range", "3 layers, 0..2")
    refused(attn("inspect", TEXT, "-m", checkpoint, "-H", "6"), USAGE, "--head 6 is out of range", "6 heads, 0..5")
    refused(attn("inspect", TEXT, "-m", checkpoint, "-l", "2", "-H", "5"), LOAD)


def test_a_word_that_only_the_model_lacks_is_warned_about(attn: Run, tiny_llama: str, minilm: str) -> None:
    ran = attn("inspect", "time zeppelin flies zeppelin quark", "-m", tiny_llama, "-F", "json")
    assert ran.code == 0
    assert ran.err.startswith("attn: warning: ")
    assert ran.err.count("\n") == 1
    assert ran.err.count("'zeppelin'") == 1
    assert "'quark', read as <unk>" in ran.err
    assert [token["text"] for token in ran.json["key_tokens"]].count("<unk>") == 3
    ran = attn("inspect", "time \U0001f9ff flies", "-m", minilm, "-F", "json")
    assert "read as [UNK]" in ran.err


def test_an_id_beyond_the_embedding_is_refused(attn: Run, checkpoint: Path) -> None:
    path = checkpoint / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    tokenizer["model"]["vocab"]["zebra"] = 99
    path.write_text(json.dumps(tokenizer), encoding="utf-8")
    ran = attn("inspect", "time zebra", "-m", checkpoint)
    assert ran.code in (LOAD, INPUT)
    refused(ran, ran.code)


def test_a_device_that_is_not_there_is_refused(attn: Run, tiny_llama: str) -> None:
    for device in ("cuda:99", "abacus"):
        ran = attn("inspect", TEXT, "-m", tiny_llama, "--device", device)
        refused(ran, LOAD, f"--device {device}", "; give --device cpu")


# --- escape sequences --------------------------------------------------------------------------------------


def test_an_escape_sequence_in_a_command_or_a_checkpoint_is_shown(
    attn: Run, tmp_path: Path, tiny_llama: str, checkpoint: Path
) -> None:
    refused(attn(ESCAPE), USAGE, "\\x1b[31mred")
    folder = checkpoint.rename(tmp_path / ESCAPE)
    for arguments, code in ((["-l", "9"], USAGE), (["time " * 40], INPUT), (["--mask", "docs(9)"], INPUT)):
        ran = attn("inspect", TEXT, "-m", folder, *arguments)
        assert ran.code == code
        assert raw(ran.err) == raw(ran.out) == set()
    (folder / "model.safetensors").write_bytes(b"x" * 40)
    refused(attn("inspect", TEXT, "-m", folder), LOAD, "\\x1b[31mred")


def test_an_escape_sequence_in_a_warning_is_shown(attn: Run, tiny_llama: str) -> None:
    ran = attn("inspect", "time \x1b[31m \x07", "-m", tiny_llama, "--mask", "~full", "-F", "json")
    assert ran.code == 0
    assert "<unk>" in ran.err
    assert raw(ran.err) == raw(ran.out) == set()
