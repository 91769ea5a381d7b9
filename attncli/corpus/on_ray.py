"""Batches on many machines: Ray Data reads a corpus, does a work with its parts, and brings the answers back in order.

Where and when anything runs, what is done again after a process or a machine is lost, what is moved to disks, and how
many machines there are, is Ray's. That nothing in the result tells of it is ours: what a batch is follows from the
sentences alone, and each process multiplies on one core.
"""

from __future__ import annotations

import logging
import os
import pickle
import socket
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count, groupby
from typing import Any, Protocol
from warnings import catch_warnings, simplefilter

from attncli._version import __version__
from attncli.corpus.cluster import joined
from attncli.corpus.work import Answer, Batch, Result, Work, part_of
from attncli.engines.cpu import ONE_THREAD
from attncli.engines.source import CorpusItem
from attncli.errors import AttnError, InputError, LoadError
from attncli.text import visible

_MESSAGE = 2**24  # bytes of answers that are sent back at a time
_TRIES = 10  # processes that a part may take along; machines that are taken away on purpose do not count
_READERS = 8  # processors for which one process reads


class Files(Protocol):
    """A corpus, which can be sent to where one of its files is read."""

    @property
    def files(self) -> Sequence[object]:
        """All files, in order."""

    def sentences_of(self, index: int, leave_out: Callable[[], object]) -> Iterator[CorpusItem]:
        """Yield the sentences of one of them; `leave_out` is called for those that are empty."""


def answered(
    work: Work[Result],
    corpus: Files,
    batched: Callable[[Iterable[CorpusItem]], Iterator[Batch]],
    *,
    address: str | None = None,
    jobs: int | None = None,
    gpus: int = 0,
    leave_out: Callable[[int], object] = lambda _: None,
) -> Generator[Answer[Result], None, None]:
    """Yield the answers to the batches of a corpus, in order; see `local.answered`.

    Args:
        work: what is done with them.
        corpus: the files, which every machine can read.
        batched: makes batches of the sentences of a file, each within a part of it; can be sent too.
        address: of a cluster that this machine is a part of, as `HOST:PORT`. None is what the variable RAY_ADDRESS
            says, and without it processes on this machine.
        jobs: how many processes work at most; None are as many as there are processors.
        gpus: how many each of them has for itself.
        leave_out: is told how many sentences were empty, file by file.

    Raises:
        LoadError: Ray is not installed, the cluster is not reached, or its machines have another attncli.
        AttnError: the work cannot be opened, or raises it.
    """
    with joined(address, jobs) as ray:
        from ray.data import ActorPoolStrategy, DataContext, from_items

        logging.getLogger("ray.data").setLevel(logging.CRITICAL)
        context = DataContext.get_current()
        context.enable_progress_bars = context.print_on_execution_start = False
        context.execution_options.preserve_order = True
        context.target_max_block_size = 1  # what a process is given at a time is one part, however small
        origin = _Origin(__version__, socket.gethostname(), os.getcwd())
        processors = int(ray.cluster_resources().get("GPU" if gpus else "CPU", 1))
        parts = from_items(list(range(len(corpus.files))), override_num_blocks=len(corpus.files)).flat_map(
            _Reading(corpus, batched, origin), num_cpus=0, concurrency=1 + processors // _READERS
        )
        with catch_warnings():
            # That tries can be counted goes with Ray 2.64, and has no successor so far: there would be no end to them.
            simplefilter("ignore", DeprecationWarning)
            answers = parts.flat_map(
                _Working,
                fn_constructor_args=(work, origin),
                compute=ActorPoolStrategy(
                    min_size=1, max_size=jobs, initial_size=max(1, min(processors, jobs or processors))
                ),
                num_cpus=1,
                num_gpus=gpus or None,
                runtime_env={"env_vars": ONE_THREAD},
                max_task_retries=_TRIES,
            )
        for row in _rows(answers, ray):
            message = pickle.loads(row["answers"])
            if isinstance(message, Exception):
                raise message
            if isinstance(message, int):
                leave_out(message)
            else:
                yield from message


@dataclass(frozen=True)
class _Origin:
    """Where a run was started."""

    version: str
    host: str
    folder: str

    def enter(self) -> None:
        """Be in the same folder, if it is there: names of files may begin in it."""
        with suppress(OSError):
            os.chdir(self.folder)

    def told(self, error: AttnError) -> bytes:
        """Return an error as it is sent, with the machine that it is from, if that is another one."""
        host = socket.gethostname()
        return pickle.dumps(error if host == self.host else type(error)(f"on {host}: {error}"))


@dataclass(frozen=True)
class _Reading:
    """Makes parts of a file: the batches that are sent together."""

    corpus: Files
    batched: Callable[[Iterable[CorpusItem]], Iterator[Batch]]
    origin: _Origin

    def __call__(self, row: dict[str, Any]) -> Iterator[dict[str, bytes]]:
        def part(batch: Batch) -> int:
            return part_of(batch.sentences[0])

        self.origin.enter()
        empty = count()
        sentences = self.corpus.sentences_of(row["item"], lambda: next(empty))
        try:
            for _, batches in groupby(self.batched(sentences), part):
                yield {"batches": pickle.dumps(list(batches))}
            if left_out := next(empty):
                yield {"batches": pickle.dumps(left_out)}
        except AttnError as error:
            yield {"batches": self.origin.told(error)}


class _Working:
    """A process that has opened the work, and does part after part. What it raises it answers, in its turn."""

    def __init__(self, work: Work[Any], origin: _Origin) -> None:
        self._error: bytes | None = None
        self._origin = origin
        origin.enter()
        try:
            if origin.version != __version__:
                raise LoadError(
                    f"{socket.gethostname()} has attncli {__version__}, {origin.host} {origin.version}; install the "
                    "same one on every machine of the cluster"
                )
            self._done = work.open()
        except AttnError as error:
            self._error = origin.told(error)

    def __call__(self, row: dict[str, Any]) -> Iterator[dict[str, bytes]]:
        batches = pickle.loads(row["batches"])
        if self._error or isinstance(batches, AttnError | int):  # which says how many sentences are none
            yield {"answers": self._error or row["batches"]}
            return
        waiting: list[Answer[Any]] = []
        size = 0
        try:
            for answer in (answer for batch in batches for answer in self._done(batch)):
                result = answer.result
                waiting.append(answer._replace(result=tuple(result)) if isinstance(result, Iterator) else answer)
                # What is sent together follows from the answers alone: a part that is done again repeats its messages.
                size += len(pickle.dumps(waiting[-1]))
                if size >= _MESSAGE:
                    yield {"answers": pickle.dumps(waiting)}
                    waiting, size = [], 0
        except AttnError as error:
            yield {"answers": pickle.dumps(waiting)}
            yield {"answers": self._origin.told(error)}
            return
        yield {"answers": pickle.dumps(waiting)}


def _rows(answers: Any, ray: Any) -> Iterator[dict[str, bytes]]:
    """Yield the messages of all parts, in order.

    Raises:
        LoadError: a machine has not what it takes.
        InputError: a part ends every process that does it.
    """
    try:
        yield from answers.iter_rows()
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, ImportError):
            raise _lacking(error.cause) from None
        raise
    except ray.exceptions.RayError as error:
        why = str(error).strip().splitlines()[-1].strip()
        if why.startswith("ModuleNotFoundError"):
            raise _lacking(why) from None
        raise InputError(
            f"Ray gave a part up, whose processes ended {1 + _TRIES} times: {visible(why)} If there is "
            "too little memory, fewer --jobs take less"
        ) from None


def _lacking(why: object) -> LoadError:
    return LoadError(
        f"a machine of the cluster cannot run it: {visible(str(why))}; each of them needs attncli {__version__} and "
        "the packages that the command takes"
    )
