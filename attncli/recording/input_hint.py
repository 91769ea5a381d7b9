"""What inputs of modules say of the calls to come, and who takes it; without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Bool, Int

    from attncli.masks.findings import Finding
    from attncli.recording.call import CallSite
    from attncli.recording.losses import Loss


class InputHint(NamedTuple):
    """What an input of a module says of the positions of a batch.

    Attributes:
        kind: `tokens`, or `unpadded` where all of them are, `positions`, `documents`, `encoded`: the tokens of an
            encoder whose output is attended to, `prompt`: the tokens of a prompt and what was generated since, or
            `answers`: what a loss asks for and is seen.
        values: of tokens, 1 where a position is one and 0 where it is padding; of positions, themselves; of documents,
            the number of the document of each position, −1 where it is in none; of answers, 1 where a query sees one.
        size: how many positions a row has; 0 is a first position of any number of them.
        digest: what tells it from others.
        is_sure: of tokens, whether padding stands at one end of the rows alone, as only padding does; of positions,
            whether they choose learned vectors from a table that has more of them; of what was encoded, whether it was
            handed over as keys and as values.
        who: of tokens, who says what padding is: the embedding itself, the configuration of a model, or both.
    """

    kind: Literal["tokens", "unpadded", "positions", "documents", "encoded", "prompt", "answers"]
    values: Int[np.ndarray, "B T"]
    size: int
    digest: int
    is_sure: bool = True
    who: Literal["embedding", "configuration", "both"] = "embedding"


class Hints(Protocol):
    """Who takes what inputs say, of a thread."""

    def tell(self, told: InputHint) -> None:
        """Take in what is said of the calls to come."""

    def begins(self) -> tuple[int, int]:
        """Return how many calls were made, and how much was told, when a module begins."""

    def ends(self, begun: tuple[int, int]) -> int:
        """Return how many calls a module made; what was told inside of it ends with it, if it made some."""

    def encoded(self) -> Bool[np.ndarray, "B T"] | None:
        """Return which keys of the last call are tokens, if it hides padding."""

    def attends_to(self, told: InputHint) -> None:
        """Take in of what the keys of the last call were made."""

    def learn(self, loss: Loss) -> None:
        """Take in a loss, while the program waits."""


class CallListener(Protocol):
    """Who takes what is said of calls besides what they are themselves."""

    def here(self) -> Hints:
        """Return who takes what is said in the thread that runs."""

    def notice(self, place: CallSite, finding: Finding) -> None:
        """Take in what shows to be wrong with the attention of a place after it was handed over, by its output."""
