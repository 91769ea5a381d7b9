"""The kernel against torch and against plain Python; every axis has another prime, so that no swap can pass."""

import math

import numpy as np
import pytest
import torch

from attncli import attention

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
