"""DeepSeek-V4: behind the tokens, the keys of some layers are blocks that a compressor made of several tokens each."""

from __future__ import annotations

from typing import Any

from attncli.engines.torch.architectures.architecture import Architecture, Positions


class DeepseekV4(Architecture):
    """Layers of three kinds: a sliding window alone, or with blocks that are all seen, or of which some are chosen."""

    adds_to_its_mask = True

    def key_positions(self, config: Any, layer: int, tokens: int) -> Positions | None:
        """See `Architecture.key_positions`."""
        kind = config.layer_types[layer]
        if kind == "sliding_attention":
            return None
        size = config.compress_rates[kind]
        # In the sparse kind a block takes in the tokens of the one before it.
        overlap = size if kind == "compressed_sparse_attention" else 0
        starts = range(0, tokens - tokens % size, size)
        return [
            *(range(index, index + 1) for index in range(tokens)),
            *(range(max(start - overlap, 0), start + size) for start in starts),
        ]

    def selected_keys(self, config: Any, count: int) -> int:
        """See `Architecture.selected_keys`: it chooses blocks of so many tokens."""
        return count * int(config.compress_rates["compressed_sparse_attention"])
