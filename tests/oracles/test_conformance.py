"""Every text architecture of transformers: what is shown is what the model computed, and cutting it changes nothing."""

from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from architectures import architectures, tiny_model
from conformance import NOT_REACHED, Row, conform, opened, save
from readme import pages

from attncli.sources.pretrained import places
from attncli.sources.pretrained.interface import ATTENTION
from attncli.trace.trace import Trace

pytestmark = pytest.mark.xdist_group("architectures")


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    return [conform(name, tmp_path_factory.mktemp("tiny")) for name in architectures()]


def test_every_architecture_is_exact_or_refused_for_a_known_reason(
    rows: list[Row], capsys: pytest.CaptureFixture[str]
) -> None:
    exact = [row for row in rows if row.is_exact]
    with capsys.disabled():
        print(f"\n{len(exact)} of {len(rows)} text architectures show the weights that the model computed")
    others = {row.name: row.reason for row in rows if not row.is_exact}
    assert others.keys() == NOT_REACHED.keys()
    for name, reason in NOT_REACHED.items():
        assert reason in others[name]
    assert len(exact) >= 174
    page = pages()["docs/reference/architectures.md"]
    assert f"{len(exact)} of the {len(rows)} text architectures" in page
    for way in ("interface", "softmax"):
        assert f" | {sum(row.way == way for row in exact)} | queries, keys" in page


def test_working_in_blocks_of_rows_moves_the_last_digits_alone(rows: list[Row]) -> None:
    # The models are small, and random: what one layer rounds the next ones make larger.
    assert {row.name: row.in_blocks for row in rows if row.is_exact and not row.in_blocks <= 1e-4} == {}


def test_every_layer_proves_its_weights_with_the_output_of_the_model(rows: list[Row]) -> None:
    # Outputs of these random models go up to a hundred.
    assert {row.name: row.proof for row in rows if row.is_exact and not row.proof <= 1e-4} == {}
    against = {(row.way, layer.proof.against) for row in rows if row.trace for layer in row.trace.layers if layer.proof}
    assert against == {("interface", "the unmodified model's (eager)"), ("softmax", "the model's own product")}


def test_both_ways_in_are_taken(rows: list[Row]) -> None:
    ways = {row.name: row.way for row in rows if row.is_exact}
    assert {ways[name] for name in ("bert", "llama", "gpt2", "gpt_oss", "deepseek_v3", "t5", "qwen3_next")} == {
        "interface"
    }
    assert {ways[name] for name in ("bloom", "gptj", "deberta-v2", "xlnet", "falcon", "big_bird")} == {"softmax"}


def test_queries_keys_and_values_are_had_wherever_softmax_is_watched(rows: list[Row]) -> None:
    assert [row.name for row in rows if row.is_exact and row.capture != "exact"] == []


def arrays(trace: Trace) -> list[np.ndarray]:
    return [array for layer in trace.layers for array in (layer.q, layer.k, layer.v, layer.head(1).weights)]


def test_leaving_out_the_layers_above_changes_no_bit_and_the_fast_ones_below_next_to_nothing(rows: list[Row]) -> None:
    uncut = []
    for row in rows:
        if not row.is_exact:
            continue
        whole = row.trace
        assert whole is not None
        assert row.folder is not None
        text, target = whole.text, whole.target
        chosen = [layer for layer in whole.layers if layer.layer < whole.source.layers - 1][-1].layer
        short = opened(row.folder, str(chosen))
        cut = short.trace(text, target=target)
        with patch.object(places, "without_layers", lambda model_class, *_, **__: model_class):
            long = opened(row.folder, str(chosen))
        size, full = (sum(p.numel() for p in one.model.parameters()) for one in (short, long))
        if size == full:
            uncut.append(row.name)
        for ours, theirs in zip(arrays(cut), arrays(long.trace(text, target=target)), strict=True):
            np.testing.assert_array_equal(ours, theirs, err_msg=row.name)
        kept = [layer for layer in whole.layers if layer.layer == chosen]
        for ours, theirs in zip(
            arrays(cut), arrays(Trace(whole.source, whole.query_tokens, whole.key_tokens, tuple(kept))), strict=True
        ):
            scale = max(1, float(np.abs(theirs).max()))
            np.testing.assert_allclose(ours, theirs, atol=1e-5 * scale, rtol=0, err_msg=row.name)
    # They share modules, or have two in a layer.
    assert set(uncut) == {"albert", "hrm_text", "longcat_flash"}


def test_softmax_is_watched_only_where_the_attention_function_is_not_called(tmp_path: Path) -> None:
    save(tiny_model("bert"), tmp_path)
    checkpoint = opened(tmp_path, "all")
    checkpoint.trace("w7 w8 w9")
    assert checkpoint.model.config._attn_implementation == ATTENTION
