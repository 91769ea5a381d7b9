"""Queries about a text that changes: answers are those of a source opened for each, from one model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from native_variants import save_whole

import attncli
from attncli.engines.interactive import Query, open_interactive
from attncli.engines.torch import load
from attncli.errors import NotExposedError, UsageError
from attncli.trace.trace import Trace

MASKS = (None, "causal", "band(1,1)", "causal & keys(1,60)")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    made = {family: tmp_path_factory.mktemp(family) for family in ("gpt2", "llama", "bert")}
    for family, folder in made.items():
        save_whole(family, folder, *["token_type_ids"] * (family == "bert"))
    return {family: str(folder) for family, folder in made.items()}


def same(found: Trace, direct: Trace) -> bool:
    for name in ("source", "query_tokens", "key_tokens", "text", "pair", "target", "notes"):
        assert getattr(found, name) == getattr(direct, name), name
    for layer, other in zip(found.layers, direct.layers, strict=True):
        assert (layer.layer, layer.kind, layer.heads) == (other.layer, other.kind, other.heads)
        assert str(layer.mask) == str(other.mask)
        for head in range(other.num_heads):
            np.testing.assert_allclose(layer.head(head).weights, other.head(head).weights, atol=1e-6)
    return True


@pytest.mark.parametrize("family", ["gpt2", "llama", "bert"])
def test_answers_are_those_of_a_run_for_each_query(family: str, folders: dict[str, str]) -> None:
    model = open_interactive(model=folders[family], engine="native")
    for text in ("w2 w3", "w2 w3 w4", "w5"):
        for pair in (None, "w7"):
            for mask in MASKS:
                query = Query(text, pair, mask=mask)
                direct = attncli.inspect(text, folders[family], pair=pair, mask=mask, layer="all")
                assert model.tokens(query) == (direct.query_tokens, direct.key_tokens)
                assert same(model.trace(query), direct)


def test_the_toy_layer_answers_any_query() -> None:
    toy = open_interactive(num_heads=2, seed=7)
    for query in (Query("time flies"), Query("time flies", "a banana"), Query("an arrow", target="flies", mask="full")):
        text, pair, target, mask = query
        direct = attncli.inspect(text, pair=pair, target=target, mask=mask, num_heads=2, seed=7)
        assert toy.tokens(query) == (direct.query_tokens, direct.key_tokens)
        assert same(toy.trace(query), direct)


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    loaded: list[str] = []
    load_model = load.load_model

    def noting(place: Any, *rest: Any, **named: Any) -> Any:
        loaded.append(place.name)
        return load_model(place, *rest, **named)

    monkeypatch.setattr(load, "load_model", noting)
    return loaded


def test_transformers_answers_from_one_model(folders: dict[str, str], loads: list[str]) -> None:
    folder = folders["llama"]
    model = open_interactive(model=folder, engine="transformers")
    queries = [Query("w2 w3"), Query("w2 w3 w4", mask="band(1,1)"), Query("w2 w3 w4")]
    found = [model.trace(query) for query in queries]
    assert [model.tokens(query)[1] for query in queries] == [trace.key_tokens for trace in found]
    assert loads == [folder]
    for trace, query in zip(found, queries, strict=True):
        assert same(trace, attncli.inspect(query.text, folder, engine="transformers", layer="all", mask=query.mask))
    with pytest.raises(NotExposedError, match="need the native engine"):
        model.predictor()


def test_a_saved_trace_answers_its_own_query(folders: dict[str, str], tmp_path: Path) -> None:
    direct = attncli.inspect("w2 w3", pair="w4", model=folders["bert"], layer=[0, 2])
    direct.save(path := tmp_path / "trace.safetensors")
    saved = open_interactive(saved=path, head=1)
    query = Query("w2 w3", "w4")
    assert (saved.own, list(saved.layers)) == (query, [0, 2])
    found = saved.trace(query)
    assert [layer.heads for layer in found.layers] == [(1,), (1,)]
    np.testing.assert_array_equal(found.layers[1].q, direct.layers[1].q)
    assert saved.tokens(query) == (direct.query_tokens, direct.key_tokens)
    for other in (Query("w2"), query._replace(mask="full")):
        with pytest.raises(UsageError, match="has only its own text"):
            saved.trace(other)
