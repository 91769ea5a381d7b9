"""Jobs on batches of sentences; those of the commands: a model, and a task for what it computes of each sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import starmap
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from attncli.encoding.encode import check_texts
from attncli.engines.source import PARALLEL_FROM, CorpusItem, trace_group
from attncli.errors import Failure, InputError, InputMismatchError

if TYPE_CHECKING:
    from pathlib import Path

    from attncli.analysis.ablation import Ablation, AblationChoice
    from attncli.analysis.heads import SentenceMetrics
    from attncli.analysis.pairs import PairedText, PairScores
    from attncli.engines.source import Source
    from attncli.trace.tokenization import Tokenization
    from attncli.trace.trace import Derivation, Trace
    from attncli.trace.view import View

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


Items = Callable[[Sequence["CorpusItem"], str | None, str | None], Iterator[tuple[int, Any]]]
"""Function from sentences, a pair and a target to their numbers and what a model computes of each, or a `Failure`."""
Task = Callable[[int, Any], tuple[Value, Iterable[str]]]
"""Function from a sentence's number and item to a result and its warnings, which can be pickled.

It raises InputMismatchError if its options do not fit this sentence, but may fit another one.
"""


@dataclass(frozen=True)
class ModelJob(Generic[Value]):
    """A model, and a task for each sentence; see `Job`."""

    open_model: Callable[..., Items]  # a function of a module, which can be pickled
    task: Task[Value] | None  # None returns what the model computes
    options: Mapping[str, Any]  # of `open_model`
    pair: str | None = None  # a second text in the same sequence as each sentence
    target: str | None = None  # the text whose queries attend to each sentence's keys
    parallel_from: int = PARALLEL_FROM  # the sentence from which on other processes are worth opening it again

    def open(self, items_of: Items | None = None) -> BatchFn[Value]:
        """Open the model, unless it is given, and return the function from a batch to its results.

        Raises:
            AttnError: it cannot be opened, or the pair or the target cannot be read.
        """
        items_of_batch = items_of or self.open_model(**self.options)
        check_texts(None, self.pair, self.target)
        return lambda batch: starmap(self.result, items_of_batch(batch.sentences, self.pair, self.target))

    def result(self, number: int, item: Any) -> Result[Value]:
        """Return the result of an item, or of the failure of a sentence."""
        if isinstance(item, Failure):
            return Result(number, item)
        try:
            value, warnings = (item, ()) if self.task is None else self.task(number, item)
        except InputMismatchError as error:
            return Result(number, Failure(str(error), kind=InputMismatchError, metadata=item.metadata))
        source = getattr(item, "source", None)  # which a tokenization has none of
        return Result(number, value, tuple(warnings), () if source is None else source.notes)


def open_traces(**options: Any) -> Items:
    """Open the source of traces; see `source_of`."""
    return partial(trace_group, source_of(**options))


def source_of(predicts: bool = False, **options: Any) -> Source:
    """Open a source, with the likeliest next tokens if it `predicts`; see `open_source` for the options and errors."""
    from attncli.engines import open_source

    source = open_source(**options)
    if not predicts or options["model"] is None:
        return source
    from attncli.engines.engine import open_predictor
    from attncli.engines.source import PredictingSource

    unused = ("layer", "head", "kind", "mask", "generate")
    return PredictingSource(source, open_predictor(**{name: options[name] for name in options if name not in unused}))


def open_ablations(choice: AblationChoice, **options: Any) -> Items:
    """Open a causal language model, whose prediction is cut; see `open_predictor` for the options and errors."""
    from attncli.analysis.ablation import ablation
    from attncli.engines.engine import open_predictor

    predictor = open_predictor(**options)
    return partial(_one_by_one, lambda text, pair: ablation(predictor, choice, text, pair))


def open_tokenizations(**options: Any) -> Items:
    """Open a tokenizer; see `open_tokenizer` for the options and errors."""
    from attncli.engines.tokenize import open_tokenizer

    return partial(_one_by_one, open_tokenizer(**options).tokenize)


def _one_by_one(
    compute: Callable[[str, str | None], Ablation | Tokenization],
    sentences: Sequence[CorpusItem],
    pair: str | None,
    _: str | None,
) -> Iterator[tuple[int, Any]]:
    for number, text, metadata, _target in sentences:
        item: Any = text
        if isinstance(text, str):
            try:
                item = replace(compute(text, pair), metadata=metadata)
            except (InputError, InputMismatchError) as error:
                item = Failure(str(error), kind=type(error), metadata=metadata)
        yield number, item


# --- tasks -------------------------------------------------------------------------------------------------


def render(
    number: int, trace: Trace, *, derivation: Derivation, view: View, form: str | None = None, save: Path | None = None
) -> tuple[Any, Iterable[str]]:
    """Return a derived trace, to be drawn, or an iterator over its pieces in a format; see `Task`.

    `save` is a file for the trace as it was recorded.
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
    """Return the metrics of all heads in the rows of a view; `is_test` marks the induction test; see `Task`."""
    from attncli.analysis.heads import SentenceMetrics
    from attncli.analysis.warnings import warnings_of, warnings_of_test

    return SentenceMetrics.of(trace, view), (*warnings_of(trace, view), *(warnings_of_test(trace) if is_test else ()))


def score_pairs(number: int, trace: Trace, *, texts: Mapping[int, PairedText]) -> tuple[PairScores, Iterable[str]]:
    """Return how often each head finds the right keys of a text, which its number names; see `Task`."""
    from attncli.analysis.pairs import PairScores
    from attncli.analysis.warnings import warnings_of
    from attncli.trace.view import View

    return PairScores.of(trace, texts[number]), warnings_of(trace, View())


def encode(
    number: int, item: Ablation | Tokenization, *, form: str | None, shown: View | None = None
) -> tuple[Any, Iterable[str]]:
    """Return the effects of cuts or the tokens of a sentence, or their pieces in a format; see `Task`.

    `shown` has the digits of effects.
    """
    from attncli.formats import part_of

    return item if form is None else part_of(form, number, item, shown), item.notes
