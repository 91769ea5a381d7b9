"""Datasets: never taken for whole before they are, nor for another run's."""

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import duckdb
import pyarrow.dataset
import pytest
from datasets import MADE, PARTS, contents, files_of, sentences_of, toy_writer, write

from attncli._version import __version__
from attncli.corpus.run import batched, run
from attncli.errors import Failure, InputError, UsageError

pytestmark = pytest.mark.usefixtures("small_parts")


def without_errors(names: Iterable[str]) -> list[str]:
    return [name for name in names if not name.startswith("_part")]


def test_the_parts_hold_what_one_file_holds(undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    assert without_errors(undisturbed) == ["_attncli.json", *PARTS]
    manifest = json.loads(undisturbed["_attncli.json"])
    assert manifest["made"] == {"attn": __version__, **MADE}
    errors = [json.loads(line) for name in undisturbed if "errors" in name for line in undisturbed[name].splitlines()]
    bad = [(file, number) for file in ("a.txt", "b.txt") for number in (20, 70, 120)]
    assert errors == [{"sentence": number, "error": f"no text in {file}"} for file, number in bad]
    for name, content in undisturbed.items():
        (tmp_path / name).write_bytes(content)
    read = pyarrow.dataset.dataset(tmp_path, format="parquet").to_table()
    results = run(toy_writer("").job, batched(sentences_of(150)))
    tables = [table for result in results if not isinstance(result.value, Failure) for table in result.value]
    assert read.equals(pyarrow.concat_tables(tables))
    assert read["file"].to_pylist()[:: len(read) - 1] == ["a.txt", "b.txt"]
    (rows,) = duckdb.sql(f"SELECT count(*), count(DISTINCT (file, sentence)) FROM '{tmp_path}/*.parquet'").fetchall()
    assert rows == (len(read), 294)


def test_a_part_that_is_there_is_not_written_again_and_its_results_are_the_same(
    undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    first, results = write(folder, jobs=2)
    assert files_of(folder) == undisturbed
    assert not any(part.was_there for part in first.parts)
    failures = [(number, f"no text in {file}.txt") for file in "ab" for number in (20, 70, 120)]
    assert [(number, value.reason) for number, value, *_ in results if isinstance(value, Failure)] == failures
    ages = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    (folder / PARTS[1]).unlink()
    second, others = write(folder)  # by another number of processes
    assert files_of(folder) == undisturbed
    written = {name for name, age in ages.items() if (folder / name).stat().st_mtime_ns != age}
    assert set(without_errors(written)) == {"_attncli.json", PARTS[1]}
    assert sum(part.was_there for part in second.parts) == 5
    assert sum(part.sentences for part in second.parts) == 300
    for one, other in zip(results, others, strict=True):
        assert one == other or (one.number, one.value[:2]) == (other.number, other.value[:2])


def test_another_run_and_other_sentences_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "out", 70)
    before = files_of(tmp_path / "out")
    for made, reason in (
        ({"command": "heads"}, "command was inspect and is heads"),
        ({"command": "inspect", "--layer": "1"}, "--layer was not given and is 1"),
    ):
        with pytest.raises(UsageError, match=f"out holds parts of another run: {reason}; give another folder"):
            write(tmp_path / "out", 70, made=made)
    assert files_of(tmp_path / "out") == before
    with pytest.raises(InputError, match=r"part-00000-0000000064-\S+ holds other sentences than the input; remove it"):
        write(tmp_path / "out", 63)


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match=r"holds mine\.txt; give an empty folder"):
        write(tmp_path)
    assert files_of(tmp_path) == {"mine.txt": b"mine"}
    with pytest.raises(InputError, match=r"cannot write .*/no/such: "):
        write(tmp_path / "no" / "such")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match=r"cannot write .*/file: File exists"):
        write(tmp_path / "file")
    (tmp_path / "part-00000-00000.parquet").write_text("mine")
    os.unlink(tmp_path / "mine.txt")
    os.unlink(tmp_path / "file")
    with pytest.raises(InputError, match=r"holds parts, and no _attncli\.json of attn "):
        write(tmp_path)


def test_a_full_disk_is_said_and_leaves_whole_parts(
    undisturbed: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # of which it would keep what there is room for
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = len(undisturbed[PARTS[2]])  # the smallest
    resource.setrlimit(resource.RLIMIT_FSIZE, (size - 100, limits[1]))
    try:
        with pytest.raises(InputError, match=r"cannot write .*/out/.*: File too large"):
            write(tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())


def test_kills_lose_and_double_nothing(undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    draw, out = random.Random(2), tmp_path / "out"
    program = [sys.executable, Path(__file__).parents[1] / "helpers" / "datasets.py", out, "2"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for _ in range(3):
        run = subprocess.Popen(program, env=environment, start_new_session=True)
        while run.poll() is None and not out.exists():
            time.sleep(0.001)
        before = {path.name: path.read_bytes() for path in out.glob("part-*")}
        wanted = len(before) + draw.choice([0, 0, 1, 2])
        while run.poll() is None and len(list(out.glob("part-*"))) < wanted:
            time.sleep(0.001)
        for _ in range(draw.randrange(20)):
            if run.poll() is None:
                time.sleep(0.001)
        os.killpg(run.pid, signal.SIGKILL) if draw.random() < 0.5 else run.kill()
        run.wait()
        for name, content in before.items():
            assert (out / name).read_bytes() == content
    subprocess.run(program, env=environment, check=True)
    (tmp_path / "whole").mkdir()
    for name, content in undisturbed.items():
        (tmp_path / "whole" / name).write_bytes(content)
    resumed, whole = contents(out), contents(tmp_path / "whole")
    assert resumed[0].equals(whole[0])
    assert resumed[1] == whole[1]
    assert not list(out.glob(".attn-*"))
