"""What the program says about itself: pages that are true, fit, open with examples, and say the same everywhere."""

import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import typer
from onnx_exports import write
from readme import pages
from rich.cells import cell_len
from running import program
from transformers import AutoModelForCausalLM
from typer.main import get_command
from whole_program import forked

import attncli
from attncli.analysis import MEANINGS
from attncli.analysis.metrics import WEIGHTS
from attncli.cli.app import app
from attncli.cli.help import commands_of, page_of
from attncli.errors import ExitCode
from attncli.masks import NOTATION
from attncli.masks.expressions import ATOMS
from attncli.masks.parser import parse

ROOT: Any = get_command(app)
CONTEXT: Any = typer.Context(ROOT, info_name="attn")


CONTEXTS = {tuple(one.command_path.split()[1:]): one for one in commands_of(CONTEXT)}
COMMANDS: dict[tuple[str, ...], Any] = {path: one.command for path, one in CONTEXTS.items()}
every_command = pytest.mark.parametrize("path", COMMANDS, ids=" ".join)


@every_command
def test_a_page_opens_with_its_purpose_and_examples_and_fits(path: tuple[str, ...], attn: Callable[..., Any]) -> None:
    assert max(map(cell_len, attn(*path, "--help", COLUMNS="40").out.splitlines())) <= 40
    ran = attn(*path, "--help", COLUMNS="80")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith(f"Usage: attn {' '.join(path)} ")
    assert max(map(cell_len, ran.out.splitlines())) <= 80
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", ran.out)
    usage, purpose, examples, *_ = ran.out.split("\n\n")
    assert usage.count("\n") == purpose.count("\n") == 0
    assert 2 <= examples.count("\n  attn ") <= 5
    assert all(line.startswith("  attn ") for line in examples.splitlines()[1:])


def test_a_group_alone_shows_its_help(attn: Callable[..., Any]) -> None:
    assert attn("inspect", "--help") == attn("inspect", "-h")
    for group in ([], ["mask"]):
        alone = attn(*group)
        assert (alone.code, alone.out) == (2, attn(*group, "--help").out)


# --- examples ----------------------------------------------------------------------------------------------


def all_examples() -> list[str]:
    pages = map(page_of, [CONTEXT, *CONTEXTS.values()])
    lines = (line for page in pages for message in page.paragraphs for line in message.split("\n")[1:])
    return list(dict.fromkeys(lines))


_TRAIN = """
import torch, torch.nn.functional as F

weight = torch.nn.Parameter(torch.ones(4))
x, real = torch.randn(2, 1, 6, 4), torch.arange(6) < torch.tensor([[6], [4]])
y = F.scaled_dot_product_attention(x * weight, x, x, attn_mask=real[:, None, None, :], is_causal=True)
y.sum().backward()
torch.optim.SGD([weight], lr=0.1).step()
"""

_TRANSLATE = """
import torch

model = torch.nn.Transformer(8, 2, 1, 1, 16, batch_first=True)
x, padding = torch.randn(2, 6, 8), torch.arange(6) >= torch.tensor([[6], [4]])
later, names = torch.ones(6, 6, dtype=torch.bool).triu(1), ("src", "tgt", "memory")
model(x, x, tgt_mask=later, **{f"{name}_key_padding_mask": padding for name in names})
"""

_PROVED = """
import torch

model = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
later, padding = torch.ones(10, 10, dtype=torch.bool).triu(1), torch.arange(10) >= torch.tensor([[6], [10]])
model(torch.randn(2, 10, 8), later, padding)
"""


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attn: Callable[..., Any], tiny_llama: str) -> Path:
    """A folder with the files that the examples name."""
    monkeypatch.chdir(tmp_path)
    for name in ("mask.npy", "before.npy", "after.npy"):
        np.save(tmp_path / name, np.tri(6, dtype=bool) & ~np.tri(6, k=-4, dtype=bool))
    np.save(tmp_path / "padding.npy", np.arange(6) >= np.array([6, 2])[:, None])
    (tmp_path / "train.py").write_text(_TRAIN)
    (tmp_path / "translate.py").write_text(_TRANSLATE)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_model.py").write_text("def test_model(): import train")
    attncli.inspect("time flies like an arrow").save("trace.safetensors")
    (tmp_path / "sentences.txt").write_text("time flies like an arrow\nfruit flies like a banana\n")
    pair = {"text": "time flies like an arrow", "query": "flies", "keys": ["time"]}
    (tmp_path / "coreference.jsonl").write_text(json.dumps(pair))
    reviews = {"text": ["time flies", "fruit flies"], "label": ["good", "bad"]}
    pq.write_table(pa.table(reviews), tmp_path / "reviews.parquet")
    for name, seed in (("before", "0"), ("after", "1")):
        assert attn("inspect", "time flies", "--seed", seed, "--save", f"{name}.safetensors").code == 0
    attncli.inspect("time flies", tiny_llama, layer="all").save("capture.safetensors")
    return tmp_path


@pytest.mark.parametrize("example", all_examples())
@pytest.mark.usefixtures("warm")
def test_an_example_runs(example: str, desk: Path, tiny_llama: str, attn: Callable[..., Any]) -> None:
    words = shlex.split(example)
    environment = dict([words.pop(0).split("=")]) if "=" in words[0] else {}
    stdin = None
    for sign in ("||", "|", ">", "<"):
        if sign in words:
            stdin = (desk / words[-1]).read_text() if sign == "<" else None
            words = words[: words.index(sign)]
    assert words[0] == "attn"
    # The names are of real checkpoints, which tests do not download.
    models = dict.fromkeys(("gpt2", "distilgpt2", "MODEL"), tiny_llama)
    if "model.onnx" in words:  # of a checkpoint that reads 32 tokens
        words.append("--truncate")
        ids, model = torch.tensor([[1, 2, 3]]), AutoModelForCausalLM.from_pretrained(tiny_llama)
        write(desk / "model.onnx", model, {"input_ids": ids, "attention_mask": ids * 0 + 1})
        shutil.copytree(tiny_llama, desk, dirs_exist_ok=True)
    arguments = [models.get(word, word) for word in words[1:]]
    if arguments[0] == "run":  # a program, which has a process of its own, and pytest a new one
        if "--prove" in arguments:
            (desk / "train.py").write_text(_PROVED)
        ran = program(*arguments, python="python") if "pytest" in arguments else forked(*arguments)
        seen = "1 place, 3 calls" if "translate.py" in arguments else "1 place, 1 call"
        seen = "proved  causal & pad" if "--prove" in arguments else seen
        seen = "measured · 1 head" if "--every" in arguments else seen
        assert (ran.returncode, seen in ran.stderr) == (0, True), ran.stderr
        return
    if arguments[0] == "explore":  # which takes a terminal
        assert "needs a terminal" in attn(*arguments).err
        return
    ran = attn(*arguments, stdin=stdin, **environment)
    is_check = arguments[0] == "check" or arguments[:2] in (["mask", "check"], ["mask", "diff"])
    assert ran.code == 0 or (is_check and ran.code == ExitCode.FINDINGS), ran.err
    written = arguments[arguments.index("-o") + 1] if "-o" in arguments else None
    assert (desk / written).stat().st_size if written else ran.out


# --- tables of the docs ---


def table(heading: str) -> dict[str, str]:
    """The table of the docs under a line, its first column without marks."""
    (text,) = (text for text in pages().values() if f"| {heading} |" in text)
    _, _, below = text.partition(f"| {heading} |")
    lines = below.partition("\n\n")[0].splitlines()[2:]
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines]
    return {first.strip().strip("`"): " ".join(rest).strip().replace("\\|", "|") for first, *rest in cells}


def test_the_docs_say_what_the_program_says() -> None:
    atoms = dict(page_of(CONTEXTS["mask",]).tables["Atoms: when query i may attend to key j"])
    assert table("atom | query at position i may attend to key j") == atoms
    assert table("exit code | meaning") == {str(int(code)): code.meaning for code in ExitCode}
    assert table("metric | of a head, over its query rows") == MEANINGS


def test_the_masks_are_those_of_the_parser_and_written_as_it_reads_them() -> None:
    assert NOTATION.keys() == ATOMS.keys() | {"file", "pad(left)"}
    for name, kind in NOTATION.items():
        for form in kind.usage.split(" or "):
            if name == "pad(left)":
                assert str(parse(form, allow_rows=True)) == form
            elif name != "file":
                numbered = re.sub(r"\b(?!left=|right=)[a-z]+(?=[,)])", "2", form).replace(",…", "")
                assert str(parse(numbered)).startswith(name), form
    metric_of = {**WEIGHTS, "local": "distance", "broad": "effective_keys"}
    documented = table("label | its score | the best that there could be")
    assert {name: text.split("`")[1] for name, text in documented.items()} == metric_of


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["inspct"], "no such command 'inspct'; did you mean 'inspect'?; see attn --help"),
        (["inspect", "--heat", "x"], "no such option: --heat; did you mean '--head'?; see attn inspect --help"),
        (
            ["inspect", "--formt=json", "x"],
            "no such option: --formt; did you mean '--format'?; see attn inspect --help",
        ),
        (["inspect", "-F", "jsn", "x"], "did you mean 'json'?; see attn inspect --help"),
        (["inspect", "--colormap", "x' is not one of 'y", "x"], "'cividis', 'gray'; see attn inspect --help"),
        (["completion", "bsh"], "did you mean 'bash'?; see attn completion --help"),
        (["inspect", "x", "--head"], "option '--head' requires an argument; see attn inspect --help"),
        (["mask", "--help=x"], "option '--help' does not take a value; see attn mask --help"),
        (["mask", "shw"], "no such command 'shw'; did you mean 'show'?; see attn mask --help"),
        (["\x1b[31m"], "no such command '"),
    ],
)
def test_what_does_not_exist_is_answered_with_the_nearest_name(
    arguments: list[str], message: str, attn: Callable[..., Any]
) -> None:
    refused = attn(*arguments)
    assert (refused.code, refused.out) == (2, "")
    assert message in refused.err
    assert refused.err.count("\n") == 1
    assert refused.err.startswith("attn: ")
    assert "\x1b" not in refused.err
