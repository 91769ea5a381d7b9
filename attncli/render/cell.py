"""One cell of the attention as a person reads it: q·k as a sum over dimensions, and what becomes of it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.cells import cell_len
from rich.segment import Segment

from attncli.analysis.cell import Cell
from attncli.render.bars import largest_of, signed_bar
from attncli.render.block import Block, block, cell
from attncli.render.palette import BOLD, DIM
from attncli.render.sheet import Line, Sheet

if TYPE_CHECKING:
    from jaxtyping import Float

    Stage = tuple[str, Any, str]  # its name, what it makes, and a remark

_WIDEST_BAR = 41


def dimensions(one: Cell, products: Float[np.ndarray, " D"], top: int, sheet: Sheet) -> Block:
    """Return the largest of the products that q·k is the sum of, and what the others sum up to."""
    palette = sheet.palette
    shown, others = np.split(one.ranked, [top])
    assert one.q is not None
    assert one.k is not None
    columns = [sheet.column(vector, shown.tolist()) for vector in (products, one.q, one.k)]
    lines: list[Line] = [[(palette.fit(name), DIM) for name in ("dim", "q·k", "q", "k")]]
    for place, *numbers in zip(shown.tolist(), *columns, strict=True):
        lines.append([(str(place), BOLD), *((number, None) for number in numbers)])
    if len(others):
        with np.errstate(invalid="ignore"):
            rest = products[others].sum(dtype=np.float64)
        lines.append([(f"{len(others)} more", DIM), (sheet.number(rest), None), ("", None), ("", None)])
    lines.append([(palette.fit("q·k"), BOLD), (sheet.known(one.dot_product), BOLD), ("", None), ("", None)])
    width = sheet.bar_width(lines, 2, _WIDEST_BAR)
    values = products[shown].tolist()
    bars: Line = [("", None), *(signed_bar(value, largest_of(values), width, palette) for value in values)]
    bars += [("", None)] * (len(lines) - len(bars))  # a sum of many would leave no room for one
    drawn = [[place, product, bar, *factors] for (place, product, *factors), bar in zip(lines, bars, strict=True)]
    if sheet.fits(drawn):  # the factors before their product
        drawn = [[place, *factors, product, bar] for place, product, bar, *factors in drawn]
        return sheet.grid(drawn, ">>>><")
    return sheet.grid(drawn, ">><>>")


def stages(one: Cell, sheet: Sheet) -> Block:
    """Return what is done to q·k until it is a weight, and what the weight carries."""
    found = (*_score(one, sheet), *_weight(one, sheet), *_value(one, sheet))
    lines = [(sheet.palette.fit(name), sheet.number(value), sheet.palette.fit(remark)) for name, value, remark in found]
    names, numbers = (max(cell_len(line[column]) for line in lines) for column in (0, 1))
    room = max((10**6 if sheet.width is None else sheet.width) - names - numbers - 4, 8)
    drawn = []
    for name, number, remark in lines:
        first, *more = textwrap.wrap(remark, room)
        style = BOLD if name in ("score", "weight") else None
        start = [cell(name, names, BOLD, "left"), Segment("  "), cell(number, numbers, style)]
        drawn.append([*start, Segment("  "), Segment(first, DIM)])
        drawn += [[Segment(" " * (names + numbers + 4)), Segment(part, DIM)] for part in more]
    return block(drawn)


def _score(one: Cell, sheet: Sheet) -> Iterator[Stage]:
    layer = one.row.layer
    if one.products is not None:
        yield "q·k", one.dot_product, f"the sum over {len(one.products)} dimensions"
    if one.scaled is not None:
        yield "× scale", one.scaled, f"{layer.scale:.4g}"
        if one.bias is not None:
            yield "+ bias", one.scaled + one.bias, sheet.number(one.bias)
    cap = "" if layer.softcap is None else f"softcapped, {layer.softcap:g}·tanh(x / {layer.softcap:g}); "
    if one.allowed:
        yield "score", one.score, f"{cap}the mask allows it"
    elif layer.scores is not None:
        yield "score", one.score, "masked, and recorded after the mask"
    else:
        yield "score", one.score, f"{cap}masked: the softmax gets {sheet.number(one.masked)} instead"


def _weight(one: Cell, sheet: Sheet) -> Iterator[Stage]:
    parts = one.row.softmax
    if parts is None or one.exponential is None:
        yield "weight", one.weight, "as the model gave it: the mask leaves no key to this query"
        return
    score = "score" if one.allowed else sheet.number(one.masked)
    yield "exp", one.exponential, f"e^({score} − {sheet.number(parts.highest)}), the row's highest taken off"
    sink = "" if parts.sink is None else f", {sheet.number(parts.sink)} of it the sink's"
    yield "weight", one.weight, f"÷ {sheet.number(parts.total)}, the row's total{sink}"


def _value(one: Cell, sheet: Sheet) -> Iterator[Stage]:
    if one.value_norm is None:
        return
    yield "‖v‖", one.value_norm, "the length of the value"
    yield "‖w·v‖", one.contribution_norm, "weight × ‖v‖, what is carried"
    if one.output_share is not None:
        yield "share", one.output_share, f"of the output's length {sheet.known(one.row.output_norm)}"
