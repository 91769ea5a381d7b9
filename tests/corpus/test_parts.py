"""Parts of a dataset: whole or absent, and the same whatever happened on the way."""

import errno
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from datasets import PARTS, files_of, parts_of_toy, sentences_of, write

from attncli.analysis.heads import SurveyStates
from attncli.corpus.dataset import opened_parts
from attncli.corpus.parts import Merged, Parts, Receipt, in_parts
from attncli.corpus.surveying import Surveying
from attncli.corpus.tracing import Tracing
from attncli.corpus.work import Answer, in_windows
from attncli.engines.source import CorpusItem
from attncli.errors import Failure, InputError
from attncli.formats.states import merged_files
from attncli.trace.view import View

pytestmark = pytest.mark.usefixtures("small_parts")


def failures_of(answers: list[Answer[Any]]) -> list[tuple[int, str]]:
    return [(number, result.reason) for number, result, *_ in answers if isinstance(result, Failure)]


def test_a_part_is_some_numbers_of_one_file() -> None:
    sentences = [CorpusItem(number, "x", {"file": "b"}) for number in (1, 63, 64, 200)]
    other = [CorpusItem(number, "x", {"file": "a"}) for number in (65, 127, 128)]
    batches = list(in_parts([*sentences, *other], ["a", "b"]))
    assert [(name, [one.number for one in own]) for name, own in batches] == [
        ("part-00001-00000", [1, 63]),
        ("part-00001-00001", [64]),
        ("part-00001-00003", [200]),
        ("part-00000-00001", [65, 127]),
        ("part-00000-00002", [128]),
    ]
    assert [name for name, _ in in_parts([CorpusItem(4, "x"), CorpusItem(70, "y")])] == [
        "part-00000-00000",
        "part-00000-00001",
    ]


def test_the_parts_hold_what_one_file_holds(undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    assert list(undisturbed) == ["_attncli.json", *PARTS]
    for name, content in undisturbed.items():
        (tmp_path / name).write_bytes(content)
    read = pyarrow.dataset.dataset(tmp_path, format="parquet").to_table()
    work = parts_of_toy("").work
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("attncli.corpus.work.PART", 1000)
        batches = list(in_parts(sentences_of(150), ["a.txt", "b.txt"]))
    done = work.open()
    tables = [
        table
        for batch in batches
        for _, result, *_ in done(batch)
        if not isinstance(result, Failure)
        for table in result
    ]
    assert read.equals(pyarrow.concat_tables(tables))
    assert read["file"].to_pylist()[:: len(read) - 1] == ["a.txt", "b.txt"]
    (rows,) = duckdb.sql(f"SELECT count(*), count(DISTINCT (file, sentence)) FROM '{tmp_path}/*.parquet'").fetchall()
    assert rows == (len(read), 294)


def test_a_row_a_cell_in_parts(tmp_path: Path) -> None:
    tally, _ = write(tmp_path / "out", 70, view=View(top_keys=1), is_compact=False)
    read = pyarrow.dataset.dataset(tmp_path / "out", format="parquet").to_table()
    assert read.schema.names[:4] == ["sentence", "file", "id", "layer"]
    assert (tally.rows, tally.sentences, tally.failures, tally.parts) == (len(read), 140, 4, 4)


@pytest.mark.parametrize("by", [None, "file"])
def test_the_states_of_parts_are_that_of_the_whole(tmp_path: Path, by: str | None) -> None:
    made = Surveying(View(), by=by)
    work = Parts(Tracing(made, {"layers": "0", "given": "text"}), str(tmp_path / "out"), Merged)
    tally, answers = write(tmp_path / "out", work=work)
    assert tally.failures == len(failures_of(answers)) == 6
    found = merged_files(opened_parts(str(tmp_path / "out")))
    done, whole = work.work.open(), SurveyStates(None, {})
    for batch in in_windows(sentences_of(150)):
        for _, result, *_ in done(batch):
            if isinstance(result, SurveyStates):
                whole = whole.merged(result)
    assert list(found.groups) == list(whole.groups) == ([None] if by is None else ["a.txt", "b.txt"])
    for value, state in found.groups.items():
        assert state.sentences == whole.groups[value].sentences
        for name in ("count", "mean", "m2"):
            one, other = (getattr(each.measured.moments, name) for each in (state, whole.groups[value]))
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)


def test_a_part_that_is_there_is_not_written_again_and_its_answers_are_the_same(
    undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    first, answers = write(folder, jobs=2)
    assert files_of(folder) == undisturbed
    assert (first.before, first.failures) == (0, 6)
    assert failures_of(answers) == [
        *((number, "no text in a.txt") for number in (20, 70, 120)),
        *((number, "no text in b.txt") for number in (20, 70, 120)),
    ]
    ages = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    (folder / PARTS[1]).unlink()
    (folder / PARTS[4]).write_bytes(b"PAR1 and no more")  # which no run leaves
    second, others = write(folder)  # by another number of processes
    assert files_of(folder) == undisturbed
    assert {name for name, age in ages.items() if (folder / name).stat().st_mtime_ns != age} == {
        "_attncli.json", PARTS[1], PARTS[4],
    }  # fmt: skip
    assert (second.before, second.sentences, second.failures) == (4, 300, 6)

    def without_age(found: list[Answer[Any]]) -> list[Answer[Any]]:
        return [
            one._replace(result=one.result._replace(was_there=False)) if isinstance(one.result, Receipt) else one
            for one in found
        ]

    assert without_age(others) == without_age(answers)


@pytest.mark.parametrize("said", [None, "[]", "{", "[" * 100_000, '{"digest": "x", "sentences": 1, "said": 5}'])
def test_a_part_that_says_nonsense_of_itself_is_of_other_sentences(tmp_path: Path, said: str | None) -> None:
    write(tmp_path, 10)
    table = pq.read_table(tmp_path / PARTS[0])
    pq.write_table(table.replace_schema_metadata(said and {"attncli.part": said}), tmp_path / PARTS[0])
    with pytest.raises(InputError, match=r"part-00000-00000\.parquet is of other sentences"):
        write(tmp_path, 10)


def test_a_full_disk_is_said_and_leaves_whole_parts(
    undisturbed: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # of which it would keep what there is room for
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = len(undisturbed[PARTS[2]])  # the smallest
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, limits[1]))
    try:
        with pytest.raises(InputError, match=r"cannot write .*part-00000-00000.parquet: File too large"):
            write(tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_brought_to_the_disk_has_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        if any("part-" in name for name in os.listdir(tmp_path / "out")):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match=r"part-00000-00001.parquet: No space left on device"):
        write(tmp_path / "out")
    assert sorted(files_of(tmp_path / "out")) == ["_attncli.json", PARTS[0]]


@pytest.mark.parametrize("jobs", [1, 2])
def test_kills_change_nothing(undisturbed: dict[str, bytes], tmp_path: Path, jobs: int) -> None:
    draw = random.Random(jobs)
    program = [sys.executable, Path(__file__).parents[1] / "helpers" / "datasets.py", tmp_path / "out", str(jobs)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for _ in range(4):
        run = subprocess.Popen(program, env=environment, start_new_session=True)
        while run.poll() is None and not list(tmp_path.glob("out/.attn-*.tmp")) and not (tmp_path / "out").exists():
            time.sleep(0.001)
        parts = len(list(tmp_path.glob("out/part-*")))
        wanted = parts + draw.choice([0, 0, 1, 2])
        while run.poll() is None and len(list(tmp_path.glob("out/part-*"))) < wanted:
            time.sleep(0.001)
        for _ in range(draw.randrange(20)):
            if run.poll() is None:
                time.sleep(0.001)
        os.killpg(run.pid, signal.SIGKILL) if draw.random() < 0.5 else run.kill()
        run.wait()
        for name, content in files_of(tmp_path / "out").items():
            assert name not in PARTS or content == undisturbed[name]
    subprocess.run(program, env=environment, check=True)
    assert files_of(tmp_path / "out") == undisturbed
