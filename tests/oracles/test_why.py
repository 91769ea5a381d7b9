"""The stages of one cell add up to what transformers computed: BERT, rotary, softcap, bias, sink, and watched."""

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
import torch
from architectures import tiny_inputs, tiny_model
from conformance import opened, save, words

from attncli.analysis.why import explain

LAYER, HEAD = 1, 2


class Called(NamedTuple):
    """What the model's own attention function was handed and gave back, in one layer."""

    query: Any
    key: Any
    value: Any
    more: dict[str, Any]
    output: Any
    weights: Any


def own_call(name: str, model: Any, inputs: dict[str, torch.Tensor], number: int) -> Called:
    module = importlib.import_module(type(model).__module__)
    eager = module.eager_attention_forward
    calls: list[Called] = []

    def recording(layer: Any, query: Any, key: Any, value: Any, mask: Any, *arguments: Any, **more: Any) -> Any:
        output, weights = eager(layer, query, key, value, mask, *arguments, **more)
        sinks = more.get("sinks", getattr(layer, "sinks", None))  # one for every query, or for every head
        if sinks is not None:
            sinks = sinks.reshape(query.shape[1], -1).expand(-1, query.shape[2])
        more |= {"mask": mask, "sinks": sinks} | dict(zip(["scaling"], arguments, strict=False))
        if more.get("scaling") is None:
            more["scaling"] = getattr(layer, "scaling", query.shape[-1] ** -0.5)
        calls.append(Called(query[0], key[0], value[0], more, output[0], weights[0]))
        return output, weights

    with patch.object(module, "eager_attention_forward", recording), torch.no_grad():
        model(**inputs)
    assert calls, name
    return calls[number]


def stages(call: Called) -> dict[str, Any]:
    group = HEAD // (len(call.query) // len(call.key))
    q, k, more = call.query[HEAD].double(), call.key[group].double(), call.more
    scaled = q @ k.T * more["scaling"]
    bias = None if more.get("position_bias") is None else more["position_bias"][0, HEAD].double()
    score = scaled if bias is None else scaled + bias
    if cap := more.get("softcap"):
        score = cap * torch.tanh(score / cap)
    allowed = torch.ones_like(score, dtype=torch.bool) if more["mask"] is None else more["mask"][0, 0] == 0
    exponentials = score.exp() * allowed
    sink = None if more["sinks"] is None else more["sinks"][HEAD].double().exp()
    total = exponentials.sum(-1) + (0 if sink is None else sink)
    return {
        "products": q[:, None] * k, "dot_product": q @ k.T, "scaled": scaled, "bias": bias, "score": score,
        "allowed": allowed, "weight": exponentials / total[:, None],
        "sink_weight": None if sink is None else sink / total,
        "value_norm": call.value[group].double().norm(dim=-1).expand(len(q), -1),
    }  # fmt: skip


@pytest.mark.parametrize("name", ["bert", "llama", "gemma2", "t5", "gpt_oss", "inkling2_text"])
def test_the_stages_add_up_to_the_models_own_weight(name: str, tmp_path: Path) -> None:
    model = tiny_model(name)
    save(model, tmp_path)
    inputs = tiny_inputs(model.config)
    trace = opened(tmp_path, "all").trace(words(inputs["input_ids"]), target=words(inputs.get("decoder_input_ids")))
    trace = replace(trace, layers=(trace.layer(LAYER, trace.layers[0].kind),))
    call = own_call(name, model, inputs, LAYER)
    expected = stages(call)
    group = HEAD // (len(call.query) // len(call.value))
    near = {"rel": 1e-4, "abs": 1e-4}
    for query in range(7):
        for key in range(7):
            cell = explain(trace, query, key)[HEAD]
            # The stages by themselves, then to each other, then to what the model returned.
            assert cell.products.tolist() == pytest.approx(expected["products"][query, key].tolist(), **near)
            for stage in ("dot_product", "scaled", "score", "value_norm", "weight", "bias"):
                found, values = getattr(cell, stage), expected[stage]
                assert (found is None) == (values is None), stage
                if values is not None:
                    assert found == pytest.approx(values[query, key].item(), **near), stage
            assert cell.allowed is bool(expected["allowed"][query, key])
            assert cell.weight == pytest.approx(call.weights[HEAD, query, key].item(), abs=2e-6)
            row = cell.row
            assert cell.exponential / row.softmax.total == pytest.approx(float(cell.weight), abs=1e-6)
            if expected["sink_weight"] is None:
                assert row.sink_weight is None
            else:
                assert row.sink_weight == pytest.approx(expected["sink_weight"][query].item(), abs=2e-6)
                assert row.weights.sum() + row.sink_weight == pytest.approx(1, abs=1e-5)
            own = call.output[query, HEAD]  # the model's own weights·V
            assert row.output_norm == pytest.approx(own.norm().item(), **near)
            carried = call.weights[HEAD, query, key] * call.value[group, key]
            assert cell.contribution_norm == pytest.approx(carried.norm().item(), abs=1e-4)
            assert cell.output_share == pytest.approx((carried @ own / (own @ own)).item(), abs=1e-3)
