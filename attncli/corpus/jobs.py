"""The jobs of the commands: results of traces, of cuts, and of tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

from attncli.corpus.protocol import Batch, BatchFn, Result, Value
from attncli.encoding.encode import check_texts
from attncli.errors import Failure, InputError, InputMismatchError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from attncli.analysis.ablation import AblationChoice
    from attncli.analysis.heads import SentenceMetrics
    from attncli.analysis.pairs import PairedText, PairScores
    from attncli.engines.predictor import Predictor
    from attncli.engines.source import Source
    from attncli.engines.tokenize import Tokenizer
    from attncli.trace.tokenization import Choice, Tokenization
    from attncli.trace.trace import Derivation, Trace
    from attncli.trace.view import View


TraceTask = Callable[[int, "Trace"], tuple[Value, Iterable[str]]]
"""Function from a trace and its sentence's number to a result and its warnings, which can be pickled.

It raises InputMismatchError if its options do not fit this sentence, but may fit another one.
"""


def identity(number: int, trace: Trace) -> tuple[Trace, Iterable[str]]:
    """Return the trace itself; see `TraceTask`."""
    return trace, ()


def render(
    number: int, trace: Trace, *, derivation: Derivation, view: View, form: str | None = None, save: Path | None = None
) -> tuple[Any, Iterable[str]]:
    """Return a trace as `attn inspect` shows it, or an iterator over its pieces in a format; see `TraceTask`.

    Args:
        number: of the sentence.
        trace: of it.
        derivation: the numbers in place of the weights.
        view: the shown part of the trace.
        form: the machine format that it is encoded in; None leaves it as it is, to be drawn.
        save: file for the trace as it was recorded.
    """
    from attncli.analysis.warnings import warnings_of
    from attncli.formats import part_of

    derived = trace
    if not derivation.is_none:
        from attncli.analysis.derive import derived_trace

        derived = derived_trace(trace, derivation)
    view.check(derived)
    if save is not None:
        trace.save(save)
    return derived if form is None else part_of(form, number, derived, view), warnings_of(derived, view)


def measure(number: int, trace: Trace, *, view: View, is_test: bool = False) -> tuple[SentenceMetrics, Iterable[str]]:
    """Return the metrics of all heads in the rows that a view chooses; see `TraceTask`.

    `is_test` marks sentences of the induction test.
    """
    from attncli.analysis.heads import SentenceMetrics
    from attncli.analysis.warnings import warnings_of, warnings_of_test

    warnings = [*warnings_of(trace, view), *(warnings_of_test(trace) if is_test else ())]
    return SentenceMetrics.of(trace, view), warnings


def score_pairs(number: int, trace: Trace, *, texts: Mapping[int, PairedText]) -> tuple[PairScores, Iterable[str]]:
    """Return how all heads do on the pairs of a text, of those that are there by their numbers; see `TraceTask`."""
    from attncli.analysis.pairs import PairScores
    from attncli.analysis.warnings import warnings_of
    from attncli.trace.view import View

    return PairScores.of(trace, texts[number]), warnings_of(trace, View())


class TraceJob(NamedTuple, Generic[Value]):
    """A source, and a task for each of its traces; see `Job`."""

    task: TraceTask[Value]
    options: Mapping[str, Any]  # of `open_source`
    pair: str | None = None  # a second text in the same sequence as each sentence
    target: str | None = None  # the text whose queries attend to each sentence's keys
    predicts: bool = False  # whether the likeliest next tokens are wanted too

    def source(self) -> Source:
        """Open the source; see `open_source` for the errors."""
        from attncli.engines import open_source

        source, options = open_source(**self.options), self.options
        if not self.predicts or options["model"] is None:
            return source
        if options["mask"] is not None or options["generate"] or self.target is not None:
            raise UsageError("--show next predicts after the text, by the model's own mask; drop --mask or --generate")
        from attncli.engines.engine import open_predictor
        from attncli.engines.source import PredictingSource

        own = {
            name: value for name, value in options.items() if name not in ("layer", "head", "kind", "mask", "generate")
        }
        return PredictingSource(source, open_predictor(**own))

    def open(self, source: Source | None = None) -> BatchFn[Value]:
        """Open the source, unless one is given, and return the function from a batch to its results."""
        return partial(self._results, source or self.source())

    def traces(self, source: Source, batch: Batch) -> Iterator[tuple[int, Trace | Failure]]:
        """Yield the numbered traces of a batch, or why a sentence has none."""
        from attncli.engines.source import trace_group

        return trace_group(source, batch.sentences, self.pair, self.target)

    def _results(self, source: Source, batch: Batch) -> Iterator[Result[Value]]:
        return (self.result(number, trace) for number, trace in self.traces(source, batch))

    def result(self, number: int, trace: Trace | Failure) -> Result[Value]:
        """Return the result of a trace."""
        if isinstance(trace, Failure):
            return Result(number, trace)
        try:
            value, warnings = self.task(number, trace)
        except InputMismatchError as error:
            return Result(number, Failure(str(error), kind=InputMismatchError, metadata=trace.metadata))
        return Result(number, value, tuple(warnings), trace.source.notes)


class AblateJob(NamedTuple):
    """A causal language model, and the effects of cuts on its prediction of each sentence; see `Job`."""

    choice: AblationChoice  # cuts, and the measure
    form: str | None  # the machine format that it is encoded in; None leaves it as it is, to be drawn
    options: Mapping[str, Any] = {}  # of `open_predictor`
    pair: str | None = None  # a second text in the same sequence as each sentence
    precision: int | None = None  # digits after the point; None is all of them

    def open(self) -> BatchFn[Any]:
        """Open the model, and return the function from a batch to its results.

        Raises:
            AttnError: it cannot be opened, or the pair cannot be read.
        """
        from attncli.engines.engine import open_predictor

        check_texts(None, self.pair)
        return partial(self._results, open_predictor(**self.options))

    def _results(self, predictor: Predictor, batch: Batch) -> Iterator[Result[Any]]:
        from attncli.analysis.ablation import ablation
        from attncli.formats import part_of

        for number, text, metadata, _ in batch.sentences:
            if isinstance(text, Failure):
                yield Result(number, text)
                continue
            try:
                found = ablation(predictor, self.choice, text, self.pair)
            except (InputError, InputMismatchError) as error:
                yield Result(number, Failure(str(error), kind=type(error), metadata=metadata))
                continue
            found = replace(found, metadata=metadata) if metadata else found
            value = found if self.form is None else part_of(self.form, number, found, self)
            yield Result(number, value, found.notes, found.source.notes)


class TokenizeJob(NamedTuple):
    """A tokenizer, and a format or view of each tokenization; see `Job`."""

    choice: Choice  # the tokens to show
    form: str | None  # the machine format that they are encoded in; None leaves them as they are, to be drawn
    options: Mapping[str, Any] = {}  # of `open_tokenizer`
    pair: str | None = None  # a second text in the same sequence as each sentence

    def open(self) -> BatchFn[Any]:
        """Open the tokenizer, and return the function from a batch to its results.

        Raises:
            AttnError: it cannot be opened, or the pair cannot be read.
        """
        from attncli.engines.tokenize import open_tokenizer

        tokenizer = open_tokenizer(**self.options)
        check_texts(None, self.pair)
        return partial(self._results, tokenizer)

    def _results(self, tokenizer: Tokenizer, batch: Batch) -> Iterator[Result[Any]]:
        for number, text, metadata, _ in batch.sentences:
            if isinstance(text, Failure):
                yield Result(number, text)
                continue
            try:
                tokens = tokenizer.tokenize(text, self.pair)
            except InputError as error:
                yield Result(number, Failure(str(error), metadata=metadata))
                continue
            yield self.result(number, replace(tokens, metadata=metadata) if metadata else tokens)

    def result(self, number: int, tokens: Tokenization) -> Result[Any]:
        """Return the tokens of a sentence, or an iterator of their pieces in the format.

        Raises:
            UsageError: words were asked for, and no token has a place in the text.
        """
        tokens.shown(self.choice)  # refused here, before anything is written
        if self.form is None:
            return Result(number, tokens, tokens.notes)
        from attncli.formats import part_of

        return Result(number, part_of(self.form, number, tokens, self.choice), tokens.notes)
