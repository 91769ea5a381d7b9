"""Llama and its kin: decoders that differ in their norms, rotary embeddings and windows."""

from __future__ import annotations

from attncli.sources.native.families.decoder import Biases, Usual, decoder, stated_biases
from attncli.sources.native.fields import DeclinedError, Fields
from attncli.sources.native.recipe import Recipe, Residual


def llama(fields: Fields) -> Recipe:
    """Llama (Touvron et al. 2023), with the shared keys and the long contexts of its later versions."""
    return decoder(fields, Usual(), biases=stated_biases(fields, has_feed_forward=True))


def mistral(fields: Fields) -> Recipe:
    """Mistral (Jiang et al. 2023): every layer looks back over a window."""
    window = fields.take("sliding_window", 4096)
    return decoder(
        fields,
        Usual(inner=14_336, groups=8, positions=131_072),
        biases=Biases(),
        window=window,
        windowed=lambda _: window is not None,
    )


def qwen2(fields: Fields) -> Recipe:
    """Qwen2 (Yang et al. 2024): biases of queries, keys and values; windows only where they are switched on."""
    return _qwen(fields, biases=Biases(inputs=True))


def qwen3(fields: Fields) -> Recipe:
    """Qwen3 (Yang et al. 2025): Qwen2 with normalized queries and keys, and without the biases."""
    return _qwen(fields, head_width=128, biases=stated_biases(fields), normed="each")


def _qwen(fields: Fields, biases: Biases, head_width: int | None = None, normed: str = "") -> Recipe:
    has_windows = fields.take("use_sliding_window", False, among=(False, True))
    window, first = fields.take("sliding_window", 4096), fields.take("max_window_layers", 28)
    usual = Usual(vocabulary=151_936, inner=22_016, groups=32, positions=32_768, head_width=head_width)
    return decoder(
        fields,
        usual,
        window=window if has_windows else None,
        windowed=lambda layer: has_windows and window is not None and layer >= first,
        is_listed=True,
        biases=biases,
        normed=normed,
    )


def smollm3(fields: Fields) -> Recipe:
    """SmolLM3 (2025): every fourth layer does not rotate its queries and keys (Yang et al. 2025, "RoPE to NoPE …")."""
    layers = fields.layers("num_hidden_layers", 36)
    every = fields.count("no_rope_layer_interval", 4)
    turns = fields.take("no_rope_layers", None) or [int((layer + 1) % every != 0) for layer in range(layers)]
    has_windows = fields.take("use_sliding_window", False, among=(False, True))
    window = fields.take("sliding_window", None)
    if len(turns) < layers:
        raise DeclinedError("no_rope_layers is shorter than the model")
    return decoder(
        fields,
        Usual(vocabulary=128_256, hidden=2048, heads=16, layers=36, groups=4, positions=32_768, theta=2_000_000.0),
        biases=stated_biases(fields, has_feed_forward=True),
        window=window if has_windows else None,
        windowed=lambda layer: has_windows and window is not None and not turns[layer],
        is_listed=True,
        turns=turns,
    )


def olmo2(fields: Fields) -> Recipe:
    """OLMo 2 (2024): norms come after each sublayer, and over all queries and all keys of a token."""
    return decoder(
        fields,
        Usual(vocabulary=50_304, eps=1e-5),
        biases=stated_biases(fields),
        normed="all",
        residuals=(Residual(after="post_attention_layernorm"), Residual(after="post_feedforward_layernorm")),
    )
