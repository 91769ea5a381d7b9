"""What is made of a sentence's trace for `attn inspect`: other numbers, warnings, and its part of what is written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from attncli.analysis.derive import derived_trace
from attncli.analysis.warnings import warnings_of
from attncli.corpus.work import Answer, Batch
from attncli.errors import Failure, InputMismatchError
from attncli.formats import part_of

if TYPE_CHECKING:
    from attncli.trace.trace import Derivation, Trace
    from attncli.trace.view import View


@dataclass(frozen=True)
class Inspected:
    """See `tracing.Made`.

    Attributes:
        wish: which numbers stand in place of the weights.
        view: what of a trace is shown.
        form: the machine format whose parts are made; None leaves traces as they are, to be drawn.
        save: where a trace is kept as well, as it was recorded.
    """

    wish: Derivation
    view: View
    form: str | None = None
    save: Path | None = None
    by_sentence: ClassVar[bool] = True

    def __call__(self, batch: Batch, traces: Iterator[tuple[int, Trace | Failure]]) -> Iterator[Answer[Any]]:
        """Yield what each sentence has become: a trace, or an iterator of the pieces of its part.

        Raises:
            UsageError: no trace could give what is wanted.
            NotExposedError: the layers can give nothing of what is wanted.
            InputError: the trace cannot be saved.
        """
        for number, recorded in traces:
            if isinstance(recorded, Failure):
                yield Answer(number, recorded)
                continue
            trace = derived_trace(recorded, self.wish)
            try:
                self.view.check(trace)
            except InputMismatchError as error:  # as a sentence that cannot be read
                yield Answer(number, Failure(str(error), kind=InputMismatchError, kept=trace.kept))
                continue
            if self.save is not None:
                recorded.save(self.save)
            said = tuple(warnings_of(trace, self.view))
            result = trace if self.form is None else part_of(self.form)(number, trace, self.view)
            yield Answer(number, result, said, trace.source.notes)
