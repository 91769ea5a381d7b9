"""Answers: each stage says what the functions of the package say of the same text, and nothing is computed twice."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from asked_models import Plain

import attncli
from attncli.engines.interactive import InteractiveSource, Query, open_interactive
from attncli.errors import InputError, NotExposedError, UsageError
from attncli.explore.computation import ComputedView, IncrementalComputation
from attncli.explore.view_state import Limits, ViewState
from attncli.trace.trace import Trace

TEXT, OTHER = "time flies like an arrow", "fruit flies like a banana"
LOOK = ViewState(Query(TEXT), layer=2)
EVERY = [0, 1, 2, 3]  # layers of the model in the box


@pytest.fixture
def model() -> Plain:
    return Plain(len(EVERY), model="demo")


def answering_of(model: InteractiveSource) -> IncrementalComputation:
    return IncrementalComputation(model)


def last_of(model: InteractiveSource | IncrementalComputation, look: ViewState) -> ComputedView:
    computation = model if isinstance(model, IncrementalComputation) else answering_of(model)
    *_, last = computation.results(look)
    return last


def demo(text: str = TEXT, layer: Any = 2, **options: Any) -> Trace:
    return attncli.inspect(text, model="demo", layer=layer, **options)


def assert_same(found: Trace | None, wanted: Trace) -> None:
    assert found is not None
    assert found.query_tokens == wanted.query_tokens
    for one, other in zip(found.layers, wanted.layers, strict=True):
        assert (one.layer, one.kind, one.heads) == (other.layer, other.kind, other.heads)
        for head in range(one.num_heads):
            np.testing.assert_array_equal(one.head(head).weights, other.head(head).weights)


def assert_measured(answer: ComputedView, layers: list[int], text: str = TEXT, **options: Any) -> None:
    """The survey is that of these layers, but for the last digit that layers measured together may differ in."""
    wanted, found = attncli.heads(text, model="demo", layer=layers, **options), answer.survey
    assert found is not None
    assert replace(found, heads=()) == replace(wanted, heads=())
    for head, other in zip(found.heads, wanted.heads, strict=True):
        assert (head.layer, head.kind, head.head) == (other.layer, other.kind, other.head)
        assert [label.name for label in head.labels] == [label.name for label in other.labels]
        for name, value in other.metrics.items():
            assert head.metrics[name] == (value if value is None else pytest.approx(value, rel=1e-5, abs=1e-6))


# --- stages -----------------------------------------------------------------------------------------------------


def test_an_answer_grows_from_the_tokens_over_the_layer_to_the_map(model: Plain) -> None:
    tokens, layer, *waiting, measured, last = answering_of(model).results(LOOK)
    wanted = demo()
    assert tokens.tokens == layer.tokens == (wanted.query_tokens, wanted.key_tokens)
    assert (tokens.sights, tokens.survey, layer.survey) == ((), None, None)
    assert_same(layer.sights[0].trace, wanted)
    assert waiting == [layer] * 4  # a newer text ends the computation after any layer
    assert_measured(measured, EVERY)
    assert measured.sights is layer.sights
    assert [each.is_whole for each in (tokens, layer, measured, last)] == [False] * 3 + [True]
    assert replace(last, is_whole=False) == measured
    assert last.failure == ""


def test_norms_and_rollouts_are_those_of_derive(model: Plain) -> None:
    answering = answering_of(model)
    assert_same(last_of(answering, LOOK.counting("norms")).sights[0].trace, attncli.derive(demo(), norms=True))
    rollout = last_of(answering, LOOK.counting("rollout"))
    assert_same(rollout.sights[0].trace, attncli.derive(demo(layer="all"), rollout=True, layer=2))
    assert_measured(rollout, EVERY)  # of the weights
    assert rollout.limits().heads == (0, 1, 2, 3)  # to come back to


# --- nothing twice ----------------------------------------------------------------------------------------------


def test_a_text_is_recorded_once(model: Plain) -> None:
    answering = answering_of(model)

    def questions(look: ViewState) -> list[str]:
        model.requests.clear()
        assert_measured(last_of(answering, look), EVERY, look.question.text)
        return list(model.requests)

    assert questions(LOOK) == [TEXT]
    assert questions(LOOK) == questions(LOOK.counting("norms")) == questions(LOOK.moved(Limits(), 1, 1)) == []
    assert questions(replace(LOOK, layer=1)) == questions(LOOK.counting("rollout")) == []
    assert questions(LOOK.asking(OTHER)) == [OTHER]


# --- failures ---------------------------------------------------------------------------------------------------


def test_a_text_that_cannot_be_read_is_a_failure(model: Plain) -> None:
    answering = answering_of(model)
    (answer,) = answering.results(LOOK.asking(""))
    with pytest.raises(InputError) as error:
        demo("")
    assert (answer.failure, answer.is_whole, answer.tokens) == (str(error.value), True, None)
    last = last_of(answering, LOOK)
    assert (last.failure, last.is_whole) == ("", True)


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (NotExposedError("there are no weights"), "there are no weights"),
        (MemoryError(), "out of memory; give fewer tokens"),
        (InputError("3 tokens; shorten it, or add --truncate"), "3 tokens; shorten it"),
        (KeyError("a\nb\x1b["), "this is a bug in attn, please report it: KeyError: 'a\\nb\\x1b['"),
        (ValueError("one\ntwo\x1b["), "this is a bug in attn, please report it: ValueError: one two\\x1b["),
    ],
)
def test_whatever_is_raised_is_a_sentence(model: Plain, error: Exception, sentence: str) -> None:
    def fails(*_: Any) -> Any:
        raise error

    whole, model.whole = model.whole, fails  # type: ignore[method-assign]
    answering = answering_of(model)
    (last,) = answering.results(LOOK)
    assert (last.failure, last.is_whole) == (sentence, True)
    model.whole = whole  # type: ignore[method-assign]
    assert_measured(last_of(answering, LOOK), EVERY)


def test_a_head_or_a_cell_is_cut_and_the_next_token_told() -> None:
    text = "one two three four one two"
    look = ViewState(Query(text), layer=2, head=3, query=5, key=4)
    answering = IncrementalComputation(open_interactive(model="demo"))
    whole = attncli.ablate(text, "demo", head="2.3")
    assert whole.after is not None
    chances = f"{np.exp(whole.before):.2g} → {np.exp(whole.after):.2g}"
    assert answering.cut(look, False) == f"without L2H3: next token three {chances}, {whole.change:+.2f} nats"
    assert answering.cut(look, True).startswith("without the weight of query 5 on key 4 in L2H3: next token three")
    with pytest.raises(UsageError, match="empty the mask"):
        answering.cut(look.with_text("mask", "full"), False)
    with pytest.raises(NotExposedError, match="causal language model"):
        IncrementalComputation(open_interactive()).cut(look, False)
