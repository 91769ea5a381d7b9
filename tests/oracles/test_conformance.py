"""Every text architecture of transformers: what is shown is what the model computed, and cutting it changes nothing."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from architectures import architectures, each
from conformance import NOT_REACHED, Row, conform, opened
from readme import pages

from attncli.trace.layer import LayerTrace

# What never calls transformers' attention function, so that its softmax is watched.
WATCHED = set(
    """
    big_bird bigbird_pegasus bloom canine codegen convbert cpmant deberta deberta-v2 falcon flaubert fsmt funnel gpt_neo
    gpt_neox_japanese gptj ibert layoutlmv3 led lilt longformer longt5 luke megatron-bert mpnet mpt mvp nystromformer
    openai-gpt pegasus_x prophetnet reformer rembert roformer squeezebert tapas visual_bert xglm xlm xlnet
    """.split()
)

# They share modules, have two in a layer, or layers in two lists: no layer is left out.
UNCUT = {"albert", "canine", "funnel", "hrm_text", "longcat_flash"}


@pytest.mark.parametrize("name", each())
def test_an_architecture_is_exact_or_refused_for_a_known_reason(name: str, tmp_path: Path) -> None:
    row = conform(name, tmp_path)
    if name in NOT_REACHED:
        assert NOT_REACHED[name] in row.reason
        assert not row.is_exact
        return
    assert row.is_exact, row
    assert (row.way, row.capture) == ("softmax" if name in WATCHED else "interface", "exact")
    # The models are small, and random: what one layer rounds the next ones make larger.
    assert row.in_blocks <= 1e-4
    assert row.trace is not None
    for layer in row.trace.layers:
        assert layer.proof is not None
        assert layer.proof.max_abs_error <= 1e-4  # outputs of these random models go up to a hundred
        watched = {"the model's own product", "what its attention module gave"}
        assert layer.proof.against in (watched if name in WATCHED else {"the unmodified model's (eager)"})
    check_cut(row, tmp_path)


def check_cut(row: Row, folder: Path) -> None:
    """Check that leaving out the layers above changes no bit, and the fast ones below next to nothing."""
    whole, full = row.trace, row.checkpoint
    assert whole is not None
    assert full is not None
    chosen = [layer for layer in whole.layers if layer.layer < whole.source.layers - 1][-1].layer
    short = opened(folder, str(chosen))
    full.request = short.request
    sizes = {sum(parameter.numel() for parameter in one.model.parameters()) for one in (short, full)}
    assert (len(sizes) == 1) == (row.name in UNCUT)
    cut, uncut = (arrays(one.trace(whole.text or "", target=whole.target).layers) for one in (short, full))
    for ours, theirs in zip(cut, uncut, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    for ours, theirs in zip(cut, arrays([one for one in whole.layers if one.layer == chosen]), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5 * max(1, float(np.abs(theirs).max())), rtol=0)


def arrays(layers: Sequence[LayerTrace]) -> list[np.ndarray]:
    return [array for layer in layers for array in (layer.q, layer.k, layer.v, layer.head(1).weights)]


def test_the_documentation_counts_them() -> None:
    count = len(architectures())
    exact = count - len(NOT_REACHED)
    assert exact >= 206
    page = pages()["docs/reference/architectures.md"]
    assert f"{exact} of the {count} text architectures" in page
    for number in (len(WATCHED), exact - len(WATCHED)):
        assert f" | {number} | queries, keys" in page
