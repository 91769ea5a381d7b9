"""The heaviest keys of each query as a compact table: a line a query, a column a place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.segment import Segment
from rich.style import Style

from attncli.render.axes import MARK, Axis
from attncli.render.block import Block, block, grid, stack
from attncli.render.matrix import DIGITS, number_text
from attncli.render.palette import BOLD, DIM
from attncli.trace.layer import HeadTrace
from attncli.trace.ranking import Heaviest, top_keys
from attncli.trace.view import Columns

Line = list[tuple[str, Style | None]]


def top_keys_table(
    heads: Sequence[tuple[HeadTrace, Axis]],
    keys: Columns,
    columns: Axis,
    wanted: Heaviest,
    width: int | None,
    precision: int | None,
) -> Block:
    """Return a line for each query of each head: its heaviest keys with their weights, and what these add up to.

    Args:
        heads: each with its query axis.
        keys: which key columns count.
        columns: the axis of these.
        wanted: which keys of each query.
        width: cells in a line; None is as many as it takes.
        precision: digits after the point; None is as many as the matrices have at the most.
    """
    digits = DIGITS if precision is None else precision
    tops = [list(top_keys(head, keys, wanted)) for head, _ in heads]
    places = max(len(top) for listed in tops for top, _ in listed)
    if wanted.most is not None:
        places = min(wanted.most, len(columns))
    rows: list[Line] = [[(title, DIM) for title in ("head query", "sum", *map(str, range(1, places + 1)))]]
    names = [str(head.layer.head_label(head.head)) for head, _ in heads]
    widest = max(map(len, names))
    for label, (_, axis), listed in zip(names, heads, tops, strict=True):
        for name, (top, weights) in zip(_names(axis), listed, strict=True):
            total = number_text(float(weights.sum()), digits) if len(top) else ""
            found = [
                f"{columns.indices[key]} {columns.labels[key]} {number_text(weight, digits)}"
                for key, weight in zip(top, weights.tolist(), strict=True)
            ]
            blank = [""] * (places - len(found))
            line = [(text, None) for text in (*found, *blank)]
            rows.append([(f"{label:>{widest}}  {name}", None), (total, DIM), *line])
    counted = "keys" if wanted.most is None else f"{places} heaviest keys" if places > 1 else "heaviest key"
    measured = heads[0][0].layer.measure.removesuffix("s")  # weight or norm
    bound = "" if wanted.least is None else f" with a {measured} of {wanted.least} or more"
    title = block([[Segment(f"{counted} of each query{bound}", BOLD)]])
    return stack([title, grid(rows, "<" + ">" * (places + 1), width)])


def _names(axis: Axis) -> Iterator[str]:
    digits = axis.digits
    for place, (index, label) in enumerate(zip(axis.indices, axis.labels, strict=True)):
        yield f"{index:>{digits}} {label}" + (f" {MARK}" if place in axis.marked else "")
