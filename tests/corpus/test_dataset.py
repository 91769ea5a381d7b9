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
from datasets import MADE, PARTS, SMALL, contents, files_of, sentences_of, toy_writer, write

from attncli._version import __version__
from attncli.corpus.dataset import in_shards, write_dataset
from attncli.corpus.protocol import Batch, BatchFn, Job, Result
from attncli.corpus.run import batched, run
from attncli.engines.source import CorpusItem
from attncli.errors import Failure, InputError, LoadError, UsageError

pytestmark = pytest.mark.usefixtures("small_parts")


def without_errors(names: Iterable[str]) -> list[str]:
    return [name for name in names if not name.startswith("_part")]


def is_whole(folder: Path) -> bool:
    return "whole" in json.loads((folder / "_attncli.json").read_text())


def test_a_shard_is_some_numbers_of_one_file() -> None:
    sentences = [CorpusItem(number, "x", {"file": "b"}) for number in (1, 63, 64, 200)]
    other = [CorpusItem(number, "x", {"file": "a"}) for number in (65, 127, 128)]
    shards = list(in_shards([*sentences, *other], ["a", "b"]))
    assert [name for _, name in shards] == ["part-00001"] * 3 + ["part-00000"] * 2
    assert [[one.number for one in own] for own, _ in shards] == [[1, 63], [64], [200], [65, 127], [128]]
    alone = in_shards([CorpusItem(4, "x"), CorpusItem(70, "y")])
    assert [name for _, name in alone] == ["part-00000", "part-00000"]


def test_the_parts_hold_what_one_file_holds(undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    assert without_errors(undisturbed) == ["_attncli.json", *PARTS]
    manifest = json.loads(undisturbed["_attncli.json"])
    assert manifest["made"] == {"attn": __version__, **MADE}
    assert manifest["whole"] == {"parts": 6, "sentences": 300}
    errors = [json.loads(line) for name in undisturbed if "errors" in name for line in undisturbed[name].splitlines()]
    bad = [(file, number) for file in ("a.txt", "b.txt") for number in (20, 70, 120)]
    assert errors == [{"sentence": number, "file": file, "error": f"no text in {file}"} for file, number in bad]
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
    second, others = write(folder)  # by another number of processes
    assert files_of(folder) == undisturbed
    written = {name for name, age in ages.items() if (folder / name).stat().st_mtime_ns != age}
    assert set(without_errors(written)) == {"_attncli.json", PARTS[1]}
    assert (second.before, second.sentences) == (5, 300)
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
    other = [sentence._replace(text="other") for sentence in sentences_of(70)]
    with pytest.raises(InputError, match=r"part-00000-0000000001-\S+\.parquet holds other sentences; give another"):
        write(tmp_path / "out", sentences=other)
    with pytest.raises(InputError, match=r"part-00000-0000000064-\S+\.parquet holds other sentences; give another"):
        write(tmp_path / "out", 69)
    with pytest.raises(InputError, match=r"part-00000-0000000064-\S+ holds sentences that are no longer in the input"):
        write(tmp_path / "out", 63)
    assert write(tmp_path / "out", 71)[0].before == 4  # of a corpus that has grown


def test_errors_that_cannot_be_read_are_named(undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    for name, content in undisturbed.items():
        (tmp_path / name).write_bytes(b"[" if "errors" in name else content)
    with pytest.raises(InputError, match=rf"cannot read .*_part\S+errors\.jsonl; remove it and {PARTS[0]}"):
        write(tmp_path)


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


def test_a_run_that_writes_no_part_leaves_nothing(tmp_path: Path) -> None:
    job = toy_writer(tmp_path / "out", model="there-is-no-such-model")
    with pytest.raises(LoadError):
        write(tmp_path / "out", job=job)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("message", [
    "[]", "[" * 100_000, '{"schema": "attncli.dataset/2"}',
    '{"schema": "attncli.dataset/2", "attncli": "1", "made": {}, "files": []}',
])  # fmt: skip
def test_a_folder_that_says_nonsense_of_itself_is_refused(tmp_path: Path, message: str) -> None:
    (tmp_path / PARTS[0]).write_bytes(b"")
    (tmp_path / "_attncli.json").write_text(message)
    with pytest.raises(InputError, match=r"holds parts, and no _attncli\.json of attn \S+;"):
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
    assert without_errors(sorted(files_of(tmp_path / "out"))) == ["_attncli.json", PARTS[0]]
    assert not is_whole(tmp_path / "out")
    assert write(tmp_path / "out")[0].before == 1
    assert is_whole(tmp_path / "out")
    assert files_of(tmp_path / "out") == undisturbed


def test_a_full_disk_is_said_and_leaves_whole_parts(
    undisturbed: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # of which it would keep what there is room for
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = len(undisturbed[PARTS[2]])  # the smallest
    resource.setrlimit(resource.RLIMIT_FSIZE, (size - 100, limits[1]))
    try:
        with pytest.raises(InputError, match=r"cannot write .*/out: File too large"):
            write(tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())


def test_a_part_is_closed_after_a_time_and_the_rows_are_the_same(
    undisturbed: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = iter(range(1, 10_000))
    monkeypatch.setattr("attncli.corpus.dataset.monotonic", lambda: next(seconds))
    write(tmp_path / "timed", seconds=1)
    parts = sorted(path.name for path in (tmp_path / "timed").glob("part-*"))
    spans = [tuple(map(int, name.split("-")[2:4])) for name in parts if name.startswith("part-00000")]
    assert [low for low, _ in spans[1:]] == [high + 1 for _, high in spans[:-1]]
    assert len(spans) > 3
    assert max(high - low for low, high in spans) < 60  # no more sentences than seconds
    (tmp_path / "whole").mkdir()
    for name, content in undisturbed.items():
        (tmp_path / "whole" / name).write_bytes(content)
    timed, whole = contents(tmp_path / "timed"), contents(tmp_path / "whole")
    assert timed[0].equals(whole[0])
    assert timed[1] == whole[1]


def test_kills_lose_and_double_nothing(undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    draw, out = random.Random(2), tmp_path / "out"
    program = [sys.executable, Path(__file__).parents[1] / "helpers" / "datasets.py", out, "2", "0.001"]
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
