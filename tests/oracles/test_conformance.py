"""Every text architecture of transformers: the weights that are recorded of the unmodified model are its own.

    pytest tests/oracles/test_conformance.py -k NAME        says of one whether it is exact

Each model is tiny and random. It runs with the attention that it is loaded with, and the weights of every layer are
compared with those that the same model returns under eager attention with `output_attentions=True`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import conformance
import numpy as np
import pytest
import torch
import transformers
from architectures import IMAGE_TEXT, TEXT_CLASSES, each, random_model, tiny_config, tiny_inputs, tiny_whole
from conformance import calmed, opened, save, save_inside, save_tokenizer, stacked, words
from readme import pages
from transformers import AutoModel, PreTrainedModel

from attncli.engines.torch.attention_modules import truncated_class
from attncli.engines.torch.configuration import layer_count
from attncli.engines.torch.recorder import PaddedBatch, RecordRequest, Span, record
from attncli.errors import AttnError, NotExposedError
from attncli.trace.layer import LayerTrace
from attncli.trace.selection import Indices

EXACT = 1e-5  # the largest difference of two weights: float32, with other kernels in the layers below

# They share modules, have two in a layer, or layers in two lists: no layer is left out.
UNCUT = {"albert", "blip", "hrm_text", "longcat_flash"}

# What transformers 5.23 returns as `attentions` is not what these two multiply the values with.
RETURNS_SCORES = {"squeezebert"}
RETURNS_NO_SINKS = {"granite_swa", "granitemoe_swa"}

# A text of more tokens than the widest window, chunk or choice of the tiny models.
BUDGETS = (
    "attention_chunk_size", "index_topk", "indexer_budget", "keep_window_size", "sliding_window", "sliding_window_size",
)  # fmt: skip


def recorded(model: Any, inputs: dict[str, torch.Tensor], layers: tuple[int, ...]) -> tuple[LayerTrace, ...]:
    config, text = model.config, slice(0, inputs["input_ids"].shape[1])
    kinds = ("encoder", "decoder", "cross") if config.is_encoder_decoder else ("self",)
    target = slice(0, inputs["decoder_input_ids"].shape[1]) if config.is_encoder_decoder else text
    span = Span(text, target)
    request = RecordRequest(layers, None, Indices.of("head", None), None)
    (found,) = record(model, model, PaddedBatch(inputs, [span], span), request, kinds).traces()
    return found


def built(build: Callable[..., Any], config: Any, attention: str | None) -> Any:
    model = calmed(random_model(build, config, attention))
    model.config.use_cache = False  # FSMT leaves its causal mask out while it fills a cache
    return model


def check_exact(name: str, layers: tuple[LayerTrace, ...], output: Any) -> None:
    """Check that all layers have the weights that the model returns, with queries, keys and a proof."""
    compared = 0
    for kind in dict.fromkeys(layer.kind for layer in layers):
        own = [layer for layer in layers if layer.kind == kind]
        expected = output.get("attentions" if kind == "self" else f"{kind}_attentions") or ()
        if len(expected) != len(own):  # a hybrid returns all its layers, or those with attention alone
            expected = [expected[layer.layer] for layer in own]
        for layer, theirs in zip(own, expected, strict=True):
            weights = stacked(layer)
            theirs = theirs.softmax(dim=-1) if name in RETURNS_SCORES else theirs
            weights = weights / weights.sum(axis=-1, keepdims=True) if name in RETURNS_NO_SINKS else weights
            np.testing.assert_allclose(weights, theirs[0].numpy(), rtol=0, atol=EXACT, err_msg=str(layer.label))
            assert layer.capture == "exact"
            assert layer.proof.max_abs_error <= 1e-4  # outputs of these models go up to a hundred
            compared += 1
    assert compared == len(layers) > 0


def check_budget(config: Any, layers: tuple[LayerTrace, ...]) -> None:
    """Check that the last query sees fewer keys than there are where a window, a chunk or a choice is set."""
    limits = [limit for budget in BUDGETS if isinstance(limit := config.to_dict().get(budget), int)]
    if limits and not config.model_type.startswith("unlimited_ocr"):  # its window begins after a text
        assert max(limits) < layers[-1].num_queries
        last = [(layer.mask.rows([0], np.array([layer.num_queries - 1])), layer.cells[2]) for layer in layers]
        assert any(seen.sum() < keys for seen, keys in last)


def check_cut(model: PreTrainedModel, layers: tuple[LayerTrace, ...], inputs: dict[str, torch.Tensor]) -> None:
    """Check that a model without the layers above one computes this one to the bit."""
    below = [layer.layer for layer in layers if layer.layer < layer_count(model.config) - 1]
    if not below:
        return
    chosen = below[-1]
    short_class = truncated_class(type(model), "", chosen + 1, whole_encoder=True, with_head=False, is_whole=False)
    short = short_class._from_config(model.config, dtype=torch.float32).eval()
    found = short.load_state_dict(model.state_dict(), strict=False)
    assert not found.missing_keys
    is_smaller = sum(map(torch.numel, short.parameters())) < sum(map(torch.numel, model.parameters()))
    assert is_smaller == (model.config.model_type not in UNCUT)
    again = recorded(short, inputs, (chosen,))
    for ours, theirs in zip(again, [layer for layer in layers if layer.layer == chosen], strict=True):
        for array, other in zip(*((one.q, one.k, one.v, stacked(one)) for one in (ours, theirs)), strict=True):
            np.testing.assert_array_equal(array, other)


@pytest.mark.parametrize("name", each(*conformance.NOT_REACHED))
def test_an_architecture_is_exact(name: str) -> None:
    config = tiny_config(name)
    build = getattr(transformers, TEXT_CLASSES[name])._from_config if name in TEXT_CLASSES else AutoModel.from_config
    model, reference = (built(build, tiny_config(name), attention) for attention in (None, "eager"))
    inputs = tiny_inputs(config)
    if name in ("big_bird", "bigbird_pegasus"):  # they return the weights of their full attention alone
        (reference if name == "big_bird" else reference.encoder).set_attention_type("original_full")
    layers = recorded(model, inputs, tuple(range(layer_count(config))))
    with torch.no_grad():
        check_exact(name, layers, reference(**inputs, output_attentions=True))
    check_budget(config, layers)
    check_cut(model, layers, inputs)


@pytest.mark.parametrize("name", conformance.NOT_REACHED)
def test_an_architecture_is_refused_for_a_known_reason(name: str, tmp_path: Path) -> None:
    model = built(AutoModel.from_config, tiny_config(name), None)
    save(model, tmp_path)
    inputs = tiny_inputs(model.config)
    with pytest.raises(NotExposedError, match=conformance.NOT_REACHED[name]):
        opened(tmp_path, "all").trace(words(inputs["input_ids"]) or "", target=words(inputs.get("decoder_input_ids")))


# Their configuration counts layers itself: they are text models that read pictures as tokens.
COUNTED_AT_THE_TOP = {"chameleon", "git", "mistral4"}


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in IMAGE_TEXT])
def test_a_model_that_reads_pictures_too_is_exact_or_refused_for_a_known_reason(name: str, tmp_path: Path) -> None:
    if reason := conformance.NEED_MORE_THAN_TEXT.get(name):
        tiny_config(name).save_pretrained(tmp_path)
        save_tokenizer(tmp_path)
        with pytest.raises(AttnError, match=reason):
            opened(tmp_path, "all")
        return
    if name in conformance.WITH_TIMM:
        reference = calmed(random_model(AutoModel.from_config, tiny_config(name).get_text_config(decoder=True)))
        save_inside(reference, tiny_config(name), tmp_path)
    else:
        whole = calmed(tiny_whole(name))
        save(whole, tmp_path)
        reference = whole.get_submodule(conformance.RUN_ALONE[name]) if name in conformance.RUN_ALONE else whole
    config = reference.config.get_text_config(decoder=True)
    config.use_cache = False
    inputs = tiny_inputs(config)
    trace = opened(tmp_path, "all").trace(
        words(inputs["input_ids"]) or "", target=words(inputs.get("decoder_input_ids"))
    )
    with torch.no_grad():
        check_exact(name, trace.layers, reference(**inputs, output_attentions=True))
    check_budget(config, trace.layers)
    assert trace.source.architecture == name
    if name not in COUNTED_AT_THE_TOP:
        assert trace.source.details["tower"] == config.model_type


def test_the_documentation_counts_them() -> None:
    count = len(each())
    exact = count - len(conformance.NOT_REACHED)
    assert exact >= 197
    page = pages()["docs/reference/architectures.md"]
    assert f"| that read text | {count} | {exact} | [{len(conformance.NOT_REACHED)}](" in page
    wholes = len(IMAGE_TEXT) - len(conformance.NEED_MORE_THAN_TEXT)
    assert wholes >= 88
    assert f" | {len(IMAGE_TEXT)} | {wholes} | [{len(conformance.NEED_MORE_THAN_TEXT)}](" in page
