"""The loop, in one process and in several: the same results, in order, and an end that is said."""

import multiprocessing
import os
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from works import Obedient

from attncli.corpus.jobs import Result
from attncli.corpus.run import batched, run
from attncli.engines.source import CorpusItem
from attncli.errors import Failure


def sentences(count: int, **texts: str) -> list[CorpusItem]:
    """Return some sentences; that with the number N has the text that `at_N` says."""
    return [CorpusItem(number, texts.get(f"at_{number}", "x" * (number % 7))) for number in range(1, count + 1)]


def results(folder: Path, inputs: list[CorpusItem], jobs: int | None) -> list[Result[tuple[int, int]]]:
    with closing(run(Obedient(folder), batched(inputs), jobs)) as found:
        return list(found)


def processes(found: list[Result[tuple[int, int]]]) -> list[int]:
    return [result.value[1] for result in found if not isinstance(result.value, Failure)]


def test_results_come_in_order_from_as_many_processes_as_are_asked_for(tmp_path: Path) -> None:
    inputs = sentences(600)
    found = results(tmp_path, inputs, 3)
    assert [(result.number, result.value[0]) for result in found if not isinstance(result.value, Failure)] == [
        (number, len(str(text))) for number, text, *_ in inputs
    ]
    assert [result.warnings for result in found[:2]] == [("said of 1",), ("said of 2",)]
    assert 1 <= len(set(processes(found))) <= 3
    assert os.getpid() not in processes(found)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("cores", [1, 2])
def test_from_a_number_on_all_cores_work_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int
) -> None:
    monkeypatch.setattr("attncli.engines.cpu.cores", lambda: cores)
    found = processes(results(tmp_path, sentences(600), None))
    assert set(found[:511]) == {os.getpid()}
    assert (os.getpid() in found[511:]) == (cores == 1)


def until_it_ends(found: Generator[Result[Any], None, None]) -> tuple[list[int], str]:
    """Return the numbers that come, and the error that comes after them."""
    numbers: list[int] = []
    with closing(found), pytest.raises(Exception) as caught:  # noqa: PT011  # what it says is asked for
        numbers.extend(result.number for result in found)
    assert not multiprocessing.active_children()
    return numbers, f"{caught.type.__name__}: {caught.value}"


def test_a_process_that_is_killed_ends_the_run(tmp_path: Path) -> None:
    numbers, message = until_it_ends(run(Obedient(tmp_path), batched(sentences(40, at_20="kill")), 2))
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) < 20
    assert message == ("InputError: a worker process was killed, perhaps for memory; give fewer --jobs")


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_error_comes_as_itself_after_the_results_before_it(tmp_path: Path, jobs: int) -> None:
    found = until_it_ends(run(Obedient(tmp_path), batched(sentences(40, at_20="refuse no more")), jobs))
    assert found == (list(range(1, 20)), "InputError: sentence 20: no more")
    _, message = until_it_ends(run(Obedient(tmp_path), batched(sentences(40, at_20="fail it is")), jobs))
    assert message == "OSError: [Errno 5] it is"


def test_a_job_that_cannot_be_opened_says_why(tmp_path: Path) -> None:
    (tmp_path / "locked").touch()
    found = until_it_ends(run(Obedient(tmp_path), batched(sentences(9)), 2))
    assert found == ([], "LoadError: the folder is locked")


def test_no_more_is_read_than_is_needed(tmp_path: Path) -> None:
    read = 0

    def counted() -> Iterator[CorpusItem]:
        nonlocal read
        for read in range(1, 100_000):
            yield CorpusItem(read, "x")

    with closing(run(Obedient(tmp_path), batched(counted()), 2)) as found:
        for result in found:
            assert read < result.number + 256 * 6
            if result.number == 1000:
                break
    assert not multiprocessing.active_children()
