"""Datasets of parts: whole or absent, the same whatever happened on the way, and never taken for another run's."""

import errno
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from datasets import MADE, SMALL, parts_of_toy, sentences_of, write

from attncli.analysis.heads import SurveyStates
from attncli.corpus import dataset as of_parts
from attncli.corpus.dataset import Merged, Parts, Receipt, in_parts, opened_parts, parts_of
from attncli.corpus.surveying import Surveying
from attncli.corpus.tracing import Tracing
from attncli.corpus.work import Answer, in_windows
from attncli.errors import AttnError, Failure, InputError, LoadError, UsageError
from attncli.formats.states import merged_files
from attncli.sources.stream import Sentence
from attncli.trace.view import View

PARTS = [f"part-{file:05}-{part:05}.parquet" for file in range(2) for part in range(3)]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make parts small."""
    monkeypatch.setattr("attncli.corpus.work.PART", SMALL)


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a run that nothing happened to."""
    folder = tmp_path_factory.mktemp("undisturbed") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("attncli.corpus.work.PART", SMALL)
        write(folder)
    return files_of(folder)


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def failures_of(answers: list[Answer[Any]]) -> list[tuple[int, str]]:
    return [(number, result.reason) for number, result, *_ in answers if isinstance(result, Failure)]


def test_a_part_is_some_numbers_of_one_file() -> None:
    sentences = [Sentence(number, "x", {"file": "b"}) for number in (1, 63, 64, 200)]
    other = [Sentence(number, "x", {"file": "a"}) for number in (65, 127, 128)]
    batches = list(in_parts([*sentences, *other], ["a", "b"]))
    assert [(name, [one.number for one in own]) for name, own in batches] == [
        ("part-00001-00000", [1, 63]),
        ("part-00001-00001", [64]),
        ("part-00001-00003", [200]),
        ("part-00000-00001", [65, 127]),
        ("part-00000-00002", [128]),
    ]
    assert [name for name, _ in in_parts([Sentence(4, "x"), Sentence(70, "y")])] == [
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


def test_what_makes_it_and_how_much_it_is_stands_in_it(undisturbed: dict[str, bytes]) -> None:
    manifest = json.loads(undisturbed["_attncli.json"])
    assert manifest["made"] == MADE
    assert manifest["whole"] == {"parts": 6, "rows": 294 * 4, "sentences": 300, "failures": 6}


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


def test_a_whole_dataset_needs_no_model(tmp_path: Path) -> None:
    write(tmp_path / "out")
    work = parts_of_toy(tmp_path / "out", model="there-is-no-such-model")
    assert write(tmp_path / "out", work=work)[0].before == 6
    (tmp_path / "out" / PARTS[0]).unlink()
    with pytest.raises(AttnError):
        write(tmp_path / "out", work=work)
    assert not is_whole(tmp_path / "out")


def is_whole(folder: Path) -> bool:
    try:
        return bool(parts_of(str(folder)))
    except InputError:
        return False


def test_an_unfinished_dataset_is_not_read_as_whole(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    write(folder)
    assert parts_of(str(folder)) == PARTS
    (folder / PARTS[0]).unlink()
    with pytest.raises(InputError, match=r"out is not whole: 5 parts of it are there; run the command that writes it"):
        parts_of(str(folder))
    with pytest.raises(InputError, match="is no folder that attn has written parts into"):
        parts_of(str(tmp_path))


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ({"command": "heads"}, "command was inspect and is heads"),
        ({"command": "inspect", "--layer": "1"}, "--layer was not given and is 1"),
        ({}, "command was inspect and is not given"),
    ],
)
def test_another_run_is_refused(tmp_path: Path, made: dict[str, str], said: str) -> None:
    write(tmp_path / "out", 10)
    before = files_of(tmp_path / "out")
    with pytest.raises(UsageError, match=f"out holds parts of another run: {said}; give another folder"):
        write(tmp_path / "out", 10, made=made)
    assert files_of(tmp_path / "out") == before


def test_other_sentences_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "out", 70)
    with pytest.raises(InputError, match=r"part-00000-00001\.parquet is of other sentences; give another folder"):
        write(tmp_path / "out", 71)
    with pytest.raises(InputError, match=r"part-00000-00001\.parquet is of sentences that are no longer there"):
        write(tmp_path / "out", 63)


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match=r"holds mine\.txt; give a folder that holds the parts alone"):
        write(tmp_path)
    assert files_of(tmp_path) == {"mine.txt": b"mine"}
    with pytest.raises(InputError, match=r"cannot write .*/no/such: No such file or directory"):
        write(tmp_path / "no" / "such")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match=r"cannot write .*/file: File exists"):
        write(tmp_path / "file")
    (tmp_path / "part-00000-00000.parquet").write_text("mine")
    os.unlink(tmp_path / "mine.txt")
    os.unlink(tmp_path / "file")
    with pytest.raises(InputError, match=r"holds parts, and no _attncli.json that says what made them"):
        write(tmp_path)


def test_a_run_that_writes_no_part_leaves_nothing(tmp_path: Path) -> None:
    work = parts_of_toy(tmp_path / "out", model="there-is-no-such-model")
    with pytest.raises(LoadError):
        write(tmp_path / "out", work=work)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "said",
    [
        "",
        "[]",
        "[" * 100_000,
        '{"schema": "attncli.dataset/1"}',
        '{"schema": "attncli.dataset/1", "attncli": 1, "made": {}, "files": []}',
        '{"schema": "attncli.dataset/1", "attncli": "1", "made": [], "files": []}',
        '{"schema": "attncli.dataset/1", "attncli": "1", "made": {}, "files": 5}',
        '{"schema": "attncli.dataset/1", "attncli": "1", "made": {"a": [1]}, "files": []}',
        '{"schema": "attncli.dataset/1", "attncli": "1", "made": {}, "files": [], "whole": 5}',
        '{"schema": "attncli.dataset/1", "attncli": "1", "made": {}, "files": [], "whole": {"parts": "6"}}',
    ],
)
def test_a_folder_that_says_nonsense_of_itself_is_refused(tmp_path: Path, said: str) -> None:
    (tmp_path / PARTS[0]).write_bytes(b"")
    (tmp_path / "_attncli.json").write_text(said)
    for read in (parts_of, write):
        with pytest.raises(InputError, match=r"_attncli\.json is none that attn \S+ writes"):
            read(str(tmp_path))


@pytest.mark.parametrize("said", [None, "[]", "{", "[" * 100_000, '{"digest": "x", "sentences": 1, "said": 5}'])
def test_a_part_that_says_nonsense_of_itself_is_of_other_sentences(tmp_path: Path, said: str | None) -> None:
    write(tmp_path, 10)
    table = pq.read_table(tmp_path / PARTS[0])
    pq.write_table(table.replace_schema_metadata(said and {"attncli.part": said}), tmp_path / PARTS[0])
    with pytest.raises(InputError, match=r"part-00000-00000\.parquet is of other sentences"):
        write(tmp_path, 10)


def test_two_runs_at_once_are_refused(tmp_path: Path) -> None:
    with of_parts.dataset(str(tmp_path / "out"), MADE), pytest.raises(InputError, match="being written by another run"):
        write(tmp_path / "out")


class Broken(Tracing[Any]):
    """The toy layer, until the second part."""

    def open(self) -> Any:
        done = super().open()

        def until(batch: Any) -> Iterator[Answer[Any]]:
            if batch.sentences[0].number >= SMALL:
                raise InputError("no more")
            yield from done(batch)

        return until


def test_an_error_leaves_the_parts_before_it(undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    whole = parts_of_toy(tmp_path / "out")
    assert isinstance(whole.work, Tracing)
    broken = Parts(Broken(whole.work.made, whole.work.options), whole.folder, whole.table)
    with pytest.raises(InputError, match="no more"):
        write(tmp_path / "out", work=broken)
    assert sorted(files_of(tmp_path / "out")) == ["_attncli.json", PARTS[0]]
    assert not is_whole(tmp_path / "out")
    assert write(tmp_path / "out")[0].before == 1
    assert files_of(tmp_path / "out") == undisturbed


def test_a_full_disk_is_said_and_leaves_whole_parts(undisturbed: dict[str, bytes], tmp_path: Path) -> None:
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


@pytest.mark.parametrize("scheme", ["file", "memory"])
def test_a_url_is_a_folder_too(undisturbed: dict[str, bytes], tmp_path: Path, scheme: str) -> None:
    from fsspec.core import url_to_fs

    url = f"{scheme}://{tmp_path}/out/"
    assert write(url)[0].before == 0
    files, path = url_to_fs(url)
    found = {name.rsplit("/", 1)[1]: files.cat_file(name) for name in files.ls(path, detail=False)}
    assert found == undisturbed
    files.rm_file(f"{path}/{PARTS[3]}")
    assert write(url)[0].before == 5
    assert parts_of(url) == PARTS
    assert files.cat_file(f"{path}/{PARTS[3]}") == undisturbed[PARTS[3]]


def test_a_place_that_cannot_be_reached_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing here reads nowhere://"):
        write("nowhere://bucket/out")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match=r"cannot (list|write) .*/file"):
        write(f"file://{tmp_path}/file")


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
