"""The work of most commands: a source, and something that is made of each of its traces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol

from attncli.corpus.work import Answer, Batch, Done, Result
from attncli.engines.source import trace_group
from attncli.errors import Failure

if TYPE_CHECKING:
    from attncli.engines.source import Source
    from attncli.trace.trace import Trace


class Made(Protocol[Result]):
    """What is made of the traces of a batch; picklable, such as a frozen dataclass of options."""

    @property
    def by_sentence(self) -> bool:
        """Whether each sentence has an answer that is its own; see `Work`."""

    def __call__(self, batch: Batch, traces: Iterator[tuple[int, Trace | Failure]]) -> Iterator[Answer[Result]]:
        """Yield what the batch has become.

        Args:
            batch: its name and its sentences.
            traces: the trace of each sentence with its number, or why it has none, computed as they are asked for.
        """


@dataclass(frozen=True)
class AsTheyAre:
    """The traces themselves; see `Made`."""

    by_sentence: ClassVar[bool] = True

    def __call__(self, batch: Batch, traces: Iterator[tuple[int, Trace | Failure]]) -> Iterator[Answer[Trace]]:
        """Yield them."""
        return (Answer(*answer) for answer in traces)


@dataclass(frozen=True)
class Tracing(Generic[Result]):
    """A source, and what is made of its traces; see `Work`.

    Attributes:
        made: of the traces.
        options: of `open_source`.
        pair: a second text in the same sequence as each sentence.
        target: the text whose queries attend to each sentence's keys.
    """

    made: Made[Result]
    options: Mapping[str, Any]
    pair: str | None = None
    target: str | None = None

    @property
    def by_sentence(self) -> bool:
        """See `Work`."""
        return self.made.by_sentence

    def source(self) -> Source:
        """Open the source; see `open_source` for what is raised."""
        from attncli.engines import open_source

        return open_source(**self.options)

    def on(self, source: Source) -> Done[Result]:
        """Return what answers batches with a source that is open."""
        return lambda batch: self.made(batch, trace_group(source, batch.sentences, self.pair, self.target))

    def open(self) -> Done[Result]:
        """Open the source, and return what answers batches with it."""
        return self.on(self.source())
