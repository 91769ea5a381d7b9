"""`attncli.mask`: an expression laid out, and what a program hands to an attention function."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import attncli
from attncli.errors import AttnError, InputError, UsageError
from attncli.masks.findings import Finding
from attncli.masks.parser import parse

LOWER = torch.ones(6, 6, dtype=torch.bool).tril()
TOKENS = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])


def check(mask: Any, expect: Any = None, *, lengths: Any = None, **options: Any) -> list[Finding]:
    return attncli.mask(mask, **options).check(expect, lengths=lengths)


def codes(*arguments: Any, **options: Any) -> dict[str, str]:
    return {finding.code: finding.severity for finding in check(*arguments, **options)}


@pytest.mark.parametrize(
    "mask",
    [LOWER[None, None], LOWER.tolist(),
     torch.zeros(6, 6, dtype=torch.bfloat16).masked_fill(~LOWER, torch.finfo(torch.bfloat16).min),
     torch.zeros(6, 6, requires_grad=True).masked_fill(~LOWER, -1e9)],
    ids=["four axes", "list", "bfloat16", "with a gradient"],
)  # fmt: skip
def test_a_healthy_mask_of_any_kind_has_no_finding(mask: Any) -> None:
    assert check(mask, "causal") == []
    assert check(mask) == []
    assert "leak" in codes(mask, "window(2)") or "window" in codes(mask, "window(2)")


def test_the_function_that_reads_it_decides_what_true_means() -> None:
    square = torch.nn.Transformer.generate_square_subsequent_mask(6)
    assert check(square, "causal", api="mha") == check(square, "causal") == []
    assert check(~LOWER, "causal", api="mha") == []
    assert codes(~LOWER, "causal") == {"missing": "error", "leak": "error", "dead-row": "error"}
    assert codes(~LOWER) == {"leak": "error"}
    assert codes(LOWER, api="mha") == {"leak": "error"}
    ambiguous = attncli.mask(TOKENS[:, None, None], api=None)
    assert {finding.code: finding.severity for finding in ambiguous.check()}["ambiguous"] == "error"
    assert repr(ambiguous) == "mask(int64, 2×1×1×6, past 5, ambiguous)"
    with pytest.raises(UsageError, match="give api='sdpa' or api='mha'"):
        ambiguous.allowed  # noqa: B018
    query = torch.randn(1, 6, 4)
    read = scaled_dot_product_attention(query, query, query, attn_mask=~LOWER)
    assert read[0, 5].eq(0).all()  # the last query sees nothing, as was said


def test_the_lengths_of_a_batch_may_be_numbers_or_a_mask_of_tokens() -> None:
    mask = LOWER & TOKENS.bool()[:, None, None]
    for lengths in ([6, 4], torch.tensor([6, 4]), TOKENS, TOKENS.bool(), TOKENS.numpy(), TOKENS.tolist()):
        assert check(mask, "causal & pad", lengths=lengths) == []
        assert check(LOWER, "causal & pad", lengths=lengths) == []  # no word sees what follows it
        (finding,) = (f for f in check(LOWER == LOWER, "pad", lengths=lengths) if f.code == "pad")
        assert finding.message.endswith("in batch row 1")
    assert check(mask[:, 0], "causal & pad", lengths=[6, 4]) == []  # three axes, as many as there are lengths
    padding = (TOKENS == 0)[:, None, None]
    assert check(padding, "pad", lengths=[6, 4], api="mha") == []
    assert codes(padding, "pad", lengths=[6, 4])["pad"] == "error"
    heads = (~mask).expand(2, 3, 6, 6).reshape(6, 6, 6)  # as nn.MultiheadAttention takes them
    assert check(heads, "causal & pad", lengths=[6, 4], api="mha") == []
    laid = TOKENS.bool()[:, None, :, None].expand(2, 1, 6, 6)
    assert codes(laid) == {"broadcast": "error"}
    assert check(mask, parse("causal & pad", allow_rows=True), lengths=[6, 4]) == []


@pytest.mark.parametrize(("arguments", "options", "kind", "words"), [
    ((LOWER, "casual"), {}, UsageError, "did you mean 'causal'"),
    ((LOWER, "causal"), {"api": "flash"}, UsageError, "api 'flash': expected sdpa, mha, additive or None"),
    ((LOWER, "causal"), {"lengths": [6]}, UsageError, "a bare pad"),
    ((LOWER, "causal & pad"), {"lengths": [7]}, InputError, "7 tokens"),
    ((LOWER, "causal & pad"), {"lengths": [[6], [4]]}, InputError, "with 1 for a token"),
    ((LOWER, "causal & pad"), {"lengths": [[0] * 6, [0, 0, 0, 0, 1, 1]]}, InputError, "a row without tokens"),
    (([1, 0],), {}, InputError, "2 to 4 axes"),
    (([["a"]],), {}, InputError, "expected booleans or numbers"),
    ((LOWER, LOWER), {}, UsageError, "of type Tensor; expected an expression, such as 'causal"),
])  # fmt: skip
def test_what_is_no_mask_is_said_in_a_sentence(arguments: Any, options: Any, kind: type[AttnError], words: str) -> None:
    with pytest.raises(kind, match=words):
        check(*arguments, **options)


@pytest.mark.parametrize(("size", "queries", "keys", "past"), [
    ({"keys": 5}, 5, 5, 0),
    ({"queries": 3, "keys": 8}, 3, 8, 5),
    ({"queries": 3, "keys": 8, "past": 0}, 3, 8, 0),
    ({"queries": 3, "past": 2}, 3, 5, 2),
])  # fmt: skip
def test_an_expression_is_laid_out_over_positions(size: dict[str, int], queries: int, keys: int, past: int) -> None:
    mask = attncli.mask("causal & window(2)", **size)
    by_hand = [[past + i - 2 < j <= past + i for j in range(keys)] for i in range(queries)]
    assert mask.allowed.tolist() == np.asarray(mask).tolist() == by_hand
    assert mask.past == past
    assert repr(mask) == f"mask('causal & window(2)', {queries}×{keys}{f', past {past}' * bool(past)})"
    assert mask.check("causal & window(2)") == []
    assert {finding.code for finding in mask.check("causal & window(3)")} == {"missing"}
