"""What becomes of sentences: traces and what is made of them; alike in one process and in two."""

from contextlib import closing

import numpy as np
import pytest
from works import weights

from attncli.corpus.jobs import ModelJob, open_traces
from attncli.corpus.run import batched, run
from attncli.engines import inspect
from attncli.engines.source import CorpusItem
from attncli.errors import Failure, UsageError

SENTENCES = [
    *(CorpusItem(number, f"time flies {'so ' * (number % 3)}fast") for number in range(1, 7)),
    CorpusItem(7, ""),
    CorpusItem(8, Failure("it is not UTF-8"), {"file": "b"}),
    CorpusItem(9, "an arrow", {"file": "a"}),
]


@pytest.mark.parametrize("jobs", [1, 2])
def test_something_is_made_of_every_trace(jobs: int) -> None:
    job = ModelJob(open_traces, weights, {"model": None, "seed": 3, "layer": 0}, target="it does")
    with closing(run(job, batched(SENTENCES), jobs)) as results:
        *found, empty, broken, last = results
    for result, sentence in zip([*found, last], [*SENTENCES[:6], SENTENCES[8]], strict=True):
        assert isinstance(sentence.text, str)
        assert isinstance(result.value, dict)
        expected = inspect(sentence.text, target="it does", seed=3).layer(0).head(1).weights
        assert result.number == sentence.number
        np.testing.assert_array_equal(result.value["weights"], expected)
        assert result.value["metadata"] == sentence.metadata
    assert isinstance(empty.value, Failure)
    assert broken.value == Failure("it is not UTF-8", metadata={"file": "b"})


def test_a_source_that_does_not_exist_is_refused() -> None:
    job = ModelJob(open_traces, weights, {"model": None, "layer": 7})
    with closing(run(job, batched(SENTENCES), 2)) as results, pytest.raises(UsageError, match="layer 7"):
        next(results)
