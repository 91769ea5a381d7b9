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
from refusals import refused

import attncli

Run = Callable[..., Any]


# attn, whose parts are small
SMALL = """
from attncli import __main__
from attncli.corpus import dataset
dataset.SHARD_SIZE = 64
__main__.main()
"""


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


def test_a_run_that_is_stopped_keeps_parts_and_is_resumed(tmp_path: Path) -> None:
    lines, out = tmp_path / "lines.txt", tmp_path / "out"
    lines.write_text("".join(f"w{number % 7} w{number % 5} w{number % 3}\n" for number in range(1, 4001)))
    run = [sys.executable, "-c", SMALL, "inspect", "--file", str(lines), "-F", "tsv", "-o", f"{out}/"]
    with subprocess.Popen([*run, "--jobs", "1"], stderr=subprocess.PIPE, text=True) as stopped:
        while len(list(out.glob("part-*"))) < 2:
            assert stopped.poll() is None
            time.sleep(0.01)
        stopped.send_signal(signal.SIGINT)
        assert stopped.stderr is not None
        message = stopped.stderr.read()
    parts = {path: path.read_bytes() for path in out.glob("part-*")}
    assert stopped.returncode == 130
    assert f" of 4,000 sentences; {out} has {len(parts)} parts; run the same command again to resume\n" in message
    assert subprocess.run(run, check=True, capture_output=True, text=True).stderr == (
        f"attn: {out}: 4,000 sentences in 63 parts, {len(parts)} of them there before\n"
    )
    assert all(path.read_bytes() == content for path, content in parts.items())
    rows = [line for path in sorted(out.glob("part-*")) for line in path.read_text().splitlines()[1:]]
    whole = subprocess.run([*run[:-1], str(tmp_path / "whole.tsv")], check=True, capture_output=True)
    assert whole.stderr == b""
    assert rows == (tmp_path / "whole.tsv").read_text().splitlines()[1:]


def test_a_url_is_no_folder(attn: Run) -> None:
    refused(attn("inspect", "a b", "-o", "s3://me:secret@bucket/out/"), 2, "attn: --output: expected a path on this ma")


def test_a_folder_is_not_for_a_saved_trace_or_tokens(attn: Run, tmp_path: Path) -> None:
    assert attn("inspect", "a b", "--save", tmp_path / "x.safetensors", "-F", "json").code == 0
    ran = attn("inspect", "--from", tmp_path / "x.safetensors", "-o", f"{tmp_path}/out/")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert "a folder holds many sentences" in ran.err
    assert attn("tokens", "a b", "-o", f"{tmp_path}/out/").code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["x.safetensors"]


def test_a_format_that_no_folder_has_is_refused(attn: Run, tmp_path: Path) -> None:
    ran = attn("inspect", "a b", "-F", "json", "-o", f"{tmp_path}/out/")
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert "--format json does not apply to a folder, whose parts are parquet, jsonl, tsv, csv" in ran.err
    assert not list(tmp_path.iterdir())
