"""A decoder like Llama: root mean square norms, rotated queries and keys, gated feed-forward networks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from attncli.checkpoints.config_reader import ConfigReader, UnsupportedError
from attncli.engines.numpy.model_spec import (
    AttentionSpec,
    Embedding,
    FeedForward,
    HeadSpec,
    Hidden,
    LookupTable,
    ModelSpec,
    Norm,
    Projections,
    Residual,
    activation_of,
)
from attncli.engines.numpy.ops import rms_norm
from attncli.engines.numpy.rope import Rope, read_rope
from attncli.masks.expressions import Atom

WHOLE, WINDOWED = "full_attention", "sliding_attention"  # as configurations call the kinds of layers


@dataclass(frozen=True)
class Defaults:
    """The defaults of a family of decoders; None is computed from the rest."""

    vocabulary: int = 32_000
    hidden: int = 4096
    inner: int = 11_008
    heads: int = 32
    layers: int = 32
    groups: int | None = None
    head_width: int | None = None
    positions: int = 2048
    theta: float = 10_000.0
    eps: float = 1e-6


class Biases(NamedTuple):
    """Which projections have biases.

    Attributes:
        inputs: those of queries, keys and values.
        output: that of the concatenated heads.
        feed_forward: those of the feed-forward network.
    """

    inputs: bool = False
    output: bool = False
    feed_forward: bool = False


def stated_biases(fields: ConfigReader, has_feed_forward: bool = False) -> Biases:
    """Return the biases that a configuration states, where the family has them in the feed-forward network too."""
    attention = fields.get("attention_bias", False, among=(False, True))
    return Biases(attention, attention, has_feed_forward and fields.get("mlp_bias", False, among=(False, True)))


def decoder(
    fields: ConfigReader,
    defaults: Defaults,
    *,
    biases: Biases,
    activation: Callable[[Hidden], Hidden] | None = None,
    residuals: tuple[Residual, Residual] = (
        Residual(before="input_layernorm"),
        Residual(before="post_attention_layernorm"),
    ),
    normed: str = "",
    window: int | None = None,
    has_window: Callable[[int], bool] = lambda _: False,
    reads_layer_types: bool = False,
    rotary_layers: Sequence[int] | None = None,
    ropes: Callable[..., dict[str, Rope]] | None = None,
    scaled_by: float | None = None,
    softcap: float | None = None,
    is_gemma: bool = False,
) -> ModelSpec:
    """Return the spec of a model like Llama.

    Args:
        fields: of the configuration.
        defaults: the defaults of the family.
        biases: which projections have them.
        activation: of the feed-forward network; None reads the defaults field.
        residuals: normalizations around attention and feed-forward network.
        normed: how queries and keys are normalized, `each` head by itself or `all` together; empty: not at all.
        window: how many keys a query with a window sees.
        has_window: which layers have one.
        reads_layer_types: whether the configuration may list the kinds of its layers instead.
        rotary_layers: which layers rotate queries and keys; None is all.
        ropes: reads how each kind of layer rotates them; None is one way for all.
        scaled_by: what scores are divided by the root of; None is the width of a head.
        softcap: of the scores.
        is_gemma: whether embeddings are scaled and norms are stored as their distance from 1.
    """
    hidden, heads = fields.count("hidden_size", defaults.hidden), fields.count("num_attention_heads", defaults.heads)
    layers, positions = (
        fields.layers("num_hidden_layers", defaults.layers),
        fields.count("max_position_embeddings", defaults.positions),
    )
    groups = fields.get("num_key_value_heads", defaults.groups) or heads
    width = fields.get("head_dim", defaults.head_width) or hidden // heads
    if type(groups) is not int or heads % groups or type(width) is not int:
        raise UnsupportedError(f"{heads} heads of width {width!r} share {groups!r} keys")
    kinds = _listed(fields, layers) if reads_layer_types else None
    kinds = kinds or [WINDOWED if has_window(layer) else WHOLE for layer in range(layers)]
    if WINDOWED in kinds and (type(window) is not int or window < 1):
        raise UnsupportedError(f"sliding_window is {window!r}")
    masks = {WHOLE: Atom("causal"), WINDOWED: Atom("window", (window or 0,))}
    rope_of_kind = (
        ropes(fields, width, positions)
        if ropes
        else dict.fromkeys(masks, read_rope(fields, width, positions, defaults.theta))
    )
    scale = (scaled_by or width) ** -0.5
    return ModelSpec(
        prefix="model.",
        layer="layers.{}.",
        width=hidden,
        positions=positions,
        heads=HeadSpec(heads, groups, width),
        embedding=Embedding(
            hidden,
            LookupTable("embed_tokens", fields.count("vocab_size", defaults.vocabulary)),
            scale=hidden**0.5 if is_gemma else 1.0,
        ),
        norm=Norm(rms_norm, fields.number("rms_norm_eps", defaults.eps), offset=1.0 if is_gemma else 0.0),
        projections=Projections(
            query="self_attn.q_proj",
            key="self_attn.k_proj",
            value="self_attn.v_proj",
            output="self_attn.o_proj",
            has_bias=biases.inputs,
            output_has_bias=biases.output,
            query_norm="self_attn.q_norm" if normed else "",
            key_norm="self_attn.k_norm" if normed else "",
            normed_whole=normed == "all",
        ),
        feed_forward=FeedForward(
            fields.count("intermediate_size", defaults.inner),
            "mlp.up_proj",
            "mlp.down_proj",
            activation or activation_of(fields, "hidden_act", "silu"),
            biases.feed_forward,
            "mlp.gate_proj",
        ),
        attention_residual=residuals[0],
        feed_forward_residual=residuals[1],
        layers=tuple(
            AttentionSpec(
                scale, masks[kind], rope_of_kind[kind] if rotary_layers is None or rotary_layers[layer] else None
            )
            for layer, kind in enumerate(kinds)
        ),
        softcap=softcap,
    )


def _listed(fields: ConfigReader, layers: int) -> list[str] | None:
    """Return the kind of each layer, where the configuration lists them."""
    listed = fields.get("layer_types", None)
    if listed is None:
        return None
    if not isinstance(listed, list) or len(listed) < layers or set(map(str, listed)) - {WHOLE, WINDOWED}:
        raise UnsupportedError("layer_types is none of full and sliding attention for each layer")
    return listed[:layers]
