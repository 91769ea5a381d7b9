"""Every text architecture of transformers: what is shown is what the model computed, and cutting it changes nothing."""

import math
from pathlib import Path

import numpy as np
import pytest
from architectures import IMAGE_TEXT, architectures, each, tiny_config
from conformance import (
    NEED_MORE_THAN_TEXT,
    NOT_REACHED,
    WITH_TIMM,
    ConformanceRow,
    arrays,
    conform,
    conform_whole,
    opened,
)
from readme import pages
from safetensors import safe_open

from attncli.encoding.auto_tokenizer import limit_by

# What never calls transformers' attention function, so that its softmax is watched.
WATCHED = set(
    """
    big_bird bigbird_pegasus bloom codegen convbert deberta deberta-v2 falcon flaubert fsmt gpt_neo
    gpt_neox_japanese gptj ibert layoutlmv3 led lilt longformer luke megatron-bert mpnet mpt mvp nystromformer
    openai-gpt rembert roformer squeezebert tapas visual_bert xglm xlm xlnet
    """.split()
)

# They share modules, have two in a layer, or layers in two lists: no layer is left out.
UNCUT = {"albert", "blip", "hrm_text", "longcat_flash"}

# Their configuration counts layers itself: they are text models that read pictures as tokens.
COUNTED_AT_THE_TOP = {"chameleon", "git", "mistral4"}

# What says how many keys a query attends to at most.
BUDGETS = (
    "attention_chunk_size", "index_topk", "indexer_budget", "keep_window_size", "sliding_window", "sliding_window_size",
)  # fmt: skip


@pytest.mark.parametrize("name", each())
def test_an_architecture_is_exact_or_refused_for_a_known_reason(name: str, tmp_path: Path) -> None:
    row = conform(name, tmp_path)
    if name in NOT_REACHED:
        assert NOT_REACHED[name] in row.reason
        assert not row.is_exact
        return
    proven_by = check_exact(row)
    assert row.way == ("softmax" if name in WATCHED else "interface")
    watched = {"the model's own product", "what its attention module gave"}
    assert proven_by <= (watched if name in WATCHED else {"the unmodified model's (eager)"})
    assert row.checkpoint is not None
    assert row.checkpoint.encoder.limit == limit_by(row.checkpoint.part.whole)  # which `attn tokens` says without it
    check_budgets(name, row)
    check_cut(row, tmp_path)


def check_exact(row: ConformanceRow) -> set[str]:
    """Check that an architecture is exact and proven; return what its layers were compared with."""
    assert row.is_exact, row
    assert row.capture == "exact"
    # The models are small, and random: what one layer rounds the next ones make larger.
    assert row.in_blocks <= 1e-4
    assert row.trace is not None
    proofs = [layer.proof for layer in row.trace.layers if layer.proof is not None]
    assert len(proofs) == len(row.trace.layers)
    assert max(proof.max_abs_error for proof in proofs) <= 1e-4  # outputs of these models go up to a hundred
    return {proof.against for proof in proofs}


def check_cut(row: ConformanceRow, folder: Path) -> None:
    """Check that leaving out the layers above changes no bit, and the fast ones below next to nothing.

    Of a model that reads pictures too, what looks at them is not read either.
    """
    whole, full = row.trace, row.checkpoint
    assert whole is not None
    assert full is not None
    is_text = full.part.tower is None
    below = [layer.layer for layer in whole.layers if layer.layer < whole.source.layers - 1]
    chosen = below[-1] if is_text else whole.layers[0].layer
    short = opened(folder, str(chosen))
    sizes = [sum(parameter.numel() for parameter in one.model.parameters()) for one in (short, full)]
    assert (sizes[0] < sizes[1]) == (row.name not in UNCUT and chosen < full.num_layers - 1)
    if not is_text:
        assert sizes[1] < sum(sizes_in(folder)) or row.name in WITH_TIMM
    full.request = short.request
    cut, uncut = (arrays(one.trace(whole.text or "", target=whole.target).layers) for one in (short, full))
    for ours, theirs in zip(cut, uncut, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    for ours, theirs in zip(cut, arrays([one for one in whole.layers if one.layer == chosen]), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5 * max(1, float(np.abs(theirs).max())), rtol=0)


def sizes_in(folder: Path) -> list[int]:
    """How many numbers each tensor of a checkpoint has."""
    with safe_open(folder / "model.safetensors", "np") as file:
        return [math.prod(file.get_slice(name).get_shape()) for name in file.keys()]  # noqa: SIM118


def test_the_documentation_counts_them() -> None:
    count = len(architectures())
    exact = count - len(NOT_REACHED)
    assert exact >= 200
    page = pages()["docs/reference/architectures.md"]
    assert f"| that read text | {count} | {exact} | [{len(NOT_REACHED)}](" in page
    wholes = len(IMAGE_TEXT) - len(NEED_MORE_THAN_TEXT)
    assert wholes >= 88
    assert f" | {len(IMAGE_TEXT)} | {wholes} | [{len(NEED_MORE_THAN_TEXT)}](" in page
    for number in (len(WATCHED), exact - len(WATCHED)):
        assert f" | {number} | queries, keys" in page


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in IMAGE_TEXT])
def test_a_model_that_reads_pictures_too_is_exact_or_refused_for_a_known_reason(name: str, tmp_path: Path) -> None:
    row = conform_whole(name, tmp_path)
    if reason := NEED_MORE_THAN_TEXT.get(name):
        assert reason in row.reason
        assert not row.is_exact
        return
    check_exact(row)
    assert row.trace is not None
    assert row.trace.source.architecture == name
    check_budgets(name, row)
    if name in COUNTED_AT_THE_TOP:
        return
    assert row.trace.source.details["tower"] == tiny_config(name).get_text_config(decoder=True).model_type
    check_cut(row, tmp_path)


def check_budgets(name: str, row: ConformanceRow) -> None:
    """Check that the sentence is longer than every window, chunk and choice, so that its last query sees fewer keys."""
    config = tiny_config(name).get_text_config(decoder=True).to_dict()
    limits = [limit for budget in BUDGETS if isinstance(limit := config.get(budget), int)]
    assert row.trace is not None
    if limits and name != "unlimited_ocr":  # its window begins after a text
        assert max(limits) < len(row.trace.query_tokens)
        last = [(layer.mask.rows([0], np.array([layer.num_queries - 1])), layer.cells[2]) for layer in row.trace.layers]
        assert any(seen.sum() < keys for seen, keys in last)
