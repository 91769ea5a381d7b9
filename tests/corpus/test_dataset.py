"""Datasets: never taken for whole before they are, nor for another run's."""

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.dataset
import pytest
from datasets import MADE, PARTS, SMALL, files_of, sentences_of, toy_writer, write

from attncli.corpus.dataset import in_shards, write_dataset
from attncli.corpus.protocol import Batch, BatchFn, Job, Result
from attncli.corpus.run import batched, run
from attncli.engines.source import CorpusItem
from attncli.errors import Failure, InputError, LoadError, UsageError

pytestmark = pytest.mark.usefixtures("small_parts")


def without_notes(names: Iterable[str]) -> list[str]:
    return [name for name in names if not name.startswith("_part")]


def is_whole(folder: Path) -> bool:
    return "whole" in json.loads((folder / "_attncli.json").read_text())


def test_a_part_is_some_numbers_of_one_file() -> None:
    sentences = [CorpusItem(number, "x", {"file": "b"}) for number in (1, 63, 64, 200)]
    other = [CorpusItem(number, "x", {"file": "a"}) for number in (65, 127, 128)]
    shards = list(in_shards([*sentences, *other], ["a", "b"]))
    names = ["part-00001-00000", "part-00001-00001", "part-00001-00003", "part-00000-00001", "part-00000-00002"]
    assert [name for _, name in shards] == names
    assert [[one.number for one in own] for own, _ in shards] == [[1, 63], [64], [200], [65, 127], [128]]
    alone = in_shards([CorpusItem(4, "x"), CorpusItem(70, "y")])
    assert [name for _, name in alone] == ["part-00000-00000", "part-00000-00001"]


def test_the_parts_hold_what_one_file_holds(undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    assert without_notes(undisturbed) == ["_attncli.json", *PARTS]
    manifest = json.loads(undisturbed["_attncli.json"])
    assert (manifest["made"], manifest["whole"]) == (MADE, {"parts": 6, "sentences": 300})
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
    assert first.before == 0
    failures = [(number, f"no text in {file}.txt") for file in "ab" for number in (20, 70, 120)]
    assert [(number, value.reason) for number, value, *_ in results if isinstance(value, Failure)] == failures
    ages = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    (folder / PARTS[1]).unlink()
    (folder / PARTS[4]).write_bytes(b"PAR1 and no more")  # which no run leaves
    (folder / f"_{PARTS[5]}.json").write_text("[")
    second, others = write(folder)  # by another number of processes
    assert files_of(folder) == undisturbed
    written = {name for name, age in ages.items() if (folder / name).stat().st_mtime_ns != age}
    assert set(without_notes(written)) == {"_attncli.json", PARTS[1], PARTS[4], PARTS[5]}
    assert (second.before, second.sentences) == (3, 300)
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
    with pytest.raises(InputError, match=r"part-00000-00001\.parquet holds other sentences; give another folder"):
        write(tmp_path / "out", 71)
    with pytest.raises(InputError, match=r"part-00000-00001\.parquet holds sentences that are no longer in the input"):
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
    with pytest.raises(InputError, match=r"holds parts without a _attncli.json"):
        write(tmp_path)


def test_a_run_that_writes_no_part_leaves_nothing(tmp_path: Path) -> None:
    job = toy_writer(tmp_path / "out", model="there-is-no-such-model")
    with pytest.raises(LoadError):
        write(tmp_path / "out", job=job)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("message", [
    "[]", "[" * 100_000, '{"schema": "attncli.dataset/2"}',
    '{"schema": "attncli.dataset/1", "attncli": "1", "made": {}, "files": []}',
])  # fmt: skip
def test_a_folder_that_says_nonsense_of_itself_is_refused(tmp_path: Path, message: str) -> None:
    (tmp_path / PARTS[0]).write_bytes(b"")
    (tmp_path / "_attncli.json").write_text(message)
    with pytest.raises(InputError, match=r"_attncli\.json is not from attn \S+"):
        write(str(tmp_path))


def test_two_runs_at_once_are_refused(tmp_path: Path) -> None:
    with write_dataset(str(tmp_path / "out"), MADE), pytest.raises(InputError, match="being written by another run"):
        write(tmp_path / "out")


@dataclass(frozen=True)
class Broken:
    """Another job, until the second part."""

    job: Job[Any]

    def open(self) -> BatchFn[Any]:
        results_of = self.job.open()

        def until(batch: Batch) -> Iterator[Result[Any]]:
            if batch.sentences[0].number >= SMALL:
                raise InputError("no more")
            yield from results_of(batch)

        return until


def test_an_error_leaves_the_parts_before_it(undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    whole = toy_writer(tmp_path / "out")
    with pytest.raises(InputError, match="no more"):
        write(tmp_path / "out", job=replace(whole, job=Broken(whole.job)))
    assert without_notes(sorted(files_of(tmp_path / "out"))) == ["_attncli.json", PARTS[0]]
    assert not is_whole(tmp_path / "out")
    assert write(tmp_path / "out")[0].before == 1
    assert is_whole(tmp_path / "out")
    assert files_of(tmp_path / "out") == undisturbed


def test_a_url_is_a_folder_too(undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    from fsspec.core import url_to_fs

    url = f"memory://{tmp_path}/out/"
    assert write(url)[0].before == 0
    files, path = url_to_fs(url)
    found = {name.rsplit("/", 1)[1]: files.cat_file(name) for name in files.ls(path, detail=False)}
    assert found == undisturbed
    files.rm_file(f"{path}/{PARTS[3]}")
    assert write(url)[0].before == 5
    assert files.cat_file(f"{path}/{PARTS[3]}") == undisturbed[PARTS[3]]


def test_a_place_that_cannot_be_reached_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown scheme nowhere://"):
        write("nowhere://bucket/out")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match=r"cannot (list|write) .*/file"):
        write(f"file://{tmp_path}/file")


def test_a_full_disk_is_said_and_leaves_whole_parts(
    undisturbed: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # of which it would keep what there is room for
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = len(undisturbed[PARTS[2]])  # the smallest
    resource.setrlimit(resource.RLIMIT_FSIZE, (size - 100, limits[1]))
    try:
        with pytest.raises(InputError, match=r"cannot write .*part-00000-00000.parquet: File too large"):
            write(tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())


def test_kills_lose_and_double_nothing(undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    draw = random.Random(2)
    program = [sys.executable, Path(__file__).parents[1] / "helpers" / "datasets.py", tmp_path / "out", "2"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for _ in range(3):
        run = subprocess.Popen(program, env=environment, start_new_session=True)
        while run.poll() is None and not (tmp_path / "out").exists():
            time.sleep(0.001)
        wanted = len(list(tmp_path.glob("out/part-*"))) + draw.choice([0, 0, 1, 2])
        while run.poll() is None and len(list(tmp_path.glob("out/part-*"))) < wanted:
            time.sleep(0.001)
        for _ in range(draw.randrange(20)):
            if run.poll() is None:
                time.sleep(0.001)
        os.killpg(run.pid, signal.SIGKILL) if draw.random() < 0.5 else run.kill()
        run.wait()
        for path in tmp_path.glob("out/part-*"):
            assert path.read_bytes() == undisturbed[path.name]
    subprocess.run(program, env=environment, check=True)
    assert files_of(tmp_path / "out") == undisturbed
