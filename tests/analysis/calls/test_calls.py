"""Calls as rows: what is counted together, what is analysed anew, and what is kept."""

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from live_calls import CAUSAL, LENGTHS, REAL, B, H, T, mask_argument, padding, place, sdpa

from attncli.analysis.calls import analyzer, steps
from attncli.analysis.calls.calls import Calls
from attncli.analysis.calls.expectations import UnexpectedError
from attncli.analysis.calls.groups import joined_modules
from attncli.errors import NotExposedError
from attncli.recording.call import AttentionCall


def taken(*calls: AttentionCall, **how: Any) -> Calls:
    found = Calls(**how)
    for call in calls:
        found.take(call)
    found.finish()
    return found


@pytest.fixture
def analysed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was done of all that a call can take: masks read, and put together, and calls looked at."""
    done: list[str] = []
    for name in ("read_mask", "mask_of", "findings_of"):
        before = getattr(analyzer, name)

        def counting(*arguments: Any, name: str = name, before: Any = before) -> Any:
            done.append(name)
            return before(*arguments)

        monkeypatch.setattr(analyzer, name, counting)
    return done


def test_equal_calls_are_one_row() -> None:
    layers = [sdpa(is_causal=True, at=place(module=f"layers.{index}.attn")) for index in range(12)]
    calls = taken(*layers, *layers, sdpa(at=place(9, "pool")))
    (row, pool), rows = calls, len(calls)
    assert rows == 2
    assert (row.calls, row.module, row.mask, row.findings) == (24, "layers.0-11.attn", "causal", ())
    assert (pool.calls, pool.module, pool.mask) == (1, "pool", "full")
    assert (calls.places, calls.calls) == (2, 25)
    assert calls.headline.startswith("2 places, 25 calls, ")


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        ([None], None),
        (["attn", "attn"], "attn"),
        (["layers.0.attn", "layers.1.attn", "layers.5.attn"], "layers.0-1,5.attn"),
        (["encoder.layers.0", "decoder.layers.0"], "encoder.layers.0 and 1 more"),
        (["a", "b.c"], "a and 1 more"),
        ([""], ""),
    ],
)
def test_modules_are_named_together(names: list[str | None], shown: str | None) -> None:
    assert joined_modules(names) == shown


def test_sizes_that_vary_are_said() -> None:
    (row,) = taken(*(sdpa(size=(1, 1, keys)) for keys in range(5, 9)))
    assert [str(span) for span in row.sizes] == ["1", str(H), "1", "5..8"]
    prompt, tokens = taken(sdpa(is_causal=True, size=(1, 4, 4)), *(sdpa(size=(1, 1, keys)) for keys in (5, 6)))
    assert (prompt.mask, prompt.calls, tokens.mask, tokens.calls) == ("causal", 1, "full", 2)


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
    assert row.mask == "varies: pad in 9 of 12 calls"
    (row,) = taken(sdpa(is_causal=True), sdpa(padding(), is_causal=True))
    assert row.mask == "causal, varies: pad in 1 of 2 calls"
    (row,) = taken(sdpa(is_causal=True), sdpa(), sdpa())
    assert row.mask == "varies: full in 2, causal in 1"


def test_findings_say_in_how_many_calls() -> None:
    right, wrong = sdpa(is_training=False), sdpa(is_training=False, dropout=0.1)
    (row,) = taken(right, wrong, right, right)
    (noticed,) = row.counts
    assert (noticed.finding.code, noticed.calls, row.calls) == ("dropout", 1, 4)
    assert "dropout of 0.1 is on although the module is in eval mode (in 1 of 4 calls)" in str(
        taken(right, wrong, right, right)
    )


# --- cheap on repeats --------------------------------------------------------------------------------------


def test_a_mask_that_comes_again_is_not_copied_again(analysed: list[str]) -> None:
    mask = padding()
    calls = [sdpa(mask, at=place(module=f"layers.{index}")) for index in range(3)]
    taken(*calls, *calls, *calls)
    assert sorted(analysed) == sorted(["read_mask", "mask_of", *["findings_of"] * 3])


def test_a_mask_made_anew_is_not_analysed_again(analysed: list[str]) -> None:
    taken(*(sdpa(padding(REAL.clone())) for _ in range(5)))
    assert analysed.count("mask_of") == analysed.count("findings_of") == 1


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
    assert calls[0].mask == "varies: pad in 1 of 2 calls"


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
    with pytest.warns(UserWarning, match="not all that ran was looked at, for a bug in attn: ZeroDivisionError"):
        others.check("full")


# --- what is looked at -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "count"), [("model.py:2", 1), ("model.py", 2), ("Block.*", 2), ("attn", 1), ("*.attn", 1), ("x", 0)]
)
def test_places_are_chosen_by_line_function_or_module(pattern: str, count: int) -> None:
    calls = taken(sdpa(at=place(1)), sdpa(at=place(2, "layers.0.attn")), place=pattern)
    assert (len(calls), calls.left_out) == (count, 2 - count)


# --- check -------------------------------------------------------------------------------------------------


def test_check_says_where_masks_are_not_as_expected() -> None:
    calls = taken(sdpa(is_causal=True), sdpa(at=place(2, "pool")))
    calls.check("causal", place="attn")
    with pytest.raises(UnexpectedError) as raised:
        calls.check("causal")
    assert isinstance(raised.value, AssertionError)
    ((call, finding, _),) = raised.value.wrong
    assert (call.place.line, finding.code, finding.count) == (2, "leak", T * (T - 1) // 2)
    assert str(raised.value).splitlines() == [
        "attention is not causal",
        "model.py:2 Block.forward (pool): leak: attends to the future in 28 cells",
    ]


def test_check_says_that_it_has_not_seen_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attncli.analysis.calls.calls._MOST_BYTES", CAUSAL.nbytes + steps._BYTES_OF_A_CALL)
    masks = [mask_argument(CAUSAL), mask_argument(CAUSAL.clone().triu(1))]
    calls = taken(*(sdpa(mask, at=place(line)) for line, mask in enumerate(masks)))
    with pytest.raises(UnexpectedError, match="the masks of its calls were not kept"):
        calls.check("causal")
    calls = Calls()
    for mask in masks:  # a step each
        calls.take(sdpa(mask))
        calls.settle()
    with pytest.warns(UserWarning, match="Later masks are not checked"):
        calls.check("causal")


def test_check_takes_lengths() -> None:
    calls = taken(sdpa(padding()))
    calls.check("pad")
    calls.check("pad", lengths=LENGTHS)
    with pytest.raises(UnexpectedError, match="pad: attends to padding"):
        calls.check("pad", lengths=[8, 4, 2])
    with pytest.raises(UnexpectedError, match="misses an allowed key"):
        calls.check("pad", lengths=[8, 8, 2])


def test_the_table_as_text() -> None:
    padded = sdpa(padding(), is_causal=True, at=place(41, "layers.0"))
    calls = taken(padded, sdpa(is_causal=True, size=(1, 2, 9), at=place(88, "pool")))
    calls.seconds = 1.94
    _, (finding,) = (row.findings for row in calls)
    assert str(calls).splitlines() == [
        "2 places, 2 calls, 1.9 s",
        "",
        "place        module    calls  kind  heads  queries×keys  mask                          result",
        "model.py:41  layers.0      1  sdpa      2           8×8  causal & pad (rows 1-2 of 3)  ok",
        "model.py:88  pool          1  sdpa      2           2×9  causal, aligned top-left      1 error",
        "",
        f"error  shape  {finding.message}",
        f"              {finding.advice}",
        "  --> model.py:88 in Block.forward (pool)",
        "",
        "1 error",
    ]


def unchecked(*calls: AttentionCall) -> str:
    """Why the masks of the calls of one place were not checked."""
    (row,) = taken(*calls)
    assert row.verdict == "not checked"
    assert row.unchecked is not None
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
    assert row.unchecked is not None
    assert row.unchecked.advice == advice
    assert taken(call, expect=row.tracks[0].rules.most_common()[0][0])[0].verdict == "ok"


def test_a_mask_that_hides_later_keys_is_ok_whatever_padding_sees() -> None:
    left = REAL.flip(-1)
    unmasked = mask_argument(CAUSAL & left[:, None, None, :] | ~left[:, None, :, None])  # as transformers does
    for call in (sdpa(is_causal=True), sdpa(unmasked), sdpa(size=(B, 1, T))):
        (row,) = taken(call)
        assert (row.verdict, row.unchecked) == ("ok", None)


def test_an_error_comes_before_that_a_mask_is_not_checked() -> None:
    (row,) = taken(sdpa(dropout=0.1, is_training=False))
    assert (row.verdict, row.unchecked, [one.code for one in row.findings]) == ("not checked", None, ["dropout"])


def test_wrong_cells_are_kept_of_the_first_places_alone() -> None:
    calls = taken(*(sdpa(at=place(line)) for line in range(1, 9)), expect="causal")
    drawn = [one.finding.comparison for row in calls for one in row.counts]
    assert [comparison is not None for comparison in drawn] == [True] * 3 + [False] * 5
    assert drawn[0] is not None
    assert (drawn[0].only_first == ~CAUSAL.numpy()).all()


# --- traces ------------------------------------------------------------------------------------------------


def test_a_row_gives_a_trace_for_each_batch_row_with_a_layer_for_each_module() -> None:
    layers = [sdpa(padding(), is_causal=True, at=place(module=f"layers.{index}")) for index in range(3)]
    (row,) = taken(*layers)
    assert len(row.traces) == B
    for batch, trace in enumerate(row.traces):
        assert [layer.layer for layer in trace.layers] == [0, 1, 2]
        assert trace.source.model == "layers.0-2"
        for layer, call in zip(trace.layers, layers, strict=True):
            assert call.q is not None
            assert call.k is not None
            scores = (call.q @ call.k.mT * call.scale)[batch].masked_fill(~CAUSAL | ~REAL[batch], -torch.inf)
            for head in range(H):
                assert torch.allclose(torch.from_numpy(layer.head(head).weights), scores[head].softmax(-1), atol=1e-6)
    assert row.trace.layers[0].num_queries == T


def test_a_row_without_queries_and_weights_has_no_trace() -> None:
    call = sdpa()
    bare = AttentionCall(**{**vars(call), "q": None, "k": None, "v": None})
    with pytest.raises(NotExposedError, match=r"model\.py:1 exposes neither queries"):
        taken(bare)[0].trace  # noqa: B018
