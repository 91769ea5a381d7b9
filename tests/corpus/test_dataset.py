"""Datasets: never taken for whole before they are, nor for another run's."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from datasets import MADE, PARTS, SMALL, files_of, parts_of_toy, write

from attncli.corpus.dataset import dataset, parts_of
from attncli.corpus.parts import Parts
from attncli.corpus.tracing import Tracing
from attncli.corpus.work import Answer
from attncli.errors import AttnError, InputError, LoadError, UsageError

pytestmark = pytest.mark.usefixtures("small_parts")


def test_what_makes_it_and_how_much_it_is_stands_in_it(undisturbed: dict[str, bytes]) -> None:
    manifest = json.loads(undisturbed["_attncli.json"])
    assert manifest["made"] == MADE
    assert manifest["whole"] == {"parts": 6, "rows": 294 * 4, "sentences": 300, "failures": 6}


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


def test_two_runs_at_once_are_refused(tmp_path: Path) -> None:
    with dataset(str(tmp_path / "out"), MADE), pytest.raises(InputError, match="being written by another run"):
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
