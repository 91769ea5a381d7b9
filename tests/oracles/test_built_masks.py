"""The masks that a checkpoint's own code builds, without its weights: against what the real model attends to."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from architectures import architectures, each, tiny_config
from conformance import NOT_REACHED, RETURNS_SCORES, save_tokenizer, tokenizer_in
from odd_layouts import whole_map
from readme import pages
from transformers import AutoModel, masking_utils
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from attncli.checkpoints.options import LoadOptions
from attncli.checkpoints.snapshot import resolve
from attncli.engines.torch import weightless_model
from attncli.engines.torch.model_masks import BlankCheckpoint, SentenceMasks
from attncli.errors import AttnError, NotExposedError
from attncli.masks.recognition import recognise_plane
from attncli.recording.readers.transformers import ATTENTION
from attncli.trace.selection import Indices

LONG, SHORT = [23, 42, 17, 88, 23, 64, 31], [24, 43, 18, 89, 24]
TEXTS = [" ".join(f"w{id_}" for id_ in ids) for ids in (LONG, SHORT)]
PAD = 1

# Beside what `inspect` does not reach.
BY_CONTENT = {"qwen4_exp_text": "whose content it ranks first"}
# The second's cache takes one token at a time, from the first on. The first asks its encoder for a cache, and fails;
# here the encoder runs alone.
CACHE_FAILS = {"switch_transformers"}
# Two fills of two sizes: a padding query looks at future words. Or blocks: it looks at those it has.
UNEVEN = {"gpt_neo", "openai-gpt"}
BLOCKS = {"deepseek_v4"}  # which of its keys a cache holds is not told
# They choose blocks by the positions of tokens, which transformers counts with padding.
BY_POSITION = {"deepseek_v4", "minimax_m3_vl_text"}
REFUSED = NOT_REACHED | BY_CONTENT
WITHOUT_CACHE = set(
    """
    albert bert bert-generation big_bird camembert clip_text_model convbert data2vec-text deberta deberta-v2
    distilbert electra ernie esm esmc eurobert flaubert gte ibert jina_embeddings_v3 layoutlm layoutlmv3 lilt
    longformer luke markuplm megatron-bert mobilebert modernbert mpnet neomme nomic_bert nystromformer openai-gpt
    openai_privacy_filter recurrent_gemma rembert roberta roberta-prelayernorm roc_bert roformer splinter
    squeezebert tapas tipsv2_text_model ultrabert visual_bert xlm xlm-roberta xlm-roberta-xl xlnet xmod
    """.split()
)


def opened(folder: Path) -> BlankCheckpoint:
    every = Indices.of("layer", None), Indices.of("head", None)
    with patch("attncli.encoding.auto_tokenizer.load_tokenizer", tokenizer_in):
        snapshot, options = resolve(str(folder), LoadOptions()), LoadOptions()
        return BlankCheckpoint(snapshot, *every, kind=None, mask=None, special=False, options=options)


def plain_model(name: str) -> Any:
    """A tiny model that attends nearly evenly, so that no allowed weight is too small for a float32."""
    torch.manual_seed(0)
    config = tiny_config(name)
    for range_ in ("initializer_range", "init_std"):
        if hasattr(config, range_):
            setattr(config, range_, 0.02)
    for budget in ("index_topk", "index_topk_blocks", "keep_window_size"):  # one that binds is refused, by content
        if hasattr(config, budget):
            setattr(config, budget, 64)
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


def attended(name: str, model: Any, side: str, past: int) -> dict[str, list[np.ndarray]]:
    """Which weights of the real model are not zero, `[B, H, Q, K]` of every layer, as transformers returns them."""
    inputs = batch(model, side)
    kinds = ("encoder", "decoder", "cross") if model.config.is_encoder_decoder else ("self",)
    model.config.use_cache = past > 0  # FSMT leaves its causal mask out while it fills a cache
    if name in ("big_bird", "bigbird_pegasus"):  # they return the weights of their full attention alone
        (model if name == "big_bird" else model.encoder).set_attention_type("original_full")
    with torch.no_grad():
        if past:
            prefix = "decoder_" if model.config.is_encoder_decoder else ""
            ids, mask = f"{prefix}input_ids", f"{prefix}attention_mask"
            first = model(**inputs | {ids: inputs[ids][:, :past], mask: inputs[mask][:, :past]}, use_cache=True)
            inputs |= {ids: inputs[ids][:, past:], "past_key_values": first.past_key_values}
        output = model(**inputs, output_attentions=True)
    found = {}
    for kind in kinds:
        layers = output["attentions" if kind == "self" else f"{kind}_attentions"]
        is_score = name in RETURNS_SCORES
        layers = [layer.softmax(dim=-1) if is_score else layer for layer in layers]
        sizes = [inputs["input_ids"].shape[1]] * 2
        if kind in ("decoder", "cross"):
            sizes[0] = inputs["decoder_input_ids"].shape[1]
        found[kind] = [None if layer is None else _whole(name, layer, sizes, inputs) for layer in layers]
    return found


def _whole(name: str, returned: Any, sizes: Sequence[int], inputs: dict[str, torch.Tensor]) -> np.ndarray:
    """Which weights of one layer are not zero, with a row for every query and a column for every key."""
    padding = (inputs["attention_mask"] == 0).numpy()
    pairs = zip((returned > 0).numpy(), padding, strict=True)
    return np.stack([whole_map(name, cells, *sizes, is_padding) for cells, is_padding in pairs])


def captured(sentences: list[SentenceMasks], config: Any) -> dict[str, dict[int, list[np.ndarray]]]:
    """The masks of every layer, one for each sentence."""
    found: dict[str, dict[int, list[np.ndarray]]] = {}
    for sentence in sentences:
        for mask in sentence.masks:
            kind = mask.kind if config.is_encoder_decoder else "self"
            for layer in mask.layers:
                found.setdefault(kind, {}).setdefault(layer, []).append(mask.allowed)
    return found


def differs(allowed: np.ndarray, weights: np.ndarray, is_padding: np.ndarray, is_uneven: bool) -> bool:
    """Compare `[P, Q, K]` with the weights that are not zero, `[H, Q, K]`; a cache may have dropped the first keys."""
    dropped = allowed.shape[-1] - weights.shape[-1]
    if dropped and allowed[..., :dropped].any():
        return True
    ours = np.broadcast_to(allowed[..., dropped:], weights.shape)
    if len(is_padding) != ours.shape[1]:  # queries of several tokens see what others do
        is_padding = np.zeros(ours.shape[1], bool)
    blind = ~ours.any(axis=-1)
    if blind[:, ~is_padding].any():
        return True
    even = weights[blind] == weights[blind][:, :1]  # all keys, or none: what the softmax makes of nothing
    return bool((ours != weights)[~blind].any() or not (is_uneven or even.all()))


def check_masks(name: str, model: Any, checkpoint: BlankCheckpoint, past: int) -> None:
    """Check the masks of every layer against the weights that are not zero, padded on either side."""
    tried = ("right",) if name in BY_POSITION else ("right", "left")
    for side, sentences in [(side, checkpoint.masks(TEXTS, pad=side, past=past)[0]) for side in tried]:
        expected, masks = attended(name, model, side, past), captured(sentences, model.config)
        padding = (batch(model, side)["attention_mask"] == 0).numpy()
        for kind, layers in expected.items():
            if len(layers) != len(masks[kind]):  # a hybrid returns all its layers, or those with attention alone
                layers = [layers[index] for index in sorted(masks[kind])]
            rows = padding if kind == "encoder" else padding[:, past:]
            for (index, ours), theirs in zip(sorted(masks[kind].items()), layers, strict=True):
                for cells in zip(ours, theirs, rows, strict=True):
                    assert not differs(*cells, name in UNEVEN), (side, kind, index, past)


@pytest.mark.parametrize("name", each())
def test_an_architecture_builds_the_mask_that_its_weights_show(name: str, tmp_path: Path) -> None:
    model = plain_model(name)
    model.config.save_pretrained(tmp_path)  # no weights
    save_tokenizer(tmp_path)
    if name in REFUSED:  # the target runs here, of which inspect need not have one
        with pytest.raises(AttnError, match=f"{re.escape(REFUSED[name])}|0 could be watched"):
            check_masks(name, model, opened(tmp_path), 0)
        return
    checkpoint = opened(tmp_path)
    check_masks(name, model, checkpoint, 0)
    if name in WITHOUT_CACHE:
        with pytest.raises(NotExposedError, match=r"fills no KV cache|does not run with --past, a KV cache"):
            check_masks(name, model, checkpoint, 3)
    elif name in BLOCKS:
        with pytest.raises(NotExposedError, match="leave out --past"):
            check_masks(name, model, checkpoint, 3)
    elif name not in CACHE_FAILS:
        check_masks(name, model, checkpoint, 3)


def test_the_documentation_counts_them() -> None:
    count = len(architectures())
    assert count - len(REFUSED) >= 196
    page = " ".join(pages()["docs/guides/mask-debugging.md"].split())
    assert f"{count - len(REFUSED)} of the {count} text architectures" in page


# --- kinds ---------------------------------------------------------------------------------------------------


def kinds(checkpoint: BlankCheckpoint, *texts: str, **how: Any) -> dict[str, tuple[tuple[int, ...], str]]:
    """What the masks of the first sentence are called, which layers have them, and the rule they follow."""
    first = checkpoint.masks(texts or TEXTS[:1], **how)[0][0]
    return {mask.kind: (mask.layers, str(recognise_plane(mask.allowed[0], mask.past))) for mask in first.masks}


def tiny(folder: Path, name: str, **more: Any) -> BlankCheckpoint:
    config = tiny_config(name)
    for key, value in more.items():
        setattr(config, key, value)
    config.save_pretrained(folder)
    save_tokenizer(folder)
    return opened(folder)


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


def test_the_local_layers_of_modernbert_look_both_ways(tmp_path: Path) -> None:
    found = kinds(tiny(tmp_path, "modernbert", local_attention=4))
    assert found == {"full": ((0, 2), "full"), "sliding": ((1,), "band(2,2)")}


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_padded_sliding_mask_is_what_transformers_own_function_makes(side: str, tmp_path: Path) -> None:
    checkpoint = tiny(tmp_path, "gemma3_text", sliding_window=3)
    config = checkpoint.model.config
    inputs = batch(checkpoint.model, side)
    config._attn_implementation = "sdpa"
    given = {
        "config": config, "inputs_embeds": torch.zeros(2, 7, 32), "attention_mask": inputs["attention_mask"],
        "past_key_values": None, "position_ids": None,
    }  # fmt: skip
    expected = {
        "full": masking_utils.create_causal_mask(**given),
        "sliding": masking_utils.create_sliding_window_causal_mask(**given),
    }
    config._attn_implementation = ATTENTION
    for number, sentence in enumerate(checkpoint.masks(TEXTS, pad=side)[0]):
        assert [mask.kind for mask in sentence.masks] == ["sliding", "full"]
        for mask in sentence.masks:
            np.testing.assert_array_equal(mask.allowed, expected[mask.kind][number].numpy())


def test_what_a_sliding_cache_has_dropped_is_masked_and_counted(tmp_path: Path) -> None:
    sliding, full = tiny(tmp_path, "gemma2").masks(TEXTS[:1], past=5)[0][0].masks
    assert (sliding.dropped, full.dropped) == (3, 0)  # a window of 3 keeps 2 keys
    assert sliding.allowed.astype(int).tolist() == [[[0, 0, 0, 1, 1, 1, 0], [0, 0, 0, 0, 1, 1, 1]]]
    assert [token.text for token in sliding.queries] == ["w64", "w31"]
    assert [token.id for token in sliding.keys] == LONG
    assert sliding.past == 5


def test_padding_has_its_token_and_the_side_is_said(tmp_path: Path) -> None:
    checkpoint = tiny(tmp_path, "llama")
    sentences, notes = checkpoint.masks(TEXTS)
    assert notes == ["padded on the right, as the tokenizer does it; --pad left or --pad right decides"]
    assert [token.text for token in sentences[1].masks[0].keys[-2:]] == ["<pad>", "<pad>"]
    assert checkpoint.masks(TEXTS, pad="left")[1] == []
    assert "adds nothing" in checkpoint.masks(TEXTS[:1], pad="left")[1][0]
    checkpoint.encoder.tokenizer.pad_token = None
    assert "no pad token; padded with <unk>" in checkpoint.masks(TEXTS)[1][1]


# --- memory --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "least"), [("llama", 6e9), ("deepseek_v3", 6e11)], ids=["7 billion", "670 billion parameters"]
)
def test_the_parameters_of_the_largest_model_take_four_bytes(name: str, least: float, tmp_path: Path) -> None:
    CONFIG_MAPPING[name]().save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    checkpoint = opened(tmp_path)
    assert sum(parameter.numel() for parameter in checkpoint.model.parameters()) > least
    storages = {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in checkpoint.model.parameters()}
    assert sum(storages.values()) == 4
    assert kinds(checkpoint)["full"][1] == "causal"


def test_products_with_other_numbers_are_computed() -> None:
    weight = weightless_model._ZERO.expand(3, 2)
    with weightless_model.SkipProducts():
        assert torch.nn.functional.linear(torch.ones(4, 2), weight).tolist() == [[0.0] * 3] * 4
        assert (torch.ones(4, 2) @ weight.T).shape == (4, 3)
        assert torch.einsum("ab,cb->ac", torch.ones(4, 2), weight).shape == (4, 3)
        assert (torch.ones(1, 2) @ torch.ones(1).expand(2, 1)).item() == 2
