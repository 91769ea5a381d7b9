"""A stream of sentences, some of which are bad: each is answered by what was asked for, or by what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Generic

from attncli.errors import Answer, Failure, MisfitError
from attncli.terminal import complain, note

if TYPE_CHECKING:
    from attncli.trace.trace import Trace
    from attncli.trace.view import View


class Answers(Generic[Answer]):
    """Numbered answers; those that are failures are said on stderr as they come by.

    Attributes:
        failures: how many have come by so far.
    """

    def __init__(self, numbered: Iterable[tuple[int, Answer | Failure]], keeps_errors: bool = False) -> None:
        self.failures = 0
        self._numbered = numbered
        self._keeps_errors = keeps_errors

    def __iter__(self) -> Iterator[tuple[int, Answer | Failure]]:
        """Yield all of them."""
        for number, answer in self._numbered:
            if isinstance(answer, Failure):
                self.failures += 1
                complain(answer.of(number))
                yield number, answer._replace(is_kept=self._keeps_errors)
            else:
                yield number, answer

    def good(self) -> Iterator[tuple[int, Answer]]:
        """Yield those that are no failures."""
        for number, answer in self:
            if not isinstance(answer, Failure):
                yield number, answer


def fitting(numbered: Iterable[tuple[int, Trace | Failure]], view: View) -> Iterator[tuple[int, Trace | Failure]]:
    """Pass numbered traces on; one that lacks the tokens to be shown is a failure, as a sentence that cannot be read.

    Raises:
        UsageError: no trace could give what is wanted.
        NotExposedError: the layers can give nothing of what is wanted.
    """
    for number, answer in numbered:
        if not isinstance(answer, Failure):
            try:
                view.check(answer)
            except MisfitError as error:
                answer = Failure(str(error), kind=MisfitError)
        yield number, answer


def warn(warnings: Iterable[str], number: int, is_alone: bool) -> None:
    """Say warnings about a sentence on stderr; one among several is named."""
    for warning in warnings:
        note(f"warning: {warning}" if is_alone else f"warning: sentence {number}: {warning}")
