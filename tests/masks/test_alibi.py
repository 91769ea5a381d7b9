"""The slopes of a bias, found in its numbers."""

import numpy as np
import pytest
import torch

from attncli.masks.alibi import slopes, slopes_in


def bias_of(heads: int, queries: int, keys: int) -> np.ndarray:
    """`[1, H, Q, K]` of ALiBi."""
    distance = np.abs(np.arange(keys - queries, keys)[:, None] - np.arange(keys))
    return -np.array(slopes(heads))[None, :, None, None] * distance


def causal(queries: int, keys: int) -> np.ndarray:
    return np.tri(queries, keys, keys - queries, dtype=bool)[None, None]


@pytest.mark.parametrize(
    ("heads", "queries", "keys", "dtype"),
    [(1, 2, 2, torch.float32), (6, 7, 7, torch.float16), (32, 3, 40, torch.bfloat16), (6, 300, 300, torch.bfloat16)],
)
def test_slopes_are_found_in_the_types_that_models_compute_in(
    heads: int, queries: int, keys: int, dtype: torch.dtype
) -> None:
    shape = (2, heads, queries, keys)
    bias = torch.from_numpy(bias_of(heads, queries, keys)).to(dtype).float().numpy()
    of_keys = torch.tensor(slopes(heads)).to(dtype)[:, None, None] * torch.arange(keys).to(dtype)
    for form in (bias, of_keys.float().numpy()[None], bias - 3):
        assert slopes_in(form, causal(queries, keys), shape) == (*slopes(heads),)
    if queries > 2:
        assert slopes_in(-bias, causal(queries, keys), shape) == pytest.approx(
            [-one for one in slopes(heads)], rel=0.02
        )
        assert slopes_in(bias, np.ones((1, 1, 1, 1), bool), shape) == (*slopes(heads),)  # to both sides


def test_only_cells_that_are_seen_count() -> None:
    shape = (2, 4, 6, 6)
    real = np.arange(6) < np.array([6, 3])[:, None]
    seen = causal(6, 6) & real[:, None, None]
    bias = np.where(seen, bias_of(4, 6, 6), 7.0)
    assert slopes_in(bias, seen, shape) == (*slopes(4),)
    assert slopes_in(bias, causal(6, 6), shape) is None
    assert slopes_in(np.where(seen, bias, -np.inf), seen, shape) == (*slopes(4),)


def test_distances_may_begin_again_in_each_document() -> None:
    document, position = np.array([0, 0, 0, 1, 1, 1]), np.array([0, 1, 2, 0, 1, 2])
    seen = causal(6, 6) & (document[:, None] == document)
    bias = np.array(slopes(2))[None, :, None, None] * position
    assert slopes_in(bias, seen, (1, 2, 6, 6)) == (*slopes(2),)
    assert slopes_in(bias, causal(6, 6), (1, 2, 6, 6)) is None


def test_one_key_of_each_query_says_nothing() -> None:
    zeros = np.zeros((1, 1, 1, 1))
    assert slopes_in(zeros, np.eye(5, dtype=bool)[None, None], (1, 2, 5, 5)) == ()
    assert slopes_in(zeros + 3, causal(1, 1), (1, 2, 1, 1)) == ()
    assert slopes_in(zeros, np.ones((1, 1, 1, 1), bool), (1, 2, 3, 0)) == ()
    assert slopes_in(zeros, causal(5, 5), (1, 2, 5, 5)) == (0, 0)


@pytest.mark.parametrize(
    "other",
    [
        np.random.default_rng(0).normal(size=(1, 4, 8, 8)),
        -np.log1p(np.abs(np.arange(8)[:, None] - np.arange(8)))[None, None],
        -np.minimum(np.abs(np.arange(8)[:, None] - np.arange(8)), 3.0)[None, None],
        np.full((1, 4, 8, 8), np.nan),
    ],
    ids=["noise", "logarithm", "clipped", "nan"],
)
def test_another_bias_has_no_slopes(other: np.ndarray) -> None:
    assert slopes_in(other, causal(8, 8), (1, 4, 8, 8)) is None
