"""Random tokens of a model's vocabulary, repeated once: the probe for induction heads.

Only the first half predicts the second one, so that a head which attends to the token after the earlier occurrence
does so by itself: Olsson et al. 2022, "In-context Learning and Induction Heads".
<https://transformer-circuits.pub/2022/in-context-learning-and-induction-heads/index.html>
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import takewhile

from attncli.encoding.encode import EncodedInput, InputEncoder, tokens_of
from attncli.errors import InputError, UsageError

SEQUENCES = 10
HALF = 50  # tokens that are drawn; fewer where the model has no room, or no vocabulary, for them


class RepeatedTokens(str):
    """A sequence of random tokens in place of a sentence."""

    seed: int

    def __new__(cls, seed: int) -> RepeatedTokens:
        """Return the sequence of a seed."""
        self = super().__new__(cls, f"repeated random tokens {seed}")
        self.seed = seed
        return self

    def draw(self, vocabulary: Sequence[int], room: int) -> list[int]:
        """Draw distinct random ids of a vocabulary, and repeat them; InputError if two tokens have no room twice."""
        count = min(HALF, len(vocabulary), room // 2)
        if count < 2:
            there = f"the vocabulary has {len(vocabulary)} that are not special, and the model reads {max(room, 0)}"
            raise InputError(f"the induction test needs two tokens twice; {there} tokens")
        import numpy as np  # which a tokenizer alone does not need

        half = np.random.default_rng(self.seed).choice(np.array(vocabulary), count, replace=False).tolist()
        return [*half, *half]

    def encode_with(self, encoder: InputEncoder) -> EncodedInput:
        """Return the tokens, with those that a tokenizer puts around a text; see `InputEncoder.encode`.

        Where it puts nothing before a text, the beginning-of-sequence token comes first, if there is one (GPT-2).
        """
        if encoder.chat is not None:
            raise UsageError("--chat does not apply to --induction, which draws its tokens; drop one of them")
        tokenizer, special = encoder.tokenizer, encoder.special_ids
        encoding, inputs = encoder.tokenize("a", None)
        around = tokens_of(encoding, "a")
        before = [token.id for token in takewhile(lambda token: token.special, around)]
        behind = [token.id for token in around[len(before) :] if token.special]
        ids = tokenizer.get_vocab()
        first = tokenizer.special_tokens_map.get("bos_token")
        if encoder.special and not before and first in ids:
            before = [ids[first]]
        rows = encoder.rows or sys.maxsize
        vocabulary = [id_ for id_ in sorted(ids.values()) if id_ not in special and id_ < rows]
        room = (encoder.limit or sys.maxsize) - len(before) - len(behind)
        sequence = [*before, *self.draw(vocabulary, room), *behind]
        tokens = encoder.tokens_of_ids(sequence)
        repeated = {name: values[:1] * len(sequence) for name, values in inputs.items()}
        return EncodedInput(self, None, None, tokens, tokens, repeated | {"input_ids": sequence}, ())


def repeated_sequences(model: str | None) -> list[RepeatedTokens]:
    """Return the sequences of the probe, the same in every run; UsageError for the toy layer."""
    if model is None:
        raise UsageError("--induction needs a model: give -m MODEL")
    return [RepeatedTokens(seed) for seed in range(SEQUENCES)]
