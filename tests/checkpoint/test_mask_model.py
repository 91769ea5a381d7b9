"""The masks that a checkpoint's own code builds, without its weights: against what the real model attends to."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from architectures import architectures, tiny_config
from conformance import NOT_REACHED, RETURNS_SCORES, save, tokenizer_in
from transformers import AutoModel

from attncli.errors import AttnError
from attncli.selection import Indices
from attncli.sources.pretrained.masks import BlankCheckpoint, SentenceMasks

pytestmark = pytest.mark.usefixtures("one_thread")

LONG, SHORT = [23, 42, 17, 88, 23, 64, 31], [24, 43, 18, 89, 24]
TEXTS = [" ".join(f"w{id_}" for id_ in ids) for ids in (LONG, SHORT)]
PAD = 1

# Beside what `inspect` does not reach.
BY_CONTENT = {"qwen4_exp_text": "whose content it ranks first"}


def opened(folder: Path, **options: Any) -> BlankCheckpoint:
    every = Indices.of("layer", None), Indices.of("head", None)
    with patch("attncli.sources.pretrained.loading.load_tokenizer", tokenizer_in):
        return BlankCheckpoint(str(folder), *every, kind=None, mask=None, special=False, **options)


def blank(model: Any, folder: Path) -> BlankCheckpoint:
    """Open a model of which only the configuration and the tokenizer were saved."""
    save(model, folder)
    for file in folder.iterdir():
        if file.name not in ("config.json", "tokenizer.json"):
            file.unlink()
    return opened(folder)


def plain_model(name: str) -> Any:
    """A tiny model that attends nearly evenly, so that no allowed weight is too small for a float32."""
    torch.manual_seed(0)
    config = tiny_config(name)
    for range_ in ("initializer_range", "init_std"):
        if hasattr(config, range_):
            setattr(config, range_, 0.02)
    return AutoModel.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()


def batch(model: Any, side: str) -> dict[str, torch.Tensor]:
    """Two sentences of seven and five tokens, padded by hand."""
    fill = [PAD] * 2
    ids = torch.tensor([LONG, [*fill, *SHORT] if side == "left" else [*SHORT, *fill]])
    mask = (torch.tensor([[1] * 7, [0, 0, 1, 1, 1, 1, 1] if side == "left" else [1, 1, 1, 1, 1, 0, 0]])).long()
    inputs = {"input_ids": ids, "attention_mask": mask}
    if model.config.is_encoder_decoder:
        inputs |= {"decoder_input_ids": ids, "decoder_attention_mask": mask}
    return inputs


def attended(name: str, model: Any, side: str) -> dict[str, list[np.ndarray]]:
    """Which weights of the real model are not zero, `[B, H, Q, K]` of every layer, as transformers returns them."""
    model.config.use_cache = False  # FSMT leaves its causal mask out while it fills a cache
    if name in ("big_bird", "bigbird_pegasus"):  # they return the weights of their full attention alone
        (model if name == "big_bird" else model.encoder).set_attention_type("original_full")
    with torch.no_grad():
        output = model(**batch(model, side), output_attentions=True)
    kinds = ("encoder", "decoder", "cross") if model.config.is_encoder_decoder else ("self",)
    found = {}
    for kind in kinds:
        layers = output["attentions" if kind == "self" else f"{kind}_attentions"]
        layers = [layer.softmax(dim=-1) if name in RETURNS_SCORES else layer for layer in layers]
        found[kind] = [None if layer is None else (layer > 0).numpy() for layer in layers]
    return found


def captured(sentences: list[SentenceMasks], config: Any) -> dict[str, dict[int, list[np.ndarray]]]:
    """The masks of every layer, one for each sentence."""
    found: dict[str, dict[int, list[np.ndarray]]] = {}
    for sentence in sentences:
        for mask in sentence.masks:
            kind = mask.kind if config.is_encoder_decoder else "self"
            for layer in mask.layers:
                found.setdefault(kind, {}).setdefault(layer, []).append(mask.allowed)
    return found


def wrong(name: str, folder: Path) -> str:
    """Compare one architecture; return what differs, or why it is refused."""
    model = plain_model(name)
    try:
        checkpoint = blank(model, folder)
        sides = {side: checkpoint.masks(TEXTS, pad=side)[0] for side in ("right", "left")}
    except AttnError as error:
        return str(error)
    for side, sentences in sides.items():
        expected, masks = attended(name, model, side), captured(sentences, model.config)
        for kind, layers in expected.items():
            if len(layers) != len(masks[kind]):  # a hybrid returns all its layers, or those with attention alone
                layers = [layers[index] for index in sorted(masks[kind])]
            for (index, ours), theirs in zip(sorted(masks[kind].items()), layers, strict=True):
                for allowed, weights in zip(ours, theirs, strict=True):
                    has_keys = np.broadcast_to(allowed.any(axis=-1, keepdims=True), weights.shape)
                    if (np.broadcast_to(allowed, weights.shape) != weights)[has_keys].any():
                        return f"{side} {kind} layer {index}"
    return ""


def test_every_architecture_builds_the_mask_that_its_weights_show(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {name: wrong(name, tmp_path_factory.mktemp("tiny")) for name in architectures()}
    differ = {name: reason for name, reason in found.items() if reason}
    with capsys.disabled():
        print(f"\n{len(found) - len(differ)} of {len(found)} architectures show the masks that the model applies")
    refused = NOT_REACHED | BY_CONTENT
    assert differ.keys() == refused.keys(), {name: differ[name] for name in differ.keys() ^ refused.keys()}
