"""Architectures with a way of their own, in which a general method could go wrong without a word."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from architectures import tiny_model
from conformance import opened, save, stacked, tokenizer_in
from transformers import (
    BartConfig,
    BartModel,
    BigBirdConfig,
    BigBirdModel,
    BigBirdPegasusConfig,
    BigBirdPegasusModel,
    BloomConfig,
    BloomModel,
    DebertaConfig,
    DebertaModel,
    LukeConfig,
    LukeModel,
    MptConfig,
    MptModel,
    NystromformerConfig,
    NystromformerModel,
)

from attncli.engines import open_source
from attncli.errors import InputError, NotExposedError, UsageError
from attncli.trace.layer import LayerTrace

pytestmark = pytest.mark.usefixtures("by_transformers")

BERT = {"vocab_size": 128, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48}
BERT |= {"num_hidden_layers": 2, "max_position_embeddings": 64, "initializer_range": 0.4}


def weights(layer: LayerTrace) -> Any:
    return np.stack([layer.head(head).weights for head in layer.heads])


def test_what_bigbird_shows_does_not_depend_on_what_ran_before(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = BigBirdConfig(**BERT | {"max_position_embeddings": 256}, block_size=4, num_random_blocks=1)
    save(BigBirdModel(config), tmp_path)
    long, short = " ".join(["w7"] * 120), "w7 w8 w9"
    source = opened(tmp_path, "0")
    first = source.trace(short).layers[0]
    with pytest.raises(NotExposedError, match="softmax"):  # it attends to blocks
        source.trace(long)
    np.testing.assert_array_equal(weights(source.trace(short).layers[0]), weights(first))


@pytest.mark.parametrize(("model_class", "config"), [
    (NystromformerModel, NystromformerConfig(**BERT, num_landmarks=4, segment_means_seq_len=8)),
    (BigBirdPegasusModel, BigBirdPegasusConfig(vocab_size=128, d_model=32, encoder_layers=2, decoder_layers=1,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48,
        max_position_embeddings=256, block_size=4, num_random_blocks=1)),
])  # fmt: skip
def test_attention_to_a_budget_of_landmarks_or_blocks_is_refused(model_class: Any, config: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    save(model_class(config), tmp_path)
    source = opened(tmp_path, "0")
    text = " ".join(f"w{5 + 7 * index % 100}" for index in range(8 if model_class is NystromformerModel else 120))
    with pytest.raises(NotExposedError, match="softmax"):
        source.trace(text)


def test_weights_that_are_mixed_after_the_softmax_are_refused(tmp_path: Path) -> None:
    torch.manual_seed(0)
    save(
        DebertaModel(DebertaConfig(**BERT, relative_attention=True, pos_att_type=["c2p"], talking_head=True)), tmp_path
    )
    with pytest.raises(NotExposedError, match="attn cannot read what was done to the scores"):
        opened(tmp_path, "0").trace("w7 w8 w9")


def test_a_nan_in_a_watched_model_is_a_nan_and_no_mask(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = BloomModel(BloomConfig(vocab_size=128, hidden_size=32, n_layer=1, n_head=4))
    with torch.no_grad():
        model.h[0].self_attention.query_key_value.weight[0, 0] = torch.nan
    save(model, tmp_path)
    layer = opened(tmp_path, "0").trace("w7 w8 w9").layers[0]
    assert np.isnan(layer.head(0).scores[np.tril_indices(3)]).all()
    np.testing.assert_array_equal(layer.head(1).mask, np.tri(3, dtype=bool))


def bart(folder: Path, **sizes: int) -> Path:
    torch.manual_seed(0)
    small = {"encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
    save(
        BartModel(BartConfig(**{"vocab_size": 128, "d_model": 32, "max_position_embeddings": 64} | small | sizes)),
        folder,
    )
    return folder


def test_a_layer_that_only_the_decoder_has_is_asked_of_the_decoder(tmp_path: Path) -> None:
    source = opened(bart(tmp_path, encoder_layers=2, decoder_layers=4), "3")
    assert {layer.kind for layer in source.trace("w7 w8", target="w9 w10").layers} == {"decoder", "cross"}
    with pytest.raises(UsageError, match="--layer 3: there are 2 encoder layers here"):
        source.trace("w7 w8")


def test_heads_are_those_of_the_side_that_is_shown(tmp_path: Path) -> None:
    folder = bart(tmp_path, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=4)
    with patch("attncli.encoding.auto_tokenizer.load_tokenizer", tokenizer_in):
        source = open_source(model=str(folder), head=3, kind="decoder", special=False)
        assert source.trace("w7 w8", target="w9 w10").layers[0].heads == (3,)
        with pytest.raises(UsageError, match="2 heads"):
            open_source(model=str(folder), head=3, kind="encoder", special=False).trace("w7 w8")


def test_positions_are_counted_as_the_model_counts_them(tmp_path: Path) -> None:
    torch.manual_seed(0)
    luke = LukeModel(LukeConfig(**BERT, entity_vocab_size=8, entity_emb_size=8, pad_token_id=1))
    mpt = MptModel(MptConfig(vocab_size=128, d_model=32, n_layers=1, n_heads=4, max_seq_len=64))
    for name, model, limit in (("luke", luke, 62), ("mpt", mpt, 64)):
        folder = tmp_path / name
        folder.mkdir()
        save(model, folder)
        source = opened(folder, "0")
        assert source.trace(" ".join(["w7"] * limit)).layers[0].num_queries == limit
        with pytest.raises(InputError, match=f"reads at most {limit}"):
            source.trace(" ".join(["w7"] * (limit + 1)))


def test_the_two_values_of_diffllama_are_one(tmp_path: Path) -> None:
    model = tiny_model("diffllama")
    save(model, tmp_path)
    layer = opened(tmp_path, "0").trace("w7 w8 w9").layers[0]
    with torch.no_grad():
        hidden = model.layers[0].input_layernorm(model.embed_tokens(torch.tensor([[7, 8, 9]])))
        values = model.layers[0].self_attn.v_proj(hidden)[0].unflatten(-1, (2, -1)).transpose(0, 1).numpy()
    # Either half of the key/value heads goes to all of them.
    assert layer.v is not None
    width = values.shape[-1]
    np.testing.assert_allclose(layer.v[:, :, :width], values[[0, 0]], atol=1e-6)
    np.testing.assert_allclose(layer.v[:, :, width:], values[[1, 1]], atol=1e-6)


def test_keys_that_an_indexer_chose_are_the_mask_and_no_mask_replaces_them(tmp_path: Path) -> None:
    save(tiny_model("deepseek_v32"), tmp_path)
    text = "w23 w42 w17 w88 w23 w64 w31"
    for layer in opened(tmp_path, "all").trace(text).layers:
        allowed = layer.mask.rows(list(range(layer.num_heads)), np.arange(7))
        assert allowed.sum(axis=-1).max() == 4  # index_topk of the tiny model
        assert not np.triu(allowed[0], 1).any()
    with pytest.raises(NotExposedError, match="--mask; drop it"):
        opened(tmp_path, "all", mask="full").trace(text)


def test_sinks_beside_the_scores_are_recorded_as_the_model_has_them(tmp_path: Path) -> None:
    model = tiny_model("gpt_oss")
    save(model, tmp_path)
    layer = opened(tmp_path, "1").trace("w7 w8 w9").layers[0]
    assert layer.sinks is not None
    np.testing.assert_allclose(layer.sinks, model.layers[1].self_attn.sinks.detach().numpy(), rtol=1e-6)
    sums = stacked(layer).sum(axis=-1)
    assert sums.max() <= 1 + 1e-6
    assert sums.min() < 0.5


def test_the_model_runs_once_and_stays_as_it_was_loaded(tmp_path: Path) -> None:
    save(tiny_model("llama"), tmp_path)
    source, ran = opened(tmp_path, "0"), list[str]()
    before = source.model.config._attn_implementation
    source.model.layers[0].self_attn.register_forward_pre_hook(lambda *_: ran.append("attention"))
    source.model.layers[0].mlp.register_forward_pre_hook(lambda *_: ran.append("feed-forward"))
    source.trace("w7 w8 w9")
    assert (ran, source.model.config._attn_implementation) == (["attention"], before)
