"""DeepSeek-V4: behind the tokens, the keys of some layers are blocks that a compressor made of several tokens each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from attncli.engines.torch.architectures.architecture import Architecture
from attncli.trace.tokens import Token, Tokens


class DeepseekV4(Architecture):
    """Layers of three kinds: a sliding window alone, or with blocks that are all seen, or of which some are chosen."""

    adds_to_its_mask = True

    def key_count(self, config: Any, layer: int, tokens: int) -> int | None:
        """See `Architecture.key_count`."""
        kind = config.layer_types[layer]
        return None if kind == "sliding_attention" else tokens + tokens // config.compress_rates[kind]

    def key_tokens(self, config: Any, layer: int, tokens: Tokens) -> Tokens | None:
        """See `Architecture.key_tokens`."""
        kind = config.layer_types[layer]
        if kind == "sliding_attention":
            return None
        size = config.compress_rates[kind]
        # In the sparse kind a block takes in the tokens of the one before it.
        overlap = size if kind == "compressed_sparse_attention" else 0
        starts = range(0, len(tokens) - len(tokens) % size, size)
        blocks = [tokens[max(start - overlap, 0) : start + size] for start in starts]
        ids: dict[tuple[int, ...], int] = {}  # blocks of the same tokens have the same id
        for index, block in enumerate(blocks, start=len(tokens)):
            ids.setdefault(tuple(token.id for token in block), -1 - index)
        keys = [replace(token, index=index) for index, token in enumerate(tokens)]
        for index, block in enumerate(blocks, start=len(tokens)):
            keys.append(_block_token(index, ids[tuple(token.id for token in block)], block))
        return Tokens(keys)

    def selected_keys(self, config: Any, count: int) -> int:
        """See `Architecture.selected_keys`: it chooses blocks of so many tokens."""
        return count * int(config.compress_rates["compressed_sparse_attention"])


def _block_token(index: int, id_: int, pieces: Sequence[Token]) -> Token:
    """Return the key that stands for several tokens, from the first character of theirs to the last."""
    segment = next((token.segment for token in pieces if not token.special), pieces[0].segment)
    own = [token for token in pieces if token.segment == segment and not token.special]
    return Token(
        index,
        id_,
        f"tokens {pieces[0].index}-{pieces[-1].index}",
        start=min((token.start for token in own if token.start is not None), default=None),
        end=max((token.end for token in own if token.end is not None), default=None),
        special=all(token.special for token in pieces),
        segment=segment,
        pieces=tuple(token.index for token in pieces),
    )
