"""The proof: what is recorded is held against the model as it runs without us, and a fault of ours cannot pass it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from architectures import tiny_model
from conformance import EXACT, conform, opened, save, tokenizer_in

import attncli
from attncli.encoding import auto_tokenizer
from attncli.engines.torch import unmodified_check
from attncli.errors import NotExposedError
from attncli.recording.readers import transformers as interface

TEXT = "w23 w42 w17 w88 w23 w64 w31"

Arguments = interface._AttentionArguments


def without(*names: str) -> Callable[..., Arguments]:
    """Arguments of an attention function that leaves some of what it is handed out of all that it does."""

    def call(*arguments: Any) -> Arguments:
        made = Arguments(*arguments)
        if "mask" in names:
            made = replace(made, mask=None)
        return replace(made, more={name: value for name, value in made.more.items() if name not in names})

    return call


LEFT_OUT = [
    ("llama", "mask"),
    ("t5", "position_bias"),
    ("gpt_oss", "s_aux"),
    ("deepseek_v32", "indices"),
    ("minimax_m3_vl_text", "block_indices"),
]


@pytest.mark.parametrize(("name", "left_out"), LEFT_OUT)
def test_what_our_function_leaves_out_fails_the_proof_the_check_and_the_conformance(
    name: str, left_out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interface, "_AttentionArguments", without(left_out))
    row = conform(name, tmp_path)  # that it is exact with all it is handed is test_conformance's to say
    assert not row.difference <= EXACT
    assert row.trace is not None
    assert not all(layer.is_proven("float32") for layer in row.trace.layers)
    monkeypatch.setattr(auto_tokenizer, "load_tokenizer", tokenizer_in)
    found = attncli.check(str(tmp_path), [TEXT, "w7 w8 w9 w10"], special=False).findings
    assert any(finding.code == "proof" and finding.severity == "error" for finding in found)


@pytest.mark.parametrize(("most", "backend"), [(2**26, "eager"), (1, "sdpa")])
def test_a_long_text_is_compared_with_the_fused_kernel(
    most: int, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unmodified_check, "_MOST", most)
    save(tiny_model("llama"), tmp_path)
    (*_, layer) = opened(tmp_path, "all").trace(TEXT).layers
    assert layer.proof is not None
    assert layer.proof.against == f"the unmodified model's ({backend})"
    assert layer.proof.max_abs_error <= 1e-5 * layer.proof.magnitude


def test_only_the_layers_up_to_the_last_one_asked_for_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tiny_model("llama"), tmp_path)
    ran: list[str] = []
    source = opened(tmp_path, "0")
    source.model.layers[0].self_attn.register_forward_pre_hook(lambda *_: ran.append("attention"))
    source.model.layers[0].mlp.register_forward_pre_hook(lambda *_: ran.append("feed-forward"))
    source.trace(TEXT)
    assert ran == ["attention", "attention"]
    assert source.model.config._attn_implementation == interface.ATTENTION


@pytest.mark.parametrize("handed", [{"bins": torch.ones(2)}, {"tables": (torch.ones(2), None)}])
def test_a_tensor_that_is_not_known_is_refused_by_its_name(
    handed: Mapping[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.models.llama import modeling_llama

    save(tiny_model("llama"), tmp_path)
    source = opened(tmp_path, "all")
    get = modeling_llama.ALL_ATTENTION_FUNCTIONS.get_interface

    class Handing:
        """Hands more to whatever attention function there is."""

        @staticmethod
        def get_interface(*arguments: Any) -> Any:
            return lambda *args, **kwargs: get(*arguments)(*args, **kwargs, **handed)

    monkeypatch.setattr(modeling_llama, "ALL_ATTENTION_FUNCTIONS", Handing)
    with pytest.raises(NotExposedError, match=f"LlamaAttention hands {next(iter(handed))} to its attention function"):
        source.trace(TEXT)


def test_keys_that_an_indexer_chose_are_the_mask_and_no_mask_replaces_them(tmp_path: Path) -> None:
    save(tiny_model("deepseek_v32"), tmp_path)
    trace = opened(tmp_path, "all").trace(TEXT)
    for layer in trace.layers:
        allowed = layer.mask.rows(list(range(layer.num_heads)), np.arange(7))
        assert allowed.sum(axis=-1).max() == 4  # index_topk of the tiny model
        assert not np.triu(allowed[0], 1).any()
    with pytest.raises(NotExposedError, match="DeepseekV32Attention chooses the keys of each query; --mask cannot"):
        opened(tmp_path, "all", mask="full").trace(TEXT)
