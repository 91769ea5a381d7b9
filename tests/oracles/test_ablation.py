"""Heads and edges cut: the same predictions as transformers' own model with hooks of this test."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import random_model
from conformance import save_for_auto
from native_variants import config_of, save_whole
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

import attncli
from attncli.analysis.ablation import Ablation
from attncli.errors import AttnError, NotExposedError

TEXT = "w7 w8 w9 w10 w9 w11 w12 w13 w16 w14"
OTHER = "w3 w8 w4 w10 w2 w11 w5 w13 w6 w15"
EXACT = 1e-4

CHANGES: dict[str, dict[str, Any]] = {
    "gpt2": {}, "gpt_neox": {"use_parallel_residual": True}, "llama": {"attention_bias": True}, "mistral": {},
    "qwen3": {"tie_word_embeddings": True}, "gemma": {},
    "gemma2": {"final_logit_softcapping": 7.0, "sliding_window": 4}, "gemma3_text": {},
}  # fmt: skip


@pytest.fixture(params=CHANGES)
def model(request: Any, tmp_path: Path) -> Any:
    config = config_of(request.param, {"num_hidden_layers" if request.param != "gpt2" else "n_layer": 3})
    config = CONFIG_MAPPING[request.param].from_dict(json.loads(json.dumps(config | CHANGES[request.param])))
    made = random_model(AutoModelForCausalLM.from_config, config)
    made.folder = save_for_auto(made, tmp_path)
    return made


def projection(model: Any, layer: int) -> Any:
    block = next(each for each in model.modules() if isinstance(each, torch.nn.ModuleList))[layer]
    names = ("self_attn.o_proj", "attn.c_proj", "attention.dense")
    return next(module for name, module in block.named_modules() if name in names)


@contextmanager
def hooked(module: Any, edit: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    handle = module.register_forward_pre_hook(lambda _, inputs: (edit(inputs[0]),))
    try:
        yield
    finally:
        handle.remove()


def ids_of(text: str) -> torch.Tensor:
    return torch.tensor([[int(word[1:]) for word in text.split()]])


def outputs_of(model: Any, text: str, layer: int) -> torch.Tensor:
    kept: list[torch.Tensor] = []
    with hooked(projection(model, layer), lambda x: kept.append(x) or x), torch.no_grad():
        model(ids_of(text))
    return kept[0]


def logits_with(model: Any, layer: int, head: int, values: torch.Tensor | float) -> torch.Tensor:
    """The logits where one head's outputs are replaced: by a number, or by columns of another tensor."""
    width = outputs_of(model, TEXT, layer).shape[-1] // heads_of(model)

    def edit(x: torch.Tensor) -> torch.Tensor:
        x, some = x.clone(), slice(head * width, (head + 1) * width)
        x[..., some] = values if isinstance(values, float) else values[..., some]
        return x

    with hooked(projection(model, layer), edit), torch.no_grad():
        return model(ids_of(TEXT)).logits[0]


def heads_of(model: Any) -> int:
    return int(model.config.num_attention_heads)


def ablated(model: Any, **options: Any) -> Ablation:
    return attncli.ablate(TEXT, str(model.folder), special=False, **options)


@pytest.mark.parametrize("engine", ["native", "transformers"])
def test_each_head_alone_is_what_hooks_give(model: Any, engine: str) -> None:
    found = ablated(model, next="w20", against="w21", each=True, engine=engine)
    with torch.no_grad():
        plain = model(ids_of(TEXT)).logits[0, -1]
    assert found.source.details["engine"] == engine
    assert abs(found.before - float(plain[20] - plain[21])) < EXACT
    assert len(found.heads) == 3 * heads_of(model)
    for head in found.heads:
        expected = logits_with(model, head.layer, head.head, 0.0)[-1]
        assert abs(head.after - float(expected[20] - expected[21])) < EXACT
        assert (head.direct is None) == (engine == "transformers")
    assert max(abs(head.change) for head in found.heads) > 0.01


@pytest.mark.parametrize("engine", ["native", "transformers"])
def test_a_mean_and_another_text_stand_in_the_place_of_a_head(model: Any, engine: str) -> None:
    outputs = outputs_of(model, TEXT, 1)
    means = outputs.mean(dim=1, keepdim=True).expand_as(outputs)
    for with_, values in (("mean", means), (OTHER, outputs_of(model, OTHER, 1))):
        found = ablated(model, next="w20", head="1.1", with_=with_, engine=engine)
        expected = logits_with(model, 1, 1, values)[-1].log_softmax(dim=-1)[20]
        assert abs(found.after - float(expected)) < EXACT


def test_edges_are_those_of_an_additive_mask_in_the_chosen_layers(model: Any) -> None:
    found = ablated(model, next="w20", edges="~keys(7,9) | band(0,0)", layer="1-2")
    block = next(each for each in model.modules() if isinstance(each, torch.nn.ModuleList))
    length = len(TEXT.split())
    cut = torch.zeros(length, length, dtype=torch.bool)
    cut[:, 7:9] = True
    cut &= ~torch.eye(length, dtype=torch.bool)

    blocked = torch.zeros(length, length).masked_fill(cut, -1e30)

    def cut_off(value: Any) -> Any:
        return value.clamp(min=-1e30) + blocked if torch.is_tensor(value) and value.ndim == 4 else value

    def edit(_: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        assert any(torch.is_tensor(each) and each.ndim == 4 for each in (*arguments, *named.values()))
        return tuple(map(cut_off, arguments)), {name: cut_off(value) for name, value in named.items()}

    handles = [block[layer].register_forward_pre_hook(edit, with_kwargs=True) for layer in (1, 2)]
    with torch.no_grad():
        expected = model(ids_of(TEXT)).logits[0, -1].log_softmax(dim=-1)[20]
    for handle in handles:
        handle.remove()
    assert abs(found.after - float(expected)) < EXACT
    assert abs(found.change) > 0.001
    with pytest.raises(NotExposedError, match="needs the native engine"):
        ablated(model, edges="~keys(0,2)", engine="transformers")


def held(norm: Any, x: torch.Tensor, term: torch.Tensor) -> torch.Tensor:
    """What a term of x is behind a normalization of x whose scale is held, in float64 and without its bias."""
    gain = norm.weight.double() + ("Gemma" in type(norm).__name__)
    if isinstance(norm, torch.nn.LayerNorm):
        return (term - term.mean()) / torch.sqrt(x.var(correction=0) + norm.eps) * gain
    eps = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    return term / torch.sqrt(x.pow(2).mean() + eps) * gain


@torch.no_grad()
def test_the_direct_share_goes_through_the_projection_the_final_norm_held_and_the_unembedding(model: Any) -> None:
    found = ablated(model, next="w20", against="w21", head="1.1")
    module = projection(model, 1)
    outputs = outputs_of(model, TEXT, 1)[0, -1].double()
    width = len(outputs) // heads_of(model)
    own = torch.zeros_like(outputs)
    own[width : 2 * width] = outputs[width : 2 * width]
    weight = module.weight.double()
    term = own @ (weight if type(module).__name__ == "Conv1D" else weight.T)
    names = ("ln_f", "norm", "final_layer_norm", "layers.1.post_attention_layernorm")
    norms = {name: each for name, each in model.named_modules() if name.partition(".")[2] in names}
    if not model.config.model_type.startswith(("gemma2", "gemma3")):  # where it stands before the feed-forward network
        norms = {name: each for name, each in norms.items() if "post_attention" not in name}
    entering: dict[str, torch.Tensor] = {}
    for name, norm in norms.items():
        norm.register_forward_pre_hook(lambda _, inputs, name=name: entering.update({name: inputs[0][0, -1].double()}))
    model(ids_of(TEXT))
    for name, norm in norms.items():  # in order, the final one last
        term = held(norm, entering[name], term)
    rows = model.get_output_embeddings().weight[[20, 21]].double()
    cap = getattr(model.config, "final_logit_softcapping", None)

    def difference(x: torch.Tensor) -> float:
        one, other = rows @ x if cap is None else cap * torch.tanh(rows @ x / cap)
        return float(one - other)

    normed = list(norms.values())[-1](entering[list(norms)[-1]].float()[None, None])[0, 0].double()
    expected = difference(normed) - difference(normed - term)
    assert abs(found.direct - expected) < EXACT
    assert abs(expected) > 1e-3


def test_an_encoder_predicts_no_next_token(tmp_path: Path) -> None:
    save_whole("bert", tmp_path)
    for engine in ("auto", "transformers"):
        with pytest.raises(AttnError, match="is an encoder"):
            attncli.ablate(TEXT, str(tmp_path), engine=engine)
