"""DiffLlama (Ye et al. 2024, arXiv:2410.05258): each pair of heads is a difference of two attentions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attncli.engines.torch.architectures.architecture import Architecture


class DiffLlama(Architecture):
    """Weights are shown before the difference."""

    def notes(self, config: Any, last: int) -> Iterator[str]:
        """See `Architecture.notes`."""
        half = config.num_attention_heads // 2
        yield (
            f"diffllama subtracts the output of head {half}, times a number of the layer, from that of head 0, and so "
            "on for each pair; the weights are those before"
        )
