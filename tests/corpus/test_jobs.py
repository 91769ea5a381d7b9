"""What becomes of sentences: traces and what is made of them, two traces compared; alike in one process and in two."""

import statistics
from contextlib import closing

import numpy as np
import pytest
from works import weights

import attncli
from attncli.analysis.diff import DiffStats
from attncli.corpus.jobs import DiffJob, TraceJob, identity
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
    job = TraceJob(weights, {"seed": 3, "layer": 0}, target="it does")
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
    job = TraceJob(weights, {"layer": 7})
    with closing(run(job, batched(SENTENCES), 2)) as results, pytest.raises(UsageError, match="layer 7"):
        next(results)


TEXTS = ["time flies like an arrow", "a b a", "fruit flies like a banana", "a rose is a rose", "so it goes", "x"]


def test_two_models_are_as_far_apart_as_in_a_loop_over_the_sentences() -> None:
    first, second = (TraceJob(identity, {"seed": seed, "num_heads": 2}) for seed in (0, 1))
    sentences = [CorpusItem(number, text) for number, text in enumerate([*TEXTS, ""], start=1)]
    with closing(run(DiffJob(first, second), batched(sentences), 2)) as results:
        values = [result.value for result in results]
    stats, failures = DiffStats(), [value for value in values if isinstance(value, Failure)]
    for value in values:
        if not isinstance(value, Failure):
            stats.add(value)
    found = stats.differences()
    assert len(failures) == 1
    assert (found.sentences, found.first.seed, found.second.seed) == (6, 0, 1)
    pairs = [[attncli.inspect(text, seed=seed, num_heads=2) for seed in (0, 1)] for text in TEXTS]
    single = [{each.head: each for each in attncli.diff(*pair).heads} for pair in pairs]
    divergences = [head.jensen_shannon for head in found.heads]
    assert divergences == sorted(divergences, reverse=True)  # type: ignore[type-var]
    for head in found.heads:
        each = [float(heads[head.head].jensen_shannon or 0) for heads in single]
        assert (head.count, head.elsewhere) == (6, (0, 0))
        assert head.jensen_shannon == pytest.approx(statistics.fmean(each), rel=1e-9)
        assert head.std == pytest.approx(statistics.stdev(each), rel=1e-9)
