"""Runs a corpus: batches of sentences through a job, in this process or in several, results in order.

A job is opened once in each process. The batches depend on files and numbers of sentences alone, so that
the results are the same however many processes there are.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from itertools import chain

from attncli.corpus.jobs import Batch, BatchFn, Job, Result, Value
from attncli.engines.source import PARALLEL_FROM, CorpusItem, windows


def batched(sentences: Iterable[CorpusItem]) -> Iterator[Batch]:
    """Yield the batches of a stream, small ones first; see `windows`."""
    return map(Batch, windows(sentences))


def run(
    job: Job[Value],
    batches: Iterable[Batch],
    jobs: int | None = 1,
    opened: BatchFn[Value] | None = None,
    parallel_from: int = PARALLEL_FROM,
) -> Generator[Result[Value], None, None]:
    """Yield the results of batches, in order; closing the iterator ends the other processes.

    Args:
        job: the job.
        batches: read on demand, a few ahead.
        jobs: number of processes; with 1 it is this one. None is this one at first, and from some sentence on as
            many as there are cores.
        opened: the function of the job, if it is open in this process already.
        parallel_from: the number of that sentence.

    Raises:
        AttnError: the job cannot be opened, or raises it; or a process is killed.
    """
    batches, count = iter(batches), 0
    if jobs in (None, 1):
        results_of = opened or job.open()
        for batch in batches:
            count += len(batch.sentences)
            if jobs is None and max(count, batch.sentences[-1].number) >= parallel_from:
                from attncli.engines.cpu import cores

                jobs = cores()
                if jobs > 1:
                    batches = chain([batch], batches)
                    break
            yield from results_of(batch)
        else:
            return
        del results_of
    opened = None  # its memory is not needed any longer, but for mapped files
    assert jobs is not None
    from attncli.corpus.processes import run_in_processes  # which takes imports that one process spares

    yield from run_in_processes(job, batches, jobs)
