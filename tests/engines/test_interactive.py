"""Questions about a text that changes: answers are those of a source opened for each, and little is computed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from architectures import tiny_model
from conformance import save
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from native_variants import compared, save_whole
from rounding import of_weights

import attncli
from attncli.engines.interactive import InteractiveSource, Query, open_interactive
from attncli.engines.numpy import forward, parallel, prefix_cache
from attncli.engines.torch import load
from attncli.errors import InputError, NotExposedError, UsageError
from attncli.trace.trace import Trace

FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "llama": {"num_attention_heads": 4, "num_key_value_heads": 2},
    "gemma2": {"num_key_value_heads": 1, "sliding_window": 4},  # every other layer has a window, and scores a softcap
    "gpt_neox": {},
    "bert": {},
}
LAYERS = 3
MASKS = (
    None, "causal", "full", "window(2)", "band(1,1)", "causal | prefix(2)", "chunk(3)", "causal & keys(1,60)",
    "pad(right=1)",
)  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    made = {family: tmp_path_factory.mktemp(family) for family in FAMILIES}
    for family, folder in made.items():
        save_whole(family, folder, *["token_type_ids"] * (family == "bert"), **FAMILIES[family])
    return {family: str(folder) for family, folder in made.items()}


@cache
def opened(model: str, layers: tuple[int, ...], mask: str | None) -> Any:
    return attncli.open_source(model=model, engine="native", layer=layers, mask=mask)


def fresh(model: str, question: Query, layers: tuple[int, ...]) -> Trace:
    """The trace that a source gives which keeps nothing."""
    trace: Trace = opened(model, layers, question.mask).trace(question.text, question.pair)
    return trace


def same(found: Trace, direct: Trace) -> bool:
    """Return whether two traces are the same, but for what is rounded."""
    for name in ("source", "query_tokens", "key_tokens", "text", "pair", "target", "notes"):
        assert getattr(found, name) == getattr(direct, name), name
    assert [layer.heads for layer in found.layers] == [layer.heads for layer in direct.layers]
    assert compared("", list(found.layers), direct.layers).is_exact
    for layer, other in zip(found.layers, direct.layers, strict=True):
        rounding = of_weights(other, 64 * LAYERS)
        for head in range(other.num_heads):
            assert np.abs(layer.head(head).weights - other.head(head).weights).max() <= rounding
    return True


WORDS = st.lists(st.integers(2, 9).map("w{}".format), min_size=1, max_size=9)
SOME_LAYERS = st.lists(st.integers(0, LAYERS - 1), min_size=1, max_size=LAYERS, unique=True).map(tuple)
PAIRS = st.one_of(st.none(), WORDS.map(" ".join))
QUESTIONS = st.builds(Query, WORDS.map(" ".join), PAIRS, st.none(), st.sampled_from(MASKS))


@st.composite
def edited(draw: st.DrawFn) -> list[tuple[Query, tuple[int, ...]]]:
    """Draw what somebody asks who types, deletes, pastes, and looks at other layers, masks and pairs."""
    question, layers = draw(QUESTIONS), draw(SOME_LAYERS)
    requests = [(question, layers)]
    for _ in range(draw(st.integers(1, 12))):
        words = question.text.split()
        place = draw(st.integers(0, len(words)))
        match draw(st.sampled_from(("type", "type", "delete", "paste", "back", "layers", "layers", "mask", "pair"))):
            case "type":
                words.append(draw(WORDS)[0])
            case "delete":
                words = words[:place] or words[:1]
            case "paste":
                words[place:place] = draw(WORDS)
            case "back":
                question, layers = draw(st.sampled_from(requests))
                words = question.text.split()
            case "layers":
                layers = draw(SOME_LAYERS)
            case "mask":
                question = question._replace(mask=draw(st.sampled_from(MASKS)))
            case "pair":
                question = question._replace(pair=draw(PAIRS))
        question = question._replace(text=" ".join(words[:24]))
        requests.append((question, layers))
    return requests


def every_example(count: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return settings(
        max_examples=count, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
    )


@pytest.mark.parametrize("family", FAMILIES)
@every_example(25)
@given(requests=edited())
def test_answers_are_those_of_a_source_that_keeps_nothing(
    family: str, folders: dict[str, str], requests: list[tuple[Query, tuple[int, ...]]]
) -> None:
    model = open_interactive(model=folders[family], engine="native")
    for question, layers in requests:
        direct = fresh(folders[family], question, layers)
        assert model.tokens(question) == (direct.query_tokens, direct.key_tokens)
        assert same(model.trace(question, layers), direct)


@every_example(25)
@given(requests=edited())
def test_the_same_where_there_is_room_for_little_and_rows_are_spread(
    folders: dict[str, str], requests: list[tuple[Query, tuple[int, ...]]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefix_cache, "_MOST", 6_000)  # a layer or two
        patch.setattr(parallel, "LONG", 4)
        model = open_interactive(model=folders["llama"], engine="native")
        for question, layers in requests:
            assert same(model.trace(question, layers), fresh(folders["llama"], question, layers))


# --- what is computed -----------------------------------------------------------------------------------------


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The rows that went through each projection."""
    counted: Counter[str] = Counter()
    projected = forward.Model.project

    def counting(self: forward.Model, name: str, x: Any, *rest: Any, **named: Any) -> Any:
        counted[name] += len(x)
        return projected(self, name, x, *rest, **named)

    monkeypatch.setattr(forward.Model, "project", counting)
    return counted


def test_one_more_token_costs_one_row_of_a_causal_model(folders: dict[str, str], rows: Counter[str]) -> None:
    model = open_interactive(model=folders["gemma2"], engine="native")
    text = "w2 w3 w4 w5 w6 w7 w8 w9"
    model.trace(Query(text), [LAYERS - 1])
    for question in (Query(text + " w2"), Query(text + " w2 w9"), Query(text + " w2 w4")):
        rows.clear()
        model.trace(question, range(LAYERS))
        assert set((+rows).values()) == {1}
    rows.clear()
    model.trace(Query("w2 w3 w4"), range(LAYERS))
    assert not +rows


def test_a_layer_goes_on_from_the_deepest_that_was_computed(folders: dict[str, str], rows: Counter[str]) -> None:
    model = open_interactive(model=folders["bert"], engine="native")
    question = Query("w2 w3 w4", "w5")
    assert model.steps([2, 0, 1, 2]) == [[0], [1], [2]]
    seen: Counter[str] = Counter()
    for layers in model.steps(model.layers):
        rows.clear()
        model.trace(question, layers)
        assert not (+rows).keys() & seen.keys()
        seen += rows
    assert set(seen.values()) == {4}


def test_two_texts_that_are_compared_are_both_kept(folders: dict[str, str], rows: Counter[str]) -> None:
    model = open_interactive(model=folders["bert"], engine="native")
    held = Query("w2 w3 w4")
    model.trace(held, [2])
    for text in ("w5", "w5 w6", "w5 w6 w7", "w5 w6"):
        model.trace(Query(text), [2])
        rows.clear()
        for layers in ([2], [0, 1]):
            model.trace(held, layers)
            model.trace(Query(text), layers)
        assert not +rows


def test_what_is_kept_is_bounded(folders: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_cache, "_MOST", 20_000)
    model: Any = open_interactive(model=folders["gpt2"], engine="native")
    for length in range(1, 60, 7):
        for layer in (*range(LAYERS), 0, 1):
            model.trace(Query(" ".join(["w7"] * length)), [layer])
            remaining = model._model._prefix_cache._passes
            assert len(remaining) <= 2
            for each in remaining:
                sizes = [state.nbytes for state in each.states.values()]
                assert sum(sizes) <= 20_000 or len(sizes) == 1


def test_another_mask_is_computed_from_the_embeddings_and_a_file_is_read_again(
    folders: dict[str, str], tmp_path: Path, rows: Counter[str]
) -> None:
    path, words = tmp_path / "mask.npy", "w2 w3 w4 w5"
    allowed = np.tril(np.ones((4, 4, 4), bool))
    question = Query(words, mask=f'file("{path}")')
    model = open_interactive(model=folders["gpt2"], engine="native")
    model.trace(Query(words), range(LAYERS))
    for head in (0, 1):
        allowed[head, 2, 0] = False
        np.save(path, allowed)
        direct = attncli.inspect(words, model=folders["gpt2"], layer="all", mask=str(question.mask))
        rows.clear()
        assert same(model.trace(question, range(LAYERS)), direct)
        assert set((+rows).values()) == {4}
        assert not any("h.0.attn.c_attn" in name for name in +rows)


def test_a_mask_that_does_not_fit_is_refused_before_anything_is_drawn(folders: dict[str, str]) -> None:
    model = open_interactive(model=folders["bert"], engine="native")
    assert model.trace(Query("w2 w3 w4", mask="docs(1,2)"), [0, 2])
    with pytest.raises(InputError, match=r"docs\(1,2\) covers 3 positions, the sequence has 4"):
        model.trace(Query("w2 w3 w4 w5", mask="docs(1,2)"), [0])
    assert model.trace(Query("w2 w3 w4", mask="docs(1,2)"), [0, 2])


# --- other sources --------------------------------------------------------------------------------------------


@given(
    text=st.lists(st.sampled_from("time flies like an arrow".split()), min_size=1, max_size=6).map(" ".join),
    target=st.one_of(st.none(), st.just("fruit flies")),
    pair=st.one_of(st.none(), st.just("a banana")),
    mask=st.sampled_from(MASKS),
)
def test_the_toy_layer_answers_any_question(text: str, target: str | None, pair: str | None, mask: str | None) -> None:
    question = Query(text, pair, target, mask)
    toy = _toy()
    direct = attncli.inspect(text, pair=pair, target=target, mask=mask, num_heads=2, seed=7)
    found = toy.trace(question, [0])
    assert toy.tokens(question) == (found.query_tokens, found.key_tokens) == (direct.query_tokens, direct.key_tokens)
    for name in ("q", "k", "v", "inputs", "out_projection"):
        np.testing.assert_array_equal(getattr(found.layers[0], name), getattr(direct.layers[0], name))
    assert str(found.layers[0].mask) == str(direct.layers[0].mask)
    assert (found.source, found.notes, found.layers[0].kind) == (direct.source, direct.notes, direct.layers[0].kind)


@cache
def _toy() -> InteractiveSource:
    return open_interactive(num_heads=2, seed=7)


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The models that transformers loads."""
    loaded: list[str] = []
    load_model = load.load_model

    def noting(place: Any, *rest: Any, **named: Any) -> Any:
        loaded.append(place.name)
        return load_model(place, *rest, **named)

    monkeypatch.setattr(load, "load_model", noting)
    return loaded


def equal(found: Trace, direct: Trace) -> bool:
    assert (found.source, found.key_tokens, found.query_tokens) == (
        direct.source,
        direct.key_tokens,
        direct.query_tokens,
    )
    assert (found.notes, len(found.layers)) == (direct.notes, len(direct.layers))
    for layer, other in zip(found.layers, direct.layers, strict=True):
        assert (layer.layer, layer.kind, str(layer.mask)) == (other.layer, other.kind, str(other.mask))
        for head in range(other.num_heads):
            np.testing.assert_allclose(layer.head(head).weights, other.head(head).weights, atol=1e-6)
    return True


def test_transformers_answers_from_one_model(folders: dict[str, str], loads: list[str]) -> None:
    folder = folders["llama"]
    model = open_interactive(model=folder, engine="transformers")
    assert loads == [folder]
    assert model.steps([2, 0]) == [[0, 2]]
    requests = [(Query("w2 w3"), [0]), (Query("w2 w3 w4", mask="band(1,1)"), [2]), (Query("w2 w3 w4"), [1, 2])]
    found = [model.trace(question, layers) for question, layers in requests]
    assert [model.tokens(question)[1] for question, _ in requests] == [trace.key_tokens for trace in found]
    assert loads == [folder]
    for trace, (question, layers) in zip(found, requests, strict=True):
        how = {"engine": "transformers", "layer": layers, "mask": question.mask}
        assert equal(trace, attncli.inspect(question.text, model=folder, **how))


def test_a_mask_that_cannot_be_replaced_is_refused_and_the_next_question_answered(tmp_path: Path) -> None:
    save(tiny_model("bloom"), tmp_path)
    model = open_interactive(model=str(tmp_path))
    direct = model.trace(Query("w2 w3"), [1])
    with pytest.raises(NotExposedError, match="bloom: the model does not take --mask; drop it"):
        model.trace(Query("w2 w3", mask="full"), [1])
    assert equal(model.trace(Query("w2 w3"), [1]), direct)


def test_a_saved_trace_answers_its_own_question(folders: dict[str, str], tmp_path: Path) -> None:
    direct = attncli.inspect("w2 w3", pair="w4", model=folders["bert"], layer=[0, 2])
    direct.save(path := tmp_path / "trace.safetensors")
    saved = open_interactive(saved=path, head=1)
    question = Query("w2 w3", "w4")
    assert (saved.own, list(saved.layers), saved.steps([2, 0])) == (question, [0, 2], [[0, 2]])
    found = saved.trace(question, [2])
    assert [layer.heads for layer in found.layers] == [(1,)]
    np.testing.assert_array_equal(found.layers[0].q, direct.layers[1].q)
    assert saved.tokens(question) == (direct.query_tokens, direct.key_tokens)
    for other in (Query("w2"), question._replace(mask="full")):
        with pytest.raises(UsageError, match="has only its own text"):
            saved.trace(other, [0])
    with pytest.raises(UsageError, match=r"layer 1 is not in the saved trace, which has layers 0,2"):
        saved.trace(question, [1])
