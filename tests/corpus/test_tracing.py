"""What is made of traces: alike in this process and in workers."""

from contextlib import closing

import numpy as np
import pytest
from works import Weights

from attncli.corpus.local import answered
from attncli.corpus.tracing import Tracing
from attncli.corpus.work import in_windows
from attncli.engines import inspect
from attncli.engines.source import CorpusItem
from attncli.errors import Failure, UsageError

SENTENCES = [
    *(CorpusItem(number, f"time flies {'so ' * (number % 3)}fast") for number in range(1, 7)),
    CorpusItem(7, ""),
    CorpusItem(8, Failure("it is not UTF-8"), {"id": "b"}),
    CorpusItem(9, "an arrow", {"id": "a"}),
]


@pytest.mark.parametrize("jobs", [1, 2])
def test_something_is_made_of_every_trace(jobs: int) -> None:
    work = Tracing(Weights(), {"seed": 3, "layers": 0}, target="it does")
    with closing(answered(work, in_windows(SENTENCES), jobs)) as answers:
        *found, empty, broken, last = answers
    for answer, sentence in zip([*found, last], [*SENTENCES[:6], SENTENCES[8]], strict=True):
        assert isinstance(sentence.text, str)
        assert isinstance(answer.result, dict)
        expected = inspect(sentence.text, target="it does", seed=3).layer(0).head(1).weights
        assert answer.number == sentence.number
        np.testing.assert_array_equal(answer.result["weights"], expected)
        assert answer.result["kept"] == sentence.kept
    assert isinstance(empty.result, Failure)
    assert broken.result == Failure("it is not UTF-8", kept={"id": "b"})


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_source_that_does_not_exist_is_refused(jobs: int) -> None:
    work = Tracing(Weights(), {"layers": 7})
    with closing(answered(work, in_windows(SENTENCES), jobs)) as answers, pytest.raises(UsageError, match="layer 7"):
        next(answers)


def test_a_source_that_is_open_is_used() -> None:
    work = Tracing(Weights(), {"seed": 3})
    done = work.on(work.source())
    impossible = Tracing(Weights(), {"layers": 7})
    assert len(list(answered(impossible, in_windows(SENTENCES), 1, done))) == len(SENTENCES)
