"""BERT and its kin: every token attends to every other, and norms come after each sublayer's sum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from attncli.checkpoints.config_reader import ConfigReader, UnsupportedError
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
from attncli.masks.expressions import Atom


@dataclass(frozen=True)
class BertNames:
    """How a configuration calls the sizes of a model, and the weights its tensors."""

    hidden: str = "hidden_size"
    heads: str = "num_attention_heads"
    layers: str = "num_hidden_layers"
    inner: str = "intermediate_size"
    activation: str = "hidden_act"
    layer: str = "encoder.layer.{}."
    qkv: str = "attention.self.{}"
    output: str = "attention.output.dense"
    output_norm: str = "attention.output.LayerNorm"
    up: str = "intermediate.dense"
    down: str = "output.dense"
    down_norm: str = "output.LayerNorm"


_BERT = BertNames()
_DISTILBERT = BertNames(
    "dim", "n_heads", "n_layers", "hidden_dim", "activation", "transformer.layer.{}.", "attention.{}_lin",
    "attention.out_lin", "sa_layer_norm", "ffn.lin1", "ffn.lin2", "output_layer_norm",
)  # fmt: skip


def bert(
    fields: ConfigReader,
    prefix: str,
    names: BertNames = _BERT,
    qkv: tuple[str, str, str] = ("query", "key", "value"),
    *,
    vocabulary: int = 30522,
    width: int = 768,
    heads: int = 12,
    inner: int = 3072,
    layers: int = 12,
    is_roberta: bool = False,
) -> ModelSpec:
    """BERT (Devlin et al. 2019); RoBERTa (Liu et al. 2019) counts positions from the one after its padding's id.

    DistilBERT (Sanh et al. 2019) has other names and no segments, ELECTRA (Clark et al. 2020) a narrower embedding.
    """
    is_distilled = names is _DISTILBERT
    if is_distilled:
        fields.get("sinusoidal_pos_embds", False, among=(False, True))  # the table is in the weights either way
    hidden, heads = fields.count(names.hidden, width), fields.count(names.heads, heads)
    first = _padding_id(fields) + 1 if is_roberta else 0
    embedded = fields.count("embedding_size", 128) if prefix == "electra." else hidden
    positions = fields.count("max_position_embeddings", 512)
    segments = None
    if not is_distilled:
        segments = LookupTable("embeddings.token_type_embeddings", fields.count("type_vocab_size", 2))
    query, key, value = (names.qkv.format(each) for each in qkv)
    return ModelSpec(
        prefix=prefix,
        layer=names.layer,
        width=hidden,
        heads=split_width(hidden, heads),
        positions=positions - first,
        embedding=Embedding(
            width=embedded,
            tokens=LookupTable("embeddings.word_embeddings", fields.count("vocab_size", vocabulary)),
            positions=LookupTable("embeddings.position_embeddings", positions),
            padding_id=first - 1 if is_roberta else None,
            segments=segments,
            segment=None if segments is None else 0,
            norm="embeddings.LayerNorm",
            projection=None if embedded == hidden else "embeddings_project",
        ),
        norm=Norm(layer_norm, 1e-12 if is_distilled else fields.number("layer_norm_eps", 1e-12), has_bias=True),
        projections=Projections(names.output, True, True, query, key, value),
        feed_forward=FeedForward(
            fields.count(names.inner, inner),
            names.up,
            names.down,
            activation_of(fields, names.activation, "gelu"),
            has_bias=True,
        ),
        attention_residual=Residual(post_norm=names.output_norm),
        feed_forward_residual=Residual(post_norm=names.down_norm),
        layers=(AttentionSpec((hidden // heads) ** -0.5, Atom("full")),) * fields.layers(names.layers, layers),
    )


def _padding_id(fields: ConfigReader) -> int:
    value = fields.get("pad_token_id", 1)
    if type(value) is not int or value < 0:
        raise UnsupportedError(f"pad_token_id is {value!r}")
    return value


SPECS: dict[str, Callable[[ConfigReader], ModelSpec]] = {
    "bert": partial(bert, prefix="bert."),
    "roberta": partial(bert, prefix="roberta.", vocabulary=50265, is_roberta=True),
    "xlm-roberta": partial(bert, prefix="roberta.", is_roberta=True),
    "camembert": partial(bert, prefix="roberta.", is_roberta=True),
    "electra": partial(bert, prefix="electra.", width=256, heads=4, inner=1024),
    "distilbert": partial(bert, prefix="distilbert.", names=_DISTILBERT, qkv=("q", "k", "v"), layers=6),
}
