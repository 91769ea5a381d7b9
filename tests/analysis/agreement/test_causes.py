"""Solvers on synthetic arrays: each finds the value that was planted, and proves nothing where another is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from attncli.analysis.agreement.causes import CANDIDATES
from attncli.analysis.agreement.compare import compare
from attncli.analysis.agreement.question import LayerQuestion
from attncli.analysis.runs import RunLayer, Side, captured_side
from attncli.analysis.steps import LayerSteps, Rounding, alibi, is_alibi
from attncli.engines.numpy.ops import Rope, frequencies_of, yarn
from attncli.errors import InputError
from attncli.masks.nearby import masks_near
from attncli.trace.capture import Capture, LayerCapture

HEADS, TOKENS, WIDTH = 4, 12, 16
CAUSAL = np.tri(TOKENS, dtype=bool)[None]
Change = Callable[[LayerSteps], LayerSteps]


def steps() -> LayerSteps:
    draws = np.random.default_rng(0)
    q, k, v = (draws.standard_normal((count, TOKENS, WIDTH)).astype(np.float32) for count in (HEADS, 2, 2))
    return LayerSteps(
        positions=np.arange(TOKENS), scale=0.25, mask=CAUSAL, key_heads=np.arange(HEADS) // 2,
        recorded={"q_normed": q, "k_normed": k, "v": v}, rope=Rope(frequencies_of(10_000.0, WIDTH // 2)),
    )  # fmt: skip


def named(change: Change, name: str, *shown: str) -> list[str]:
    """The values of a candidate that explain a change, of a run of which these arrays are known."""
    ours = steps()
    theirs = change(ours).run({})
    layer = RunLayer(0, {array: theirs[array] for array in ("v", *shown)}, {})
    twin = ours.run(layer.arrays, rounding=Rounding("float32"))
    question = LayerQuestion(layer, Side("A", "float32", lambda: iter([]), lambda *_: None), ours)
    question = question.rounded(twin, None, 1)
    parted = next(array for array in question.apart if question.parts(array))
    question = question.changed(parted=parted)
    (candidate,) = [one for one in CANDIDATES if one.name == name]
    proposals = candidate.proposals(question)
    return [one.theirs for one in proposals if question.agreeing(one.apply(0, ours))[0]]


def rope(**fields: object) -> Change:
    return lambda ours: replace(ours, rope=ours.rope and ours.rope._replace(**fields))


def field(**fields: object) -> Change:
    return lambda ours: replace(ours, **fields)  # type: ignore[arg-type]


def docs(*starts: int) -> np.ndarray:
    of = np.searchsorted(starts, np.arange(TOKENS), side="right")
    return CAUSAL & (of[:, None] == of)


WEIGHTS = "q", "k", "weights"
PLANTED: list[tuple[Change, str, tuple[str, ...], str]] = [
    (rope(frequencies=frequencies_of(500_000.0, 8)), "rotary", ("q", "k"), "500000"),
    (rope(frequencies=frequencies_of(31_416.0, 8)), "rotary", ("q", "k"), "31416"),
    (rope(is_interleaved=True), "rotary", ("q", "k"), "interleaved"),
    (rope(frequencies=frequencies_of(10_000.0, 4)), "rotary", ("q", "k"), "8"),
    (field(rope=None), "rotary", ("q", "k"), "0"),
    (rope(frequencies=frequencies_of(10_000.0, 8) / np.float32(3)), "rotary", ("q", "k"), "linear 3"),
    (rope(frequencies=yarn(1e4, 8, 4.0, 64), magnitude=0.1 * np.log(4) + 1), "rotary", ("q", "k"), "yarn 4"),
    (field(positions=np.arange(TOKENS) + 5), "positions", ("q", "k"), "5..16"),
    (field(positions=np.r_[0:6, 0:6]), "positions", ("q", "k"), "0..5, 0..5"),
    (field(scale=0.125), "scale", WEIGHTS, "0.125"),
    (field(scale=0.1768), "scale", WEIGHTS, "0.1768"),
    (field(softcap=7.0), "softcap", WEIGHTS, "7"),
    (field(key_heads=np.arange(HEADS) % 2), "key heads", WEIGHTS, "tiled"),
    (field(bias=alibi(HEADS, TOKENS, TOKENS)), "score bias", WEIGHTS, "ALiBi"),
    (field(mask=CAUSAL & ~np.tri(TOKENS, k=-3, dtype=bool)), "mask", WEIGHTS, "window(3)"),
    (field(mask=docs(4, 9)), "mask", WEIGHTS, "causal & docs(4,5,3)"),
    (field(mask=np.ones_like(CAUSAL)), "mask", WEIGHTS, "full"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "name", "shown", "value"), PLANTED, ids=[f"{one[1]} {one[3]}" for one in PLANTED])
def test_a_solver_finds_the_planted_value_alone(change: Change, name: str, shown: tuple[str, ...], value: str) -> None:
    assert named(change, name, *shown)[:1] == [value]
    # With another fault beside it no value of this kind explains the difference.
    both = lambda ours: replace(change(ours), recorded=_scaled(ours))  # noqa: E731
    assert named(both, name, *shown) == [] or "weights" in shown


def _scaled(ours: LayerSteps) -> dict[str, np.ndarray]:
    recorded = dict(ours.recorded or {})
    return recorded | {"q_normed": recorded["q_normed"] * np.float32(1.5), "k_normed": recorded["k_normed"] + 1}


def test_alibi_is_known_up_to_a_constant_of_a_row() -> None:
    bias = alibi(8, 5, 5)
    assert bias[0, 4].tolist() == [-2, -1.5, -1, -0.5, 0]  # slope 1/2 of the first of eight heads
    allowed = np.tri(5, dtype=bool)[None]
    assert is_alibi(bias + np.arange(5, dtype=np.float32)[:, None], allowed)
    assert not is_alibi(2 * bias, allowed)


def test_masks_near_a_window_begin_with_the_windows_beside_it() -> None:
    window = CAUSAL & ~np.tri(TOKENS, k=-4, dtype=bool)
    names = [name for name, _ in masks_near(window, np.arange(3, TOKENS), lambda _: np.array([], int))]
    assert names[:3] == ["window(5)", "window(3)", "causal"]


def test_runs_without_common_layers_are_refused() -> None:
    array = np.ones((1, 3, 2), np.float32)
    first, second = (captured_side(Capture({index: LayerCapture(array, array, array)}), f"{index}") for index in (0, 1))
    with pytest.raises(InputError, match="no array in common"):
        compare(first, second)
