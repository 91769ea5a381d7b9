"""What is wrong with a call: every finding in a call that has it, and in none that has not."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from live_calls import CAUSAL, LENGTHS, REAL, B, H, T, mask_argument, padding, place, sdpa

from attncli.analysis.calls.calls import Calls
from attncli.masks.findings import Finding
from attncli.recording.call import AttentionCall
from attncli.recording.input_hint import InputHint

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


def test_a_language_model_may_read_backwards() -> None:
    (only,) = found(sdpa(mask_argument(CAUSAL.T.contiguous())))
    assert (only.code, only.severity, "queries and keys swapped" in only.message) == ("leak", "note", True)


def test_numbers_added_twice() -> None:
    both = numbers(~CAUSAL, LEAST) + numbers(~REAL[:, None, None, :], LEAST)
    assert ("double-fill", "error") in codes(sdpa(mask_argument(both)))
    apart = sdpa(
        mask_argument(numbers(~CAUSAL, LEAST)), mask_argument(numbers(~REAL[:, None, None, :], LEAST), "added")
    )
    assert codes(apart) == [("double-fill", "error")]
    small = sdpa(mask_argument(numbers(~CAUSAL, -1e9)), mask_argument(numbers(~REAL[:, None, None, :], -1e9), "added"))
    assert codes(small) == []


def test_a_mask_that_is_not_applied_is_an_error_unless_it_is_causal() -> None:
    window = torch.ones(T, T, dtype=torch.bool).tril().triu(-2)
    hint = sdpa(is_causal=True, ignored_masks=(mask_argument(window),))
    (finding,) = found(hint)
    assert (finding.code, finding.severity, finding.count) == ("backend", "error", int((CAUSAL & ~window).sum()))
    assert codes(sdpa(is_causal=True, ignored_masks=(mask_argument(~CAUSAL, masked=True),))) == []


def test_dead_rows_of_padding_are_a_note_and_say_what_became_of_them() -> None:
    both = mask_argument(REAL[:, None, :, None] & REAL[:, None, None, :])
    (finding,) = found(sdpa(both))
    assert (finding.code, finding.severity, finding.count) == ("dead-row", "note", T - min(LENGTHS))
    assert finding.rows == tuple(range(min(LENGTHS), T))
    assert finding.message == "6 padding queries are fully masked, in batch rows 1-2: their output is 0"


def test_nan_is_found_where_it_comes_from() -> None:
    mask = mask_argument(CAUSAL.tril(-1))  # the first query sees nothing
    nan = torch.full((B, H, T, 4), torch.nan)
    own = sdpa(mask, output=nan, at=place(module="layers.0.attn"))
    findings = {one.code: one for one in found(own)}
    assert findings["nan"].severity == "error"
    assert "first, in layers.0.attn" in findings["nan"].message
    assert findings["dead-row"].message.endswith("they became NaN")
    later = sdpa(at=place(2), output=nan)
    later = AttentionCall(**{**vars(later), "q": later.q * torch.nan})
    (finding,) = found(later)
    assert (finding.code, finding.severity) == ("nan", "note")
    assert finding.message == "NaN enters with its queries, and leaves again"


def top_left(queries: int, keys: int) -> AttentionCall:
    return sdpa(mask_argument(torch.ones(queries, keys, dtype=torch.bool).tril()), size=(B, queries, keys))


def test_a_mask_that_begins_before_the_cache() -> None:
    for queries in (3, 1):
        finding, *others = found(top_left(5, 5), top_left(queries, 5 + queries))
        assert others == []
        assert (finding.code, finding.severity, finding.count) == ("shape", "error", queries)
        assert f"{queries}×{5 + queries} is aligned top-left" in finding.message
    right = torch.ones(3, 8, dtype=torch.bool).tril(5)
    assert codes(top_left(5, 5), sdpa(mask_argument(right), size=(B, 3, 8))) == []


def test_one_of_two_masks_whose_truth_is_swapped_is_found_beside_the_other() -> None:
    real = mask_argument(~REAL[:, None, None, :], "key_padding_mask", masked=True)
    finding, *others = found(sdpa(real, mask_argument(CAUSAL, masked=True)))
    assert others == []  # queries that see nothing follow from it
    assert (finding.code, finding.severity) == ("leak", "error")
    assert finding.message == "attn_mask attends only where causal forbids: True and False are swapped"
    swapped = mask_argument(REAL[:, None, None, :], "key_padding_mask", masked=True)
    (finding,) = found(sdpa(swapped, is_causal=True))
    assert finding.message.endswith("True and False are swapped")


def test_padding_that_another_layer_hides() -> None:
    (finding,) = found(sdpa(padding(), at=place(1, "layers.0")), sdpa(at=place(1, "layers.1")))
    assert (finding.code, finding.severity) == ("pad", "error")
    assert finding.count == sum(length * (T - length) for length in LENGTHS)  # what words see of padding
    assert finding.message == "attends to padding that layers.0 masks, in batch rows 1-2"
    # Other rows, another end, or another place: it may be another sequence.
    other = torch.arange(T) < torch.tensor([3, 8, 8])[:, None]
    for bare in (padding(REAL.flip(0)), padding(REAL.flip(1))):
        assert codes(sdpa(padding(), at=place(1, "layers.0")), sdpa(bare, at=place(1, "layers.1"))) == []
    assert codes(sdpa(padding()), sdpa(at=place(2))) == codes(sdpa(padding()), sdpa(padding(other), at=place(2))) == []


def test_steps_are_told_apart_by_places_that_come_again() -> None:
    shorter = padding(torch.arange(T) < torch.tensor([8, 8, 1])[:, None])
    other = padding(torch.arange(T) < torch.tensor([8, 1, 8])[:, None])
    assert codes(*(sdpa(one, at=place(line)) for one in (shorter, other) for line in (1, 2))) == []


# --- against an expression ---------------------------------------------------------------------------------


def test_calls_that_are_as_expected() -> None:
    for expect, call in (
        ("causal", sdpa(is_causal=True)),
        ("causal", sdpa(mask_argument(CAUSAL))),
        ("full", sdpa()),
        ("pad", sdpa(padding())),
        ("causal & pad", sdpa(padding(), is_causal=True)),
        ("causal & pad", sdpa(mask_argument(CAUSAL & REAL.flip(1)[:, None, None, :]))),
        ("causal", sdpa(size=(B, 1, T))),
        ("causal & pad", sdpa(is_causal=True, size=(1, T, T))),  # one sentence has no padding
        ("window(3)", sdpa(mask_argument(CAUSAL.triu(-2)))),
    ):
        assert [one for one in codes(call, expect=expect) if one[1] == "error" and one[0] != "dead-row"] == []


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


def test_two_streams_of_the_same_words_are_no_cache() -> None:
    """ProphetNet: a place attends to its words, and then to them and as many more."""
    calls, positions = Calls(), np.arange(1, T + 1)[None]
    for keys in (T, 2 * T):
        calls.here().add(InputHint("positions", positions, T, 1))
        calls.take(sdpa(size=(B, T, keys)))
    calls.finish()
    assert [one for one in calls.findings if one.severity == "error"] == []
