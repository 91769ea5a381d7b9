"""Folders of parts from the command line: what is written, said and refused, and that a run goes on."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from attncli.cli.datasets import made_by
from attncli.cli.options import Inspection, View

Run = Callable[..., Any]
PART = "part-00000-00000.parquet"


def read(folder: Path) -> Any:
    return pyarrow.dataset.dataset(folder, format="parquet").to_table()


def test_what_numbers_depend_on_is_said() -> None:
    def given(**said: Any) -> Any:
        return lambda: iter(said.items())

    request, view = Inspection.__new__(Inspection), View.__new__(View)
    object.__setattr__(request, "said", given(model="demo", file="x", top_keys=3, query=["a", "b"], device="cpu"))
    object.__setattr__(view, "said", given(precision=3, no_special=True))
    assert made_by("inspect", request, view, compact=True, other=None) == {
        "command": "inspect", "--compact": "given", "--device": "cpu", "--model": "demo", "--no-special": "given",
        "--query": "a,b", "--top-keys": "3",
    }  # fmt: skip


@pytest.mark.parametrize("options", [[], ["--compact"], ["--compact", "--top-keys", "2"]])
def test_a_folder_holds_the_rows_of_a_file(attn: Run, tmp_path: Path, options: list[str]) -> None:
    run = ["inspect", "-m", "demo", "one two three", "a b", "--layer", "all", *options]
    ran = attn(*run, "-o", f"{tmp_path}/out/")
    assert (ran.code, ran.out, ran.err) == (0, "", f"attn: {tmp_path}/out: 2 sentences in 1 part\n")
    assert attn(*run, "-o", tmp_path / "x.parquet").code == 0
    assert read(tmp_path / "out").equals(pq.read_table(tmp_path / "x.parquet"))
    made = json.loads((tmp_path / "out" / "_attncli.json").read_text())["made"]
    assert made["command"] == "inspect"
    assert made["--model"] == "demo"


def test_a_folder_that_is_there_is_gone_on_with(attn: Run, tmp_path: Path) -> None:
    out, lines = tmp_path / "out", b"a b\n\xff\nc d\n"
    bad = "attn: sentence 2: it is not UTF-8 at byte 1; convert standard input to UTF-8 first\n"
    first = attn("inspect", "-", "-o", f"{out}/", stdin=lines)
    assert (first.code, first.err) == (5, f"{bad}attn: {out}: 3 sentences in 1 part\n")
    again = attn("inspect", "-", "-o", out, "--resume", stdin=lines)
    assert (again.code, again.err) == (5, f"{bad}attn: {out}: 3 sentences in 1 part, 1 of them there before\n")
    assert set(read(out)["sentence"].to_pylist()) == {1, 3}
    other = attn("inspect", "-", "-o", out, "--layer", "0", "--seed", "3", stdin=lines)
    assert (other.code, other.err.count("\n")) == (2, 1)
    assert "holds parts of another run: --layer was not given and is 0; give another folder" in other.err
    assert "is of other sentences" in attn("inspect", "-", "-o", out, stdin=b"a b\n").err


def test_several_files_have_parts_of_their_own(attn: Run, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "b.jsonl").write_text('{"text": "a b", "id": 7, "label": "x"}\n{"text": "c", "id": 8, "label": null}\n')
    (corpus / "a.csv").write_text("id,label,text\n1,y,d e\n")
    ran = attn("inspect", "--file", corpus, "--keep", "id,label", "--compact", "-o", f"{tmp_path}/out/", "--jobs", "2")
    assert (ran.code, ran.err) == (0, f"attn: {tmp_path}/out: 3 sentences in 2 parts\n")
    assert sorted(os.listdir(tmp_path / "out")) == ["_attncli.json", PART, "part-00001-00000.parquet"]
    rows = read(tmp_path / "out").select(["sentence", "file", "id", "label"]).to_pylist()[::4]
    assert rows == [
        {"sentence": 1, "file": str(corpus / "a.csv"), "id": "1", "label": "y"},
        {"sentence": 1, "file": str(corpus / "b.jsonl"), "id": "7", "label": "x"},
        {"sentence": 2, "file": str(corpus / "b.jsonl"), "id": "8", "label": None},
    ]
    (corpus / "c.txt").write_text("more\n")
    ran = attn("inspect", "--file", f"{corpus}/*[bc].*", "--compact", "-o", f"{tmp_path}/out/")
    assert (ran.code, ran.err.count("\n")) == (2, 1)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["-F", "jsonl", "-o", "{}/out/"], "--format jsonl does not apply to a folder, whose parts are parquet"),
        (["--compact"], "--compact does not apply to table; give -o attention.parquet, or -o folder/"),
        (["--compact", "-o", "{}/x.csv"], "--compact does not apply to csv"),
        (["--compact", "--words", "-o", "{}/out/"], "it goes without --words"),
        (["--compact", "--show", "q", "-o", "{}/out/"], "--show q does not apply to --compact"),
        (["--compact", "--query", "1:", "-o", "{}/out/"], "--query does not apply to --compact"),
    ],
)
def test_what_does_not_go_together_is_refused(attn: Run, tmp_path: Path, options: list[str], said: str) -> None:
    ran = attn("inspect", "a b", *(option.format(tmp_path) for option in options))
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert said in ran.err
    assert not list(tmp_path.iterdir())


def test_a_folder_is_not_for_a_saved_trace_or_tokens(attn: Run, tmp_path: Path) -> None:
    assert attn("inspect", "a b", "--save", tmp_path / "x.safetensors", "-F", "json").code == 0
    ran = attn("inspect", "--from", tmp_path / "x.safetensors", "-o", f"{tmp_path}/out/")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert "a folder of parts is of sentences" in ran.err
    assert attn("tokens", "a b", "-o", f"{tmp_path}/out/").code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["x.safetensors"]


def test_what_parts_say_of_heads_is_merged(attn: Run, tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "a.csv").write_text("label,text\nx,time flies\ny,\nx,an arrow flies\n")
    (tmp_path / "corpus" / "b.csv").write_text("label,text\nz,fruit flies like\nx,a b\n")
    run, out = ["heads", "--file", tmp_path / "corpus", "--by", "label"], tmp_path / "out"
    ran = attn(*run, "-o", f"{out}/")
    assert (ran.code, ran.out) == (0, "")
    assert f"attn: {out}: 4 sentences in 2 parts\n" in ran.err
    assert attn("heads", "--merge", out, "-F", "tsv").out == attn(*run, "-F", "tsv").out
    assert attn("heads", "--merge", out, "-o", f"{tmp_path}/again/").code == 2
    (out / PART).unlink()
    ran = attn("heads", "--merge", out)
    assert (ran.code, ran.out) == (5, "")
    assert f"{out} is not whole: 1 part of it is there" in ran.err
    assert attn("heads", "--merge", out / "part-00001-00000.parquet").code == 0


def test_a_killed_run_is_gone_on_with(attn: Run, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for number in range(9):
        (corpus / f"{number}.txt").write_text(f"w{number} w{number % 2} w{number % 3}\n" * 3)
    run = ["inspect", "--file", corpus, "--compact"]
    program = [sys.executable, "-m", "attncli", *map(str, run), "-o", f"{tmp_path}/out/", "--jobs", "2"]
    process = subprocess.Popen(program, start_new_session=True)
    while process.poll() is None and not (tmp_path / "out" / PART).exists():
        time.sleep(0.002)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    ran = attn(*run, "-o", f"{tmp_path}/out/")
    assert (ran.code, "of them there before" in ran.err) == (0, True)
    assert attn(*run, "-o", f"{tmp_path}/undisturbed/").code == 0
    files = [{path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("out", "undisturbed")]
    assert files[0] == files[1]
    assert len(files[0]) == 10
