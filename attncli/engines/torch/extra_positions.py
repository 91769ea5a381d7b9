"""Keys that are no tokens of the text: what they are called, and which tokens they stand for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from attncli.engines.torch.architectures import architecture_of
from attncli.trace.tokens import Token, Tokens


def has_own_keys(config: Any, layers: int) -> bool:
    """Return whether some of a model's layers have keys that are no tokens."""
    return any(architecture_of(config).key_positions(config, layer, 0) is not None for layer in range(layers))


def key_tokens_of(config: Any, layer: int, tokens: Tokens) -> Tokens | None:
    """Return what a layer's keys are; None where they are the tokens."""
    positions = architecture_of(config).key_positions(config, layer, len(tokens))
    if positions is None:
        return None
    first: dict[tuple[int, ...], int] = {}  # positions of the same tokens have the same id
    found = []
    for index, position in enumerate(positions):
        if len(position) == 1:
            found.append(replace(tokens[position[0]], index=index))
        else:
            own = first.setdefault(tuple(tokens[piece].id for piece in position), -1 - index)
            found.append(_group(index, own, [tokens[piece] for piece in position]))
    return Tokens(found)


def _group(index: int, id_: int, pieces: Sequence[Token]) -> Token:
    """Return the position that stands for several tokens, from the first character of theirs to the last."""
    segment = next((token.segment for token in pieces if not token.special), pieces[0].segment)
    places = [token for token in pieces if token.segment == segment and not token.special]
    return Token(
        index,
        id_,
        f"tokens {pieces[0].index}-{pieces[-1].index}",
        start=min((token.start for token in places if token.start is not None), default=None),
        end=max((token.end for token in places if token.end is not None), default=None),
        special=all(token.special for token in pieces),
        segment=segment,
        pieces=tuple(token.index for token in pieces),
    )
