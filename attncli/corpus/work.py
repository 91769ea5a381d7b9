"""What is done with the sentences of a corpus: the same in this process, in others, and on other machines.

A work is opened once in each process that does it. It is given batches, and which sentences share a batch follows from
their files and numbers alone: so wherever the batches run, the answers are those of one process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Generic, NamedTuple, Protocol, TypeVar

from attncli.engines.source import CorpusItem, windows
from attncli.errors import Failure

Result = TypeVar("Result", covariant=True)

PART = 4096
"""Sentences of a part of a file: what a file of a dataset is made of, and what is sent to another machine at a time."""


class Answer(NamedTuple, Generic[Result]):
    """What a sentence, or a whole batch, has become.

    Attributes:
        number: of the sentence; of a batch's last one.
        result: what was made of it, or why that could not be.
        said: warnings about it, for whoever started the run.
        notes: what is to be known of everything that came from the same source.
    """

    number: int
    result: Result | Failure
    said: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Batch(NamedTuple):
    """Sentences that are handed out together.

    Attributes:
        name: unique among the batches of a run, and the same in each run.
        sentences: of one file, in order.
    """

    name: str
    sentences: Sequence[CorpusItem]


Done = Callable[[Batch], Iterator[Answer[Result]]]


class Work(Protocol[Result]):
    """What is done with batches; it holds options alone, so that it can be sent to where it is done."""

    @property
    def by_sentence(self) -> bool:
        """Whether each sentence has an answer that is its own, so that they can also be done one by one."""

    def open(self) -> Done[Result]:
        """Open what it takes, and return what answers one batch after another, each in order.

        Raises:
            AttnError: it cannot be opened.
        """


def part_of(sentence: CorpusItem) -> int:
    """Return which part of its file a sentence is in: numbers of one part are the same but for the remainder."""
    return sentence.number // PART


def in_windows(sentences: Iterable[CorpusItem], together_from: int = 1) -> Iterator[Batch]:
    """Yield the batches of a stream, whose answers are wanted as soon as they are there; see `windows`.

    Args:
        sentences: of a file, or file by file.
        together_from: the number of the first sentence that has to wait for others.
    """
    sentences = iter(sentences)
    for sentence in sentences:
        if sentence.number >= together_from:
            for window in windows(chain([sentence], sentences)):
                yield _batch(window)
        else:
            yield _batch([sentence])


def _batch(sentences: Sequence[CorpusItem]) -> Batch:
    return Batch(f"{sentences[0].kept.get('file', '')}:{sentences[0].number}", sentences)
