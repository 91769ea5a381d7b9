"""The kernel against torch and plain Python, at once and in blocks; axes have other primes, so no swap can pass."""

import math
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from traces import layer_of, trace_of

import attncli
from attncli import attention
from attncli.errors import InputMismatchError
from attncli.formats import documents, joined, part_of
from attncli.formats.columns import CELLS
from attncli.render.heatmap import heatmap_of
from attncli.trace.tokens import Token, Tokens
from attncli.trace.trace import Trace
from attncli.trace.view import View

HEADS, QUERIES, KEYS, WIDTH, VALUE_WIDTH = 2, 3, 5, 7, 11


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(0)


def arrays(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    shapes = ((HEADS, QUERIES, WIDTH), (HEADS, KEYS, WIDTH), (HEADS, KEYS, VALUE_WIDTH))
    return tuple(random.standard_normal(shape, dtype=np.float32) for shape in shapes)


def test_the_stages_together_are_torchs_attention(random: np.random.Generator) -> None:
    q, k, v = arrays(random)
    allowed = np.ones((1, QUERIES, KEYS), bool)
    allowed[0, 1, 3:] = False
    scores = attention.attention_scores(attention.dot_products(q, k), WIDTH**-0.5)
    weights = attention.attention_weights(attention.masked_scores(scores, allowed, -np.inf))
    output = attention.attention_output(weights, v)
    expected = torch.nn.functional.scaled_dot_product_attention(
        *map(torch.from_numpy, (q, k, v)), attn_mask=torch.from_numpy(allowed)
    )
    np.testing.assert_allclose(output, expected.numpy(), atol=1e-6)
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-6)
    assert (weights[:, 1, 3:] == 0).all()


def test_bias_softcap_and_sinks_agree_with_plain_python(random: np.random.Generator) -> None:
    q, k, _ = arrays(random)
    bias = random.standard_normal((1, QUERIES, KEYS), dtype=np.float32)
    sinks = np.array([[0.5, 2.0, 0.0], [-1.0, 0.1, 3.0]], np.float32)  # one for every query
    scores = attention.attention_scores(attention.dot_products(q, k), 0.3, bias, softcap=1.5)
    weights = attention.attention_weights(scores, sinks)
    for head in range(HEADS):
        for row in range(QUERIES):
            expected = []
            for column in range(KEYS):
                product = sum(float(a) * float(b) for a, b in zip(q[head, row], k[head, column], strict=True))
                expected.append(1.5 * math.tanh((product * 0.3 + float(bias[0, row, column])) / 1.5))
            total = sum(map(math.exp, expected)) + math.exp(float(sinks[head, row]))
            np.testing.assert_allclose(scores[head, row], expected, atol=1e-5)
            np.testing.assert_allclose(weights[head, row], [math.exp(s) / total for s in expected], atol=1e-6)
    assert (weights.sum(-1) < 1).all()
    of_heads = attention.attention_weights(scores, sinks[:, 1])
    np.testing.assert_array_equal(of_heads, attention.attention_weights(scores, sinks[:, [1, 1, 1]]))


ROWS = 13
ARRAYS = frozenset({"q", "k", "v", "scores", "mask", "weights", "metrics"})


def exact(mask: str = "causal", odd: bool = False) -> Trace:
    """Return a layer whose products are small integers, so that every routine of BLAS gives the same ones."""
    random = np.random.default_rng(0)
    q, k, v = random.integers(-3, 4, (3, 2, ROWS, 4)).astype(np.float32)
    if odd:
        q[:, 4] = np.inf
        q[:, 7] = np.nan
    tokens = Tokens(Token(place, place % 4, f"w{place % 4}", None, None, place == 0) for place in range(ROWS))
    return trace_of(layer_of(q, k, v, mask, 0.5), queries=tokens, keys=tokens)


def whole_and_in_blocks(monkeypatch: pytest.MonkeyPatch, cells: int, made: Callable[[], Any]) -> tuple[Any, Any]:
    whole = made()
    with monkeypatch.context() as patched:
        patched.setattr(attention, "CELLS", cells)
        return whole, made()


@pytest.fixture(params=[1, 5 * ROWS + 3], ids=["a row", "five rows"])
def cells(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize(
    ("mask", "odd", "pool"), [("full", True, (2, 3)), ("causal & ~queries(3,6)", True, (5, 1)), ("~full", True, (1, 1))]
)
def test_a_picture_of_blocks_is_that_of_the_whole(
    monkeypatch: pytest.MonkeyPatch, cells: int, mask: str, odd: bool, pool: tuple[int, int]
) -> None:
    head = exact(mask, odd).layer(0).head(0)
    whole, parts = whole_and_in_blocks(monkeypatch, cells, lambda: heatmap_of(head, [1, 5, 2], pool))
    np.testing.assert_array_equal(parts.values, whole.values)
    np.testing.assert_array_equal(parts.allowed, whole.allowed)
    assert (parts.title, parts.extent) == (whole.title, whole.extent)


def written(name: str, traces: list[Trace], view: View) -> Iterator[str]:
    parts = [(number, part_of(name, number, trace, view)) for number, trace in enumerate(traces, start=1)]
    return joined(name, parts, CELLS)


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize(("odd", "precision"), [(False, 3), (True, None)])
@pytest.mark.parametrize("name", ["json", "jsonl", "tsv", "csv"])
def test_every_format_writes_blocks_as_the_whole(
    monkeypatch: pytest.MonkeyPatch, cells: int, name: str, odd: bool, precision: int | None
) -> None:
    trace = exact("causal & ~queries(3,6)", odd)
    view = View(show=ARRAYS, keys=("3", "0", "12"), precision=precision)
    whole, parts = whole_and_in_blocks(monkeypatch, cells, lambda: "".join(written(name, [trace, trace], view)))
    assert parts == whole


def traced(made: Callable[[], Any]) -> tuple[Any, int]:
    tracemalloc.start()
    try:
        return made(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def long(tokens: int) -> Trace:
    return attncli.inspect(" ".join(f"w{place % 700}" for place in range(tokens)), head="0")


def test_a_long_sentence_is_written_without_its_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "CELLS", 2**15)
    trace = long(768)
    view = View(show=frozenset({"scores", "mask", "weights", "output", "metrics"}))
    count, peak = traced(lambda: sum(map(len, written("tsv", [trace], view))))
    assert count > 2 * 768**2
    assert peak < 768**2 * 4 * 2


def test_json_of_too_many_cells_names_the_option_that_makes_it_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "_MOST_CELLS", 12 * 12)
    with pytest.raises(InputMismatchError, match="JSON of 169 cells; give --top-keys 10, or -o"):
        part_of("json", 1, long(13), View())
    assert list(part_of("json", 1, long(13), View(top_keys=2)))
