"""Architectures with a way of their own, in which a general method could go wrong without a word."""

from pathlib import Path

import numpy as np
import pytest
import torch
from architectures import tiny_model
from conformance import opened, save
from transformers import (
    BloomConfig,
    BloomModel,
)

from attncli.errors import NotExposedError

pytestmark = pytest.mark.usefixtures("by_transformers")


def test_a_nan_in_a_watched_model_is_a_nan_and_no_mask(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = BloomModel(BloomConfig(vocab_size=128, hidden_size=32, n_layer=1, n_head=4))
    with torch.no_grad():
        model.h[0].self_attention.query_key_value.weight[0, 0] = torch.nan
    save(model, tmp_path)
    layer = opened(tmp_path, "0").trace("w7 w8 w9").layers[0]
    assert np.isnan(layer.head(0).scores[np.tril_indices(3)]).all()
    np.testing.assert_array_equal(layer.head(1).mask, np.tri(3, dtype=bool))


def test_keys_that_an_indexer_chose_are_the_mask_and_no_mask_replaces_them(tmp_path: Path) -> None:
    save(tiny_model("deepseek_v32"), tmp_path)
    text = "w23 w42 w17 w88 w23 w64 w31"
    for layer in opened(tmp_path, "all").trace(text).layers:
        allowed = layer.mask.rows(list(range(layer.num_heads)), np.arange(7))
        assert allowed.sum(axis=-1).max() == 4  # index_topk of the tiny model
        assert not np.triu(allowed[0], 1).any()
    with pytest.raises(NotExposedError, match="--mask; drop it"):
        opened(tmp_path, "all", mask="full").trace(text)


def test_the_model_runs_once_and_stays_as_it_was_loaded(tmp_path: Path) -> None:
    save(tiny_model("llama"), tmp_path)
    source, ran = opened(tmp_path, "0"), list[str]()
    before = source.model.config._attn_implementation
    source.model.layers[0].self_attn.register_forward_pre_hook(lambda *_: ran.append("attention"))
    source.model.layers[0].mlp.register_forward_pre_hook(lambda *_: ran.append("feed-forward"))
    source.trace("w7 w8 w9")
    assert (ran, source.model.config._attn_implementation) == (["attention"], before)
