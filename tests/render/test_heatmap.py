"""Which colour a weight has: up to 1, whichever cells are shown, and so that the eye finds the largest."""

import numpy as np
import pytest

import attncli
from attncli.analysis.derive import derive
from attncli.render.heatmap import scale_of_layer
from attncli.render.palette import Palette, Scale
from attncli.trace.view import View

TEXT = (
    "alice was beginning to get very tired of sitting by her sister on the bank and of having nothing to do that whole "
    "long day"
)


def test_the_scale_of_weights_ends_at_one_and_that_of_norms_at_the_largest() -> None:
    trace = attncli.inspect("time flies", init="normal")
    norms = derive(trace, norms=True)
    for view in (View(), View(queries=(1,), ramp="log")):
        assert scale_of_layer(trace, view, trace.layers[0]) == Scale.up_to(1.0, view.ramp)
    largest = max(float(norms.layer(0).head(head).weights.max()) for head in range(4))
    assert scale_of_layer(norms, View(), norms.layers[0]).high == pytest.approx(largest)


def test_a_head_that_looks_at_the_token_before_is_a_bright_line(minilm: str) -> None:
    """Head 2 of MiniLM's layer 0: every cell of the line is as far from those beside it as half of the ramp."""
    weights = attncli.inspect(TEXT, model=minilm, layer="0").layer(0).head(2).weights
    assert len(weights) == 27
    for tier in ("truecolor", "256", "blocks"):
        ramp = Palette(tier).ramp(2)
        steps = (Scale.up_to(1.0).placed(weights) * len(ramp)).astype(int).clip(0, len(ramp) - 1)
        for query in range(1, 27):
            neighbours = [key for key in (query - 2, query) if key >= 0]
            assert all(steps[query, query - 1] - steps[query, key] >= len(ramp) / 2 for key in neighbours)
        off = ~np.eye(27, k=-1, dtype=bool)
        off[0] = False  # the first token has none before it
        assert (steps[off] < len(ramp) / 4).mean() > 0.99


# --- where a weight stands ---


def test_colours_grow_with_a_weight_its_root_or_its_logarithm() -> None:
    values = np.array([0.0, 0.001, 0.1, 0.25, 0.5, 1.0, 2.0, -1.0], np.float32)
    inside = [0, 0.001, 0.1, 0.25, 0.5, 1, 1, 0]
    np.testing.assert_allclose(Scale.up_to(1.0, "linear").placed(values), inside, rtol=1e-6)
    np.testing.assert_allclose(Scale.up_to(1.0, "sqrt").placed(values), [each**0.5 for each in inside], rtol=1e-6)
    logs = [0, 0, 2 / 3, 0.799313, 0.899657, 1, 1, 0]  # of three powers of ten
    np.testing.assert_allclose(Scale.up_to(1.0, "log").placed(values), logs, atol=1e-6)


def test_differences_go_from_the_middle_to_either_side() -> None:
    values = np.array([-0.4, -0.1, 0.0, 0.1, 0.4, 0.9])
    found = Scale.around_zero(0.4, "sqrt").placed(values)
    np.testing.assert_allclose(found, [0, 0.25, 0.5, 0.75, 1, 1])
    np.testing.assert_allclose(Scale.around_zero(0.4, "linear").placed(values), [0, 0.375, 0.5, 0.625, 1, 1])
    assert Scale.around_zero(0.4, "linear").high == 0.4
    tones = np.abs(Scale.around_zero(2e-7).placed(np.array([-2e-7, 2e-7])) - 0.5)
    assert tones.max() < 0.1  # rounding has hardly a colour
    assert Scale.around_zero(0.4, "log") == Scale.around_zero(0.4, "sqrt")  # zero has no logarithm
