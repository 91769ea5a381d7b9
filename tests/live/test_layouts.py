"""Attention written out in every layout of its scores: heads are heads, and queries are queries."""

from functools import partial
from typing import Any

import pytest
import torch
from watched_programs import Run, watched

from attncli.analysis.calls.calls import Calls

PROGRAMS = ("layouts",)
HEADS = 4
SHARED = "bqhk qbhk hbqk bhkq product folded".split()
STEPS = [(6, 1, 1), (6, 3), (4, 4), (4, 1), (4, 2)]  # of which some have as many queries or keys as heads


def read(programs: dict[str, Run], name: str, *options: object, rows: int = 2, **more: object) -> Calls:
    def run() -> list[torch.Tensor]:
        return programs["generated"](programs[name](*options[:-1], **more), options[-1], rows)

    calls = watched(run)
    assert calls
    assert calls.notes == []
    assert watched(run, "causal").findings == calls.findings
    return calls


def check(calls: Calls, steps: tuple[int, ...]) -> None:
    assert {row.verdict for row in calls} == {"ok"}
    assert {row.mask for row in calls} <= {"causal", "full"}
    assert calls[0].tracks[0].first.shape[1:] == (HEADS, steps[0], steps[0])
    assert {str(row.sizes[1]) for row in calls} == {str(HEADS)}
    assert min(row.sizes[2].least for row in calls) == min(steps)
    assert max(row.sizes[3].most for row in calls) == sum(steps)
    for trace in calls[0].traces:
        assert trace.layer(0).proof.max_abs_error < 1e-5


@pytest.mark.parametrize(("name", "scores", "more"), [
    *(("Latent", scores, {}) for scores in ("bsht", "bhst")),
    *(("Shared", scores, {"rows": rows, "is_turned": turned})
      for scores in SHARED for rows in (1, 4) for turned in (False, True)),
    *(("Grouped", scores, {}) for scores in ("bngqk", "bqngk", "bnqgk", "nbgqk", "bqgnk")),
])  # fmt: skip
def test_heads_are_heads(name: str, scores: str, more: Any, programs: dict[str, Run]) -> None:
    for steps in (*STEPS, *[(2, 2)] * (name == "Grouped")):
        check(read(programs, name, scores, steps, **more), steps)


@pytest.mark.parametrize(("name", "scores"), [("Latent", "bsht"), ("Shared", "bqhk"), ("Shared", "product")])
def test_a_mask_that_lies_on_the_heads_is_found(name: str, scores: str, programs: dict[str, Run]) -> None:
    def run() -> list[torch.Tensor]:
        return programs["generated"](programs[name](scores, wrong=True), (4,))

    assert "varies" in {one.code for one in watched(run, "causal").findings if one.severity == "error"}


@pytest.mark.parametrize("attend", ["module", "sequences_first", "fused_of_one_head"])
def test_a_mask_of_batch_and_heads_in_one_axis(attend: str, programs: dict[str, Run]) -> None:
    def run(wrong: bool) -> list[torch.Tensor]:
        return programs["padded"](programs["Folded"](attend, wrong))

    for expect in (None, "causal & pad"):
        right, wrong = watched(partial(run, False), expect), watched(partial(run, True), expect)
        assert (right[0].verdict, right.findings) == ("ok", ())
        assert right[0].tracks[0].shape == (3, HEADS, 9, 9)
        assert "batch" in {one.code for one in wrong.findings if one.severity == "error"}
