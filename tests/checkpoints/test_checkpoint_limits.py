"""What a run of a checkpoint is given and what it may take: length, mask, precision."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from architectures import tiny_model
from conformance import opened, save_for_auto, stacked
from refusals import refused
from running import Run

from attncli.engines import open_source

pytestmark = pytest.mark.usefixtures("by_transformers")

INPUT = 5
TEXT = "w23 w42 w17 w88 w23 w64 w31"
POSITIONS = 64  # of every tiny model
LONG = " ".join(f"w{2 + index % 90}" for index in range(70))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return cache(lambda name: save_for_auto(tiny_model(name), tmp_path_factory.mktemp(name)))


Folder = Callable[[str], Path]


def test_a_long_sentence_is_cut_and_that_is_said(attn: Run, folder: Folder) -> None:
    whole, cut = (folder("llama"), "-F", "json", "--show", "tokens,weights"), " ".join(LONG.split()[:POSITIONS])
    ran = attn("inspect", LONG, "--truncate", "-m", *whole)
    assert ran.code == 0
    assert ran.err == f"attn: warning: the sentence has 70 tokens and is cut to the 64 that {folder('llama')} reads\n"
    assert [token["text"] for token in ran.json["key_tokens"]] == cut.split()
    expected = attn("inspect", cut, "-m", *whole)
    assert expected.err == ""
    assert ran.json["layers"] == expected.json["layers"]


def test_without_truncate_a_long_sentence_is_refused_with_both_numbers(attn: Run, folder: Folder) -> None:
    words = ("has 70 tokens", "reads at most 64", "shorten", "--truncate")
    refused(attn("inspect", LONG, "-m", folder("llama")), INPUT, "the sentence", *words)
    of_target = attn("inspect", "w7", "--target", LONG, "-m", folder("bart"))
    refused(of_target, INPUT, "the target has 71 tokens", *words[1:])


# What else there is to know of a key than where it stands: decoders, encoders, biases, sinks, windows, softcap.
@pytest.mark.parametrize(
    ("name", "mask"), [("llama", "causal"), ("bert", "window(2)"), ("t5", "keys(1,4)"), ("gpt_oss", "full")]
)
def test_a_mask_arrives_at_every_layer_and_head(name: str, mask: str, folder: Folder) -> None:
    trace = opened(folder(name), "all", mask=mask).trace(TEXT)
    assert len(trace.layers) == 3
    i, j = np.indices((7, 7))
    allowed = {"causal": j <= i, "window(2)": (j <= i) & (j > i - 2), "keys(1,4)": (j >= 1) & (j < 4)}.get(mask, i >= 0)
    for layer in trace.layers:
        assert str(layer.mask) == mask
        weights = stacked(layer)
        assert (weights[:, ~allowed] == 0).all()
        assert (weights[:, allowed] > 0).all()
        # The model's own output is that of these weights: what is shown is what ran.
        assert layer.proof.max_abs_error < 1e-4


def test_half_precision_says_so_and_is_proven_within_its_rounding(attn: Run, minilm: str) -> None:
    arguments = ("inspect", "time flies like an arrow", "-m", minilm, "-l", "all")
    assert "float16 on cpu" in " ".join(attn(*arguments, "--dtype", "float16").out.split())
    half, full = (open_source(model=minilm, layer="all", dtype=dtype) for dtype in ("float16", "float32"))
    half, full = (source.trace("time flies like an arrow") for source in (half, full))
    assert half.source.dtype == "float16"
    for layer, other in zip(half.layers, full.layers, strict=True):
        assert 0 < layer.proof.max_abs_error < 2e-2
        np.testing.assert_allclose(stacked(layer), stacked(other), atol=5e-2)
