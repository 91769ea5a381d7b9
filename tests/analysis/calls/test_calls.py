"""Calls as rows: what is counted together, what is analysed anew, and what is kept."""

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from live_calls import CAUSAL, REAL, B, H, T, mask_argument, padding, sdpa

from attncli.analysis.calls import calls as analyzer
from attncli.analysis.calls.calls import Calls
from attncli.errors import NotExposedError
from attncli.recording.call import AttentionCall


def taken(*calls: AttentionCall, **how: Any) -> Calls:
    found = Calls(**how)
    for call in calls:
        found.take(call)
    found.finish()
    return found


def test_masks_say_which_batch_rows_are_padded() -> None:
    assert taken(sdpa(padding()))[0].mask == "pad (rows 1-2 of 3)"
    assert taken(sdpa(padding(), is_causal=True))[0].mask == "causal & pad (rows 1-2 of 3)"
    assert taken(sdpa(padding(REAL[1:].repeat(2, 1)), size=(4, T, T)))[0].mask == "pad"
    assert taken(sdpa(padding(), sdpa_bias()))[0].mask == "pad (rows 1-2 of 3) + bias"
    both = mask_argument(CAUSAL & REAL[:, None, None, :])
    assert taken(sdpa(both))[0].mask == "causal & pad (rows 1-2 of 3)"
    assert taken(sdpa(unsupported="the score_mod"))[0].mask == "not read: the score_mod"
    some = CAUSAL.clone()
    some[0, 3] = True
    calls = taken(sdpa(mask_argument(CAUSAL)), sdpa(mask_argument(some)))  # one that nobody judged is not ok
    assert [(row.mask, row.verdict) for row in calls] == [("varies: causal in 1, irregular mask in 1", "not checked")]


def sdpa_bias() -> Any:
    return mask_argument(torch.randn(1, H, T, T), "bias")


def test_masks_that_vary_say_how() -> None:
    full, padded = sdpa(padding(REAL[:1].expand(B, T))), sdpa(padding())
    (row,) = taken(*[full] * 3, *[padded] * 9)
    assert row.mask == "varies: pad in 9, full in 3"
    (row,) = taken(sdpa(is_causal=True), sdpa(padding(), is_causal=True))
    assert row.mask == "varies: causal in 1, causal & pad in 1"
    (row,) = taken(sdpa(is_causal=True), sdpa(), sdpa())
    assert row.mask == "varies: full in 2, causal in 1"


# --- cheap on repeats --------------------------------------------------------------------------------------


@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode])  # in which no changes are counted
def test_a_mask_that_changed_is_read_again(guard: Any) -> None:
    calls = Calls()
    with guard():
        real = torch.ones(B, T, dtype=torch.bool)
        mask = padding(real)
        calls.take(sdpa(mask))
        real[:, 5:] = False
        calls.take(sdpa(mask))
    calls.finish()
    assert calls[0].mask == "varies: full in 1, pad in 1"


@pytest.mark.parametrize("is_kept", [False, True])
def test_no_tensor_of_the_program_is_kept_alive(is_kept: bool) -> None:
    call = sdpa(padding(REAL.clone()), sdpa_bias(), is_causal=True)
    tensors: Iterator[torch.Tensor] = (value for value in vars(call).values() if isinstance(value, torch.Tensor))
    storages = [weakref.ref(tensor) for tensor in (*tensors, *(one.source_tensor for one in call.masks))]
    assert len(storages) == 6
    calls = taken(call, is_kept=is_kept)
    del call
    gc.collect()
    assert [storage() for storage in storages] == [None] * 6
    assert calls[0].calls == 1


def test_what_goes_wrong_in_us_is_said_and_stops_nobody(
    monkeypatch: pytest.MonkeyPatch, faults: list[Exception]
) -> None:
    def fails(*_: Any) -> None:
        raise ZeroDivisionError("of\nours")

    with monkeypatch.context() as broken:
        broken.setattr(analyzer, "findings_of", fails)
        calls = taken(sdpa(), sdpa())
    assert [(row.mask, row.calls) for row in calls] == [("not read: a bug in attn", 2)]
    (note,) = calls.notes
    assert "this is a bug in attn, please report it: ZeroDivisionError: of ours; " in note
    faults.clear()
    others = taken(sdpa())
    others.check("full")
    others.notes.fault = calls.notes.fault  # another call, of which nothing is known
    with pytest.warns(UserWarning, match="some attention was not checked, by a bug in attn: ZeroDivisionError"):
        others.check("full")


# --- check -------------------------------------------------------------------------------------------------


def unchecked(*calls: AttentionCall) -> str:
    """Why the masks of the calls of one place were not checked."""
    (row,) = taken(*calls)
    assert row.verdict == "not checked"
    assert row.unchecked.severity == "note"
    return row.unchecked.message


@pytest.mark.parametrize(("call", "message", "advice"), [
    (sdpa(), "full mask: queries see later keys, which is wrong in a decoder",
     "give --expect causal for a decoder, --expect full for an encoder"),
    (sdpa(padding()), "pad mask: queries see later keys, which is wrong in a decoder",
     'give --expect "causal & pad" for a decoder, --expect pad for an encoder'),
    (sdpa(size=(B, 4, T)), "full mask", "give --expect EXPR to check it"),
    (sdpa(mask_argument(~CAUSAL.tril(-3) & ~CAUSAL.tril(-3).T)), "band(2,2) mask: queries see later keys, which is "
     "wrong in a decoder", "give --expect causal for a decoder, or the mask that you expect"),
])  # fmt: skip
def test_a_mask_that_shows_later_keys_is_ok_only_where_it_is_expected(
    call: AttentionCall, message: str, advice: str
) -> None:
    assert unchecked(call) == message
    (row,) = taken(call)
    assert row.unchecked.advice == advice
    assert taken(call, expect=row.tracks[0].rules.most_common()[0][0])[0].verdict == "ok"


def test_a_mask_that_hides_later_keys_is_ok_whatever_padding_sees() -> None:
    left = REAL.flip(-1)
    unmasked = mask_argument(CAUSAL & left[:, None, None, :] | ~left[:, None, :, None])  # as transformers does
    for call in (sdpa(is_causal=True), sdpa(unmasked), sdpa(size=(B, 1, T))):
        (row,) = taken(call)
        assert (row.verdict, row.unchecked) == ("ok", None)


# --- traces ------------------------------------------------------------------------------------------------


def test_a_row_without_queries_and_weights_has_no_trace() -> None:
    call = sdpa()
    bare = AttentionCall(**{**vars(call), "q": None, "k": None, "v": None})
    with pytest.raises(NotExposedError, match=r"model\.py:1 exposes neither queries"):
        taken(bare)[0].trace  # noqa: B018
