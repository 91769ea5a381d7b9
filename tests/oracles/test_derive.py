"""Derived views of a checkpoint against transformers' own attentions, and torch."""

from pathlib import Path

import numpy as np
import torch
from architectures import tiny_inputs, tiny_model
from conformance import opened, save, words

import attncli


def rolled_out(layers: torch.Tensor) -> torch.Tensor:
    """The rollout of the last layer, from the mean weights of every layer, `[L, Q, K]`."""
    joint = own = torch.eye(layers.shape[-1], dtype=torch.float64)
    for weights in layers:
        mixed = weights.double() + own
        joint = mixed / mixed.sum(dim=-1, keepdim=True) @ joint
    return joint


def test_grouped_heads_and_sinks_are_in_norms_and_rollouts(tmp_path: Path) -> None:
    model = tiny_model("gpt_oss")
    save(model, tmp_path)
    values: list[torch.Tensor] = []
    projections = [module for path, module in model.named_modules() if path.endswith("v_proj")]
    for projection in projections:
        projection.register_forward_hook(lambda _, __, output: values.append(output[0]))
    inputs = tiny_inputs(model.config)
    with torch.no_grad():
        attentions = [weights[0].double() for weights in model(**inputs, output_attentions=True).attentions]
    assert any(projection.bias is not None for projection in projections)
    assert (attentions[0].sum(dim=-1) < 0.99).any()
    trace = opened(tmp_path, "all").trace(words(inputs["input_ids"]))

    heads, groups = model.config.num_attention_heads, model.config.num_key_value_heads
    assert heads > groups
    for layer, weights, value in zip(attncli.derive(trace, norms=True).layers, attentions, values, strict=True):
        of_groups = value.double().reshape(len(value), groups, -1)
        for head in range(heads):
            carried = weights[head][:, :, None] * of_groups[:, head // (heads // groups)][None]
            np.testing.assert_allclose(layer.head(head).weights, carried.norm(dim=-1).numpy(), rtol=1e-3, atol=1e-5)

    (rolled,) = attncli.derive(trace, rollout=True).layers
    expected = rolled_out(torch.stack(attentions).mean(dim=1))
    np.testing.assert_allclose(rolled.head(0).weights, expected.numpy(), atol=2e-6)
