"""Gemma: decoders with scaled embeddings, whose norms are stored as their distance from 1."""

from __future__ import annotations

from typing import Any

from attncli.checkpoints.config_reader import ConfigReader, UnsupportedError
from attncli.engines.numpy.families.decoder import WHOLE, WINDOWED, Defaults, decoder, stated_biases
from attncli.engines.numpy.model_spec import ModelSpec, Residual, activation_of
from attncli.engines.numpy.rope import Rope, rope_of


def gemma(fields: ConfigReader) -> ModelSpec:
    """Gemma (2024): wide heads, scaled embeddings, norms stored as their distance from 1."""
    fields.get("hidden_activation", None, among=(None, "gelu_pytorch_tanh"))  # of later versions; not read here
    return decoder(
        fields,
        Defaults(256_000, hidden=3072, inner=24_576, heads=16, layers=28, groups=16, head_width=256, positions=8192),
        biases=stated_biases(fields),
        activation=activation_of(fields, "hidden_act", "gelu_pytorch_tanh", {"gelu": "gelu_pytorch_tanh"}),
        is_gemma=True,
    )


# Gemma 2 and 3 normalize what enters a sublayer and what leaves it.
_SANDWICHED = (
    Residual(before="input_layernorm", after="post_attention_layernorm"),
    Residual(before="pre_feedforward_layernorm", after="post_feedforward_layernorm"),
)


def gemma2(fields: ConfigReader) -> ModelSpec:
    """Gemma 2 (2024): every other layer has a window, scores are capped."""
    fields.get("final_logit_softcapping", 30.0)  # of the head on top
    return decoder(
        fields,
        Defaults(256_000, hidden=2304, inner=9216, heads=8, layers=26, groups=4, head_width=256, positions=8192),
        **_of_later_gemmas(fields),
        has_window=lambda layer: layer % 2 == 0,
        reads_layer_types=True,
        softcap=fields.get("attn_logit_softcapping", 50.0),
    )


def gemma3(fields: ConfigReader) -> ModelSpec:
    """Gemma 3 (2025): five layers with a window to one without, each kind with its own rotary frequencies."""
    fields.get("final_logit_softcapping", None)
    fields.get("attn_logit_softcapping", None, among=(None,))
    every = fields.count("sliding_window_pattern", 6)
    fields.get("_sliding_window_pattern", None)  # as transformers writes it beside the list of layers; not read here
    return decoder(
        fields,
        Defaults(262_208, hidden=2304, inner=9216, heads=8, layers=26, groups=4, head_width=256, positions=131_072),
        **_of_later_gemmas(fields),
        has_window=lambda layer: (layer + 1) % every != 0,
        reads_layer_types=True,
        normed="each",
        ropes=_ropes_of_gemma3,
    )


def _of_later_gemmas(fields: ConfigReader) -> dict[str, Any]:
    fields.get("hidden_act", None, among=(None, "gelu_pytorch_tanh"))  # of the first version; not read here
    return {
        "biases": stated_biases(fields),
        "activation": activation_of(fields, "hidden_activation", "gelu_pytorch_tanh"),
        "is_gemma": True,
        "residuals": _SANDWICHED,
        "window": fields.get("sliding_window", 4096),
        "scaled_by": fields.number("query_pre_attn_scalar", 256),
    }


def _ropes_of_gemma3(fields: ConfigReader, width: int, positions: int) -> dict[str, Rope]:
    parameters = fields.get("rope_parameters", None) or {}
    # As transformers reads it: a kind under its older name, `type`, is not the one that counts.
    long = {**(parameters.get(WHOLE) or {"rope_type": "default"}), **(fields.get("rope_scaling", None) or {})}
    thetas = fields.get("rope_theta", 1_000_000.0), fields.get("rope_local_base_freq", 10_000.0)
    if parameters.keys() - {WHOLE, WINDOWED}:
        raise UnsupportedError("its rotary parameters are of other kinds of layers")
    return {
        WHOLE: rope_of(long, {"rope_theta": thetas[0]}, width, positions),
        WINDOWED: rope_of(parameters.get(WINDOWED) or {}, {"rope_theta": thetas[1]}, width, positions),
    }


SPECS = {"gemma": gemma, "gemma2": gemma2, "gemma3_text": gemma3}
