"""What a run of a checkpoint is given and what it may take: length, mask, layers, devices, memory, precision."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from architectures import tiny_model
from conformance import opened, save_for_auto, stacked
from refusals import refused

from attncli.engines import open_source
from attncli.engines.torch.engine import Checkpoint
from attncli.errors import NotExposedError
from attncli.trace.layer import LayerTrace

pytestmark = pytest.mark.usefixtures("by_transformers")

Run = Callable[..., Any]
USAGE, LOAD, INPUT = 2, 3, 5
TEXT = "w23 w42 w17 w88 w23 w64 w31"
TARGET = "w5 w6 w7 w8"
POSITIONS = 64  # of every tiny model
LONG = " ".join(f"w{2 + index % 90}" for index in range(70))
EXACT = 1e-5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A tiny checkpoint of an architecture, with a tokenizer that AutoTokenizer reads."""
    return cache(lambda name: save_for_auto(tiny_model(name), tmp_path_factory.mktemp(name)))


Folder = Callable[[str], Path]


def check_same(ours: LayerTrace, theirs: LayerTrace) -> None:
    """Check that two traces of a layer show the same."""
    assert (ours.layer, ours.kind, str(ours.mask)) == (theirs.layer, theirs.kind, str(theirs.mask))
    for name in ("q", "k", "v"):
        array = getattr(theirs, name)
        largest = max(1.0, float(np.abs(array).max()))
        np.testing.assert_allclose(getattr(ours, name), array, rtol=0, atol=EXACT * largest, err_msg=name)
    np.testing.assert_allclose(stacked(ours), stacked(theirs), rtol=0, atol=EXACT)


# --- more tokens than positions ----------------------------------------------------------------------------


def test_a_long_sentence_is_cut_and_that_is_said(attn: Run, folder: Folder) -> None:
    whole, cut = (folder("llama"), "-F", "json", "--show", "tokens,weights"), " ".join(LONG.split()[:POSITIONS])
    ran = attn("inspect", LONG, "--truncate", "-m", *whole)
    assert ran.code == 0
    assert ran.err == f"attn: warning: the sentence has 70 tokens and is cut to the 64 that {folder('llama')} reads\n"
    assert [token["text"] for token in ran.json["key_tokens"]] == cut.split()
    expected = attn("inspect", cut, "-m", *whole)
    assert expected.err == ""
    assert ran.json["layers"] == expected.json["layers"]


def test_without_truncate_a_long_sentence_is_refused_with_both_numbers_and_what_to_do(
    attn: Run, folder: Folder
) -> None:
    words = ("has 70 tokens", "reads at most 64", "shorten", "--truncate")
    refused(attn("inspect", LONG, "-m", folder("llama")), INPUT, "the sentence", *words)
    refused(
        attn("inspect", "w7", "--target", LONG, "-m", folder("bart")), INPUT, "the target has 71 tokens", *words[1:]
    )
    pair = ("has 72 tokens", *words[1:])
    refused(attn("inspect", "w7 w7", "--pair", LONG, "-m", folder("llama")), INPUT, "the sentence", *pair)


# --- a mask in place of the model's own --------------------------------------------------------------------


def masked(folder: Path, mask: str, layers: str) -> Checkpoint:
    checkpoint = opened(folder, layers)
    other = open_source(model=str(folder), layer=layers, mask=mask, special=False)
    assert isinstance(other, Checkpoint)
    checkpoint.request = other.request
    return checkpoint


# What else there is to know of a key than where it stands: decoders, encoders, biases, sinks, windows, softcap.
@pytest.mark.parametrize(
    ("name", "mask"), [("llama", "causal"), ("bert", "window(2)"), ("t5", "keys(1,4)"), ("gpt_oss", "full")]
)
def test_a_mask_arrives_at_every_layer_and_head(name: str, mask: str, folder: Folder) -> None:
    trace = masked(folder(name), mask, "all").trace(TEXT)
    assert len(trace.layers) == 3
    i, j = np.indices((7, 7))
    allowed = {"causal": j <= i, "window(2)": (j <= i) & (j > i - 2), "keys(1,4)": (j >= 1) & (j < 4)}.get(mask, i >= 0)
    for layer in trace.layers:
        assert str(layer.mask) == mask
        weights = stacked(layer)
        assert (weights[:, ~allowed] == 0).all()
        assert (weights[:, allowed] > 0).all()
        # The model's own output is that of these weights: what is shown is what ran.
        assert layer.proof is not None
        assert layer.proof.max_abs_error < 1e-4


@pytest.mark.parametrize(("name", "mask"), [("gemma2", "keys(1,4)"), ("bert", "causal")])
def test_a_mask_arrives_in_the_layers_that_nobody_asked_for_too(name: str, mask: str, folder: Folder) -> None:
    whole = masked(folder(name), mask, "all").trace(TEXT)
    own = opened(folder(name), "1").trace(TEXT)
    (layer,) = masked(folder(name), mask, "1").trace(TEXT).layers
    check_same(layer, whole.layers[1])
    assert np.abs(layer.q - own.layers[0].q).max() > 1e-3


@pytest.mark.parametrize("name", ["bart", "t5"])
def test_a_mask_of_three_kinds_of_attention_is_refused(name: str, folder: Folder) -> None:
    with pytest.raises(NotExposedError, match="the model does not take --mask; drop it"):
        masked(folder(name), "keys(0,2)", "all").trace(TEXT, target=TARGET)


# --- where it runs -----------------------------------------------------------------------------------------


def test_a_device_map_changes_no_number(attn: Run, folder: Folder) -> None:
    arguments = ("inspect", TEXT, "-m", folder("llama"), "-l", "0,2", "-F", "json", "--show", "q,k,v,weights")
    plain, mapped = attn(*arguments), attn(*arguments, "--device-map", "auto")
    assert (mapped.code, mapped.err) == (0, "")
    assert mapped.json["source"] == plain.json["source"]
    assert len(mapped.json["layers"]) == 2
    for layer, other in zip(mapped.json["layers"], plain.json["layers"], strict=True):
        for head, same in zip(layer["heads"], other["heads"], strict=True):
            for name in ("q", "k", "v", "weights"):
                np.testing.assert_allclose(head[name], same[name], rtol=0, atol=EXACT)


def test_a_device_and_a_device_map_contradict_each_other(attn: Run, folder: Folder) -> None:
    ran = attn("inspect", TEXT, "-m", folder("llama"), "--device", "cuda", "--device-map", "auto")
    refused(ran, USAGE, "--device ", "--device-map", "drop one of them")


@pytest.mark.parametrize("where", ["moon", ""])
def test_a_device_map_that_cannot_be_is_what_the_message_is_about(where: str, attn: Run, folder: Folder) -> None:
    ran = attn("inspect", TEXT, "-m", folder("llama"), "--device-map", where)
    assert ran.code in (USAGE, LOAD)
    refused(ran, ran.code, "--device-map")
    assert "folder is complete" not in ran.err
    assert "(e.g;" not in ran.err


# --- precision ---------------------------------------------------------------------------------------------


def test_half_precision_says_so_and_is_proven_within_its_rounding(attn: Run, minilm: str) -> None:
    arguments = ("inspect", "time flies like an arrow", "-m", minilm, "-l", "all")
    assert "float16 on cpu" in " ".join(attn(*arguments, "--dtype", "float16").out.split())
    half, full = (open_source(model=minilm, layer="all", dtype=dtype) for dtype in ("float16", "float32"))
    half, full = (source.trace("time flies like an arrow") for source in (half, full))
    assert half.source.dtype == "float16"
    for layer, other in zip(half.layers, full.layers, strict=True):
        assert layer.proof is not None
        assert 0 < layer.proof.max_abs_error < 2e-2
        np.testing.assert_allclose(stacked(layer), stacked(other), atol=5e-2)
