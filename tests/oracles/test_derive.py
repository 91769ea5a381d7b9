"""Derived views of checkpoints against transformers' own attentions, its tokenizer's words, and torch."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from architectures import tiny_inputs, tiny_model
from conformance import opened, save, words
from rounding import of_weights

import attncli

TEXT = "Tokenization of antidisestablishmentarianism flies"
Run = Callable[..., Any]


@pytest.fixture(scope="module")
def eager(minilm: str) -> tuple[Any, list[torch.Tensor]]:
    """The tokenizer's encoding, and every layer's weights `[H, Q, K]`."""
    from transformers import AutoModel, AutoTokenizer

    encoding = AutoTokenizer.from_pretrained(minilm)(TEXT, return_tensors="pt")
    model = AutoModel.from_pretrained(minilm, attn_implementation="eager").eval()
    with torch.no_grad():
        attentions = model(**encoding, output_attentions=True).attentions
    return encoding, [layer[0] for layer in attentions]


def shown(attn: Run, minilm: str, *options: str) -> dict[str, Any]:
    ran = attn("inspect", TEXT, "-m", minilm, *options, "-F", "json")
    assert (ran.code, ran.err) == (0, "")
    return ran.json


def groups_of(encoding: Any) -> list[list[int]]:
    """The pieces of every word, by the tokenizer's own word ids; a special token has none and stands alone."""
    groups: list[list[int]] = []
    previous = None
    for place, word in enumerate(encoding.word_ids(0)):
        if word is not None and word == previous:
            groups[-1].append(place)
        else:
            groups.append([place])
        previous = word
    return groups


def test_words_are_what_a_loop_over_word_ids_gives(attn: Run, minilm: str, eager: Any) -> None:
    encoding, attentions = eager
    document = shown(attn, minilm, "--words", "--layer", "3")
    groups = groups_of(encoding)
    assert [token["pieces"] for token in document["key_tokens"]] == groups
    assert [token["text"] for token in document["key_tokens"]] == ["[CLS]", *TEXT.split(), "[SEP]"]
    assert len(groups) < encoding["input_ids"].shape[1]
    # A feed-forward layer of MiniLM adds up 1,536 terms, its longest sum.
    rounding = of_weights(attncli.inspect(TEXT, model=minilm, layer="3").layer(3), 1536)
    for entry in document["layers"][0]["heads"]:
        whole = attentions[3][entry["head"]].tolist()
        for row, queries in zip(entry["weights"], groups, strict=True):
            expected = [sum(whole[q][k] for q in queries for k in keys) / len(queries) for keys in groups]
            np.testing.assert_allclose(row, expected, atol=rounding)


def rolled_out(layers: torch.Tensor) -> torch.Tensor:
    """The rollout of the last layer, from the mean weights of every layer, `[L, Q, K]`."""
    joint = own = torch.eye(layers.shape[-1], dtype=torch.float64)
    for weights in layers:
        mixed = weights.double() + own
        joint = mixed / mixed.sum(dim=-1, keepdim=True) @ joint
    return joint


def test_grouped_heads_and_sinks_are_in_norms_and_rollouts(tmp_path: Path) -> None:
    model = tiny_model("gpt_oss")
    save(model, tmp_path)
    values: list[torch.Tensor] = []
    projections = [module for path, module in model.named_modules() if path.endswith("v_proj")]
    for projection in projections:
        projection.register_forward_hook(lambda _, __, output: values.append(output[0]))
    inputs = tiny_inputs(model.config)
    with torch.no_grad():
        attentions = [weights[0].double() for weights in model(**inputs, output_attentions=True).attentions]
    assert any(projection.bias is not None for projection in projections)
    assert (attentions[0].sum(dim=-1) < 0.99).any()
    trace = opened(tmp_path, "all").trace(words(inputs["input_ids"]))

    heads, groups = model.config.num_attention_heads, model.config.num_key_value_heads
    assert heads > groups
    for layer, weights, value in zip(attncli.derive(trace, norms=True).layers, attentions, values, strict=True):
        of_groups = value.double().reshape(len(value), groups, -1)
        for head in range(heads):
            carried = weights[head][:, :, None] * of_groups[:, head // (heads // groups)][None]
            np.testing.assert_allclose(layer.head(head).weights, carried.norm(dim=-1).numpy(), rtol=1e-3, atol=1e-5)

    (rolled,) = attncli.derive(trace, rollout=True).layers
    expected = rolled_out(torch.stack(attentions).mean(dim=1))
    np.testing.assert_allclose(rolled.head(0).weights, expected.numpy(), atol=2e-6)
