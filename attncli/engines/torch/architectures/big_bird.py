"""BigBird (Zaheer et al. 2020, arXiv:2007.14062): full attention for a short text, and blocks for a longer one."""

from __future__ import annotations

from typing import Any

from attncli.engines.torch.architectures.architecture import Architecture
from attncli.errors import NotExposedError


class BigBird(Architecture):
    """A model that would exchange its attention modules, for good, when it first reads a short text."""

    def prepare(self, model: Any, tokens: int) -> None:
        """Give it full attention where it would take it by itself; refuse what it reads in blocks."""
        config = model.config
        most = (5 + 2 * config.num_random_blocks) * config.block_size
        if config.attention_type == "block_sparse" and tokens > most:
            raise NotExposedError(
                f"{config.model_type} attends to blocks, by several softmax, where a text has more than {most} tokens"
            )
        (model if hasattr(model, "set_attention_type") else model.encoder).set_attention_type("original_full")
