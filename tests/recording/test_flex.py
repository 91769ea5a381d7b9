"""flex_attention as a program runs it, against the formula with plain tensors."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from attncli.recording.call import AttentionCall
from attncli.recording.to_trace import traces
from attncli.recording.watch import watching

BATCH, HEADS, GROUPS, QUERIES, KEYS, WIDTH = 2, 4, 2, 8, 8, 4
LENGTHS = torch.tensor([8, 5])
SLOPES = torch.tensor([0.5, 0.25, 0.1, 0.05])
ROWS, COLUMNS = torch.arange(QUERIES)[:, None], torch.arange(KEYS)[None, :]

Mod = Callable[..., Any]


def ran(
    score_mod: Mod | None, mask_mod: Mod | None, times: int = 1, rows: int | None = BATCH
) -> tuple[list[AttentionCall], torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    q = torch.randn(BATCH, HEADS, QUERIES, WIDTH, generator=draw)
    k, v = torch.randn(2, BATCH, GROUPS, KEYS, WIDTH, generator=draw)
    mask = mask_mod and create_block_mask(mask_mod, rows, None, QUERIES, KEYS, device="cpu", BLOCK_SIZE=8)
    calls: list[AttentionCall] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = flex_attention(q, k, v, score_mod=score_mod, block_mask=mask, enable_gqa=True)
        with watching(calls.append):
            for _ in range(times):
                output = flex_attention(q, k, v, score_mod=score_mod, block_mask=mask, enable_gqa=True)
    assert torch.equal(output, expected)
    return calls, torch.einsum("bhqd,bhkd->bhqk", q, k.repeat_interleave(2, 1)) * WIDTH**-0.5


def padded_causal(b: Any, h: Any, i: Any, j: Any) -> Any:
    return (i >= j) & (j < LENGTHS[b])


HIDDEN = ~((COLUMNS <= ROWS) & (LENGTHS[:, None, None] > COLUMNS))[:, None]


@pytest.mark.parametrize(("score_mod", "changed"), [
    (None, lambda scores: scores),
    (lambda s, b, h, i, j: s + SLOPES[h] * (j - i), lambda s: s + SLOPES[:, None, None] * (COLUMNS - ROWS)),
    (lambda s, b, h, i, j: torch.tanh(s / 5) * 5, lambda s: torch.tanh(s / 5) * 5),
    (lambda s, b, h, i, j: torch.where(j > 1, s, -torch.inf), lambda s: s.masked_fill(COLUMNS <= 1, -torch.inf)),
])  # fmt: skip
def test_what_a_score_mod_and_a_mask_mod_make_of_the_scores(score_mod: Mod | None, changed: Mod) -> None:
    (call,), scores = ran(score_mod, padded_causal)
    assert (call.api, call.shape, call.unsupported) == ("flex", (BATCH, HEADS, QUERIES, KEYS), None)
    weights = changed(scores).masked_fill(HIDDEN, -torch.inf).softmax(-1)
    for row, trace in enumerate(traces(call)):
        for head in range(HEADS):
            np.testing.assert_allclose(trace.layer(0).head(head).weights, weights[row, head], atol=1e-6)


def test_a_score_mod_that_does_more_is_named_and_not_guessed() -> None:
    (call,), _ = ran(lambda s, b, h, i, j: s * (1 + i), None)
    assert call.unsupported == "the score_mod, which does more than add to a score or cap it"
    assert traces(call) == ()


LAST = torch.tensor([8, 3, 5])


@pytest.mark.parametrize("mask_mod", [
    lambda b, h, i, j: LENGTHS[b] > j,
    padded_causal,
    lambda b, h, i, j: (i >= j) & (j >= LAST[b]),
    lambda b, h, i, j: (j < 4) == (h < 2),
])  # fmt: skip
def test_blocks_of_one_row_are_noted_as_the_mask_mod_runs_for_every_row(mask_mod: Mod) -> None:
    (call,), _ = ran(None, mask_mod, rows=None)  # the output is that of the whole mask_mod
    (own,), _ = ran(None, mask_mod, rows=BATCH)
    assert torch.equal(call.masks[0].values, own.masks[0].values)
    (found,) = call.findings
    assert (found.code, found.severity) == ("batch", "note")
    axis = "H=4" if call.masks[0].values.shape[0] == 1 else "B=2"
    assert found.advice == f"pass {axis}"
    assert own.findings == (() if axis == "B=2" else call.findings)
