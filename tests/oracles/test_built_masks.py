"""The masks that a checkpoint's own code builds, without its weights: against what the real model attends to."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from architectures import tiny_config
from conformance import blank, save_tokenizer
from odd_layouts import whole_map
from transformers import AutoModel, masking_utils
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from attncli.engines.torch.model_masks import BlankCheckpoint, SentenceMasks
from attncli.masks.recognition import recognise_plane
from attncli.recording.readers.transformers import ATTENTION

LONG, SHORT = [23, 42, 17, 88, 23, 64, 31], [24, 43, 18, 89, 24]
TEXTS = [" ".join(f"w{id_}" for id_ in ids) for ids in (LONG, SHORT)]
PAD = 1

# One or two of each way in which a mask is made: read by transformers' function, of a softmax, of a band, of chunks.
PADDED = (
    "bart", "bert", "bloom", "gemma2", "gptj", "jamba", "llama", "llama4_text", "longformer", "mistral", "modernbert",
    "t5", "xlnet",
)  # fmt: skip


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
    inputs = batch(model, side)
    kinds = ("encoder", "decoder", "cross") if model.config.is_encoder_decoder else ("self",)
    model.config.use_cache = False
    with torch.no_grad():
        output = model(**inputs, output_attentions=True)
    layers = {kind: output["attentions" if kind == "self" else f"{kind}_attentions"] for kind in kinds}
    return {kind: [None if one is None else _whole(name, one, inputs) for one in layers[kind]] for kind in kinds}


def _whole(name: str, returned: Any, inputs: dict[str, torch.Tensor]) -> np.ndarray:
    """Which weights of one layer are not zero, with a row for every query and a column for every key."""
    padding, size = (inputs["attention_mask"] == 0).numpy(), inputs["input_ids"].shape[1]
    pairs = zip((returned > 0).numpy(), padding, strict=True)
    return np.stack([whole_map(name, cells, size, size, is_padding) for cells, is_padding in pairs])


def captured(sentences: list[SentenceMasks], config: Any) -> dict[str, dict[int, list[np.ndarray]]]:
    """The masks of every layer, one for each sentence."""
    found: dict[str, dict[int, list[np.ndarray]]] = {}
    for sentence in sentences:
        for mask in sentence.masks:
            kind = mask.kind if config.is_encoder_decoder else "self"
            for layer in mask.layers:
                found.setdefault(kind, {}).setdefault(layer, []).append(mask.allowed)
    return found


def differs(allowed: np.ndarray, weights: np.ndarray, is_padding: np.ndarray) -> bool:
    """Compare `[P, Q, K]` with the weights that are not zero, `[H, Q, K]`."""
    ours = np.broadcast_to(allowed, weights.shape)
    blind = ~ours.any(axis=-1)
    if blind[:, ~is_padding].any():
        return True
    even = weights[blind] == weights[blind][:, :1]  # all keys, or none: what the softmax makes of nothing
    return bool((ours != weights)[~blind].any() or not even.all())


@pytest.mark.parametrize("name", PADDED)
def test_a_padded_batch_has_the_masks_that_its_weights_show(name: str, tmp_path: Path) -> None:
    model = plain_model(name)
    model.config.save_pretrained(tmp_path)  # no weights
    save_tokenizer(tmp_path)
    checkpoint = blank(tmp_path)
    for side in ("right", "left"):
        # The target runs here too, of which `inspect` need not have one.
        masks = captured(checkpoint.masks(TEXTS, pad=side)[0], model.config)
        padding = (batch(model, side)["attention_mask"] == 0).numpy()
        for kind, layers in attended(name, model, side).items():
            if len(layers) != len(masks[kind]):  # a hybrid returns all its layers, or those with attention alone
                layers = [layers[index] for index in sorted(masks[kind])]
            for (index, ours), theirs in zip(sorted(masks[kind].items()), layers, strict=True):
                for cells in zip(ours, theirs, padding, strict=True):
                    assert not differs(*cells), (side, kind, index)


# --- kinds ---------------------------------------------------------------------------------------------------


def kinds(checkpoint: BlankCheckpoint, *texts: str, **how: Any) -> dict[str, tuple[tuple[int, ...], str]]:
    """What the masks of the first sentence are called, which layers have them, and the rule they follow."""
    first = checkpoint.masks(texts or TEXTS[:1], **how)[0][0]
    return {mask.kind: (mask.layers, str(recognise_plane(mask.allowed[0], 0))) for mask in first.masks}


def tiny(folder: Path, name: str, **more: Any) -> BlankCheckpoint:
    config = tiny_config(name)
    for key, value in more.items():
        setattr(config, key, value)
    config.save_pretrained(folder)
    save_tokenizer(folder)
    return blank(folder)


FAMILIES: dict[str, dict[str, tuple[tuple[int, ...], str]]] = {
    "llama": {"full": ((0, 1, 2), "causal")},
    "mistral": {"sliding": ((0, 1, 2), "window(3)")},
    "gemma2": {"sliding": ((0, 2), "window(3)"), "full": ((1,), "causal")},
    "gemma3_text": {"sliding": ((0, 2), "window(3)"), "full": ((1,), "causal")},
    "gpt_neo": {"full": ((0, 2), "causal"), "sliding": ((1,), "window(3)")},
    "llama4_text": {"chunked": ((0, 2), "causal & chunk(3)"), "full": ((1,), "causal")},
    "bert": {"bidirectional": ((0, 1, 2), "full")},
    "t5": {"encoder": ((0, 1, 2), "full"), "decoder": ((0, 1, 2), "causal"), "cross": ((0, 1, 2), "full")},
    "bart": {"encoder": ((0, 1, 2), "full"), "decoder": ((0, 1, 2), "causal"), "cross": ((0, 1, 2), "full")},
    "jamba": {"full": ((1,), "causal")},
}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_kind_of_layer_is_called_what_the_configuration_calls_it_or_what_it_does(name: str, tmp_path: Path) -> None:
    more = {"attention_chunk_size": 3} if name == "llama4_text" else {}
    assert kinds(tiny(tmp_path, name, **more)) == FAMILIES[name]


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_padded_sliding_mask_is_what_transformers_own_function_makes(side: str, tmp_path: Path) -> None:
    checkpoint = tiny(tmp_path, "gemma3_text", sliding_window=3)
    config = checkpoint.model.config
    inputs = batch(checkpoint.model, side)
    config._attn_implementation = "sdpa"
    given_value = {
        "config": config, "inputs_embeds": torch.zeros(2, 7, 32), "attention_mask": inputs["attention_mask"],
        "past_key_values": None, "position_ids": None,
    }  # fmt: skip
    expected = {
        "full": masking_utils.create_causal_mask(**given_value),
        "sliding": masking_utils.create_sliding_window_causal_mask(**given_value),
    }
    config._attn_implementation = ATTENTION
    for number, sentence in enumerate(checkpoint.masks(TEXTS, pad=side)[0]):
        assert [mask.kind for mask in sentence.masks] == ["sliding", "full"]
        for mask in sentence.masks:
            np.testing.assert_array_equal(mask.allowed, expected[mask.kind][number].numpy())


def test_padding_has_its_token_and_the_side_is_said(tmp_path: Path) -> None:
    checkpoint = tiny(tmp_path, "llama")
    sentences, notes = checkpoint.masks(TEXTS)
    assert notes == ["padded on the right, as the tokenizer does it"]
    assert [token.text for token in sentences[1].masks[0].keys[-2:]] == ["<pad>", "<pad>"]
    assert checkpoint.masks(TEXTS, pad="left")[1] == []
    checkpoint.encoder.tokenizer.pad_token = None
    assert "no pad token; padded with <unk>" in checkpoint.masks(TEXTS)[1][1]


# --- memory --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "least"), [("llama", 6e9), ("deepseek_v3", 6e11)], ids=["7 billion", "670 billion parameters"]
)
def test_the_parameters_of_the_largest_model_take_four_bytes(name: str, least: float, tmp_path: Path) -> None:
    CONFIG_MAPPING[name]().save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    checkpoint = blank(tmp_path)
    assert sum(parameter.numel() for parameter in checkpoint.model.parameters()) > least
    storages = {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in checkpoint.model.parameters()}
    assert sum(storages.values()) == 4
    assert kinds(checkpoint)["full"][1] == "causal"
