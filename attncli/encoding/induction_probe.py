"""Random tokens of a model's own vocabulary, and then the same once more: what an induction head is found with.

Nothing but the first half says what the second one is, so that a head which looks at the token after the earlier one
does so by itself: Olsson et al. 2022, "In-context Learning and Induction Heads".
<https://transformer-circuits.pub/2022/in-context-learning-and-induction-heads/index.html>
"""

from __future__ import annotations

from collections.abc import Sequence

from attncli.errors import InputError, UsageError

SEQUENCES = 10
HALF = 50  # tokens that are drawn; fewer where the model has no room, or no vocabulary, for them


class Repeated(str):
    """A sequence of random tokens that stands in the place of a sentence."""

    seed: int

    def __new__(cls, seed: int) -> Repeated:
        """Return the sequence of a seed."""
        made = super().__new__(cls, f"repeated random tokens {seed}")
        made.seed = seed
        return made

    def drawn(self, vocabulary: Sequence[int], room: int) -> list[int]:
        """Return random ids of a vocabulary, none of them twice, and then all of them again.

        Args:
            vocabulary: the ids to draw from.
            room: how many tokens there may be at most.

        Raises:
            InputError: there are not two tokens to be drawn, or no room for them twice.
        """
        count = min(HALF, len(vocabulary), room // 2)
        if count < 2:
            raise InputError(
                f"the induction test needs two tokens twice; the vocabulary has {len(vocabulary)} that are not "
                f"special, and the model room for {max(room, 0)}"
            )
        import numpy as np  # which a tokenizer alone does not need

        half = np.random.default_rng(self.seed).choice(np.array(vocabulary), count, replace=False).tolist()
        return [*half, *half]


def repeated(model: str | None) -> list[Repeated]:
    """Return the sequences of the test, which are the same in every run.

    Raises:
        UsageError: the toy layer is to read them.
    """
    if model is None:
        raise UsageError(
            "--induction needs --model NAME_OR_FOLDER; the toy layer has drawn weights and no vocabulary of its own"
        )
    return [Repeated(seed) for seed in range(SEQUENCES)]
