"""A score's terms are those of transformers' modules in float64, in every family, and they add up to it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from held_norms import WRITERS, terms_by_gradient
from native_variants import save_whole

import attncli

TEXT = "w7 w8 w9 w10 w9 w11 w12 w13 w9"
Saved = Callable[[str], tuple[str, Any]]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """The tiny checkpoint of a family, and its model."""

    @cache
    def get(family: str) -> tuple[str, Any]:
        folder: Path = tmp_path_factory.mktemp(family)
        return str(folder), save_whole(family, folder)

    return get


@pytest.mark.parametrize("family", WRITERS)
def test_the_terms_of_every_cell_add_up_to_its_score(family: str, saved: Saved) -> None:
    trace = attncli.inspect(TEXT, saved(family)[0], layer="all")
    last = len(trace.key_tokens) - 1
    for layer in trace:
        for head in range(layer.num_heads):
            for key in (0, last - 1):
                split = layer.head(head).composition(last, key)
                row = layer.scale * layer.head(head).k @ layer.head(head).q[last]
                others = [each for each in np.flatnonzero(layer.head(head).mask[last]) if each != key]
                for side in ("key", "query"):
                    terms = split.of_side(side)
                    assert sum(term.value for term in terms) == pytest.approx(row[key], abs=1e-4)
                    assert sum(term.margin for term in terms) == pytest.approx(row[key] - row[others].mean(), abs=1e-4)
                    sizes = [abs(term.margin) for term in terms]
                    assert sizes == sorted(sizes, reverse=True)
                assert split.score == pytest.approx(row[key], abs=1e-6)


@pytest.mark.parametrize("family", WRITERS)
def test_each_term_is_what_transformers_computes(family: str, saved: Saved) -> None:
    folder, model = saved(family)
    trace = attncli.inspect(TEXT, folder, layer="all")
    layer, query, key = trace.layer(2), len(trace.key_tokens) - 2, 3
    for head in range(layer.num_heads):
        allowed = np.flatnonzero(layer.head(head).mask[query]).tolist()
        keys = [key, *(each for each in allowed if each != key)]
        expected = terms_by_gradient(model, trace.key_tokens.ids, 2, head, query, keys)
        found: dict[Any, np.ndarray[Any, Any]] = {}
        for term in layer.head(head).composition(query, key).terms:
            writer = ("bias", None, None) if term.writer == "bias" else (term.writer, term.layer, term.head)
            sums = found.setdefault((term.side, writer), np.zeros(2))
            sums += term.value, term.margin
        assert {*found} <= {*expected}  # a model without biases has no such term
        for place, values in expected.items():
            margin = values[0] - np.mean(values[1:])
            np.testing.assert_allclose(
                found.get(place, np.zeros(2)), [values[0], margin], atol=1e-4, err_msg=str(place)
            )
