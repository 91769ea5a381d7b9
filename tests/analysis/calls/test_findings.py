"""What is wrong with a call: every finding in a call that has it, and in none that has not."""

from collections.abc import Callable

import pytest
import torch
from live_calls import CAUSAL, REAL, B, H, T, mask_argument, padding, place, sdpa

from attncli.analysis.calls.calls import Calls
from attncli.masks.findings import Finding
from attncli.recording.call import AttentionCall

INF = float("inf")
LEAST = torch.finfo(torch.float32).min


def found(*calls: AttentionCall, expect: str | None = None) -> tuple[Finding, ...]:
    taken = Calls(expect)
    for call in calls:
        taken.take(call)
    taken.finish()
    assert taken.notes == []  # nothing went wrong in us
    return taken.findings


def codes(*calls: AttentionCall, expect: str | None = None) -> list[tuple[str, str]]:
    return [(finding.code, finding.severity) for finding in found(*calls, expect=expect)]


def numbers(hidden: torch.Tensor, fill: float) -> torch.Tensor:
    return torch.zeros(hidden.shape).masked_fill(hidden, fill)


RIGHT = {
    "nothing": lambda: sdpa(),
    "causal": lambda: sdpa(is_causal=True),
    "booleans": lambda: sdpa(mask_argument(CAUSAL)),
    "numbers": lambda: sdpa(mask_argument(numbers(~CAUSAL, -INF))),
    "least number": lambda: sdpa(mask_argument(numbers(~CAUSAL, LEAST))),
    "padding": lambda: sdpa(padding()),
    "causal beside padding": lambda: sdpa(padding(), is_causal=True),
    "padding on the left, which sees itself": lambda: sdpa(
        mask_argument((CAUSAL & REAL.flip(1)[:, None, None, :]) | torch.eye(T, dtype=torch.bool))
    ),
    "a cache": lambda: sdpa(mask_argument(torch.ones(3, T, dtype=torch.bool).tril(T - 3)), size=(B, 3, T)),
    "one token behind a cache": lambda: sdpa(size=(B, 1, T)),
    "another sequence": lambda: sdpa(padding(), size=(B, 5, T)),
    "a bias": lambda: sdpa(mask_argument(torch.randn(1, H, T, T))),
    "a bias that has not learned yet": lambda: sdpa(mask_argument(torch.ones(1, H, T, T))),
    "a distance of two keys": lambda: sdpa(mask_argument(torch.tensor([[0.0, -1.0], [-1.0, 0.0]])), size=(B, 2, 2)),
    "a bias for each query": lambda: sdpa(mask_argument(torch.randn(1, H, T, 1))),
    "dropout in training": lambda: sdpa(is_causal=True, dropout=0.1, is_training=True),
    "a query mask of one column, where there is one key": lambda: sdpa(
        mask_argument(torch.ones(B, 1, T, 1, dtype=torch.bool)), size=(B, T, 1)
    ),
}


@pytest.mark.parametrize("call", RIGHT.values(), ids=RIGHT)
def test_what_is_right_has_no_finding(call: Callable[[], AttentionCall]) -> None:
    assert found(call()) == ()


def half(fill: float) -> AttentionCall:
    """A float32 mask whose numbers float16 does not hold."""
    return sdpa(mask_argument(numbers(~REAL[:, None, None, :], fill)), dtype="float16")


WRONG = {
    "is_causal with a cache": (lambda: sdpa(is_causal=True, size=(B, 2, T)), "shape", "top-left"),
    "is_causal and one query": (lambda: sdpa(is_causal=True, size=(B, 1, T)), "shape", "only the first key"),
    "padding along the queries": (lambda: sdpa(mask_argument(REAL[:, None, :, None])), "broadcast", "[3, 1, 8, 1]"),
    "laid out": (lambda: sdpa(mask_argument(REAL[:, None, :, None].repeat(1, 1, 1, T))), "broadcast", "9 of them see"),
    "one column": (lambda: sdpa(mask_argument(CAUSAL[:, :1])), "broadcast", "masks queries, not keys"),
    "0 and 1 added": (lambda: sdpa(mask_argument(CAUSAL.float())), "added-bool", "0 and 1"),
    "0 and -1 added": (lambda: sdpa(mask_argument(CAUSAL.float() - 1)), "added-bool", "0 and -1"),
    "a tiny number added": (lambda: sdpa(mask_argument(numbers(~CAUSAL, 1e-9))), "added-bool", "0 and 1e-09"),
    "of the other API": (lambda: sdpa(mask_argument(CAUSAL, masked=True)), "leak", "True and False are swapped"),
    "too large for half": (lambda: half(-1e9), "overflow", "beyond float16"),
    "dropout in evaluation": (lambda: sdpa(dropout=0.1, is_training=False), "dropout", "0.1"),
    "no key at all": (lambda: sdpa(padding(torch.arange(T) < torch.tensor([0, 8, 2])[:, None])), "dead-row",
                      "8 queries are fully masked, in batch row 0: their output is 0"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "code", "text"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_found_by_its_name(call: Callable[[], AttentionCall], code: str, text: str) -> None:
    errors = {one.code: one for one in found(call()) if one.severity == "error"}
    assert code in errors
    assert text in errors[code].message


# --- against an expression ---------------------------------------------------------------------------------


def test_calls_that_are_not() -> None:
    (leak,) = found(sdpa(size=(1, T, T)), expect="causal")
    assert (leak.code, leak.severity, leak.count) == ("leak", "error", T * (T - 1) // 2)
    assert ("missing", "error") in codes(sdpa(is_causal=True), expect="full")
    assert ("window", "error") in codes(sdpa(mask_argument(CAUSAL.triu(-3))), expect="window(3)")
    assert codes(sdpa(is_causal=True), expect="causal & pad") == [("pad", "error")]  # nobody says where it is
    assert codes(sdpa(padding()), sdpa(at=place(2)), expect="pad") == [("pad", "error")]  # and no note of the same
    assert codes(sdpa(size=(B, T, T)), expect="docs(3,4)") == [("shape", "error")]
    unread = sdpa(unsupported="the score_mod")
    assert codes(unread, expect="causal") == [("no-mask", "error")]
    assert codes(unread) == []
