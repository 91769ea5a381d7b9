"""What stands in the place of a trace where a sentence of a stream is bad."""

from __future__ import annotations

from typing import NamedTuple

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
