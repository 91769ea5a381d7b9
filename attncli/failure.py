"""What stands in the place of a trace where a sentence of a stream is bad."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeVar

from attncli.errors import InputError

Answer = TypeVar("Answer")
SCHEMA = "attncli.error/1"


class Failure(NamedTuple):
    """What is wrong with a sentence.

    Attributes:
        reason: one sentence.
        is_kept: whether an error document takes its place in JSON.
    """

    reason: str
    is_kept: bool = False

    def as_dict(self, number: int) -> dict[str, str | int]:
        """Return the error document of the sentence with this number."""
        return {"schema": SCHEMA, "sentence": number, "error": self.reason}

    def of(self, number: int) -> str:
        """Return what is wrong with the sentence with this number, which is named."""
        return f"sentence {number}: {self.reason}"


def refusing(numbered: Iterable[tuple[int, Answer | Failure]], is_alone: bool = False) -> Iterator[tuple[int, Answer]]:
    """Yield numbered answers until one is a failure.

    Args:
        numbered: the answers.
        is_alone: whether there is only one sentence, so that an error need not name it.

    Raises:
        InputError: with the reason of the failure.
    """
    for number, answer in numbered:
        if isinstance(answer, Failure):
            raise InputError(answer.reason if is_alone else answer.of(number))
        yield number, answer
