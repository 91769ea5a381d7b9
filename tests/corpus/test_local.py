"""Workers: the answers of one process, in their order, whatever happens to the processes."""

import logging
import multiprocessing
import os
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path
from queue import Full
from threading import Semaphore
from typing import Any

import pytest
from works import Told, Written

from attncli.corpus import local, workers
from attncli.corpus.local import answered
from attncli.corpus.work import Answer, Batch, in_windows
from attncli.engines.source import CorpusItem
from attncli.errors import Failure, InputError


def sentences(count: int, **texts: str) -> list[CorpusItem]:
    """Return some sentences; that with the number N has the text that `at_N` says."""
    return [CorpusItem(number, texts.get(f"at_{number}", "x" * (number % 7))) for number in range(1, count + 1)]


def done(work: Told, given: list[CorpusItem], jobs: int | None) -> list[Answer[tuple[int, int]]]:
    """Return the answers to sentences."""
    with closing(answered(work, in_windows(given), jobs)) as answers:
        return list(answers)


def lengths(answers: list[Answer[tuple[int, int]]]) -> list[tuple[int, int]]:
    """Return the numbers of sentences and how long they are."""
    return [(number, result[0]) for number, result, *_ in answers if not isinstance(result, Failure)]


def alive(processes: set[int]) -> set[int]:
    """Return which processes are still there."""
    return {each for each in processes if Path(f"/proc/{each}").exists()}


def test_answers_come_in_order_from_as_many_workers_as_are_asked_for(tmp_path: Path) -> None:
    given = sentences(600)
    answers = done(Told(tmp_path), given, 3)
    assert lengths(answers) == [(number, len(text)) for number, text, _ in given]
    assert [answer.said for answer in answers[:2]] == [("said of 1",), ("said of 2",)]
    processes = {result[1] for _, result, *_ in answers if not isinstance(result, Failure)}
    assert 1 <= len(processes) <= 3
    assert os.getpid() not in processes
    assert not alive(processes)
    assert not multiprocessing.active_children()


def test_one_job_is_this_process(tmp_path: Path) -> None:
    assert {answer.result[1] for answer in done(Told(tmp_path), sentences(9), 1)} == {os.getpid()}


@pytest.mark.parametrize("cores", [1, 2])
def test_from_a_number_on_all_cores_work_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int
) -> None:
    monkeypatch.setattr(local, "affordable", lambda: cores)
    processes = [answer.result[1] for answer in done(Told(tmp_path), sentences(600), None)]
    assert set(processes[:511]) == {os.getpid()}
    assert (os.getpid() in processes[511:]) == (cores == 1)


def test_a_worker_that_is_killed_loses_nothing(tmp_path: Path) -> None:
    given = sentences(300, at_1="kill 2", at_70="kill 1", at_260="kill 2", at_300="kill 1")
    answers = done(Told(tmp_path), given, 2)
    assert lengths(answers) == [(number, len(text)) for number, text, _ in given]


def test_a_sentence_that_ends_every_worker_is_a_failure_and_the_others_are_answered(tmp_path: Path) -> None:
    answers = done(Told(tmp_path), sentences(40, at_20="kill 9"), 2)
    assert [answer.number for answer in answers] == list(range(1, 41))
    assert [answer.number for answer in answers if isinstance(answer.result, Failure)] == [20]
    assert answers[19].result == Failure(
        "it ended 3 worker processes one after the other, the last one by signal 9; give fewer --jobs if there is too "
        "little memory"
    )


def test_a_batch_that_is_one_answer_and_ends_every_worker_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="sentences 16 to 31 ended 3 worker processes one after the other"):
        done(Told(tmp_path, by_sentence=False), sentences(40, at_20="kill 9"), 2)
    assert not multiprocessing.active_children()


def until_it_ends(answers: Generator[Answer[Any], None, None]) -> tuple[list[int], str]:
    """Return the numbers that are answered, and the error that comes after them."""
    numbers: list[int] = []
    with closing(answers), pytest.raises(Exception) as caught:  # noqa: PT011  # what it says is asked for
        numbers.extend(answer.number for answer in answers)
    assert not multiprocessing.active_children()
    return numbers, f"{caught.type.__name__}: {caught.value}"


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_error_comes_as_itself_after_the_answers_before_it(tmp_path: Path, jobs: int) -> None:
    for text, said in (
        ("refuse no more", "InputError: sentence 20: no more"),
        ("fail it is", "OSError: [Errno 5] it is"),
    ):
        found = until_it_ends(answered(Told(tmp_path), in_windows(sentences(40, at_20=text)), jobs))
        assert found == (list(range(1, 20)), said)


@pytest.mark.parametrize("jobs", [1, 2])
def test_what_cannot_be_read_ends_the_answers_after_those_before_it(tmp_path: Path, jobs: int) -> None:
    def broken() -> Iterator[CorpusItem]:
        yield from sentences(7)
        raise InputError("half a line")

    found = until_it_ends(answered(Told(tmp_path), in_windows(broken()), jobs))
    assert found == (list(range(1, 8)), "InputError: half a line")


def test_work_that_cannot_be_opened_says_why(tmp_path: Path) -> None:
    (tmp_path / "locked").touch()
    found = until_it_ends(answered(Told(tmp_path), in_windows(sentences(9)), 2))
    assert found == ([], "LoadError: the folder is locked")


def test_workers_that_end_before_they_begin_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_STARTS", 2)
    (tmp_path / "deadly").touch()
    numbers, said = until_it_ends(answered(Told(tmp_path), in_windows(sentences(9)), 2))
    assert numbers == []
    assert said == (
        "InputError: 2 worker processes ended before they had begun, the last one by signal 9; give fewer --jobs if "
        "there is too little memory"
    )


def test_answers_do_not_wait_for_what_is_not_there_to_be_read(tmp_path: Path) -> None:
    seen = Semaphore(0)

    def slow() -> Iterator[Batch]:
        for batch in in_windows(sentences(15)):
            yield batch
            assert seen.acquire(timeout=60)

    with closing(answered(Told(tmp_path), slow(), 2)) as answers:
        for answer in answers:
            if answer.number in (1, 3, 7, 15):  # the last ones of their batches
                seen.release()


def test_no_more_is_read_than_is_needed(tmp_path: Path) -> None:
    read = 0

    def counted() -> Iterator[CorpusItem]:
        nonlocal read
        for read in range(1, 100_000):
            yield CorpusItem(read, "x")

    with closing(answered(Told(tmp_path), in_windows(counted()), 2)) as answers:
        for answer in answers:
            assert read < answer.number + 256 * 6
            if answer.number == 1000:
                break
    assert not multiprocessing.active_children()


def test_large_answers_wait_in_the_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_WAITING", 2**21)
    with closing(answered(Written(12), in_windows(sentences(15)), 2)) as answers:
        for number, pieces, *_ in answers:
            assert not isinstance(pieces, Failure)
            assert all(piece == f"{number} " * 50_000 for piece in pieces)
            assert len(tuple(pieces)) == 12


def test_what_waits_is_bounded_by_its_bytes() -> None:
    waiting = workers.Waiting(1000)
    for message in (b"", b"x" * 500, b"y" * 5000):
        waiting.put(message, block=False)
    with pytest.raises(Full):
        waiting.put(None, block=False)
    assert [len(waiting.get() or b"") for _ in range(3)] == [0, 500, 5000]
    waiting.put(None, block=False)
    assert waiting.get() is None
    assert waiting.empty()


def test_what_workers_log_is_logged_here(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "attncli"):
        done(Told(tmp_path), sentences(9), 2)
    assert sorted(record.getMessage() for record in caplog.records) == sorted(f"{n} is done" for n in range(1, 10))
