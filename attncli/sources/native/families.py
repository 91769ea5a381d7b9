"""The families, each a function from a configuration to a recipe: what is said here is all that tells them apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from attncli.masks.algebra import Atom
from attncli.sources.native.blocks import ACTIVATIONS, layer_norm, rms_norm
from attncli.sources.native.fields import DeclinedError, Fields
from attncli.sources.native.recipe import (
    Attention,
    Embedding,
    FeedForward,
    Heads,
    Hidden,
    Norm,
    Projections,
    Recipe,
    Residual,
    Table,
)
from attncli.sources.native.rope import Rope, read_rope, rope_of

_FULL, _CAUSAL = Atom("full"), Atom("causal")


def recipe_of(fields: Fields) -> Recipe:
    """Return how to put together the model that a configuration describes.

    Raises:
        DeclinedError: its family is not one of these, or a field says something that is not implemented.
    """
    family = fields.take("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        raise DeclinedError(f"the architecture {family} is not among its own")
    recipe = FAMILIES[family](fields)
    fields.check_all_read()
    return recipe


# --- BERT and its kin: every token sees every other, and the sum of each sublayer is normalized -------------------


def _bert(
    fields: Fields,
    prefix: str,
    vocabulary: int = 30522,
    width: int = 768,
    heads: int = 12,
    inner: int = 3072,
    is_roberta: bool = False,
) -> Recipe:
    """BERT (Devlin et al. 2019); RoBERTa (Liu et al. 2019) counts positions from the one after its padding's id."""
    hidden, heads = fields.count("hidden_size", width), fields.count("num_attention_heads", heads)
    first = _padding_id(fields) + 1 if is_roberta else 0
    embedded = fields.count("embedding_size", 128) if prefix == "electra." else hidden
    positions = fields.count("max_position_embeddings", 512)
    embedding = Embedding(
        width=embedded,
        tokens=Table("embeddings.word_embeddings", fields.count("vocab_size", vocabulary)),
        positions=Table("embeddings.position_embeddings", positions),
        padding_id=first - 1 if is_roberta else None,
        segments=Table("embeddings.token_type_embeddings", fields.count("type_vocab_size", 2)),
        norm="embeddings.LayerNorm",
        projection=None if embedded == hidden else "embeddings_project",
    )
    return Recipe(
        prefix=prefix,
        layer="encoder.layer.{}.",
        width=hidden,
        heads=_heads(hidden, heads),
        positions=positions - first,
        embedding=embedding,
        norm=Norm(layer_norm, fields.number("layer_norm_eps", 1e-12), has_bias=True),
        projections=Projections(
            query="attention.self.query",
            key="attention.self.key",
            value="attention.self.value",
            output="attention.output.dense",
        ),
        feed_forward=FeedForward(
            fields.count("intermediate_size", inner),
            "intermediate.dense",
            "output.dense",
            _activation(fields, "hidden_act", "gelu"),
        ),
        attention_residual=Residual(of_sum="attention.output.LayerNorm"),
        feed_forward_residual=Residual(of_sum="output.LayerNorm"),
        layers=(Attention((hidden // heads) ** -0.5, _FULL),) * fields.layers("num_hidden_layers", 12),
    )


def _distilbert(fields: Fields) -> Recipe:
    """DistilBERT (Sanh et al. 2019): BERT without segments."""
    hidden, heads = fields.count("dim", 768), fields.count("n_heads", 12)
    positions = fields.count("max_position_embeddings", 512)
    fields.take("sinusoidal_pos_embds", False, among=(False, True))  # the table is in the weights either way
    return Recipe(
        prefix="distilbert.",
        layer="transformer.layer.{}.",
        width=hidden,
        heads=_heads(hidden, heads),
        positions=positions,
        embedding=Embedding(
            width=hidden,
            tokens=Table("embeddings.word_embeddings", fields.count("vocab_size", 30522)),
            positions=Table("embeddings.position_embeddings", positions),
            norm="embeddings.LayerNorm",
        ),
        norm=Norm(layer_norm, 1e-12, has_bias=True),
        projections=Projections(
            query="attention.q_lin", key="attention.k_lin", value="attention.v_lin", output="attention.out_lin"
        ),
        feed_forward=FeedForward(
            fields.count("hidden_dim", 3072), "ffn.lin1", "ffn.lin2", _activation(fields, "activation", "gelu")
        ),
        attention_residual=Residual(of_sum="sa_layer_norm"),
        feed_forward_residual=Residual(of_sum="output_layer_norm"),
        layers=(Attention((hidden // heads) ** -0.5, _FULL),) * fields.layers("n_layers", 6),
    )


# --- GPT: each token sees those before it, and what enters a sublayer is normalized -------------------------------


def _gpt2(fields: Fields) -> Recipe:
    """GPT-2 (Radford et al. 2019)."""
    hidden, heads = fields.count("n_embd", 768), fields.count("n_head", 12)
    layers = fields.layers("n_layer", 12)
    scale = (hidden // heads) ** -0.5 if fields.take("scale_attn_weights", True, among=(True, False)) else 1.0
    by_layer = fields.take("scale_attn_by_inverse_layer_idx", False, among=(False, True))
    fields.take("reorder_and_upcast_attn", False, among=(False, True))  # the same in float32
    positions = fields.count("n_positions", 1024)
    inner = 4 * hidden if fields.take("n_inner", None) is None else fields.count("n_inner")
    return Recipe(
        prefix="transformer.",
        layer="h.{}.",
        width=hidden,
        heads=_heads(hidden, heads),
        positions=positions,
        embedding=Embedding(hidden, Table("wte", fields.count("vocab_size", 50257)), Table("wpe", positions)),
        norm=Norm(layer_norm, fields.number("layer_norm_epsilon", 1e-5), has_bias=True),
        projections=Projections(joint="attn.c_attn", output="attn.c_proj", is_transposed=True),
        feed_forward=FeedForward(
            inner, "mlp.c_fc", "mlp.c_proj", _activation(fields, "activation_function", "gelu_new")
        ),
        attention_residual=Residual(before="ln_1"),
        feed_forward_residual=Residual(before="ln_2"),
        layers=tuple(Attention(scale / (layer + 1) if by_layer else scale, _CAUSAL) for layer in range(layers)),
    )


def _gpt_neox(fields: Fields) -> Recipe:
    """GPT-NeoX (Black et al. 2022) and Pythia: both sublayers read the same input, a quarter of each head turns."""
    hidden, heads = fields.count("hidden_size", 6144), fields.count("num_attention_heads", 64)
    positions = fields.count("max_position_embeddings", 2048)
    theta, part = fields.number("rotary_emb_base", 10_000.0), fields.number("rotary_pct", 0.25)
    fields.take("attention_bias", True, among=(True, False))
    rope = read_rope(fields, hidden // heads, positions, theta, part)
    attention = Attention((hidden // heads) ** -0.5, _CAUSAL, rope)
    return Recipe(
        prefix="gpt_neox.",
        layer="layers.{}.",
        width=hidden,
        heads=_heads(hidden, heads),
        positions=positions,
        embedding=Embedding(hidden, Table("embed_in", fields.count("vocab_size", 50432))),
        norm=Norm(layer_norm, fields.number("layer_norm_eps", 1e-5), has_bias=True),
        projections=Projections(joint="attention.query_key_value", is_by_head=True, output="attention.dense"),
        feed_forward=FeedForward(
            fields.count("intermediate_size", 24576),
            "mlp.dense_h_to_4h",
            "mlp.dense_4h_to_h",
            _activation(fields, "hidden_act", "gelu"),
        ),
        attention_residual=Residual(before="input_layernorm"),
        feed_forward_residual=Residual(before="post_attention_layernorm"),
        layers=(attention,) * fields.layers("num_hidden_layers", 44),
        is_parallel=fields.take("use_parallel_residual", True, among=(True, False)),
    )


# --- Llama and its kin: root mean square norms, rotated queries and keys, gated feed-forward networks -------------


def _llama(fields: Fields) -> Recipe:
    """Llama (Touvron et al. 2023), with the shared keys and the long contexts of its later versions."""
    return _decoder(fields, _Usual(), biases=("attention_bias", "mlp_bias"))


def _mistral(fields: Fields) -> Recipe:
    """Mistral (Jiang et al. 2023): every layer looks back over a window."""
    window = fields.take("sliding_window", 4096)
    return _decoder(
        fields, _Usual(inner=14_336, groups=8, positions=131_072), window=window, windowed=lambda _: window is not None
    )


def _qwen2(fields: Fields, **more: Any) -> Recipe:
    """Qwen2 (Yang et al. 2024): biases of queries, keys and values; windows only where they are switched on."""
    has_windows = fields.take("use_sliding_window", False, among=(False, True))
    window, first = fields.take("sliding_window", 4096), fields.take("max_window_layers", 28)
    usual = _Usual(
        vocabulary=151_936, inner=22_016, groups=32, positions=32_768, head_width=more.pop("head_width", None)
    )
    return _decoder(
        fields,
        usual,
        window=window if has_windows else None,
        windowed=lambda layer: has_windows and window is not None and layer >= first,
        is_listed=True,
        **more,
    )


def _qwen3(fields: Fields) -> Recipe:
    """Qwen3 (Yang et al. 2025): Qwen2 with normalized queries and keys, and without the biases."""
    return _qwen2(fields, head_width=128, biases=("attention_bias",), normed="each")


def _smollm3(fields: Fields) -> Recipe:
    """SmolLM3 (2025): every fourth layer does not turn its queries and keys (Yang et al. 2025, "RoPE to NoPE …")."""
    layers = fields.layers("num_hidden_layers", 36)
    every = fields.count("no_rope_layer_interval", 4)
    turns = fields.take("no_rope_layers", None) or [int((layer + 1) % every != 0) for layer in range(layers)]
    has_windows = fields.take("use_sliding_window", False, among=(False, True))
    window = fields.take("sliding_window", None)
    if len(turns) < layers:
        raise DeclinedError("no_rope_layers is shorter than the model")
    return _decoder(
        fields,
        _Usual(vocabulary=128_256, hidden=2048, heads=16, layers=36, groups=4, positions=32_768, theta=2_000_000.0),
        biases=("attention_bias", "mlp_bias"),
        window=window if has_windows else None,
        windowed=lambda layer: has_windows and window is not None and not turns[layer],
        is_listed=True,
        turns=turns,
    )


def _olmo2(fields: Fields) -> Recipe:
    """OLMo 2 (2024): what leaves a sublayer is normalized, and so are all queries and all keys of a token."""
    return _decoder(
        fields,
        _Usual(vocabulary=50_304, eps=1e-5),
        biases=("attention_bias",),
        normed="all",
        residuals=(Residual(after="post_attention_layernorm"), Residual(after="post_feedforward_layernorm")),
    )


def _gemma(fields: Fields) -> Recipe:
    """Gemma (2024): wide heads, scaled embeddings, norms stored as their distance from 1."""
    fields.take("hidden_activation", None, among=(None, "gelu_pytorch_tanh"))  # of later versions; not read here
    return _decoder(
        fields,
        _Usual(256_000, hidden=3072, inner=24_576, heads=16, layers=28, groups=16, head_width=256, positions=8192),
        biases=("attention_bias",),
        activation=_activation(fields, "hidden_act", "gelu_pytorch_tanh", {"gelu": "gelu_pytorch_tanh"}),
        is_gemma=True,
    )


# Gemma 2 and 3 normalize what enters a sublayer and what leaves it.
_SANDWICHED = (
    Residual(before="input_layernorm", after="post_attention_layernorm"),
    Residual(before="pre_feedforward_layernorm", after="post_feedforward_layernorm"),
)


def _gemma2(fields: Fields) -> Recipe:
    """Gemma 2 (2024): every other layer has a window, scores are capped."""
    fields.take("final_logit_softcapping", 30.0)  # of the head on top
    return _decoder(
        fields,
        _Usual(256_000, hidden=2304, inner=9216, heads=8, layers=26, groups=4, head_width=256, positions=8192),
        **_of_later_gemmas(fields),
        windowed=lambda layer: layer % 2 == 0,
        is_listed=True,
        softcap=fields.take("attn_logit_softcapping", 50.0),
    )


def _gemma3(fields: Fields) -> Recipe:
    """Gemma 3 (2025): five layers with a window to one without, each kind turned at its own pace."""
    fields.take("final_logit_softcapping", None)
    fields.take("attn_logit_softcapping", None, among=(None,))
    every = fields.count("sliding_window_pattern", 6)
    fields.read |= {"_sliding_window_pattern"}
    return _decoder(
        fields,
        _Usual(262_208, hidden=2304, inner=9216, heads=8, layers=26, groups=4, head_width=256, positions=131_072),
        **_of_later_gemmas(fields),
        windowed=lambda layer: (layer + 1) % every != 0,
        is_listed=True,
        normed="each",
        ropes=_ropes_of_gemma3,
    )


def _of_later_gemmas(fields: Fields) -> dict[str, Any]:
    fields.take("hidden_act", None, among=(None, "gelu_pytorch_tanh"))  # of the first version; not read here
    return {
        "biases": ("attention_bias",),
        "activation": _activation(fields, "hidden_activation", "gelu_pytorch_tanh"),
        "is_gemma": True,
        "residuals": _SANDWICHED,
        "window": fields.take("sliding_window", 4096),
        "scaled_by": fields.number("query_pre_attn_scalar", 256),
    }


def _ropes_of_gemma3(fields: Fields, width: int, positions: int) -> dict[str, Rope]:
    parameters = fields.take("rope_parameters", None) or {}
    # As transformers reads it: a kind under its older name, `type`, is not the one that counts.
    long = {**(parameters.get(_WHOLE) or {"rope_type": "default"}), **(fields.take("rope_scaling", None) or {})}
    thetas = fields.take("rope_theta", 1_000_000.0), fields.take("rope_local_base_freq", 10_000.0)
    if parameters.keys() - {_WHOLE, _WINDOWED}:
        raise DeclinedError("its rotary parameters are of other kinds of layers")
    return {
        _WHOLE: rope_of(long, {"rope_theta": thetas[0]}, width, positions),
        _WINDOWED: rope_of(parameters.get(_WINDOWED) or {}, {"rope_theta": thetas[1]}, width, positions),
    }


# --- what they share ----------------------------------------------------------------------------------------------

_WHOLE, _WINDOWED = "full_attention", "sliding_attention"  # as configurations call the kinds of layers


@dataclass(frozen=True)
class _Usual:
    """What a family of decoders has where its configuration does not say; None is computed from the rest."""

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


def _decoder(
    fields: Fields,
    usual: _Usual,
    *,
    biases: Sequence[str] = (),
    activation: Callable[[Hidden], Hidden] | None = None,
    residuals: tuple[Residual, Residual] = (
        Residual(before="input_layernorm"),
        Residual(before="post_attention_layernorm"),
    ),
    normed: str = "",
    window: int | None = None,
    windowed: Callable[[int], bool] = lambda _: False,
    is_listed: bool = False,
    turns: Sequence[int] | None = None,
    ropes: Callable[..., dict[str, Rope]] | None = None,
    scaled_by: float | None = None,
    softcap: float | None = None,
    is_gemma: bool = False,
) -> Recipe:
    """Return the recipe of a model like Llama.

    Args:
        fields: of the configuration.
        usual: what it has where that does not say.
        biases: fields that say whether there are biases, which the weights themselves show.
        activation: of the feed-forward network; None reads the usual field.
        residuals: normalizations around attention and feed-forward network.
        normed: whether queries and keys are normalized, `each` head by itself or `all` together.
        window: how many keys a query with a window sees.
        windowed: which layers have one.
        is_listed: whether the configuration may list the kinds of its layers instead.
        turns: which layers turn queries and keys; None is all.
        ropes: reads how each kind of layer turns them; None is one way for all.
        scaled_by: what scores are divided by the root of; None is the width of a head.
        softcap: of the scores.
        is_gemma: whether embeddings are scaled and norms are stored as their distance from 1.
    """
    hidden, heads = fields.count("hidden_size", usual.hidden), fields.count("num_attention_heads", usual.heads)
    layers, positions = (
        fields.layers("num_hidden_layers", usual.layers),
        fields.count("max_position_embeddings", usual.positions),
    )
    groups = fields.take("num_key_value_heads", usual.groups) or heads
    width = fields.take("head_dim", usual.head_width) or hidden // heads
    if type(groups) is not int or heads % groups or type(width) is not int:
        raise DeclinedError(f"{heads} heads of width {width!r} share {groups!r} keys")
    for name in biases:
        fields.take(name, False, among=(False, True))
    kinds = _listed(fields, layers) if is_listed else None
    kinds = kinds or [_WINDOWED if windowed(layer) else _WHOLE for layer in range(layers)]
    if _WINDOWED in kinds and (type(window) is not int or window < 1):
        raise DeclinedError(f"sliding_window is {window!r}")
    masks = {_WHOLE: _CAUSAL, _WINDOWED: Atom("window", (window or 0,))}
    turned = (
        ropes(fields, width, positions)
        if ropes
        else dict.fromkeys(masks, read_rope(fields, width, positions, usual.theta))
    )
    scale = (scaled_by or width) ** -0.5
    return Recipe(
        prefix="model.",
        layer="layers.{}.",
        width=hidden,
        positions=positions,
        heads=Heads(heads, groups, width),
        embedding=Embedding(
            hidden,
            Table("embed_tokens", fields.count("vocab_size", usual.vocabulary)),
            scale=hidden**0.5 if is_gemma else 1.0,
        ),
        norm=Norm(rms_norm, fields.number("rms_norm_eps", usual.eps), offset=1.0 if is_gemma else 0.0),
        projections=Projections(
            query="self_attn.q_proj",
            key="self_attn.k_proj",
            value="self_attn.v_proj",
            output="self_attn.o_proj",
            query_norm="self_attn.q_norm" if normed else "",
            key_norm="self_attn.k_norm" if normed else "",
            normed_whole=normed == "all",
        ),
        feed_forward=FeedForward(
            fields.count("intermediate_size", usual.inner),
            "mlp.up_proj",
            "mlp.down_proj",
            activation or _activation(fields, "hidden_act", "silu"),
            "mlp.gate_proj",
        ),
        attention_residual=residuals[0],
        feed_forward_residual=residuals[1],
        layers=tuple(
            Attention(scale, masks[kind], turned[kind] if turns is None or turns[layer] else None)
            for layer, kind in enumerate(kinds)
        ),
        softcap=softcap,
    )


def _listed(fields: Fields, layers: int) -> list[str] | None:
    """Return the kind of each layer, where the configuration lists them."""
    listed = fields.take("layer_types", None)
    if listed is None:
        return None
    if not isinstance(listed, list) or len(listed) < layers or set(map(str, listed)) - {_WHOLE, _WINDOWED}:
        raise DeclinedError("layer_types is none of full and sliding attention for each layer")
    return listed[:layers]


def _padding_id(fields: Fields) -> int:
    value = fields.take("pad_token_id", 1)
    if type(value) is not int or value < 0:
        raise DeclinedError(f"pad_token_id is {value!r}")
    return value


def _heads(hidden: int, heads: int) -> Heads:
    if hidden % heads:
        raise DeclinedError(f"{heads} heads share a width of {hidden}")
    return Heads(heads, heads, hidden // heads)


def _activation(
    fields: Fields, name: str, usual: str, meant: Mapping[str, str] = MappingProxyType({})
) -> Callable[[Hidden], Hidden]:
    """Return the activation that a field names, some of which mean another one."""
    said = fields.take(name, usual, among=ACTIVATIONS)
    return ACTIVATIONS[meant.get(said, said)]


FAMILIES: dict[str, Callable[[Fields], Recipe]] = {
    "bert": partial(_bert, prefix="bert."),
    "roberta": partial(_bert, prefix="roberta.", vocabulary=50265, is_roberta=True),
    "xlm-roberta": partial(_bert, prefix="roberta.", is_roberta=True),
    "camembert": partial(_bert, prefix="roberta.", is_roberta=True),
    "electra": partial(_bert, prefix="electra.", width=256, heads=4, inner=1024),
    "distilbert": _distilbert,
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "smollm3": _smollm3,
    "olmo2": _olmo2,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
}
