"""Batches on the cores of this machine: in this process, or in workers, with the same answers in the same order."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterable
from itertools import chain

from attncli.corpus.work import Answer, Batch, Done, Result, Work
from attncli.engines.cpu import affordable
from attncli.engines.source import PARALLEL_FROM


def answered(
    work: Work[Result],
    batches: Iterable[Batch],
    jobs: int | None = 1,
    here: Done[Result] | None = None,
    parallel_from: int = PARALLEL_FROM,
) -> Generator[Answer[Result], None, None]:
    """Yield the answers to batches, in order; closing the iterator ends the workers.

    Args:
        work: what is done with them.
        batches: that are read as they are needed, a few ahead.
        jobs: how many processes work; with 1 it is this one. None is this one at first, and from some sentence on as
            many as there are cores and memory for.
        here: what the work has opened in this process already.
        parallel_from: the number of that sentence.

    Raises:
        AttnError: the work cannot be opened, or raises it; or it ends every process that does it.
    """
    batches, seen = iter(batches), 0
    if jobs in (None, 1):
        done = here or work.open()
        for batch in batches:
            seen += len(batch.sentences)
            if jobs is None and max(seen, batch.sentences[-1].number) >= parallel_from:
                jobs = affordable()
                if jobs > 1:
                    batches = chain([batch], batches)
                    break
            yield from done(batch)
        else:
            return
        del done
    here = None  # what is not mapped of it need not be there once more
    assert jobs is not None
    from attncli.corpus.workers import Pool  # which takes imports that one process spares

    with Pool(work, batches, jobs) as pool:
        yield from pool.answers()


def together_from(jobs: int | None, parallel_from: int) -> int:
    """Return from which number on the sentences of a source that computes them one by one are in batches of several."""
    return {None: parallel_from, 1: sys.maxsize}.get(jobs, 1)
