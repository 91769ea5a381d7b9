"""GPT: each token attends to those before it, and norms come before each sublayer."""

from __future__ import annotations

from attncli.checkpoints.config_reader import ConfigReader
from attncli.engines.numpy.model_spec import (
    AttentionSpec,
    Embedding,
    FeedForward,
    LookupTable,
    ModelSpec,
    Norm,
    Projections,
    Residual,
    activation_of,
    split_width,
)
from attncli.engines.numpy.ops import layer_norm
from attncli.engines.numpy.rope import read_rope
from attncli.masks.expressions import Atom


def gpt2(fields: ConfigReader) -> ModelSpec:
    """GPT-2 (Radford et al. 2019)."""
    hidden, heads = fields.count("n_embd", 768), fields.count("n_head", 12)
    layers = fields.layers("n_layer", 12)
    scale = (hidden // heads) ** -0.5 if fields.get("scale_attn_weights", True, among=(True, False)) else 1.0
    by_layer = fields.get("scale_attn_by_inverse_layer_idx", False, among=(False, True))
    fields.get("reorder_and_upcast_attn", False, among=(False, True))  # the same in float32
    positions = fields.count("n_positions", 1024)
    tokens = LookupTable("wte", fields.count("vocab_size", 50257))
    inner = 4 * hidden if fields.get("n_inner", None) is None else fields.count("n_inner")
    return ModelSpec(
        prefix="transformer.",
        layer="h.{}.",
        width=hidden,
        heads=split_width(hidden, heads),
        positions=positions,
        # Token types, where a tokenizer gives some, are ids too.
        embedding=Embedding(hidden, tokens, LookupTable("wpe", positions), segments=tokens),
        norm=Norm(layer_norm, fields.number("layer_norm_epsilon", 1e-5), has_bias=True),
        projections=Projections(
            joint="attn.c_attn", output="attn.c_proj", has_bias=True, output_has_bias=True, is_transposed=True
        ),
        feed_forward=FeedForward(
            inner, "mlp.c_fc", "mlp.c_proj", activation_of(fields, "activation_function", "gelu_new"), has_bias=True
        ),
        attention_residual=Residual(before="ln_1"),
        feed_forward_residual=Residual(before="ln_2"),
        layers=tuple(
            AttentionSpec(scale / (layer + 1) if by_layer else scale, Atom("causal")) for layer in range(layers)
        ),
    )


def gpt_neox(fields: ConfigReader) -> ModelSpec:
    """GPT-NeoX (Black et al. 2022) and Pythia: both sublayers read the same input, a quarter of a head is rotated."""
    hidden, heads = fields.count("hidden_size", 6144), fields.count("num_attention_heads", 64)
    positions = fields.count("max_position_embeddings", 2048)
    theta, part = fields.number("rotary_emb_base", 10_000.0), fields.number("rotary_pct", 0.25)
    has_bias = fields.get("attention_bias", True, among=(True, False))
    rope = read_rope(fields, hidden // heads, positions, theta, part)
    attention = AttentionSpec((hidden // heads) ** -0.5, Atom("causal"), rope)
    return ModelSpec(
        prefix="gpt_neox.",
        layer="layers.{}.",
        width=hidden,
        heads=split_width(hidden, heads),
        positions=positions,
        embedding=Embedding(hidden, LookupTable("embed_in", fields.count("vocab_size", 50432))),
        norm=Norm(layer_norm, fields.number("layer_norm_eps", 1e-5), has_bias=True),
        projections=Projections(
            joint="attention.query_key_value",
            interleaved_qkv=True,
            output="attention.dense",
            has_bias=has_bias,
            output_has_bias=has_bias,
        ),
        feed_forward=FeedForward(
            fields.count("intermediate_size", 24576),
            "mlp.dense_h_to_4h",
            "mlp.dense_4h_to_h",
            activation_of(fields, "hidden_act", "gelu"),
            has_bias=True,
        ),
        attention_residual=Residual(before="input_layernorm"),
        feed_forward_residual=Residual(before="post_attention_layernorm"),
        layers=(attention,) * fields.layers("num_hidden_layers", 44),
        is_parallel=fields.get("use_parallel_residual", True, among=(True, False)),
    )


SPECS = {"gpt2": gpt2, "gpt_neox": gpt_neox}
