"""Models that write their softmax out."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conformance import save_for_auto
from refusals import refused
from transformers import BloomConfig, BloomModel

import attncli
from attncli.errors import InputError
from attncli.trace.layer import LayerTrace
from attncli.trace.trace import Trace

pytestmark = pytest.mark.usefixtures("by_transformers")

SENTENCE = "w23 w42 w17 w88 w23"


@pytest.fixture(scope="module")
def bloom(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A decoder with ALiBi that makes its scores in one `baddbmm`, read with a tokenizer that AutoTokenizer keeps."""
    torch.manual_seed(0)
    config = BloomConfig(vocab_size=128, hidden_size=32, n_layer=3, n_head=4, initializer_range=0.4)
    return str(save_for_auto(BloomModel(config), tmp_path_factory.mktemp("bloom")))


def test_scores_are_those_before_the_mask(bloom: str, attn: Callable[..., Any]) -> None:
    ran = attn("inspect", SENTENCE, "-m", bloom, "-l", "all", "-F", "json", "--show", "q,k,scores,mask,weights")
    assert (ran.code, ran.err) == (0, "")
    assert [layer["capture"] for layer in ran.json["layers"]] == ["exact"] * 3
    for layer in ran.json["layers"]:
        assert layer["scale"] == pytest.approx(8**-0.5)
        assert layer["proof"]["max_abs_error"] < 1e-5
        for head in layer["heads"]:
            assert np.shape(head["q"]) == np.shape(head["k"]) == (5, 8)
            assert head["mask"] == np.tril(np.ones((5, 5), bool)).tolist()
            assert all(isinstance(score, float) for row in head["scores"] for score in row)


# --- a layer that has its weights alone ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def trace(bloom: str) -> Trace:
    return attncli.inspect(SENTENCE, model=bloom, engine="transformers")


@pytest.fixture(scope="module")
def weights_only(trace: Trace) -> LayerTrace:
    layer = trace.layer(0)
    scores, mask = (np.stack([getattr(layer.head(head), name) for head in range(4)]) for name in ("scores", "mask"))
    masked = np.where(mask, scores, np.float32(-np.inf))
    return replace(layer, q=None, k=None, v=None, scale=None, bias=None, proof=None, recorded_scores=masked)


@pytest.fixture
def saved(trace: Trace, weights_only: LayerTrace, tmp_path: Path) -> Path:
    replace(trace, layers=(weights_only,)).save(tmp_path / "trace.safetensors")
    return tmp_path / "trace.safetensors"


def test_a_layer_may_have_its_weights_alone(trace: Trace, saved: Path, attn: Callable[..., Any]) -> None:
    ran = attn("inspect", "--from", saved, "-F", "json", "--show", "q,k,v,scores,weights,output")
    assert ran.code == 0
    (layer,) = ran.json["layers"]
    assert layer["capture"] == "weights-only"
    assert set(layer["shapes"]) == {"scores", "weights"}
    assert set(layer["heads"][0]) == {"head", "scores", "weights"}
    assert "layer 0 gives its weights alone: k, output, q, v are left out" in ran.err
    np.testing.assert_allclose(layer["heads"][0]["weights"], trace.layer(0).head(0).weights)


@pytest.mark.parametrize("form", ["table", "json"])
def test_nothing_left_to_show_is_an_error(form: str, saved: Path, attn: Callable[..., Any]) -> None:
    ran = attn("inspect", "--from", saved, "--show", "q,output", "-F", form)
    refused(ran, 4, "layer 0 has only its weights")


def test_a_layer_without_weights_or_what_they_are_made_of_is_refused(weights_only: LayerTrace) -> None:
    with pytest.raises(InputError, match="needs q, k, v and a scale, or recorded scores and weights"):
        replace(weights_only, recorded_scores=None)
