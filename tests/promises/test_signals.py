"""A signal at any moment: 130 for Ctrl-C, 143 for SIGTERM, nothing half-written, how far a stream came."""

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from running import program
from signalled import ATTN, STOPPED, ended

pytestmark = pytest.mark.usefixtures("signals_arrive")

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
WRITTEN = ["json", "jsonl", "svg", "parquet"]


def test_a_signal_at_any_moment_ends_quietly_and_leaves_nothing_half_written(tmp_path: Path) -> None:
    sentences, folder = tmp_path / "sentences.txt", tmp_path / "out"
    sentences.write_text("time flies like an arrow\n" * 40)
    folder.mkdir()
    arguments = {ending: ["inspect", "--file", str(sentences), "-o", str(folder / f"x.{ending}")] for ending in WRITTEN}
    arguments["table"] = ["inspect", "--file", str(sentences)]
    seconds, whole = {}, {}
    for ending, line in arguments.items():
        began = time.monotonic()
        assert program(*line).returncode == 0
        seconds[ending] = time.monotonic() - began
        whole |= {file.name: file.read_bytes() for file in folder.iterdir()}
    drawn = random.Random(0)
    codes = []
    for _ in range(16):
        for file in folder.iterdir():
            file.unlink()
        ending, number = drawn.choice(sorted(arguments)), drawn.choice(SIGNALS)
        code, errors, lasted = ended(arguments[ending], number, drawn.uniform(0, seconds[ending]))
        if code == 0:  # it was sooner done than the one before
            seconds[ending] = lasted
        # 0: it had ended. Killed: by itself, in the last moments of the interpreter, which a shell reports alike.
        assert code in (128 + number, -number, 0), (ending, number, code)
        assert errors == b"" or STOPPED.fullmatch(errors.decode())
        codes.append(code)
        for file in folder.iterdir():
            if file.suffix == ".part":
                assert file.name.removesuffix(".part") == f"x.{ending}"
                assert ending in ("jsonl", "parquet")
                assert file.stat().st_size
            else:
                assert file.read_bytes() == whole[file.name]
        assert code != 0 or ending == "table" or [file.name for file in folder.iterdir()] == [f"x.{ending}"]
    assert len([code for code in codes if code]) > 5


@pytest.mark.parametrize(("ending", "number"), [("json", signal.SIGINT), ("jsonl", signal.SIGTERM)])
def test_a_signal_while_a_file_grows(ending: str, number: signal.Signals, tmp_path: Path) -> None:
    command = [*ATTN, "inspect", "-", "-o", str(tmp_path / f"out.{ending}")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdin is not None
        running.stdin.write(b"time flies\nan arrow\n" * 20)
        running.stdin.flush()
        end = time.monotonic() + 60
        while not any(file.stat().st_size for file in tmp_path.iterdir()):
            assert time.monotonic() < end
            time.sleep(0.1)
        running.send_signal(number)
        assert running.wait(timeout=60) == 128 + number
        assert running.stderr is not None
        assert STOPPED.fullmatch(running.stderr.read().decode())
    assert [file.name for file in tmp_path.iterdir()] == (["out.jsonl.part"] if ending == "jsonl" else [])
    if ending == "jsonl":
        lines = (tmp_path / "out.jsonl.part").read_text().splitlines()[:-1]
        assert [json.loads(line)["text"] for line in lines] == (["time flies", "an arrow"] * 20)[: len(lines)]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        *(["inspect", "--file", "SENTENCES", "-F", form] for form in ("table", "json", "tsv", "svg")),
        ["mask", "check", "causal", "--expect", "window(2)", "--size", "9"],
    ],
    ids=" ".join,
)
def test_a_reader_that_has_enough_ends_every_command_silently(arguments: Sequence[str], tmp_path: Path) -> None:
    sentences = tmp_path / "sentences.txt"
    sentences.write_text("time flies like an arrow\n" * 50)
    line = [str(sentences) if argument == "SENTENCES" else argument for argument in arguments]
    reader, writer = os.pipe()
    os.close(reader)
    ran = subprocess.run([*ATTN, *line], stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (ran.returncode, ran.stderr) == (141, b"")
