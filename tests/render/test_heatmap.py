"""What the colours of maps reach to: the largest weight of all heads and cells, whichever are chosen."""

import numpy as np
import pytest

import attncli
from attncli.render.heatmap import Heatmap, heatmap_of, scale_of_layer
from attncli.render.palette import Scale
from attncli.trace.trace import Trace
from attncli.trace.view import View

TEXT = "time flies like an arrow they say"


@pytest.fixture(scope="module")
def trace() -> Trace:
    return attncli.inspect(TEXT, mask="none", init="normal")


def pictures(trace: Trace, view: View) -> dict[int, Heatmap]:
    (layer,) = trace.layers
    cells = view.cells(trace, layer)
    return {head: heatmap_of(layer.head(head, cells.rows), cells.of_columns, (1, 1)) for head in layer.heads}


@pytest.mark.parametrize("chosen", [{}, {"queries": (3,), "keys": ("like",)}], ids=["whole", "chosen"])
def test_the_end_is_of_all_cells_whichever_are_chosen(trace: Trace, chosen: dict[str, tuple[str]]) -> None:
    view = View(**chosen)
    largest = max(max(map(max, trace.layer(0).head(head).weights.tolist())) for head in range(4))
    assert scale_of_layer(trace, view, trace.layers[0], pictures(trace, view)).high == pytest.approx(largest)


def test_hidden_special_tokens_set_no_end(minilm: str) -> None:
    trace = attncli.inspect(TEXT, model=minilm, layer="4")
    view = View(hide_special=True, queries=("like",))
    found = scale_of_layer(trace, view, trace.layers[0], pictures(trace, view)).high
    weights = np.stack([trace.layer(4).head(head).weights for head in range(12)])
    assert found == weights[:, 1:-1, 1:-1].max() < weights.max()


def test_under_a_causal_mask_one_row_tells_the_largest_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty rows of thousands are drawn without the others being derived."""
    from attncli.trace.layer import HeadTrace

    trace = attncli.inspect(" ".join(f"w{place}" for place in range(3000)))
    view = View(queries=(2000,))
    drawn = pictures(trace, view)
    derived: list[int] = []
    blocks = HeadTrace.blocks
    monkeypatch.setattr(HeadTrace, "blocks", lambda head: (derived.append(len(b.queries)) or b for b in blocks(head)))
    assert scale_of_layer(trace, view, trace.layers[0], drawn).high == 1
    assert 0 < sum(derived) < 4 * 3000


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


def test_a_map_of_nothing_but_zeros_has_a_place_for_them() -> None:
    for ramp in ("sqrt", "linear", "log"):
        assert Scale.up_to(0.0, ramp).placed(np.zeros(2)).tolist() == [0, 0]
