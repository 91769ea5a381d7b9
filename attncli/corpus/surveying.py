"""The work of `attn heads`: of each batch of sentences, what it says of the heads, to be merged with the others'."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from attncli.analysis.heads import Gathering, SurveyStates
from attncli.analysis.induction import cautions
from attncli.analysis.warnings import warnings_of
from attncli.corpus.work import Answer, Batch
from attncli.errors import Failure, InputMismatchError
from attncli.trace.view import View

if TYPE_CHECKING:
    from attncli.trace.trace import Trace


@dataclass(frozen=True)
class Surveying:
    """What is made of traces; see `corpus.tracing.Made`.

    A sentence that is bad, or to be warned of, has an answer of its own; the last one of a batch is its states.

    Attributes:
        view: says which rows count.
        detects: whether the scores of TransformerLens's detectors are measured too.
        by: what of `Trace.kept` groups the sentences.
    """

    view: View
    detects: bool = False
    by: str | None = None
    by_sentence: ClassVar[bool] = False

    def __call__(
        self, batch: Batch, traces: Iterable[tuple[int, Trace | Failure]]
    ) -> Iterator[Answer[SurveyStates | None]]:
        """Yield what the batch has become."""
        gathered = Gathering(self.view, detects=self.detects, by=self.by)
        noted: tuple[str, ...] = ()
        for number, trace in traces:
            if isinstance(trace, Failure):
                yield Answer(number, trace)
                continue
            try:
                self.view.check(trace)
            except InputMismatchError as error:  # it may fit the next one
                yield Answer(number, Failure(str(error), kind=InputMismatchError, kept=trace.kept))
                continue
            gathered.add(number, trace)
            said = (*warnings_of(trace, self.view), *(cautions(trace) if self.detects else ()))
            if said or trace.source.notes != noted:
                noted = trace.source.notes
                yield Answer(number, None, said, noted)
        yield Answer(batch.sentences[-1].number, gathered.states())
