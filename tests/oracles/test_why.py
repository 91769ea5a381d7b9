"""The stages of one cell add up to what transformers computed: BERT, rotary, softcap, bias, sink, and watched."""

import importlib
import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from architectures import tiny_inputs, tiny_model
from conformance import opened, save, words

from attncli.analysis.cell import AttentionCell
from attncli.analysis.why import explain
from attncli.trace.trace import Trace

LAYER, HEAD = 1, 2
Run = Callable[..., Any]


class Called(Exception):  # noqa: N818
    """What the model's own attention function was handed and gave back, in one layer."""

    def __init__(self, query: Any, key: Any, value: Any, more: dict[str, Any], given_value: Any) -> None:
        self.query, self.key, self.value, self.more = query[0], key[0], value[0], more
        self.output, self.weights = given_value[0][0], given_value[1][0]


def own_call(name: str, model: Any, inputs: dict[str, torch.Tensor], number: int) -> Called:
    """Run the model itself, eagerly, and return the call of its attention function with this number."""
    module = importlib.import_module(type(model).__module__)
    eager = module.eager_attention_forward
    calls: list[Called] = []

    def recording(layer: Any, query: Any, key: Any, value: Any, mask: Any, *arguments: Any, **more: Any) -> Any:
        given_value = eager(layer, query, key, value, mask, *arguments, **more)
        sinks = more.get("sinks", getattr(layer, "sinks", None))  # one for every query, or for every head
        if sinks is not None:
            sinks = sinks.reshape(query.shape[1], -1).expand(-1, query.shape[2])
        more |= {"mask": mask, "sinks": sinks} | dict(zip(["scaling"], arguments, strict=False))
        if more.get("scaling") is None:
            more["scaling"] = getattr(layer, "scaling", query.shape[-1] ** -0.5)
        calls.append(Called(query, key, value, more, given_value))
        return given_value

    with patch.object(module, "eager_attention_forward", recording), torch.no_grad():
        model(**inputs)
    assert calls, name
    return calls[number]


Staged = Callable[[str], tuple[Trace, Called]]


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Staged:
    """The trace of a tiny model, and what its own attention function was handed in one layer."""

    @cache
    def get(name: str) -> tuple[Trace, Called]:
        folder, model = tmp_path_factory.mktemp(name), tiny_model(name)
        save(model, folder)
        inputs = tiny_inputs(model.config)
        trace = opened(folder, "all").trace(words(inputs["input_ids"]), target=words(inputs.get("decoder_input_ids")))
        return trace, own_call(name, model, inputs, LAYER)

    return get


def alone(trace: Trace) -> Trace:
    """A trace of the one layer that is compared."""
    return replace(trace, layers=(trace.layer(LAYER, trace.layers[0].kind),))


def loop(call: Called, query: int, key: int) -> dict[str, Any]:
    """Every stage of a cell in plain Python, of what the model's own function was handed."""
    heads, groups = len(call.query), len(call.key)
    group = HEAD // (heads // groups)
    q = call.query[HEAD, query].tolist()
    more, count = call.more, call.key.shape[1]
    bias = more.get("position_bias")

    def before_mask(place: int) -> tuple[float, float, float]:
        product = math.fsum(a * b for a, b in zip(q, call.key[group, place].tolist(), strict=True))
        score = product * more["scaling"] + (0.0 if bias is None else bias[0, HEAD, query, place].item())
        cap = more.get("softcap")
        return product, product * more["scaling"], score if cap is None else cap * math.tanh(score / cap)

    mask = more["mask"]
    added = [0.0 if mask is None else float(mask[0, 0, query, place]) for place in range(count)]
    scores = [before_mask(place)[2] for place in range(count)]
    exponentials = [math.exp(score) if added[place] == 0 else 0.0 for place, score in enumerate(scores)]
    sink = 0.0 if more["sinks"] is None else math.exp(more["sinks"][HEAD, query].item())
    total = math.fsum(exponentials) + sink
    k, v = call.key[group, key].tolist(), call.value[group, key].tolist()
    product, scaled, score = before_mask(key)
    return {
        "products": [a * b for a, b in zip(q, k, strict=True)],
        "dot_product": product,
        "scaled": scaled,
        "bias": None if bias is None else bias[0, HEAD, query, key].item(),
        "score": score,
        "allowed": added[key] == 0,
        "weight": exponentials[key] / total,
        "sink_weight": None if more["sinks"] is None else sink / total,
        "value_norm": math.sqrt(math.fsum(value * value for value in v)),
    }


@pytest.mark.parametrize("name", ["bert", "llama", "gemma2", "t5", "gpt_oss", "inkling2_text"])
def test_the_stages_add_up_to_the_models_own_weight(name: str, staged: Staged) -> None:
    trace, call = staged(name)
    trace = alone(trace)
    for query in range(7):
        for key in range(7):
            cell = explain(trace, query, key)[HEAD]
            assert isinstance(cell, AttentionCell)
            expected = loop(call, query, key)
            # The five stages by themselves, then to each other, then to what the model returned.
            near = {"rel": 1e-4, "abs": 1e-4}
            assert cell.products.tolist() == pytest.approx(expected["products"], **near)
            assert cell.dot_product == pytest.approx(expected["dot_product"], **near)
            assert cell.scaled == pytest.approx(expected["scaled"], **near)
            assert (cell.bias is None) == (expected["bias"] is None)
            if expected["bias"] is not None:
                assert cell.bias == pytest.approx(expected["bias"], **near)
            assert cell.score == pytest.approx(expected["score"], **near)
            assert cell.allowed is expected["allowed"]
            assert cell.weight == pytest.approx(expected["weight"], abs=2e-6)
            assert cell.weight == pytest.approx(call.weights[HEAD, query, key].item(), abs=2e-6)
            assert cell.value_norm == pytest.approx(expected["value_norm"], **near)
            row = cell.row
            assert cell.exponential / row.softmax.total == pytest.approx(float(cell.weight), abs=1e-6)
            if expected["sink_weight"] is None:
                assert row.sink_weight is None
            else:
                assert row.sink_weight == pytest.approx(expected["sink_weight"], abs=2e-6)
                assert row.weights.sum() + row.sink_weight == pytest.approx(1, abs=1e-5)
            own = call.output[query, HEAD]  # the model's own weights·V
            assert row.output_norm == pytest.approx(own.norm().item(), **near)
            carried = call.weights[HEAD, query, key] * call.value[HEAD // (len(call.query) // len(call.value)), key]
            assert cell.contribution_norm == pytest.approx(carried.norm().item(), abs=1e-4)
            assert cell.output_share == pytest.approx((carried @ own / (own @ own)).item(), abs=1e-3)


def test_each_architecture_has_the_stage_it_is_here_for(staged: Staged) -> None:
    def of(name: str, query: int = 4) -> Any:
        return explain(alone(staged(name)[0]), query, 1)[HEAD]

    cell = of("gemma2")
    assert cell.row.layer.softcap
    assert abs(cell.score) < abs(cell.scaled)
    cell = of("t5")
    assert cell.score == pytest.approx(cell.scaled + cell.bias, abs=1e-4)
    assert cell.bias
    assert max(of("gpt_oss", query).row.sink_weight for query in range(7)) > 1e-3
    assert len({float(of("inkling2_text", query).row.sink) for query in range(7)}) == 7
    call = staged("llama")[1]  # rotary: keys of one head for two, turned by their positions
    assert (len(call.query), len(call.key), of("llama").row.head.key_head) == (4, 2, 1)


def test_the_decoder_and_the_cross_attention_of_t5_are_explained_too(staged: Staged) -> None:
    trace, _ = staged("t5")
    found = explain(trace, 1, 2)
    assert {cell.row.layer.kind for cell in found} == {"encoder", "decoder", "cross"}
    cross = [cell for cell in found if cell.row.layer.kind == "cross"]
    assert {(cell.row.query.id, cell.key.id) for cell in cross} == {(trace.query_tokens[1].id, trace.key_tokens[2].id)}
    for cell in found:
        assert cell.exponential / cell.row.softmax.total == pytest.approx(float(cell.weight), abs=1e-6)


@pytest.mark.parametrize("name", ["bloom", "gptj", "deberta-v2"])
def test_a_watched_softmax_gives_its_own_scores_and_weights(name: str, tmp_path: Path) -> None:
    model = tiny_model(name)
    save(model, tmp_path)
    inputs = tiny_inputs(model.config)
    trace = opened(tmp_path, "all").trace(words(inputs["input_ids"]))
    with torch.no_grad():
        own = model(**inputs, output_attentions=True).attentions[LAYER][0, HEAD]
    for query in range(7):
        for key in range(7):
            cell = explain(alone(trace), query, key)[HEAD]
            assert cell.weight == pytest.approx(own[query, key].item(), abs=1e-6)
            assert cell.exponential / cell.row.softmax.total == pytest.approx(float(cell.weight), abs=1e-6)
            assert float(cell.products.sum()) == pytest.approx(float(cell.dot_product), rel=1e-3, abs=1e-3)
            assert np.isneginf(cell.score) == (not cell.allowed)
            if cell.scaled is not None and cell.allowed:
                assert cell.scaled == pytest.approx(float(cell.score), rel=1e-3, abs=1e-4)
    assert (trace.layer(LAYER).scale is None) == (name == "bloom")
