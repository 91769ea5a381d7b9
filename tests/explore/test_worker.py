"""The thread: it answers the newest look, whatever the model does, and nobody waits for it."""

from collections.abc import Callable, Iterator, Sequence
from queue import Queue
from threading import Event, current_thread, main_thread

import pytest
from asked_models import Plain

from attncli.engines.interactive import InteractiveSource, Query
from attncli.explore.answer import Answer
from attncli.explore.look import Look
from attncli.explore.worker import Worker
from attncli.trace.trace import Trace

LOOK = Look(Query("time flies"))
_SECONDS = 60.0  # which nothing takes

Working = Callable[[Callable[[], InteractiveSource]], tuple[Worker, "Queue[Answer]"]]


class Slow(Plain):
    """The toy layer, of which a test says when it may go on."""

    def __init__(self) -> None:
        super().__init__(1)
        self.begun, self.may_go_on = Queue[str](), Event()

    def trace(self, question: Query, layers: Sequence[int]) -> Trace:
        self.thread = current_thread()
        self.begun.put(question.text)
        assert self.may_go_on.wait(_SECONDS)
        return super().trace(question, layers)


@pytest.fixture
def working() -> Iterator[Working]:
    """Start a worker for a model, and return it with its answers."""
    workers = []

    def start(asked: InteractiveSource) -> tuple[Worker, "Queue[Answer]"]:
        answers: Queue[Answer] = Queue()
        worker = Worker(asked, answers.put)
        workers.append(worker)
        worker.start()
        return worker, answers

    yield start
    for worker in workers:
        worker.close()


def whole(answers: "Queue[Answer]") -> Answer:
    """Wait for an answer that is whole, and return it."""
    while not (answer := answers.get(timeout=_SECONDS)).is_whole:
        pass
    return answer


def test_looks_are_answered_in_a_thread_of_its_own(working: Working) -> None:
    threads = []

    class Noted(Plain):
        def trace(self, question: Query, layers: Sequence[int]) -> Trace:
            threads.append(current_thread())
            return super().trace(question, layers)

    worker, answers = working(Noted(1))
    for text in ("time flies", "fruit flies"):
        worker.ask(LOOK.asking(text))
        answer = whole(answers)
        assert (answer.look.question.text, answer.failure) == (text, "")
        assert answer.shown is not None
    (thread,) = {*threads}
    assert thread is not main_thread()
    assert thread.daemon


def test_the_newest_look_wins(working: Working) -> None:
    model = Slow()
    worker, answers = working(model)
    worker.ask(LOOK.asking("one"))
    assert model.begun.get(timeout=_SECONDS) == "one"
    for text in ("two", "three", "four"):
        worker.ask(LOOK.asking(text))
    model.may_go_on.set()
    found = []
    while not (found and found[-1].is_whole):
        found.append(answers.get(timeout=_SECONDS))
    # What was being computed is shown; then the first look is dropped, and those between are never asked for.
    assert [(each.look.question.text, each.shown is not None) for each in found[:3]] == [
        ("one", False),
        ("one", True),
        ("four", False),
    ]
    assert {each.look.question.text for each in found[2:]} == {"four"}
    assert [text for text, layers in model.asked if layers] == ["one", "four"]


def test_nothing_waits_for_a_slow_model(working: Working) -> None:
    model = Slow()
    worker, answers = working(model)
    worker.ask(LOOK)
    assert answers.get(timeout=_SECONDS).tokens is not None
    model.begun.get(timeout=_SECONDS)
    worker.close()  # which returns, though the model does not
    assert not worker.has_ended()
    model.may_go_on.set()
    model.thread.join(_SECONDS)
    assert worker.has_ended()
    assert answers.empty()


def test_the_thread_outlives_whatever_goes_wrong(working: Working) -> None:
    class Wrong(Plain):
        def trace(self, question: Query, layers: Sequence[int]) -> Trace:
            if question.text == "one":
                raise ZeroDivisionError("division by zero")
            return super().trace(question, layers)

    worker, answers = working(Wrong(1))
    worker.ask(LOOK.asking("one"))
    assert "ZeroDivisionError: division by zero" in whole(answers).failure
    worker.ask(LOOK.asking("two"))
    assert whole(answers).failure == ""


def test_it_may_be_asked_before_it_starts_and_after_it_is_closed() -> None:
    answers: Queue[Answer] = Queue()
    model = Slow()
    model.may_go_on.set()
    worker = Worker(model, answers.put)
    worker.ask(LOOK)
    worker.start()
    assert whole(answers).shown is not None
    worker.close()
    model.thread.join(_SECONDS)
    assert not model.thread.is_alive()
    worker.ask(LOOK)
    assert answers.empty()
