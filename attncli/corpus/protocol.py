"""Protocol of corpus runs: a job, its batches, and its results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from attncli.engines.source import CorpusItem
from attncli.errors import Failure

Value = TypeVar("Value", covariant=True)


class Result(NamedTuple, Generic[Value]):
    """Result of a sentence."""

    number: int  # of the sentence
    value: Value | Failure
    warnings: tuple[str, ...] = ()  # about it
    notes: tuple[str, ...] = ()  # on all results of the same source


class Batch(NamedTuple):
    """Sentences that are handed out together, of one file, in order."""

    sentences: Sequence[CorpusItem]
    name: str = ""  # of a part of a dataset; other batches have none


BatchFn = Callable[[Batch], Iterator[Result[Value]]]


class Job(Protocol[Value]):
    """A job on batches, which can be pickled."""

    def open(self) -> BatchFn[Value]:
        """Open the model or the like, and return the function from a batch to its results, in order."""
