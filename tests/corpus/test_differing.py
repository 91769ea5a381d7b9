"""Two models over many sentences: what a loop of single comparisons gives, in one process or two."""

import statistics
from contextlib import closing
from functools import reduce

import pytest

import attncli
from attncli.analysis.diff import Differences, DifferencesState
from attncli.analysis.statistics import student
from attncli.corpus.differing import Differing
from attncli.corpus.local import answered
from attncli.corpus.tracing import AsTheyAre, Tracing
from attncli.corpus.work import in_windows
from attncli.engines.source import CorpusItem
from attncli.errors import Failure

TEXTS = ["time flies like an arrow", "a b a", "fruit flies like a banana", "a rose is a rose", "so it goes"]
SENTENCES = [
    *(CorpusItem(number, text) for number, text in enumerate(TEXTS, start=1)),
    CorpusItem(6, ""),
    CorpusItem(7, "x"),
]


def work(**more: object) -> Differing:
    first, second = (Tracing(AsTheyAre(), {"seed": seed, "num_heads": 2}) for seed in (0, 1))
    return Differing(first, second, **more)  # type: ignore[arg-type]


def compared(jobs: int) -> tuple[Differences, list[Failure]]:
    with closing(answered(work(), in_windows(SENTENCES), jobs)) as answers:
        results = [answer.result for answer in answers if answer.result is not None]
    states = [each for each in results if not isinstance(each, Failure)]
    return reduce(DifferencesState.merged, states).differences(), [
        each for each in results if isinstance(each, Failure)
    ]


def test_every_number_is_that_of_a_loop_over_the_sentences() -> None:
    found, failures = compared(1)
    assert len(failures) == 1
    assert (found.sentences, found.first.seed, found.second.seed) == (6, 0, 1)
    pairs = [[attncli.inspect(text, seed=seed, num_heads=2) for seed in (0, 1)] for text in [*TEXTS, "x"]]
    single = [{each.head: each for each in attncli.diff(*pair).heads} for pair in pairs]
    assert [head.jensen_shannon for head in found.heads] == sorted(
        (head.jensen_shannon for head in found.heads), reverse=True
    )
    for head in found.heads:
        each = [heads[head.head].jensen_shannon for heads in single]
        assert head.count == 6
        assert head.jensen_shannon == pytest.approx(statistics.fmean(each), rel=1e-9)
        assert head.std == pytest.approx(statistics.stdev(each), rel=1e-9)
        margin = student(5) * statistics.stdev(each) / 6**0.5
        assert head.ci95 == pytest.approx((statistics.fmean(each) - margin, statistics.fmean(each) + margin), rel=1e-9)
        assert (head.least, head.greatest) == (min(each), max(each))
        assert head.quantiles[0.5] == pytest.approx(sorted(each)[2], rel=0.01)
        assert head.elsewhere == (0, 0)


def test_two_processes_give_the_digits_of_one() -> None:
    assert compared(2) == compared(1)
