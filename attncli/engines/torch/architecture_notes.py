"""What is particular about the attention of some architectures, in a sentence for the user."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attncli.engines.torch.global_tokens import has_global_tokens, needs_pair
from attncli.errors import NotExposedError
from attncli.text import visible

_WITHOUT_WEIGHTS = {
    "mra": "it approximates attention by the means of blocks, and looks at single tokens in some blocks alone",
    "yoso": "it estimates attention by how often hashes of queries and keys collide, without a softmax",
}


def check_has_weights(name: str, config: Any) -> None:
    """Raise NotExposedError for an architecture whose attention has no weight for each pair of tokens."""
    if config.model_type in _WITHOUT_WEIGHTS:
        raise NotExposedError(
            f"{visible(name)} ({config.model_type}) has no weight for each pair of tokens: "
            f"{_WITHOUT_WEIGHTS[config.model_type]}"
        )


def notes(config: Any, last: int) -> Iterator[str]:
    """Yield what a model computes beside the weights that are shown, or by chance.

    Args:
        config: of the model.
        last: the highest layer that is shown.
    """
    if config.model_type == "diffllama":
        half = config.num_attention_heads // 2
        yield (
            f"diffllama subtracts the output of head {half}, times a number of the layer, from that of head 0, and so "
            "on for each pair; the weights are those before"
        )
    if config.model_type == "prophetnet":
        yield "prophetnet predicts more tokens ahead in streams beside the main one, which alone is shown"
    if config.model_type in ("led", "longformer") and not has_global_tokens(config):
        yield f"no token sees the whole text: {config.model_type} has global tokens only where its caller chooses them"
    if needs_pair(config):
        yield "a part of the text sees the whole of it where there are three separators, as --pair makes them"
    if config.model_type == "reformer" and "lsh" in config.attn_layers[:last] and config.hash_seed is None:
        yield (
            f"the LSH layers hash a text of more than {config.lsh_attn_chunk_length} tokens at random (hash_seed is "
            "not set): what comes after them is another in each run"
        )
