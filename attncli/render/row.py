"""One row of the attention as a person reads it: its keys by weight, and what the others sum up to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from attncli.analysis.cell import Row
from attncli.render.bars import largest_of
from attncli.render.block import Block
from attncli.render.palette import DIM
from attncli.render.sheet import Line, Sheet
from attncli.trace.ranking import drawn_cells


def ranked_keys(row: Row) -> list[int]:
    """Return the keys by weight, without those that are masked and have none."""
    drawn = drawn_cells(row.head)[0]
    return [key for key in row.ranked.tolist() if drawn[key]]


def weight_of(row: Row, keys: Sequence[int]) -> float:
    """Return the weight of some keys together."""
    return float(row.weights[list(keys)].sum(dtype=np.float64))


def keys_by_weight(row: Row, top: int, sheet: Sheet) -> Block:
    """Return the keys by weight, what the others sum up to, and the sink; weights and shares add up to 1."""
    ranked = ranked_keys(row)
    shown, others = ranked[:top], ranked[top:]
    shares, sink = row.output_shares, row.sink_weight
    stages = {
        "score": row.scores,
        "weight": row.weights,
        "‖v‖": row.value_norms,
        "‖w·v‖": row.contribution_norms,
        "share": shares,
    }
    known = {name: values for name, values in stages.items() if values is not None}
    lines: list[Line] = [[("key", DIM), *((sheet.palette.fit(name), DIM) for name in known)]]
    for key, *numbers in zip(shown, *(sheet.column(values, shown) for values in known.values()), strict=True):
        lines.append([(sheet.named(row.keys[key]), None), *((number, None) for number in numbers)])
    bars: list[float | None] = [float(row.weights[key]) for key in shown]

    def add(name: str, **told: Any) -> None:
        lines.append([(name, DIM), *((sheet.known(told.get(stage)), None) for stage in known)])
        bars.append(None)  # a sum of many would leave no room for one

    if others:
        add(f"{len(others)} more", weight=weight_of(row, others), share=_summed(shares, others))
    if masked := len(row.keys) - len(ranked):
        add(f"{masked} masked")
    if sink is not None and row.layer.sinks is not None:
        add("sink", weight=sink, score=row.layer.sinks[row.head.head])
        bars[-1] = float(sink)
    add("total", weight=weight_of(row, ranked) + float(sink or 0), share=_summed(shares, ranked))
    return sheet.with_bars(lines, 3, bars, largest_of(bars))


def _summed(values: Any, keys: list[int]) -> Any:
    return None if values is None else values[keys].sum(dtype=np.float64)
