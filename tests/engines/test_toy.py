"""The toy layer against plain torch, with its weights drawn again here in the order that the design states."""

import hashlib
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from tokenizers.pre_tokenizers import Whitespace
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import attncli
from attncli.encoding.vocabulary import WordVocabulary

SENTENCE = "Life is short eat dessert first"
LENGTH = 6
STATES = "b a d c e", "e z a"  # keys, and queries that are of another sequence
NOTEBOOK: dict[str, Any] = {
    "rng": "torch", "seed": 123, "vocab_size": 50000, "d_model": 3, "init": "uniform", "out_proj": False,
    "mask": "none",
}  # fmt: skip

both_rngs = pytest.mark.parametrize("rng", ["numpy", "torch"])


class Stream:
    def __init__(self, rng: str, seed: int) -> None:
        self.generator = np.random.default_rng(seed) if rng == "numpy" else None
        if rng == "torch":
            torch.manual_seed(seed)

    def normal(self, rows: int, columns: int) -> Tensor:
        if self.generator is None:
            return torch.randn(rows, columns)
        return torch.from_numpy(self.generator.standard_normal((rows, columns), dtype=np.float32))

    def uniform(self, rows: int, columns: int) -> Tensor:
        if self.generator is None:
            return torch.rand(rows, columns)
        return torch.from_numpy(self.generator.random((rows, columns), dtype=np.float32))

    def linear(self, rows: int, columns: int) -> tuple[Tensor, Tensor]:
        if self.generator is None:
            module = torch.nn.Linear(rows, columns)
            return module.weight.detach().T, module.bias.detach()
        bound = 1 / math.sqrt(rows)
        weight = self.uniform(columns, rows) * 2 * bound - bound
        return weight.T, (self.uniform(1, columns) * 2 * bound - bound)[0]


def embedded(rng: str, seed: int, width: int, text: str, others: str = "", size: int | None = None) -> Tensor:
    """The embeddings of a text's words: with torch, rows of a table for all the words; with NumPy, each by itself."""
    words = text.split()
    if rng == "numpy":
        seeds = [[seed, int(hashlib.sha256(word.encode()).hexdigest(), 16)] for word in words]
        drawn = [np.random.Generator(np.random.PCG64(each)).standard_normal(width, dtype=np.float32) for each in seeds]
        return torch.from_numpy(np.array(drawn))
    torch.manual_seed(seed)
    vocabulary = sorted({*words, *others.split()})
    table = torch.nn.Embedding(size or len(vocabulary), width).weight.detach()
    return table[[vocabulary.index(word) for word in words]]


def close(actual: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.asarray(actual), np.asarray(expected), rtol=1e-5, atol=2e-6)


SIZES = {"d_model": 6, "num_heads": 2, "d_k": 3, "d_v": 4}
# The options of a layer, and how many parameters it has.
LAYERS: dict[str, tuple[dict[str, Any], int]] = {
    "as it is": ({}, 3 * 32 * 8 * 4 + 32 * 32),
    "a single head": ({"d_model": 7, "num_heads": 1, "out_proj": False, "mask": "none"}, 3 * 7 * 7),
    "a target": ({"d_model": 6, "num_heads": 2, "target": STATES[1]}, 4 * 6 * 6),
    "embeddings of a target": ({"project": "none", "scale": "none", "d_model": 7, "target": STATES[1]}, 0),
    "embeddings and W_o": ({"project": "none", "d_model": 3, "num_heads": 2, "out_proj": True}, 18),
    "queries and keys alone": ({"project": "qk", "d_model": 4, "d_k": 3, "num_heads": 2, "mask": "none"}, 80),
    "positions": ({"positions": "sinusoidal", "project": "none", "d_model": 7, "target": STATES[1]}, 0),
    "a scale": ({"scale": -0.25, "d_model": 4, "d_k": 9, "d_v": 4}, 4 * 4 * (9 + 9 + 4) + 16 * 4),
    "normal": (SIZES | {"init": "normal"}, 168), "uniform": (SIZES | {"init": "uniform"}, 168),
    "linear": (SIZES | {"init": "linear"}, 168 + 2 * (3 + 3 + 4) + 6), "zeros": (SIZES | {"init": "zeros"}, 168),
}  # fmt: skip


@both_rngs
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_what_torch_makes_of_the_weights_that_are_drawn(rng: str, name: str) -> None:
    options, parameters = LAYERS[name]
    text, target = (STATES[0], options["target"]) if "target" in options else (SENTENCE, "")
    trace = attncli.inspect(text, seed=9, rng=rng, **options)
    width, count = options.get("d_model", 32), options.get("num_heads", 1 if options.get("project") == "none" else 4)
    keys = queries = embedded(rng, 9, width, text, target)
    if target:
        queries = embedded(rng, 9, width, target, text)
    if "positions" in options:
        angles = torch.arange(6)[:, None] / 10_000 ** (torch.arange(0, width, 2) / width)
        waves = torch.stack([angles.sin(), angles.cos()], -1).flatten(1)[:, :width]
        keys, queries = (x + waves[: len(x)] for x in (keys, queries))
    stream, init = Stream(rng, 9), options.get("init", "scaled")

    draws = {
        "scaled": lambda *shape: stream.normal(*shape) / math.sqrt(width),
        "normal": stream.normal, "uniform": stream.uniform, "zeros": torch.zeros,
    }  # fmt: skip

    def matrix(rows: int, columns: int) -> tuple[Tensor, Tensor]:
        if init == "linear":
            return stream.linear(rows, columns)
        return draws[init](rows, columns), torch.zeros(columns)

    layer, project = trace.layer(0), options.get("project", "qkv")
    split = options.get("d_k", width // count), options.get("d_v", width // count)
    outputs = []
    for head in range(count):
        q, k, v = queries, keys, keys
        if project != "none":
            q, k = (x @ weight + bias for x in (queries, keys) for weight, bias in [matrix(width, split[0])])
        if project == "qkv":
            weight, bias = matrix(width, split[1])
            v = keys @ weight + bias
        scale = {"sqrt": q.shape[-1] ** -0.5, "none": 1.0}.get(options.get("scale", "sqrt"), options.get("scale"))
        is_causal = not target and "mask" not in options
        found = layer.head(head)
        for shown, expected in ((found.q, q), (found.k, k), (found.v, v), (found.scores, q @ k.T * scale)):
            close(shown, expected)
        outputs.append(scaled_dot_product_attention(q, k, v, is_causal=is_causal, scale=scale))
        close(found.output, outputs[-1])
        assert found.weights.sum(axis=-1) == pytest.approx(1)
    together = torch.cat(outputs, -1)
    if options.get("out_proj", project != "none"):
        weight, bias = matrix(together.shape[-1], width)
        close(layer.projected(range(len(queries))), together @ weight + bias)
        assert (layer.out_bias is not None) == (init == "linear")
    else:
        assert layer.projected([0]) is None
    assert layer.kind == ("cross" if target else "self")
    assert layer.shapes["weights"] == [count, len(queries), len(keys)]
    assert trace.source.details["parameters"] == parameters


def test_the_published_single_head_comes_out_digit_for_digit() -> None:
    trace = attncli.inspect(SENTENCE, num_heads=1, d_k=3, d_v=3, **NOTEBOOK)
    assert trace.query_tokens.ids == [0, 4, 5, 2, 1, 3]
    head = trace.layer(0).head(0)
    for row, published in (
        (trace.layer(0).inputs, "0.1794 1.8951 0.4954"), (head.q, "1.4257 0.2836 1.7785"),
        (head.weights, "0.1091 0.5480 0.0439 0.1703 0.1234 0.0053"), (head.output, "0.7129 0.9178 1.1172"),
    ):  # fmt: skip
        assert " ".join(f"{value:.4f}" for value in row[1]) == published


@both_rngs
def test_seeds_are_as_good_as_their_promise(rng: str) -> None:
    first, again, other = (attncli.inspect(SENTENCE, seed=seed, rng=rng).layer(0) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.q, again.q)
    assert not np.isclose(first.q, other.q).any()
    largest = attncli.inspect(SENTENCE, seed=2**63 - 1, rng=rng)
    assert largest.source.seed == 2**63 - 1
    assert np.isfinite(largest.layer(0).q).all()


def qkv(text: str, **options: Any) -> dict[str, list[np.ndarray]]:
    trace = attncli.inspect(text, **options)
    layer = trace.layer(0)
    return {token.text: [array[:, token.index] for array in (layer.q, layer.k, layer.v)] for token in trace.key_tokens}


@pytest.mark.parametrize("options", [{}, {"d_model": 6, "num_heads": 2, "init": "linear"}, {"d_model": 512}], ids=str)
def test_deleting_a_word_leaves_the_others_as_they_were(options: dict[str, Any]) -> None:
    whole = qkv(SENTENCE, seed=7, **options)
    for text in ("Life is short dessert first", "first eat Life", "short"):
        for word, arrays in qkv(text, seed=7, **options).items():
            for array, expected in zip(arrays, whole[word], strict=True):
                np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize("init", ["scaled", "uniform", "linear"])
def test_torchs_own_random_state_is_left_untouched(init: str) -> None:
    torch.manual_seed(99)
    expected = torch.rand(5)
    torch.manual_seed(99)
    before = torch.get_rng_state()
    drawn = attncli.inspect(SENTENCE, rng="torch", init=init, seed=1).layer(0)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(torch.rand(5), expected)
    np.testing.assert_array_equal(drawn.q, attncli.inspect(SENTENCE, rng="torch", init=init, seed=1).layer(0).q)


def test_words_are_numbered_in_sorted_order_with_their_place_in_the_text() -> None:
    trace = attncli.inspect("Don't stop, don't!")
    words = ["Don", "'", "t", "stop", ",", "don", "'", "t", "!"]
    assert [token.text for token in trace.query_tokens] == words
    assert trace.query_tokens.ids == [sorted(set(words)).index(word) for word in words]
    assert ["Don't stop, don't!"[token.start : token.end] for token in trace.query_tokens] == words
    assert not any(token.special or token.segment for token in trace.query_tokens)
    assert trace.source.details["vocab_size"] == 7
    assert trace.notes == ()
    assert trace.key_tokens == trace.query_tokens


ASCII = st.text(st.characters(max_codepoint=127), min_size=1)


@given(ASCII | st.text(min_size=1))
@example("".join(f"a{chr(code)}b {chr(code)} .{chr(code)}-" for code in range(128)))
def test_words_are_those_of_the_tokenizers_library(text: str) -> None:
    assume(text.strip() and not any("\ud800" <= character <= "\udfff" for character in text))
    tokens = WordVocabulary([text], None).encode(text, None)
    assert [(token.text, (token.start, token.end)) for token in tokens] == Whitespace().pre_tokenize_str(text)
