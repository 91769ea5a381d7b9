"""Folders of parts from the command line: what is written, said and refused, and that a run goes on."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

import attncli

Run = Callable[..., Any]


def read(folder: Path) -> Any:
    return pyarrow.dataset.dataset(folder, format="parquet").to_table()


@pytest.mark.parametrize("options", [["--show", "metrics"], ["--top-keys", "2"]])
def test_a_folder_holds_the_rows_of_a_file(attn: Run, tmp_path: Path, options: list[str]) -> None:
    of_the_run = ["--ramp", "log", "--colormap", "gray", "--offline"]
    run = ["inspect", "-m", "demo", "one two three", "a b", "--layer", "all", "--no-special", *options]
    ran = attn(*run, *of_the_run, "-o", f"{tmp_path}/out/")
    assert (ran.code, ran.out, ran.err) == (0, "", f"attn: {tmp_path}/out: 2 sentences in 1 part\n")
    assert attn(*run, "-o", tmp_path / "x.parquet").code == 0
    assert read(tmp_path / "out").equals(pq.read_table(tmp_path / "x.parquet"))
    made = json.loads((tmp_path / "out" / "_attncli.json").read_text())["made"]
    expected = {
        "attn": attncli.__version__,
        "command": "inspect",
        "--model": "demo",
        "--layer": "all",
        "--no-special": "given",
    }
    texts = {"texts": "one two three / a b"}
    assert made == {**expected, "--format": "parquet", options[0]: options[1], **texts}


def test_a_folder_that_is_there_is_gone_on_with(attn: Run, tmp_path: Path) -> None:
    out, lines = tmp_path / "out", b"a b\n\xff\nc d\n"
    bad = "attn: sentence 2: it is not UTF-8 at byte 1; convert standard input to UTF-8 first\n"
    first = attn("inspect", "-", "-o", f"{out}/", stdin=lines)
    assert (first.code, first.err) == (5, f"{bad}attn: {out}: 3 sentences in 1 part\n")
    again = attn("inspect", "-", "-o", out, stdin=lines)
    assert (again.code, again.err) == (5, f"{bad}attn: {out}: 3 sentences in 1 part, 1 of them there before\n")
    assert set(read(out)["sentence"].to_pylist()) == {1, 3}
    other = attn("inspect", "-", "-o", out, "--layer", "0", "--seed", "3", stdin=lines)
    assert (other.code, other.err.count("\n")) == (2, 1)
    assert "holds parts of another run: --layer was not given and is 0; give another folder" in other.err
    assert "holds other sentences" in attn("inspect", "-", "-o", out, stdin=b"a b\n").err


def test_several_files_have_parts_of_their_own(attn: Run, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "b.jsonl").write_text('{"text": "a b"}\n{"text": "c"}\n')
    (corpus / "a.csv").write_text("id,text\n1,d e\n")
    run = ["inspect", "--show", "metrics", "--num-heads", "1", "-o", f"{tmp_path}/out/"]
    ran = attn(*run, "--file", corpus, "--jobs", "2")
    assert (ran.code, ran.err) == (0, f"attn: {tmp_path}/out: 3 sentences in 2 parts\n")
    parts = [name for name in sorted(os.listdir(tmp_path / "out")) if not name.startswith("_")]
    assert parts == ["part-00000-0000000001-0000000001.parquet", "part-00001-0000000001-0000000002.parquet"]
    assert read(tmp_path / "out").select(["sentence", "file"]).to_pylist() == [
        {"sentence": 1, "file": str(corpus / "a.csv")},
        {"sentence": 1, "file": str(corpus / "b.jsonl")},
        {"sentence": 2, "file": str(corpus / "b.jsonl")},
    ]
    (corpus / "c.txt").write_text("more\n")
    ran = attn(*run, "--file", f"{corpus}/*[bc].*")
    assert (ran.code, ran.err.count("\n")) == (2, 1)


def test_a_folder_is_not_for_a_saved_trace_or_tokens(attn: Run, tmp_path: Path) -> None:
    assert attn("inspect", "a b", "--save", tmp_path / "x.safetensors", "-F", "json").code == 0
    ran = attn("inspect", "--from", tmp_path / "x.safetensors", "-o", f"{tmp_path}/out/")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert "--from does not apply to -o FOLDER/, which holds many sentences" in ran.err
    assert attn("tokens", "a b", "-o", f"{tmp_path}/out/").code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["x.safetensors"]
