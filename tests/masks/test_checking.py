"""`attncli.check_mask`: what a program hands to an attention function, as arrays, tensors and lists."""

from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import attncli
from attncli.errors import AttnError, InputError, UsageError
from attncli.masks.parser import parse

LOWER = torch.ones(6, 6, dtype=torch.bool).tril()
TOKENS = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])


def codes(*arguments: Any, **options: Any) -> dict[str, str]:
    return {finding.code: finding.severity for finding in attncli.check_mask(*arguments, **options)}


@pytest.mark.parametrize(
    "mask",
    [LOWER, LOWER.numpy(), LOWER.tolist(), LOWER[None, None], torch.zeros(6, 6).masked_fill(~LOWER, -torch.inf),
     torch.zeros(6, 6, dtype=torch.bfloat16).masked_fill(~LOWER, torch.finfo(torch.bfloat16).min),
     torch.zeros(6, 6, requires_grad=True).masked_fill(~LOWER, -1e9)],
    ids=["tensor", "array", "list", "four axes", "additive", "bfloat16", "with a gradient"],
)  # fmt: skip
def test_a_healthy_mask_of_any_kind_has_no_finding(mask: Any) -> None:
    assert attncli.check_mask(mask, "causal") == []
    assert attncli.check_mask(mask) == []
    assert "leak" in codes(mask, "window(2)") or "window" in codes(mask, "window(2)")


def test_the_function_that_reads_it_decides_what_true_means() -> None:
    square = torch.nn.Transformer.generate_square_subsequent_mask(6)
    assert attncli.check_mask(square, "causal", api="mha") == attncli.check_mask(square, "causal") == []
    assert attncli.check_mask(~LOWER, "causal", api="mha") == []
    assert codes(~LOWER, "causal") == {"missing": "error", "leak": "error", "dead-row": "error"}
    assert codes(~LOWER) == {"leak": "error"}
    assert codes(LOWER, api="mha") == {"leak": "error"}
    assert codes(TOKENS[:, None, None], api=None)["ambiguous"] == "error"
    query = torch.randn(1, 6, 4)
    read = scaled_dot_product_attention(query, query, query, attn_mask=~LOWER)
    assert read[0, 5].eq(0).all()  # the last query sees nothing, as was said


def test_the_lengths_of_a_batch_may_be_numbers_or_a_mask_of_tokens() -> None:
    mask = LOWER & TOKENS.bool()[:, None, None]
    for lengths in ([6, 4], torch.tensor([6, 4]), TOKENS, TOKENS.bool(), TOKENS.numpy(), TOKENS.tolist()):
        assert attncli.check_mask(mask, "causal & pad", lengths=lengths) == []
        (finding,) = (f for f in attncli.check_mask(LOWER, "causal & pad", lengths=lengths) if f.code == "pad")
        assert finding.message.endswith("in batch row 1")
    assert attncli.check_mask(mask[:, 0], "causal & pad", lengths=[6, 4], batch=True) == []
    assert attncli.check_mask(TOKENS == 0, "pad", lengths=[6, 4], batch=True, api="mha") == []
    assert codes(TOKENS == 0, "pad", lengths=[6, 4], batch=True)["pad"] == "error"
    heads = (~mask).expand(2, 3, 6, 6).reshape(6, 6, 6)  # as nn.MultiheadAttention takes them
    assert attncli.check_mask(heads, "causal & pad", lengths=[6, 4], api="mha") == []
    laid = TOKENS.bool()[:, None, :, None].expand(2, 1, 6, 6)
    assert codes(laid) == {"broadcast": "error"}
    assert attncli.check_mask(mask, parse("causal & pad", allow_rows=True), lengths=[6, 4]) == []


@pytest.mark.parametrize(
    ("arguments", "options", "kind", "words"),
    [
        ((LOWER, "casual"), {}, UsageError, "did you mean 'causal'"),
        ((LOWER, "causal"), {"api": "flash"}, UsageError, "api 'flash': expected sdpa, mha, additive or None"),
        ((LOWER, "causal"), {"api": "additive"}, UsageError, "whose values are booleans"),
        ((LOWER, "causal"), {"past": 10**12}, UsageError, "from 0 to"),
        ((LOWER, "causal & pad"), {}, UsageError, r"lengths=\[5, 2\]"),
        ((LOWER, "causal"), {"lengths": [6]}, UsageError, "pad without numbers"),
        ((LOWER, "causal & pad"), {"lengths": [7]}, InputError, "7 tokens"),
        ((LOWER, "causal & pad"), {"lengths": "six"}, InputError, "lengths holds <U3"),
        ((LOWER, "causal & pad"), {"lengths": [[[1]]]}, InputError, "lengths holds int64 of shape"),
        ((LOWER, "causal & pad"), {"lengths": [1.5]}, InputError, "lengths holds float64 of shape"),
        ((LOWER, "causal & pad"), {"lengths": [[0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1, 1]]}, InputError, "a row without a"),
        (([1, 0],), {}, InputError, "two to four axes"),
        (([[1, 0], [1]],), {}, InputError, "its rows have different lengths"),
        (([["a"]],), {}, InputError, "expected booleans or numbers"),
        ((torch.rand(3, 3),), {}, InputError, "holds the values"),
    ],
)
def test_what_is_no_mask_is_said_in_a_sentence(arguments: Any, options: Any, kind: type[AttnError], words: str) -> None:
    with pytest.raises(kind, match=words):
        attncli.check_mask(*arguments, **options)
