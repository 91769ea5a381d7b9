"""The Traces of a call against torch's own attention, computed the long way in double precision."""

from typing import Any

import pytest
import torch
from torch.nn import functional

from attncli.recording.call import AttentionCall, CallSite, MaskArgument
from attncli.recording.to_trace import traces

BATCH, HEADS, GROUPS, QUERIES, KEYS, WIDTH = 2, 4, 2, 5, 7, 3
PLACE = CallSite("model.py", 41, "Block.attend", "layers.3.attn")


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def call(**changed: Any) -> AttentionCall:
    keys = changed.pop("keys", KEYS)
    q, k, v = (drawn(BATCH, HEADS, QUERIES, WIDTH), *(drawn(BATCH, GROUPS, keys, WIDTH + i) for i in range(2)))
    options = {"q": q, "k": k, "v": v, "scale": WIDTH**-0.5, **changed}
    return AttentionCall("sdpa", PLACE, (BATCH, HEADS, QUERIES, keys), "float32", "cpu", **options)


def test_the_proof_compares_with_what_the_call_returned_and_a_dead_row_is_torchs_zeros() -> None:
    allowed = torch.ones(QUERIES, KEYS, dtype=torch.bool)
    allowed[2] = False
    seen = call()
    output = functional.scaled_dot_product_attention(seen.q, seen.k, seen.v, allowed, enable_gqa=True)
    seen = call(masks=(MaskArgument("attn_mask", allowed, "attend"),), output=output)
    for trace in traces(seen):
        layer = trace.layer(0)
        assert not layer.head(0).weights[2].any()
        assert layer.head(0).weights[3].sum() == pytest.approx(1)
        assert layer.is_proven("float32")
    for output_of_another in (output + 0.01, torch.where(torch.arange(QUERIES)[:, None] == 3, torch.nan, output)):
        wrong = call(masks=(MaskArgument("attn_mask", allowed, "attend"),), output=output_of_another)
        assert not traces(wrong)[0].layer(0).is_proven("float32")


@pytest.mark.parametrize("convention", ["additive", "attend"])
@pytest.mark.parametrize("fill", [-1e4, torch.finfo(torch.float32).min, -torch.inf])
def test_a_row_without_keys_is_what_torch_makes_of_its_fill(fill: float, convention: str) -> None:
    allowed = torch.ones(QUERIES, KEYS, dtype=torch.bool)
    allowed[2], allowed[:, -1] = False, False
    mask = allowed if convention == "attend" else torch.zeros(QUERIES, KEYS).masked_fill(~allowed, fill)
    seen = call()
    output = functional.scaled_dot_product_attention(seen.q, seen.k, seen.v, mask, enable_gqa=True)
    for trace in traces(call(masks=(MaskArgument("attn_mask", mask, convention),), output=output)):
        layer = trace.layer(0)
        assert layer.proof.max_abs_error < 1e-5
        assert layer.head(0).weights[2].sum() == pytest.approx(float(convention == "additive" and fill > -torch.inf))
