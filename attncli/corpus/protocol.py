"""What is done with a corpus: a job, the batches that it is given, and the results that it yields."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from attncli.engines.source import CorpusItem
from attncli.errors import Failure

Value = TypeVar("Value", covariant=True)


class Result(NamedTuple, Generic[Value]):
    """What a sentence has become."""

    number: int  # of the sentence
    value: Value | Failure  # what was made of it, or why that could not be
    warnings: tuple[str, ...] = ()  # about it, for whoever started the run
    notes: tuple[str, ...] = ()  # what is to be known of everything that came from the same source


class Batch(NamedTuple):
    """Sentences that are handed out together."""

    sentences: Sequence[CorpusItem]  # of one file, in order
    name: str = ""  # of a shard of a dataset; other batches have none


BatchFn = Callable[[Batch], Iterator[Result[Value]]]


class Job(Protocol[Value]):
    """What is done with batches: a tuple of options, which can be pickled."""

    def open(self) -> BatchFn[Value]:
        """Open what it takes, such as a model, and return the function from a batch to its results, in order.

        Raises:
            AttnError: it cannot be opened.
        """
