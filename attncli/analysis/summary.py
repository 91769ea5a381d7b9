"""Facts of a run that every report of heads states: its source, its sentences, means and deviations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.errors import InputError, UsageError
from attncli.trace.trace import Provenance, Trace

if TYPE_CHECKING:
    from jaxtyping import Float, Int

OF_TRACES = "a trace, whose attention is already computed"


def refuse_beside(chosen: str, arguments: Mapping[str, Any]) -> None:
    """Raise UsageError if an argument is given together with one that it does not apply to."""
    for name, value in arguments.items():
        if value is not None:
            raise UsageError(f"{name} does not apply to {chosen}; drop one of them")


@dataclass(frozen=True)
class RunSummary:
    """Source and sentences of a run."""

    source: Provenance  # what ran it
    sentences: int  # how many sentences there were
    tokens: tuple[int, int]  # the fewest and the most query tokens of one
    masks: tuple[str, ...]  # the masks of the layers, each once


@dataclass(frozen=True)
class SentenceFacts:
    """Facts of one sentence that a run counts."""

    source: Provenance  # what ran it
    length: int  # how many query tokens there are
    masks: tuple[str, ...]  # the masks of the layers, each once
    places: tuple[tuple[int, str, int], ...]  # layer, kind and index of each head

    @classmethod
    def of_trace(cls, trace: Trace) -> SentenceFacts:
        """Return the facts of a trace."""
        masks = tuple(dict.fromkeys(str(layer.mask) for layer in trace.layers))
        places = tuple((layer.layer, layer.kind, head) for layer in trace.layers for head in layer.heads)
        return cls(trace.source, len(trace.query_tokens), masks, places)


class RunStats:
    """Counts sentences of one source."""

    def __init__(self) -> None:
        self.places: tuple[tuple[int, str, int], ...] = ()  # layer, kind and index of each head
        self._summary: RunSummary | None = None

    def add(self, sentence: SentenceFacts) -> None:
        """Count a sentence. Raises UsageError: it has not the heads of those before it."""
        before = self._summary or RunSummary(sentence.source, 0, (sentence.length, sentence.length), ())
        if before.sentences and sentence.places != self.places:
            raise UsageError("the traces differ in their layers and heads; measure each by itself")
        self.places, source, (least, most) = sentence.places, before.source, before.tokens
        other, details = sentence.source.details, source.details
        shared = {name: value for name, value in details.items() if other.get(name) == value}
        if len(shared) < len(details):  # each sentence has a toy vocabulary of its own
            source = source._replace(details=shared)
        lengths = min(least, sentence.length), max(most, sentence.length)
        masks = tuple(dict.fromkeys((*before.masks, *sentence.masks)))
        self._summary = RunSummary(source, before.sentences + 1, lengths, masks)

    @property
    def summary(self) -> RunSummary:
        """Facts of all sentences. Raises InputError where no sentence was read."""
        if self._summary is None:
            raise InputError("no sentence could be read")
        return self._summary


class RunningMoments:
    """Counts, means and standard deviations of cells of numbers, summed in float64 in the order in which they come.

    NaN is a number that is not defined. Sums are of distances from the first finite number of each cell, so that large
    numbers close together lose no digits.
    """

    def __init__(self) -> None:
        self.count: Int[np.ndarray, "H M"] = np.zeros((), np.int64)  # how many numbers of each cell are defined
        self._origin, self._sum, self._squares = np.array(np.nan), np.zeros(()), np.zeros(())

    def add(self, values: Float[np.ndarray, "H M"]) -> None:
        """Count the numbers of one sentence."""
        defined = ~np.isnan(values)
        self._origin = np.where(np.isnan(self._origin) & np.isfinite(values), values, self._origin)
        apart = np.where(defined, values - np.nan_to_num(self._origin), 0.0)
        self.count = self.count + defined
        with np.errstate(invalid="ignore"):  # the sum of both infinities
            self._sum, self._squares = self._sum + apart, self._squares + np.square(apart)

    @property
    def mean(self) -> Float[np.ndarray, "H M"]:
        """The mean of each cell; NaN where there is no number."""
        mean = np.nan_to_num(self._origin) + self._sum / np.maximum(self.count, 1)
        return np.where(self.count > 0, mean, np.nan)

    @property
    def std(self) -> Float[np.ndarray, "H M"]:
        """The sample standard deviation (n − 1) of each cell; NaN where there are fewer than two numbers."""
        with np.errstate(invalid="ignore"):  # an infinity is any distance from the others
            squares = np.maximum(self._squares - np.square(self._sum) / np.maximum(self.count, 1), 0.0)
        return np.where(self.count > 1, np.sqrt(squares / np.maximum(self.count - 1, 1)), np.nan)
