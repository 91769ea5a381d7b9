"""Families of models: each is a function from a configuration to a `ModelSpec`.

A field has a default only where files of older versions lack it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from attncli.checkpoints.checkpoint_folder import ConfigReader, UnsupportedError
from attncli.engines.numpy.model_spec import (
    AttentionSpec,
    Embedding,
    FeedForward,
    Frequencies,
    HeadSpec,
    Hidden,
    LookupTable,
    ModelSpec,
    Norm,
    Projections,
    Residual,
    Unembedding,
)
from attncli.engines.numpy.ops import ACTIVATIONS, Rope, base_of, frequencies_of, layer_norm, rms_norm, yarn
from attncli.masks.expressions import Atom
from attncli.trace.selection import MOST


def model_spec(fields: ConfigReader) -> ModelSpec:
    """Return the spec of a configuration's model; UnsupportedError if it, or a field, is not implemented."""
    family = fields.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        raise UnsupportedError(f"the architecture {family} is not supported")
    try:
        with np.errstate(all="ignore"):  # an extreme number overflows here as it does in torch
            spec = FAMILIES[family](fields)
    except (TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise UnsupportedError(f"its config.json is odd: {error}") from None
    fields.reject_unknown()
    return spec


def _split_width(hidden: int, heads: int) -> HeadSpec:
    if hidden % heads:
        raise UnsupportedError(f"{heads} heads share a width of {hidden}")
    return HeadSpec(heads, heads, hidden // heads)


def _activation(fields: ConfigReader, name: str) -> Callable[[Hidden], Hidden]:
    return ACTIVATIONS[fields.get(name, among=ACTIVATIONS)]


# --- BERT and its kin: every token attends to every other, and norms come after each sublayer's sum ------------------


class BertNames(NamedTuple):
    """Names of the sizes in a configuration, and of the tensors."""

    hidden: str = "hidden_size"
    heads: str = "num_attention_heads"
    layers: str = "num_hidden_layers"
    inner: str = "intermediate_size"
    activation: str = "hidden_act"
    layer: str = "encoder.layer.{}."
    qkv: tuple[str, str, str] = ("attention.self.query", "attention.self.key", "attention.self.value")
    output: str = "attention.output.dense"
    output_norm: str = "attention.output.LayerNorm"
    up: str = "intermediate.dense"
    down: str = "output.dense"
    down_norm: str = "output.LayerNorm"


_BERT = BertNames()
_DISTILBERT = BertNames(
    "dim", "n_heads", "n_layers", "hidden_dim", "activation", "transformer.layer.{}.",
    ("attention.q_lin", "attention.k_lin", "attention.v_lin"), "attention.out_lin", "sa_layer_norm", "ffn.lin1",
    "ffn.lin2", "output_layer_norm",
)  # fmt: skip


def bert(fields: ConfigReader, prefix: str, names: BertNames = _BERT) -> ModelSpec:
    """BERT (Devlin et al. 2019); RoBERTa (Liu et al. 2019) counts positions from the one after its padding's id.

    DistilBERT (Sanh et al. 2019) has other names and no segments.
    """
    is_distilled, first = names is _DISTILBERT, 0
    if is_distilled:
        fields.flag("sinusoidal_pos_embds", False)  # the table is in the weights either way
    hidden, heads = fields.count(names.hidden), fields.count(names.heads)
    if prefix == "roberta.":
        padding = fields.get("pad_token_id", 1)
        if type(padding) is not int or padding < 0:
            raise UnsupportedError(f"pad_token_id is {padding!r}")
        first = padding + 1
    positions, segments = fields.count("max_position_embeddings"), None
    if not is_distilled:
        segments = LookupTable("embeddings.token_type_embeddings", fields.count("type_vocab_size"))
    return ModelSpec(
        prefix=prefix,
        layer=names.layer,
        width=hidden,
        heads=_split_width(hidden, heads),
        positions=positions - first,
        embedding=Embedding(
            tokens=LookupTable("embeddings.word_embeddings", fields.count("vocab_size")),
            positions=LookupTable("embeddings.position_embeddings", positions),
            padding_id=first - 1 if first else None,
            segments=segments,
            segment=None if segments is None else 0,
            norm="embeddings.LayerNorm",
        ),
        norm=Norm(layer_norm, 1e-12 if is_distilled else fields.number("layer_norm_eps", 1e-12), has_bias=True),
        projections=Projections(names.output, True, True, *names.qkv),
        feed_forward=FeedForward(
            fields.count(names.inner), names.up, names.down, _activation(fields, names.activation), has_bias=True
        ),
        attention_residual=Residual(post_norm=names.output_norm),
        feed_forward_residual=Residual(post_norm=names.down_norm),
        layers=(AttentionSpec((hidden // heads) ** -0.5, Atom("full")),) * fields.layers(names.layers),
    )


# --- GPT: each token attends to those before it, and norms come before each sublayer ---------------------------------


def gpt2(fields: ConfigReader) -> ModelSpec:
    """GPT-2 (Radford et al. 2019)."""
    hidden, heads = fields.count("n_embd"), fields.count("n_head")
    layers = fields.layers("n_layer")
    scale = (hidden // heads) ** -0.5 if fields.flag("scale_attn_weights", True) else 1.0
    by_layer = fields.flag("scale_attn_by_inverse_layer_idx", False)
    fields.flag("reorder_and_upcast_attn", False)  # the same in float32
    positions = fields.count("n_positions")
    tokens = LookupTable("wte", fields.count("vocab_size"))
    inner = 4 * hidden if fields.get("n_inner", None) is None else fields.count("n_inner")
    return ModelSpec(
        prefix="transformer.",
        layer="h.{}.",
        width=hidden,
        heads=_split_width(hidden, heads),
        positions=positions,
        # Token types, where a tokenizer gives some, are ids too.
        embedding=Embedding(tokens, LookupTable("wpe", positions), segments=tokens),
        norm=Norm(layer_norm, fields.number("layer_norm_epsilon"), has_bias=True),
        projections=Projections("attn.c_proj", True, True, joint="attn.c_attn", is_transposed=True),
        feed_forward=FeedForward(inner, "mlp.c_fc", "mlp.c_proj", _activation(fields, "activation_function"), True),
        attention_residual=Residual(before="ln_1"),
        feed_forward_residual=Residual(before="ln_2"),
        layers=tuple(
            AttentionSpec(scale / (layer + 1) if by_layer else scale, Atom("causal")) for layer in range(layers)
        ),
        unembedding=Unembedding("ln_f", ("lm_head",), fields.flag("tie_word_embeddings", True)),
    )


def gpt_neox(fields: ConfigReader) -> ModelSpec:
    """GPT-NeoX (Black et al. 2022) and Pythia: both sublayers read the same input, a quarter of a head is rotated."""
    hidden, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    positions = fields.count("max_position_embeddings")
    theta, part = fields.number("rotary_emb_base", 10_000.0), fields.number("rotary_pct", 0.25)
    has_bias = fields.flag("attention_bias", True)
    rope = read_rope(fields, hidden // heads, positions, theta, part)
    attention = AttentionSpec((hidden // heads) ** -0.5, Atom("causal"), Rope(rope))
    return ModelSpec(
        prefix="gpt_neox.",
        layer="layers.{}.",
        width=hidden,
        heads=_split_width(hidden, heads),
        positions=positions,
        embedding=Embedding(LookupTable("embed_in", fields.count("vocab_size"))),
        norm=Norm(layer_norm, fields.number("layer_norm_eps"), has_bias=True),
        projections=Projections(
            "attention.dense", has_bias, has_bias, joint="attention.query_key_value", interleaved_qkv=True
        ),
        feed_forward=FeedForward(
            fields.count("intermediate_size"),
            *("mlp.dense_h_to_4h", "mlp.dense_4h_to_h"),
            _activation(fields, "hidden_act"),
            True,
        ),
        attention_residual=Residual(before="input_layernorm"),
        feed_forward_residual=Residual(before="post_attention_layernorm"),
        layers=(attention,) * fields.layers("num_hidden_layers"),
        is_parallel=fields.flag("use_parallel_residual", True),
        unembedding=Unembedding(
            "final_layer_norm", ("embed_out", "lm_head"), fields.flag("tie_word_embeddings", False)
        ),
    )


# --- decoders like Llama: root mean square norms, rotated queries and keys, gated feed-forward networks --------------

WHOLE, WINDOWED = "full_attention", "sliding_attention"  # as configurations call the kinds of layers

Kinds = tuple[list[str], Any]  # of each layer, and how many keys a query with a window sees
Biases = tuple[bool, ...]  # of the inputs, the output and the feed-forward network
Ropes = dict[str, Frequencies]  # of each kind of layer


class Decoder(NamedTuple):
    """Differences of a family of decoders from Llama (Touvron et al. 2023)."""

    biases: Callable[[ConfigReader], Biases] = lambda fields: (*[fields.flag("attention_bias", False)] * 2, False)
    kinds: Callable[[ConfigReader, int], Kinds] = lambda _, layers: ([WHOLE] * layers, None)
    ropes: Callable[[ConfigReader, int, int], Ropes] = lambda *how: dict.fromkeys((WHOLE, WINDOWED), read_rope(*how))
    norms_heads: bool = False  # whether queries and keys are normalized, each head by itself
    optional: tuple[str, ...] = ()  # fields that older files lack
    # the generation of a Gemma, whose embeddings are scaled, and whose norms are their distance from 1; or 0
    gemma: int = 0

    def spec(self, fields: ConfigReader) -> ModelSpec:
        """Return the spec that a configuration of the family describes."""
        hidden, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
        layers, positions = fields.layers("num_hidden_layers"), fields.count("max_position_embeddings")
        stated = [fields.get(name, *([None] * (name in self.optional))) for name in ("num_key_value_heads", "head_dim")]
        kv_heads, width = stated[0] or heads, stated[1] or hidden // heads
        if type(kv_heads) is not int or heads % kv_heads or type(width) is not int:
            raise UnsupportedError(f"{heads} heads of width {width!r} share {kv_heads!r} keys")
        kinds, window = self.kinds(fields, layers)
        if WINDOWED in kinds and (type(window) is not int or window < 1):
            raise UnsupportedError(f"sliding_window is {window!r}")
        masks = {WHOLE: Atom("causal"), WINDOWED: Atom("window", (window or 0,))}
        ropes = self.ropes(fields, width, positions)
        inputs, output, feed_forward = self.biases(fields)
        activation, divisor, softcap, logit_softcap = _of_gemma(fields, self.gemma)
        attention_residual, mlp_residual = Residual("input_layernorm"), Residual("post_attention_layernorm")
        if self.gemma > 1:
            attention_residual = Residual("input_layernorm", "post_attention_layernorm")
            mlp_residual = Residual("pre_feedforward_layernorm", "post_feedforward_layernorm")
        scale = (divisor or width) ** -0.5
        return ModelSpec(
            prefix="model.",
            layer="layers.{}.",
            width=hidden,
            positions=positions,
            heads=HeadSpec(heads, kv_heads, width),
            embedding=Embedding(
                LookupTable("embed_tokens", fields.count("vocab_size")), scale=hidden**0.5 if self.gemma else 1.0
            ),
            norm=Norm(rms_norm, fields.number("rms_norm_eps"), offset=1.0 if self.gemma else 0.0),
            projections=Projections(
                "self_attn.o_proj",
                inputs,
                output,
                *("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
                query_norm="self_attn.q_norm" if self.norms_heads else "",
                key_norm="self_attn.k_norm" if self.norms_heads else "",
            ),
            feed_forward=FeedForward(
                fields.count("intermediate_size"),
                *("mlp.up_proj", "mlp.down_proj"),
                activation or _activation(fields, "hidden_act"),
                feed_forward,
                "mlp.gate_proj",
            ),
            attention_residual=attention_residual,
            feed_forward_residual=mlp_residual,
            layers=tuple(AttentionSpec(scale, masks[kind], Rope(ropes[kind])) for kind in kinds),
            softcap=softcap,
            unembedding=Unembedding(
                "norm", ("lm_head",), fields.flag("tie_word_embeddings", self.gemma > 0), logit_softcap
            ),
        )


def _of_gemma(
    fields: ConfigReader, generation: int
) -> tuple[Callable[[Hidden], Hidden] | None, float | None, float | None, float | None]:
    """Return a Gemma's activation, the square of what divides its scores, and the softcaps of scores and logits."""
    if not generation:
        return None, None, None, None
    if generation == 1:
        fields.get("hidden_activation", None, among=(None, "gelu_pytorch_tanh"))  # of later versions; not read here
        named = fields.get("hidden_act", "gelu_pytorch_tanh", among=ACTIVATIONS)
        return ACTIVATIONS["gelu_pytorch_tanh" if named == "gelu" else named], None, None, None
    fields.get("hidden_act", None, among=(None, "gelu_pytorch_tanh"))  # of the first version; not read here
    divisor, activation = fields.number("query_pre_attn_scalar"), _activation(fields, "hidden_activation")
    if generation == 2:
        return activation, divisor, fields.get("attn_logit_softcapping"), fields.get("final_logit_softcapping")
    fields.get("attn_logit_softcapping", None, among=(None,))
    return activation, divisor, None, fields.get("final_logit_softcapping", None)


def _listed(fields: ConfigReader, layers: int, otherwise: Callable[[int], bool]) -> list[str]:
    """Return the kind of each layer: as the configuration lists them, else by whether its index has a window."""
    listed = fields.get("layer_types", None)
    if listed is None:
        return [WINDOWED if otherwise(layer) else WHOLE for layer in range(layers)]
    if not isinstance(listed, list) or len(listed) < layers or set(map(str, listed)) - {WHOLE, WINDOWED}:
        raise UnsupportedError("layer_types is none of full and sliding attention for each layer")
    return listed[:layers]


def _window_in_all(fields: ConfigReader, layers: int) -> Kinds:
    window = fields.get("sliding_window")
    return [WHOLE if window is None else WINDOWED] * layers, window


def _window_from(fields: ConfigReader, layers: int) -> Kinds:
    """Return windows only where they are switched on, and from a layer on."""
    if not fields.flag("use_sliding_window", False):
        fields.get("sliding_window", None)
        fields.get("max_window_layers", None)
        return _listed(fields, layers, lambda _: False), None
    window, first = fields.get("sliding_window"), fields.get("max_window_layers")
    return _listed(fields, layers, lambda layer: window is not None and layer >= first), window


def _window_in_even(fields: ConfigReader, layers: int) -> Kinds:
    return _listed(fields, layers, lambda layer: layer % 2 == 0), fields.get("sliding_window")


def _window_in_five_of_six(fields: ConfigReader, layers: int) -> Kinds:
    every = fields.count("sliding_window_pattern", 6)
    return _listed(fields, layers, lambda layer: (layer + 1) % every != 0), fields.get("sliding_window")


def _ropes_of_gemma3(fields: ConfigReader, width: int, positions: int) -> Ropes:
    parameters = fields.get("rope_parameters", None) or {}
    # As transformers reads it: a kind under its older name, `type`, is not the one that counts.
    long = {**(parameters.get(WHOLE) or {"rope_type": "default"}), **(fields.get("rope_scaling", None) or {})}
    thetas = fields.get("rope_theta", 1_000_000.0), fields.get("rope_local_base_freq", 10_000.0)
    if parameters.keys() - {WHOLE, WINDOWED}:
        raise UnsupportedError("its rotary parameters name other kinds of layers")
    return {
        WHOLE: rope_of(long, {"rope_theta": thetas[0]}, width, positions),
        WINDOWED: rope_of(parameters.get(WINDOWED) or {}, {"rope_theta": thetas[1]}, width, positions),
    }


_DECODERS = {
    "llama": Decoder(
        biases=lambda fields: (*[fields.flag("attention_bias", False)] * 2, fields.flag("mlp_bias", False)),
        optional=("num_key_value_heads", "head_dim"),
    ),
    "mistral": Decoder(kinds=_window_in_all, biases=lambda _: (False, False, False), optional=("head_dim",)),
    "qwen2": Decoder(kinds=_window_from, biases=lambda _: (True, False, False), optional=("head_dim",)),
    "qwen3": Decoder(kinds=_window_from, norms_heads=True),
    "gemma": Decoder(gemma=1),
    "gemma2": Decoder(kinds=_window_in_even, gemma=2),
    "gemma3_text": Decoder(kinds=_window_in_five_of_six, ropes=_ropes_of_gemma3, norms_heads=True, gemma=3),
}

FAMILIES: dict[str, Callable[[ConfigReader], ModelSpec]] = {
    "bert": partial(bert, prefix="bert."),
    "roberta": partial(bert, prefix="roberta."),
    "distilbert": partial(bert, prefix="distilbert.", names=_DISTILBERT),
    "gpt2": gpt2,
    "gpt_neox": gpt_neox,
    **{family: decoder.spec for family, decoder in _DECODERS.items()},
}


# --- rotary position embeddings ----------------------------------------------------------------------------
# The frequencies are the radians that a position adds, for each pair of dimensions, `[R]`.


def read_rope(
    fields: ConfigReader, width: int, positions: int, theta: float = 10_000.0, part: float | None = None
) -> Frequencies:
    """Return the frequencies that a configuration describes, in the spelling of any version of transformers.

    Their base is `theta`, and the share of a head of `width` that is rotated `part`, unless the configuration has them.
    Raises UnsupportedError for a rotation that is not implemented.
    """
    newer = fields.get("rope_parameters", None)
    defaults = {"rope_theta": fields.get("rope_theta", theta)}
    if part is not None:
        defaults["partial_rotary_factor"] = part
    return rope_of(fields.get("rope_scaling", None) or newer or {}, defaults, width, positions)


def rope_of(parameters: Any, defaults: Mapping[str, Any], width: int, positions: int) -> Frequencies:
    """Return the frequencies of some parameters, with defaults for missing ones; see `read_rope`."""
    if not isinstance(parameters, Mapping):
        raise UnsupportedError(f"its rotary parameters are {parameters!r}")
    fields = ConfigReader({**defaults, **parameters})
    kind = fields.get("rope_type", fields.get("type", "default"))
    base = fields.number("rope_theta")
    rotary_width = int(width * fields.number("partial_rotary_factor")) if "partial_rotary_factor" in defaults else width
    if rotary_width < 2 or rotary_width % 2 or rotary_width > min(width, MOST):
        raise UnsupportedError(f"it turns {rotary_width} of {width} dimensions")
    pairs = np.arange(0, rotary_width, 2, dtype=np.float32) / np.float32(rotary_width)
    frequencies = (1 / np.float32(base) ** pairs).astype(np.float32)
    if kind == "linear":  # Chen et al. 2023, "Extending Context Window …"
        frequencies = frequencies / np.float32(fields.number("factor"))
    elif kind == "llama3":
        frequencies = _stretched(fields, frequencies, positions)
    elif kind != "default":
        raise UnsupportedError(f"its rotary embedding is {kind!r}")
    fields.reject_unknown()
    return frequencies


def _stretched(fields: ConfigReader, frequencies: Frequencies, positions: int) -> Frequencies:
    """Stretch long waves, keep short ones, and interpolate between the two (Llama 3.1, 2024)."""
    factor, low, high = (fields.number(name) for name in ("factor", "low_freq_factor", "high_freq_factor"))
    trained = fields.count("original_max_position_embeddings", positions)
    waves = np.float32(2 * math.pi) / frequencies
    smooth = (trained / waves - np.float32(low)) / np.float32(high - low)
    between = (1 - smooth) * frequencies / np.float32(factor) + smooth * frequencies
    stretched = np.where(waves > trained / low, frequencies / np.float32(factor), between)
    return np.where(waves < trained / high, frequencies, stretched).astype(np.float32)


_FACTORS, _OTHER_FACTORS = (2.0, 4.0, 8.0, 16.0, 32.0), (3.0, 6.0, 10.0, 1.5, 2.5, 5.0, 12.0, 64.0)
_TRAINED = tuple(2**power for power in (13, 12, 11, 15, 14, 17, 16, 10, 9, 8, 7, 6, 5, 4))  # tokens of the training


def usual_scalings(base: float, count: int) -> Iterator[tuple[str, Frequencies, float]]:
    """Yield the names and the frequencies of usual scalings, and their factor of rotated dimensions."""
    whole = frequencies_of(base, count)
    for factor in (*_FACTORS, *_OTHER_FACTORS):
        yield f"linear {factor:g}", (whole / np.float32(factor)).astype(np.float32), 1.0
    for trained, factor in ((trained, factor) for trained in _TRAINED for factor in _FACTORS):
        how = {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        how["original_max_position_embeddings"] = trained
        yield f"llama3 {factor:g}", rope_of(how, {"rope_theta": base}, 2 * count, trained), 1.0
        for magnitude in (0.1 * math.log(factor) + 1, 1.0):
            yield f"yarn {factor:g}", yarn(base, count, factor, trained), magnitude


def scaling_of(frequencies: Frequencies) -> str:
    """Return the name of the scaling of frequencies; of other ones than linear the largest factor."""
    ratio = frequencies_of(base_of(frequencies), len(frequencies)) / frequencies
    if np.allclose(ratio, ratio[0], rtol=1e-3):
        return "none" if abs(ratio[0] - 1) < 1e-3 else f"linear {ratio[0]:.4g}"
    return f"by {ratio.max():.4g}"


def rotation_parts(rope: Rope | None, base: float) -> dict[str, str]:
    """Return the parts of a rotation in words; its base is the given one where a usual scaling of that explains it."""
    if rope is None:
        return {"width": "0"}
    count, scaling = len(rope.frequencies), scaling_of(rope.frequencies)
    for name, frequencies, _ in usual_scalings(base, count) if scaling != "none" and base else ():
        if np.allclose(frequencies, rope.frequencies, rtol=1e-4):
            scaling = name
            break
    else:
        base = base_of(rope.frequencies)
    pairs, times = "interleaved" if rope.is_interleaved else "half-split", f", times {rope.magnitude:.4g}"
    scaling += times * (rope.magnitude != 1)
    return {"pairs": pairs, "width": str(2 * count), "base": f"{base:.12g}", "scaling": scaling}
