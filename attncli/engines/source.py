"""Many sentences through one source, in groups; a bad sentence does not stop those after it."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, Self

from attncli.encoding.encode import check_texts
from attncli.errors import NO_METADATA, Failure, InputError, InputMismatchError, Metadata, NotExposedError, UsageError

if TYPE_CHECKING:
    from attncli.encoding.encode import EncodedInput, InputEncoder
    from attncli.engines.predictor import Predictor
    from attncli.masks.expressions import Expression
    from attncli.trace.selection import Indices
    from attncli.trace.tokens import Tokens
    from attncli.trace.trace import Trace


_MAX_GROUP = 256  # the most sentences that are computed together
# Numbers of sentences from which on other processes help, which start in tenths of a second; where a sentence takes
# next to nothing; and where the engine works on all cores already, each process with weights of its own.
PARALLEL_FROM = 512
PARALLEL_FROM_LATE = 4096
ON_REQUEST = sys.maxsize


@dataclass(frozen=True)
class ModelRequest:
    """Choice of the attention that a model records, and of how it reads texts; see `open_source`."""

    layers: Indices
    heads: Indices
    kind: str | None = None
    mask: Expression | None = None  # None is the source's own mask
    special: bool = True
    generate: int = 0


def parse_mask(mask: str | None) -> Expression | None:
    """Parse the expression or the file of a mask; UsageError if it cannot be read."""
    if mask is None:
        return None
    from attncli.masks.parser import parse  # most runs need none, and start sooner

    return parse(mask)


class Source(ABC):
    """A model that computes the traces of sentences, one after another."""

    can_batch: bool  # whether several sentences may be computed together, so that more at once are faster
    parallel_from: int  # the number of sentences from which on other processes are worth opening it again

    def trace(self, text: str, pair: str | None = None, target: str | None = None) -> Trace:
        """Return the attention of one sentence.

        Args:
            text: the sentence.
            pair: a second text in the same sequence.
            target: the text whose queries attend to the sentence's keys.
        """
        return next(iter(self.traces([text], pair, target)))

    @abstractmethod
    def traces(self, texts: Sequence[str], pair: str | None = None, target: str | None = None) -> Iterator[Trace]:
        """Yield the attention of several sentences, or of one, in order.

        They may be computed together, in bounded memory. A sentence that cannot be read ends the iteration with its
        error, after the traces of those before it.
        """


class OpenModel(Source):
    """A source that can record under another mask without being opened again."""

    name: str
    attention_layers: Sequence[int]  # layers with softmax attention, in order
    is_encoder_decoder: bool = False  # whether a decoder reads a text of its own, the target
    mask: Expression | None = None  # None is the model's own

    @abstractmethod
    def tokens(self, text: str, pair: str | None = None, target: str | None = None) -> tuple[Tokens, Tokens]:
        """Return the tokens of a sentence's queries and keys; see `Source.trace`."""

    def with_mask(self, mask: Expression | None) -> Self:
        """Return the same model under another mask, or its own for None."""
        other = copy(self)
        other.mask = mask
        return other

    def predictor(self) -> Predictor:
        """Return the predictor of next tokens; NotExposedError unless it is a causal language model."""
        raise NotExposedError(f"attn reads no next token of {self.name}; give a causal language model, such as -m demo")


class OpenCheckpoint(OpenModel):
    """A checkpoint whose texts an encoder reads."""

    encoder: InputEncoder
    kind: str | None  # the only kind of attention that is recorded; None is every kind

    def encode(self, text: str, pair: str | None = None, target: str | None = None) -> EncodedInput:
        """Encode a sentence; UsageError for a target that the model has no decoder for, or a missing one."""
        if target is not None and not self.is_encoder_decoder:
            raise UsageError("--target needs an encoder-decoder model or the toy layer; use --pair for a second text")
        if target is None and self.kind in ("decoder", "cross"):
            raise UsageError(f"--kind {self.kind} needs --target, the text of the decoder")
        return self.encoder.encode(text, pair, target)

    def tokens(self, text: str, pair: str | None = None, target: str | None = None) -> tuple[Tokens, Tokens]:
        """Return the tokens of a sentence's queries and keys; see `OpenModel.tokens`."""
        sentence = self.encode(text, pair, target)
        return sentence.query_tokens, sentence.tokens


class PredictingSource(Source):
    """A source whose traces have the likeliest next tokens too; of a text alone."""

    def __init__(self, source: Source, predictor: Predictor) -> None:
        self._source, self._predictor = source, predictor
        self.can_batch, self.parallel_from = source.can_batch, source.parallel_from

    def traces(self, texts: Sequence[str], pair: str | None = None, target: str | None = None) -> Iterator[Trace]:
        """Yield the attention of each sentence with its next tokens; see `Source.traces`."""
        for text, trace in zip(texts, self._source.traces(texts, pair, target), strict=False):
            sentence = self._predictor.encoder.encode(text, pair, None)
            yield replace(trace, next_tokens=self._predictor.next_tokens(sentence))


class CorpusItem(NamedTuple):
    """A sentence of a file, or the failure of its line."""

    number: int  # its index among the arguments, or its line or row in its file, from 1
    text: str | Failure  # the sentence
    # further fields of the file, by the names of the columns; of several files, the name as `file`
    metadata: Metadata = NO_METADATA
    target: str | None = None  # the text whose queries attend to its keys, where it has one of its own


def trace_stream(
    source: Source, sentences: Iterable[CorpusItem], pair: str | None, target: str | None
) -> Iterator[tuple[int, Trace | Failure]]:
    """Yield the trace of each sentence with its number, or its failure; computed in groups; see `Source.trace`."""
    check_texts(None, pair, target)
    # A source that runs each sentence alone need not wait for others.
    for window in windows(sentences) if source.can_batch else ([sentence] for sentence in sentences):
        yield from trace_group(source, window, pair, target)


def trace_group(
    source: Source, group: Sequence[CorpusItem], pair: str | None, target: str | None
) -> Iterator[tuple[int, Trace | Failure]]:
    """Return the trace of each sentence of a group that is computed together, or its failure; see `trace_stream`."""
    readable = [(item.text, item.target or target) for item in group if isinstance(item.text, str)]
    # A target of its own has each sentence run by itself.
    alone = any(item.target is not None for item in group)
    parts = [([text], its) for text, its in readable] if alone else [([text for text, _ in readable], target)]
    answers = chain.from_iterable(_answers(source, texts, pair, its) for texts, its in parts)

    def numbered(item: CorpusItem) -> tuple[int, Trace | Failure]:
        answer = next(answers) if isinstance(item.text, str) else item.text
        if not item.metadata:
            return item.number, answer
        if isinstance(answer, Failure):
            return item.number, answer._replace(metadata=item.metadata)
        return item.number, replace(answer, metadata=item.metadata)

    return map(numbered, group)


def _answers(source: Source, texts: list[str], pair: str | None, target: str | None) -> Iterator[Trace | Failure]:
    """Yield the trace of each sentence, or its failure, and continue after one that cannot be read."""
    together = len(texts)
    while texts:
        count = 0
        try:
            for trace in source.traces(texts[:together], pair, target):
                count += 1
                yield trace
            texts, together = texts[count:], len(texts)
        except (InputError, InputMismatchError) as error:
            if count == 0 and together > 1 < len(texts):
                together = 1  # any of them may be the one that does not fit into memory: the first one is tried alone
                continue
            yield Failure(str(error), kind=type(error))
            texts, together = texts[count + 1 :], len(texts)


def windows(sentences: Iterable[CorpusItem]) -> Iterator[list[CorpusItem]]:
    """Yield sentences in groups that a source may compute together: 1, 2–3, 4–7, … 128–255, 256–511, 512–767, ….

    The first groups are small, so that the first sentences need not wait for the last. A group depends on numbers and
    files alone: a resumed run computes the groups of one that was never interrupted.
    """
    window: list[CorpusItem] = []
    for sentence in sentences:
        if window and _window_of(window[0]) != _window_of(sentence):
            yield window
            window = []
        window.append(sentence)
        if _window_of(sentence) != _window_of(sentence._replace(number=sentence.number + 1)):  # before the next is read
            yield window
            window = []
    if window:
        yield window


def _window_of(sentence: CorpusItem) -> tuple[object, int]:
    number = sentence.number
    index = number.bit_length() if number < _MAX_GROUP else _MAX_GROUP + number // _MAX_GROUP
    return sentence.metadata.get("file"), index
