"""Derived numbers against plain loops: words, means and maxima, rollout, norms."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from running import Run
from traces import layer_of, trace_of

import attncli
from attncli.errors import UsageError
from attncli.trace.layer import Proof
from attncli.trace.tokens import Token, Tokens
from attncli.trace.trace import Provenance, Trace

HEADS, WIDTH = 3, 5
MASKS = ["full", "causal", "window(2)", "~queries(1,2)", "cells"]


def pieces(sizes: list[int]) -> tuple[Tokens, str]:
    """Words of so many pieces of one letter each, with a space between words."""
    text, tokens = "", []
    for word, size in enumerate(sizes):
        text += " " * bool(word)
        for _ in range(size):
            tokens.append(Token(len(tokens), len(tokens) % 4, "x", len(text), len(text) + 1, word=word))
            text += "x"
    return Tokens(tokens), text


def traced(sizes: list[int], mask: str = "causal", layers: int = 1, seed: int = 0, **fields: Any) -> Trace:
    """Layers of random numbers; masks with a slash between them are those of one layer after the other, in turn."""
    tokens, text = pieces(sizes)
    masks = mask.split(" / ")
    random = np.random.default_rng(seed)
    count = len(tokens)
    made = []
    for layer in range(layers):
        q, k, v = (random.standard_normal((3, HEADS, count, WIDTH)) * 2).astype(np.float32)
        rule: Any = masks[layer % len(masks)]
        if rule == "cells":
            allowed = random.random((HEADS, count, count)) < 0.6
            rule = allowed | np.eye(count, dtype=bool)
        made.append(layer_of(q, k, v, rule, 0.7, layer, proof=Proof(0.1 * layer, "it"), **fields))
    return trace_of(*made, queries=tokens, keys=tokens, text=text, source=Provenance("file", layers=layers))


def weights(trace: Trace, layer: int = 0) -> list[list[list[float]]]:
    found = trace.layers[layer]
    return [found.head(head).weights.astype(float).tolist() for head in found.heads]


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.array(found), np.array(expected), atol=1e-6, equal_nan=True)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.sampled_from(MASKS), st.integers(0, 3))
@settings(max_examples=60)
def test_words_sum_over_key_pieces_and_average_over_query_pieces(sizes: list[int], mask: str, seed: int) -> None:
    trace = traced(sizes, mask, seed=seed)
    merged = attncli.derive(trace, words=True)
    word = [place for place, size in enumerate(sizes) for _ in range(size)]
    for head, whole in enumerate(weights(trace)):
        allowed = trace.layers[0].head(head).mask
        expected = [[0.0] * len(sizes) for _ in sizes]
        seen = [[False] * len(sizes) for _ in sizes]
        for query, row in enumerate(whole):
            for key, weight in enumerate(row):
                expected[word[query]][word[key]] += weight / sizes[word[query]]
                seen[word[query]][word[key]] |= bool(allowed[query, key])
        found = merged.layers[0].head(head)
        close(found.weights, expected)
        assert found.mask.tolist() == seen
    assert [token.text for token in merged.key_tokens] == ["x" * size for size in sizes]
    assert mask != "causal" or str(merged.layers[0].mask) == ("causal" if sizes[1:] else "full")


@pytest.mark.parametrize("word", [0, None], ids=["a tokenizer that splits nothing", "a trace that does not say"])
def test_without_words_of_the_tokenizer_pieces_that_touch_are_one(word: int | None) -> None:
    text = "▁time flies"
    spans = [("▁ti", 0, 3), ("me", 3, 5), ("▁fl", 5, 8), ("ies", 8, 11)]
    pieces = (Token(index, index, piece, *span, word=word) for index, (piece, *span) in enumerate(spans, 1))
    tokens = Tokens([Token(0, 0, "<s>", None, None, special=True), *pieces])
    vectors = np.ones((1, 5, 2), np.float32)
    trace = trace_of(layer_of(vectors, vectors), queries=tokens, keys=tokens, text=text)
    merged = attncli.derive(trace, words=True)
    assert [token.text for token in merged.key_tokens] == ["<s>", "▁time", "flies"]
    assert "no space divides" in merged.origin.rules[0]


@pytest.mark.parametrize(
    ("mask", "over"),
    [("causal", "heads"), ("~queries(1,2)", "all"), ("cells", "layers"), ("cells / causal", "all"),
     ("causal / window(2)", "layers")],
)  # fmt: skip
def test_a_mean_is_what_a_loop_gives(over: Any, mask: str) -> None:
    trace = traced([1] * 5, mask, layers=2)
    whole = [weights(trace, layer) for layer in range(2)]
    planes = {
        "heads": [[[layer[head] for head in range(HEADS)]] for layer in whole],
        "layers": [[[layer[head] for layer in whole] for head in range(HEADS)]],
        "all": [[[head for layer in whole for head in layer]]],
    }[over]
    found = attncli.derive(trace, mean=over)
    assert len(found.layers) == len(planes)
    for layer, expected_heads in zip(found.layers, planes, strict=True):
        assert len(layer.heads) == len(expected_heads)
        for index, some in zip(layer.heads, expected_heads, strict=True):
            expected = [[sum(one[q][k] for one in some) / len(some) for k in range(5)] for q in range(5)]
            if "~" in mask:
                expected[1] = [math.nan] * 5
            close(layer.head(index).weights, expected)
            drawn = layer.head(index).mask | (layer.head(index).weights != 0)
            assert (~drawn == (np.array(expected) == 0)).all()


def test_the_worst_proof_stands_for_all_layers_and_none_where_one_has_none() -> None:
    trace = traced([1] * 3, layers=3)
    assert attncli.derive(trace, mean="layers").layers[0].proof == Proof(0.2, "it")
    toy = attncli.inspect("a b c")
    assert attncli.derive(toy, mean="heads").layers[0].proof is None


def rolled_by_hand(layers: list[list[list[list[float]]]]) -> list[list[float]]:
    size = len(layers[0][0])
    result = [[float(q == k) for k in range(size)] for q in range(size)]
    for heads in layers:
        mixed = [
            [0.5 * sum(head[q][k] for head in heads) / len(heads) + 0.5 * (q == k) for k in range(size)]
            for q in range(size)
        ]
        mixed = [[value / sum(row) for value in row] for row in mixed]
        result = [[sum(mixed[q][m] * result[m][k] for m in range(size)) for k in range(size)] for q in range(size)]
    return result


@pytest.mark.parametrize(
    ("mask", "sinks"), [("full", None), ("cells / causal", None), ("causal / window(2)", None), ("cells", [0.5, 3, -1])]
)
def test_rollout_is_the_product_of_halves_of_means(mask: str, sinks: list[float] | None) -> None:
    trace = traced([1] * 5, mask, layers=3, sinks=None if sinks is None else np.array(sinks, np.float32))
    found = attncli.derive(trace, rollout=True, layer="all")
    for layer in range(3):
        expected = rolled_by_hand([weights(trace, below) for below in range(layer + 1)])
        close(found.layers[layer].head(0).weights, expected)
        # Masked is what nothing can have come from.
        assert (found.layers[layer].head(0).mask == (np.array(expected) != 0)).all()
        close(found.layers[layer].head(0).weights.sum(axis=-1), [1] * 5)
    assert [layer.layer for layer in attncli.derive(trace, rollout=True).layers] == [2]


def test_norms_are_the_lengths_of_weighted_values_times_the_output_projection() -> None:
    import torch

    trace = attncli.inspect("time flies like an arrow", num_heads=3, d_k=4, d_v=6)
    layer = trace.layers[0]
    found = attncli.derive(trace, norms=True).layers[0]
    projection = torch.tensor(layer.out_projection).reshape(3, 6, 32)
    for head in range(3):
        weight, value = torch.tensor(layer.head(head).weights), torch.tensor(layer.head(head).v)
        each = weight[:, :, None] * (value @ projection[head])[None]
        close(found.head(head).weights, torch.linalg.vector_norm(each, dim=-1).numpy())


def test_other_readers_want_what_was_recorded() -> None:
    trace = attncli.inspect("time flies", num_heads=2)
    derived = attncli.derive(trace, norms=True)
    for name, read in {
        "heads": lambda: attncli.heads(derived),
        "why": lambda: attncli.why(derived, query=0),
        "diff": lambda: attncli.diff(trace, derived),
        "derive": lambda: attncli.derive(derived, words=True),
    }.items():
        with pytest.raises(UsageError, match=f"^{name} needs a recorded trace"):
            read()
    assert derived.recorded is trace.recorded is trace


@pytest.mark.parametrize(("options", "words"), [
    (["--rollout", "--head", "1"], "mean over all heads; drop one of them"),
    (["--mean", "layers"], "several layers"),
    (["--words", "--show", "q"], "have only tokens, shapes, mask, weights, heatmap, metrics, proof"),
    (["--mean", "rows"], "'rows' is not"),
])  # fmt: skip
def test_what_does_not_apply_is_a_usage_error(attn: Run, options: list[str], words: str) -> None:
    refused(attn("inspect", "time flies", *options), 2, words)


def test_a_dump_has_no_words_and_no_values(attn: Run, tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    path = tmp_path / "dump.safetensors"
    save_file({name: np.ones((3, 2), np.float32) for name in "qk"}, path)
    refused(attn("inspect", "--from", path, "--words"), 2, "the position of each token")
    refused(attn("inspect", "--from", path, "--norms"), 4, "needs the values V")
    assert attn("inspect", "--from", path, "--rollout").code == 0
