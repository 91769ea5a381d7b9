"""The work of `attn diff` over a corpus: of each batch of sentences, how far two models are apart on it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from attncli.analysis.diff import Difference, DifferencesState, diff, warnings_of_both
from attncli.corpus.tracing import Tracing
from attncli.corpus.work import Answer, Batch, Done
from attncli.engines.source import trace_group
from attncli.errors import Failure, InputError, UsageError

if TYPE_CHECKING:
    from attncli.engines.source import Source
    from attncli.trace.trace import Trace

State = DifferencesState | None


@dataclass(frozen=True)
class Differing:
    """See `Work`. A sentence that is bad, or to be warned of, has an answer of its own; the last one is the state.

    Attributes:
        first: how the traces of A are made; nothing is made of them by itself.
        second: likewise of B.
        queries: whose rows are compared; none are all shared ones.
    """

    first: Tracing[Any]
    second: Tracing[Any]
    queries: tuple[str, ...] = ()
    by_sentence: ClassVar[bool] = False

    def on(self, first: Source, second: Source) -> Done[State]:
        """Return what answers batches with sources that are open."""
        return lambda batch: self._answers(
            batch,
            trace_group(first, batch.sentences, self.first.pair, self.first.target),
            trace_group(second, batch.sentences, self.second.pair, self.second.target),
        )

    def open(self) -> Done[State]:
        """Open both sources, and return what answers batches with them."""
        return self.on(self.first.source(), self.second.source())

    def _answers(
        self, batch: Batch, first: Iterator[tuple[int, Trace | Failure]], second: Iterator[tuple[int, Trace | Failure]]
    ) -> Iterator[Answer[State]]:
        state: State = None
        for (number, one), (_, other) in zip(first, second, strict=True):
            difference = self._difference(one, other)
            if isinstance(difference, Failure):
                yield Answer(number, difference)
                continue
            found = DifferencesState.of(difference)
            state = found if state is None else state.merged(found)
            yield Answer(number, None, tuple(warnings_of_both(difference)))
        yield Answer(batch.sentences[-1].number, state)

    def _difference(self, one: Trace | Failure, other: Trace | Failure) -> Difference | Failure:
        """Return how far the traces of a sentence are apart, or why that cannot be said."""
        if isinstance(one, Failure):
            return one
        if isinstance(other, Failure):
            return other
        try:
            return diff(one, other, queries=self.queries, top=0)
        except (InputError, UsageError) as error:
            return Failure(str(error), kind=type(error))
