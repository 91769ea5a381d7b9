"""Architectures with a way of their own, in which a general method could go wrong without a word."""

from pathlib import Path

import numpy as np
import pytest
from architectures import tiny_model
from conformance import opened, save

from attncli.errors import NotExposedError

pytestmark = pytest.mark.usefixtures("by_transformers")


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
