"""Llama and its kin: decoders that differ in their norms, rotary embeddings and windows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from attncli.checkpoints.config_reader import ConfigReader, UnsupportedError
from attncli.engines.numpy.families.decoder import WHOLE, WINDOWED, Biases, Defaults, decoder, stated_biases
from attncli.engines.numpy.model_spec import ModelSpec, Residual
from attncli.engines.numpy.rope import Rope, rope_of


def llama(fields: ConfigReader) -> ModelSpec:
    """Llama (Touvron et al. 2023), with the shared keys and the long contexts of its later versions."""
    return decoder(fields, Defaults(), biases=stated_biases(fields, has_feed_forward=True))


def mistral(fields: ConfigReader) -> ModelSpec:
    """Mistral (Jiang et al. 2023): every layer looks back over a window."""
    window = fields.get("sliding_window", 4096)
    return decoder(
        fields,
        Defaults(inner=14_336, groups=8, positions=131_072),
        biases=Biases(),
        window=window,
        has_window=lambda _: window is not None,
    )


_QWEN = Defaults(vocabulary=151_936, inner=22_016, groups=32, positions=32_768)


def qwen2(fields: ConfigReader) -> ModelSpec:
    """Qwen2 (Yang et al. 2024): biases of queries, keys and values; windows only where they are switched on."""
    return _qwen(fields, Biases(inputs=True), _QWEN)


def qwen3(fields: ConfigReader) -> ModelSpec:
    """Qwen3 (Yang et al. 2025): Qwen2 with normalized queries and keys, and without the biases."""
    return _qwen(fields, stated_biases(fields), replace(_QWEN, head_width=128), normed="each")


def qwen2_vl(fields: ConfigReader) -> ModelSpec:
    """The language model of Qwen2-VL and Qwen2.5-VL (2024, 2025): Qwen2 with a position of three parts."""
    defaults = Defaults(152_064, 8192, 29_568, heads=64, layers=80, groups=8, positions=32_768, theta=1e6, eps=1e-5)
    return _qwen(fields, Biases(inputs=True), defaults, 80, ropes=partial(_ropes_of_sections, theta=defaults.theta))


def qwen3_vl(fields: ConfigReader) -> ModelSpec:
    """The language model of Qwen3-VL (2025): Qwen3 with a position of three parts."""
    defaults = Defaults(151_936, inner=22_016, groups=32, positions=128_000, theta=500_000.0, head_width=128)
    ropes = partial(_ropes_of_sections, theta=defaults.theta)
    return decoder(fields, defaults, biases=stated_biases(fields), normed="each", ropes=ropes)


def _ropes_of_sections(fields: ConfigReader, width: int, positions: int, theta: float) -> dict[str, Rope]:
    """Return how both kinds of layers rotate a text, in which time, height and width of a position are one number."""
    newer = fields.get("rope_parameters", None)
    scaling = dict(fields.get("rope_scaling", None) or newer or {})
    kinds = {scaling.pop(name, "default") for name in ("type", "rope_type")}
    if not kinds <= {"default", "mrope"}:
        raise UnsupportedError(f"its rotary embedding is {kinds!r}")
    sections = scaling.pop("mrope_section", None)
    if sections is not None and sum(sections) != width // 2:
        raise UnsupportedError(f"mrope_section is {sections!r}")
    if type(scaling.pop("mrope_interleaved", True)) is not bool:
        raise UnsupportedError("mrope_interleaved is neither true nor false")
    rope = rope_of(scaling, {"rope_theta": fields.get("rope_theta", theta)}, width, positions)
    return {WHOLE: rope, WINDOWED: rope}


def _qwen(
    fields: ConfigReader,
    biases: Biases,
    defaults: Defaults,
    first_windowed: int = 28,
    normed: str = "",
    ropes: Callable[..., dict[str, Rope]] | None = None,
) -> ModelSpec:
    has_windows = fields.get("use_sliding_window", False, among=(False, True))
    window, first = fields.get("sliding_window", 4096), fields.get("max_window_layers", first_windowed)
    return decoder(
        fields,
        defaults,
        ropes=ropes,
        window=window if has_windows else None,
        has_window=lambda layer: has_windows and window is not None and layer >= first,
        reads_layer_types=True,
        biases=biases,
        normed=normed,
    )


def smollm3(fields: ConfigReader) -> ModelSpec:
    """SmolLM3 (2025): every fourth layer does not rotate its queries and keys (Yang et al. 2025, "RoPE to NoPE …")."""
    layers = fields.layers("num_hidden_layers", 36)
    every = fields.count("no_rope_layer_interval", 4)
    rotary_layers = fields.get("no_rope_layers", None) or [int((layer + 1) % every != 0) for layer in range(layers)]
    has_windows = fields.get("use_sliding_window", False, among=(False, True))
    window = fields.get("sliding_window", None)
    if len(rotary_layers) < layers:
        raise UnsupportedError("no_rope_layers is shorter than the model")
    return decoder(
        fields,
        Defaults(vocabulary=128_256, hidden=2048, heads=16, layers=36, groups=4, positions=32_768, theta=2_000_000.0),
        biases=stated_biases(fields, has_feed_forward=True),
        window=window if has_windows else None,
        has_window=lambda layer: has_windows and window is not None and not rotary_layers[layer],
        reads_layer_types=True,
        rotary_layers=rotary_layers,
    )


def olmo2(fields: ConfigReader) -> ModelSpec:
    """OLMo 2 (2024): norms come after each sublayer, and over all queries and all keys of a token."""
    return decoder(
        fields,
        Defaults(vocabulary=50_304, eps=1e-5),
        biases=stated_biases(fields),
        normed="all",
        residuals=(Residual(after="post_attention_layernorm"), Residual(after="post_feedforward_layernorm")),
    )


SPECS = {
    "llama": llama,
    "mistral": mistral,
    "qwen2": qwen2,
    "qwen3": qwen3,
    "smollm3": smollm3,
    "olmo2": olmo2,
}
