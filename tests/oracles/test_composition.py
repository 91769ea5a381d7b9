"""A score's terms are those of transformers' modules in float64, in every family, and they add up to it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from native_variants import save_whole

import attncli

# The modules that write to the residual stream: of the embeddings, what projects the heads, the feed-forward networks.
_LIKE_LLAMA = ({"embed_tokens": "embedding"}, "self_attn.o_proj", "mlp")
_LIKE_BERT = (
    {"word_embeddings": "embedding", "position_embeddings": "position", "token_type_embeddings": "segment"},
    "attention.output.dense", "output.dense",
)  # fmt: skip
WRITERS: dict[str, tuple[dict[str, str], str, str]] = {
    **dict.fromkeys(("llama", "qwen3", "gemma2", "gemma3_text"), _LIKE_LLAMA),
    **dict.fromkeys(("bert", "roberta"), _LIKE_BERT), "distilbert": (_LIKE_BERT[0], "attention.out_lin", "ffn"),
    "gpt2": ({"wte": "embedding", "wpe": "position"}, "attn.c_proj", "mlp"),
    "gpt_neox": ({"embed_in": "embedding"}, "attention.dense", "mlp"),
}  # fmt: skip

Written = tuple[str, int | None, int | None]  # kind, layer, head
Terms = dict[tuple[str, Written], list[float]]


def terms_by_gradient(model: Any, ids: Sequence[int], layer: int, head: int, query: int, keys: Sequence[int]) -> Terms:
    """Return what each writer adds to the scaled q·k of a query at some keys, for the side of the key and of the query.

    What is left of the scores is the biases', all together.
    """
    model = model.double().eval()
    tables, projection, network = WRITERS[model.config.model_type]
    heads, written, calls = model.config.num_attention_heads, {}, []

    def leaf(name: Written, value: torch.Tensor) -> torch.Tensor:
        written[name] = value.detach().clone().requires_grad_()
        return written[name]

    def held(module: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        x, bias = inputs[0], getattr(module, "bias", None)
        if isinstance(module, torch.nn.LayerNorm):
            x = x - x.mean(-1, keepdim=True)
        offset = 0 if bias is None else bias
        return x * ((output - offset) / x).detach().nan_to_num() + offset  # 0 where x is

    def index_of(name: str) -> int:
        return int(next(part for part in name.split(".") if part.isdigit()))

    def on_output(name: Written) -> Callable[..., Any]:
        return lambda module, inputs, output: leaf(name, output)

    def on_heads(name: Written) -> Callable[..., Any]:
        return lambda module, inputs: (leaf(name, inputs[0]),)

    eager_home = importlib.import_module(type(model).__module__)
    eager = eager_home.eager_attention_forward

    def recording(module: Any, q: torch.Tensor, k: torch.Tensor, *arguments: Any, **more: Any) -> Any:
        scale = more.get("scaling") or (arguments[2] if len(arguments) > 2 else None) or module.scaling
        calls.append((q[0], k[0], scale))
        return eager(module, q, k, *arguments, **more)

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            in_layer = any(part.isdigit() for part in name.split("."))
            if name.endswith(projection) and in_layer:
                hooks.enter_context(module.register_forward_pre_hook(on_heads(("head", index_of(name), None))))
            elif name.endswith(network) and in_layer:
                hooks.enter_context(module.register_forward_hook(on_output(("mlp", index_of(name), None))))
            elif name.split(".")[-1] in tables:
                kind = tables[name.split(".")[-1]]
                hooks.enter_context(module.register_forward_hook(on_output((kind, None, None))))
            elif type(module).__name__.endswith(("LayerNorm", "RMSNorm")):
                hooks.enter_context(module.register_forward_hook(held))
        hooks.enter_context(patch.object(eager_home, "eager_attention_forward", recording))
        model(torch.tensor([list(ids)]))
    q, k, scale = calls[layer]
    k = k.repeat_interleave(len(q) // len(k), 0)
    found: Terms = {}
    for place, key in enumerate(keys):
        for side, product in (
            ("key", q[head, query].detach() @ k[head, key]),
            ("query", q[head, query] @ k[head, key].detach()),
        ):
            score = product * scale
            rest = score.item()
            names = [name for name in written if name[1] is None or name[1] < layer]
            gradients = torch.autograd.grad(score, [written[name] for name in names], retain_graph=True)
            for name, gradient in zip(names, gradients, strict=True):
                parts = (gradient * written[name])[0]
                split = {name: parts} if name[0] != "head" else {
                    ("head", name[1], index): part for index, part in enumerate(parts.chunk(heads, dim=-1))
                }  # fmt: skip
                for writer, part in split.items():
                    found.setdefault((side, writer), [0.0] * len(keys))[place] = part.sum().item()
                    rest -= part.sum().item()
            found.setdefault((side, ("bias", None, None)), [0.0] * len(keys))[place] = rest
    return found


TEXT = "w7 w8 w9 w10 w9 w11 w12 w13 w9"


@pytest.mark.parametrize("family", WRITERS)
def test_each_term_is_what_transformers_computes_and_all_add_up_to_the_score(family: str, tmp_path: Path) -> None:
    model = save_whole(family, tmp_path)
    trace = attncli.inspect(TEXT, str(tmp_path), layer="all")
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
