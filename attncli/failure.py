"""What stands in the place of a trace where a sentence of a stream is bad."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeVar

from attncli.errors import AttnError, InputError

Answer = TypeVar("Answer")
SCHEMA = "attncli.error/1"


class Failure(NamedTuple):
    """What is wrong with a sentence.

    Attributes:
        reason: one sentence.
        is_kept: whether an error document takes its place in JSON.
        kind: what is raised where there is no other sentence.
    """

    reason: str
    is_kept: bool = False
    kind: type[AttnError] = InputError

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
        AttnError: of the failure's kind, with its reason.
    """
    for number, answer in numbered:
        if isinstance(answer, Failure):
            raise answer.kind(answer.reason if is_alone else answer.of(number))
        yield number, answer
