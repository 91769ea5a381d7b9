"""Many sentences through one source, in groups; a bad sentence does not stop those after it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from attncli.errors import Failure, InputError, MisfitError
from attncli.sources.reading import check_texts
from attncli.text import several

if TYPE_CHECKING:
    from attncli.trace.trace import Trace


class Source(Protocol):
    """What turns one sentence after another into a trace.

    Attributes:
        runs_together: whether several sentences may be computed side by side, so that more at once are faster.
    """

    runs_together: bool

    def trace(self, text: str, pair: str | None = None, target: str | None = None) -> Trace:
        """Return the attention of one sentence.

        Args:
            text: the sentence; empty where a target stands alone.
            pair: a second text in the same sequence.
            target: the text whose queries attend to the sentence's keys.
        """

    def traces(self, texts: Sequence[str], pair: str | None = None, target: str | None = None) -> Iterator[Trace]:
        """Yield the attention of several sentences, or of one, in order.

        They may be computed side by side, in bounded memory. A sentence that cannot be read ends the iteration with its
        error, after the traces of those before it.
        """


Numbered = tuple[int, str | Failure]  # a sentence, or why a line is none

MOST_TOGETHER = 256


class OneByOne(ABC):
    """A source that computes its sentences one after the other; see `attncli.sources.stream.Source`."""

    runs_together = False

    @abstractmethod
    def trace(self, text: str, pair: str | None = None, target: str | None = None) -> Trace:
        """Return the attention of one sentence; see `Source.trace`."""

    def traces(self, texts: Sequence[str], pair: str | None = None, target: str | None = None) -> Iterator[Trace]:
        """Yield the attention of each sentence, in order; see `Source.traces`."""
        for text in several(texts):
            yield self.trace(text, pair, target)


def traced(
    source: Source,
    texts: Iterable[Numbered],
    pair: str | None,
    target: str | None,
    is_due: Callable[[int], bool] | None = None,
    first_due: int = 1,
) -> Iterator[tuple[int, Trace | Failure]]:
    """Yield the trace of each numbered sentence, or why it has none; computed in groups.

    Args:
        source: what computes the traces.
        texts: the sentences.
        pair: a second text in the same sequence as each.
        target: the text whose queries attend to each sentence's keys.
        is_due: whether the sentence with a number is still to be answered; None: all are. Sentences that are not due
            run only where they share the group of the first one that is.
        first_due: the number of the first sentence that is due.

    Raises:
        InputError: the pair or the target cannot be read.
    """
    check_texts(None, pair, target)
    # What runs each sentence by itself need not wait for others.
    for window in windows(texts) if source.runs_together else ([one] for one in texts):
        if is_due is not None and window[-1][0] < first_due:
            window = [one for one in window if is_due(one[0])]
        answers = _answers(source, [text for _, text in window if isinstance(text, str)], pair, target)
        for number, text in window:
            answer = next(answers) if isinstance(text, str) else text
            if is_due is None or is_due(number):
                yield number, answer


def _answers(source: Source, texts: list[str], pair: str | None, target: str | None) -> Iterator[Trace | Failure]:
    """Yield the trace of each sentence, or why it has none; after a sentence that cannot be read, go on."""
    together = len(texts)
    while texts:
        count = 0
        try:
            for trace in source.traces(texts[:together], pair, target):
                count += 1
                yield trace
            texts, together = texts[count:], len(texts)
        except (InputError, MisfitError) as error:
            if count == 0 and together > 1 < len(texts):
                together = 1  # any of them may be the one that does not fit into memory: the first one is tried alone
                continue
            yield Failure(str(error), kind=type(error))
            texts, together = texts[count + 1 :], len(texts)


def windows(numbered: Iterable[Numbered]) -> Iterator[list[Numbered]]:
    """Yield sentences in groups that a source may compute side by side: 1, 2–3, 4–7, … 128–255, 256–511, 512–767, ….

    The first groups are small, so that the first sentences need not wait for the last. Numbers alone say where a group
    ends: a run that goes on in the middle computes the groups of one that was never interrupted.
    """
    window: list[Numbered] = []
    for number, text in numbered:
        if window and _window_of(window[0][0]) != _window_of(number):
            yield window
            window = []
        window.append((number, text))
        if _window_of(number) != _window_of(number + 1):  # before the next one is read
            yield window
            window = []
    if window:
        yield window


def _window_of(number: int) -> int:
    """Return which group a sentence is in: by powers of two up to `MOST_TOGETHER`, and then so many at a time."""
    return number.bit_length() if number < MOST_TOGETHER else MOST_TOGETHER + number // MOST_TOGETHER
