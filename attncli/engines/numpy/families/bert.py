"""BERT and its kin: every token attends to every other, and norms come after each sublayer's sum."""

from __future__ import annotations

from collections.abc import Callable
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


def bert(
    fields: ConfigReader,
    prefix: str,
    vocabulary: int = 30522,
    width: int = 768,
    heads: int = 12,
    inner: int = 3072,
    is_roberta: bool = False,
) -> ModelSpec:
    """BERT (Devlin et al. 2019); RoBERTa (Liu et al. 2019) counts positions from the one after its padding's id."""
    hidden, heads = fields.count("hidden_size", width), fields.count("num_attention_heads", heads)
    first = _padding_id(fields) + 1 if is_roberta else 0
    embedded = fields.count("embedding_size", 128) if prefix == "electra." else hidden
    positions = fields.count("max_position_embeddings", 512)
    embedding = Embedding(
        width=embedded,
        tokens=LookupTable("embeddings.word_embeddings", fields.count("vocab_size", vocabulary)),
        positions=LookupTable("embeddings.position_embeddings", positions),
        padding_id=first - 1 if is_roberta else None,
        segments=LookupTable("embeddings.token_type_embeddings", fields.count("type_vocab_size", 2)),
        segment=0,
        norm="embeddings.LayerNorm",
        projection=None if embedded == hidden else "embeddings_project",
    )
    return ModelSpec(
        prefix=prefix,
        layer="encoder.layer.{}.",
        width=hidden,
        heads=split_width(hidden, heads),
        positions=positions - first,
        embedding=embedding,
        norm=Norm(layer_norm, fields.number("layer_norm_eps", 1e-12), has_bias=True),
        projections=Projections(
            query="attention.self.query",
            key="attention.self.key",
            value="attention.self.value",
            output="attention.output.dense",
            has_bias=True,
            output_has_bias=True,
        ),
        feed_forward=FeedForward(
            fields.count("intermediate_size", inner),
            "intermediate.dense",
            "output.dense",
            activation_of(fields, "hidden_act", "gelu"),
            has_bias=True,
        ),
        attention_residual=Residual(post_norm="attention.output.LayerNorm"),
        feed_forward_residual=Residual(post_norm="output.LayerNorm"),
        layers=(AttentionSpec((hidden // heads) ** -0.5, Atom("full")),) * fields.layers("num_hidden_layers", 12),
    )


def distilbert(fields: ConfigReader) -> ModelSpec:
    """DistilBERT (Sanh et al. 2019): BERT without segments."""
    hidden, heads = fields.count("dim", 768), fields.count("n_heads", 12)
    positions = fields.count("max_position_embeddings", 512)
    fields.get("sinusoidal_pos_embds", False, among=(False, True))  # the table is in the weights either way
    return ModelSpec(
        prefix="distilbert.",
        layer="transformer.layer.{}.",
        width=hidden,
        heads=split_width(hidden, heads),
        positions=positions,
        embedding=Embedding(
            width=hidden,
            tokens=LookupTable("embeddings.word_embeddings", fields.count("vocab_size", 30522)),
            positions=LookupTable("embeddings.position_embeddings", positions),
            norm="embeddings.LayerNorm",
        ),
        norm=Norm(layer_norm, 1e-12, has_bias=True),
        projections=Projections(
            query="attention.q_lin",
            key="attention.k_lin",
            value="attention.v_lin",
            output="attention.out_lin",
            has_bias=True,
            output_has_bias=True,
        ),
        feed_forward=FeedForward(
            fields.count("hidden_dim", 3072),
            "ffn.lin1",
            "ffn.lin2",
            activation_of(fields, "activation", "gelu"),
            has_bias=True,
        ),
        attention_residual=Residual(post_norm="sa_layer_norm"),
        feed_forward_residual=Residual(post_norm="output_layer_norm"),
        layers=(AttentionSpec((hidden // heads) ** -0.5, Atom("full")),) * fields.layers("n_layers", 6),
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
    "distilbert": distilbert,
}
