"""What heads do with pictures, against plain loops, in maps that are known, and in models that learned nothing."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from metrics_by_hand import tokens, traced
from traces import trace_of

from attncli.analysis import NAMES, OF_PICTURES
from attncli.analysis.metrics import by_name, head_metrics, trace_metrics
from attncli.trace.layout import ImageGrid
from attncli.trace.trace import Trace
from attncli.trace.view import View

HEADS = 2


def components(cells: set[tuple[int, int, int]]) -> list[set[tuple[int, int, int]]]:
    left, found = set(cells), []
    while left:
        waiting = [left.pop()]
        found.append(set(waiting))
        while waiting:
            grid, row, column = waiting.pop()
            around = {(grid, row + down, column + across) for down in (-1, 0, 1) for across in (-1, 0, 1)} & left
            left -= around
            found[-1] |= around
            waiting += around
    return found


def by_hand(trace: Trace, weights: np.ndarray, allowed: np.ndarray, rows: list[int]) -> dict[str, Any]:
    place = {
        int(position): (number, row, column)
        for number, grid in enumerate(trace.grids)
        for (row, column), position in np.ndenumerate(grid.positions)
    }
    is_tower = max(rows) in place
    seeing = [row for row in sorted(rows) if any(allowed[row][cell] for cell in place)]
    counted = [row for row in seeing if is_tower or row not in place]
    found: dict[str, Any] = dict.fromkeys(OF_PICTURES)
    if counted:
        found["image"] = sum(float(weights[row][cell]) for row in counted for cell in place) / len(counted)
        if is_tower:
            whole = {cell: sum(float(weights[row][cell]) for row in counted) / len(counted) for cell in place}
        else:
            whole = {cell: float(weights[counted[-1]][cell]) for cell in place}
        mean = sum(whole.values()) / len(whole)
        above = components({place[cell] for cell, weight in whole.items() if weight > mean * 1.00001})
        if above:
            shares = [len(region) / sum(map(len, above)) for region in above]
            found["spatial_entropy"] = -sum(share * math.log(share) for share in shares)
        bright = components({place[cell] for cell, weight in whole.items() if weight > 2 * mean * 1.00001})
        at = {where: cell for cell, where in place.items()}
        masses = [sum(whole[at[where]] for where in region) for region in bright]
        found["region"] = max(masses, default=0.0)
        found["cells"] = [at[where] for where in bright[masses.index(max(masses))]] if bright else []
    if sum(row in place for row in seeing) > 1:
        means = []
        for cell in place:
            own = [float(weights[row][cell]) for row in seeing if allowed[row][cell]]
            means.append(sum(own) / max(len(own), len(seeing) / 2))
        found["visual_sink"] = max(means)
    return found


def agree(actual: dict[str, float | None], expected: dict[str, Any]) -> None:
    for name in OF_PICTURES:
        wanted = expected[name]
        assert actual[name] == (None if wanted is None else pytest.approx(wanted, rel=2e-5, abs=2e-6)), name


LAYOUTS = {
    "in front": (4, ImageGrid(1, 3, 4)), "with newlines": (3, ImageGrid(0, 2, 3, order=(0, 1, 2, 4, 5, 6))),
    "a tower": (0, ImageGrid(2, 3, 3)), "two": (2, ImageGrid(1, 2, 2), ImageGrid(6, 3, 2, is_overview=True)),
}  # fmt: skip


@given(
    layout=st.sampled_from([*LAYOUTS]),
    mask=st.sampled_from(["causal", "full", "window(4)", "causal & ~keys(0,4)", "~full"]),
    seed=st.integers(0, 99),
    data=st.data(),
)
@settings(max_examples=80)
def test_they_are_what_plain_loops_count(layout: str, mask: str, seed: int, data: Any) -> None:
    behind, *grids = LAYOUTS[layout]
    count = max(grid.stop for grid in grids) + behind
    sequence = tokens([7] * count)
    plain = traced(sequence, sequence, mask, seed)
    trace = trace_of(*plain.layers, queries=sequence, keys=sequence, grids=tuple(grids))
    layer = trace.layer(0)
    chosen = data.draw(st.just([]) | st.lists(st.integers(0, count - 1), unique=True, min_size=1, max_size=5))
    rows = chosen or [*range(count)]
    found = trace_metrics(trace, View(queries=tuple(chosen)))
    allowed = layer.head(0).mask
    even = allowed / np.maximum(allowed.sum(axis=-1, keepdims=True), 1)
    for index in range(HEADS):
        expected = by_hand(trace, layer.head(index).weights, allowed, rows)
        agree(by_name(NAMES, found.heads[index]), expected)
        agree(head_metrics(trace, layer, layer.head(index, chosen or None)), expected)
        uniform = by_hand(trace, even, allowed, rows)
        if "cells" in expected:  # of which a uniform head gives so much to the region of this one
            seeing = [row for row in sorted(rows) if allowed[row][[*cells_of(trace)]].any()]
            last = (
                seeing if max(rows) in cells_of(trace) else [row for row in seeing if row not in cells_of(trace)][-1:]
            )
            uniform["region"] = sum(even[row][cell] for row in last for cell in expected["cells"]) / len(last)
        agree(by_name(NAMES, found.uniform[index]), uniform)


def cells_of(trace: Trace) -> set[int]:
    return {int(position) for grid in trace.grids for position in grid.positions.ravel()}
