"""Attention over steps of training or checkpoints: strips of colour, and the warnings, or the heads that changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from rich.console import RenderableType
from rich.segment import Segment
from rich.text import Text

from attncli.analysis import MEANINGS
from attncli.analysis.training import HeadHistory
from attncli.render.block import COMFORTABLE, Block, block, shortened, trimmed, wrapping
from attncli.render.heatmap import ramp_line
from attncli.render.matrix import number_text
from attncli.render.palette import BOLD, DIM, Palette, Scale

_MEANINGS = {
    **MEANINGS,
    "uniformity": "effective keys, of the keys that a query may attend to",
    "similarity": "cosine of the weights and those of the most similar head of the layer",
}
_STRIPS = 2  # on a screen, of the metrics that moved most
_WIDEST_CELL = 4  # of a step
_AROUND, _LEAST_HEADS = 4, 3  # lines of a strip besides those of its heads: title, axis, legend, and a blank one
_NUMBER = 9  # cells of a number at the end of a line


def history_parts(
    history: HeadHistory, headline: str, rows: Sequence[Any], palette: Palette, width: int | None, height: int | None
) -> Iterator[RenderableType]:
    """Yield the headline, a strip for each column, the one that moved most first, and rows about heads.

    A screen has two strips, of the heads that moved most, and the first rows, with their titles.
    """
    yield Text(headline)
    shown = rows[: None if height is None else max(height // 4, 2)]
    more = [(f"{len(rows) - len(shown):,} more",)] * (len(shown) < len(rows))
    hidden = {"entropy", "keys"} if "effective_keys" in history.columns else set()  # which say the same
    moved = {name: float(history.movement(name).max()) for name in history.columns if name not in hidden}
    ranked = sorted([name for name in moved if moved[name]] or [*moved][:1], key=lambda name: -moved[name])
    most = None if height is None else max((height - len(shown) - 4) // _STRIPS - _AROUND, _LEAST_HEADS)
    for column in ranked if height is None else ranked[:_STRIPS]:
        yield _strip(history, column, palette, width or COMFORTABLE, most)
    if len(rows) > 1:
        listed, dim, most = (*shown, *more), {rows[0], *more}, width or COMFORTABLE if height else 10**6
        cells = [[(shortened(text, most), DIM if row in dim else None) for text in row] for row in listed]
        yield wrapping(cells, "<" * len(rows[0]), width)


def _strip(history: HeadHistory, metric: str, palette: Palette, width: int, most: int | None) -> Block:
    """Return a metric: a line of colours for each head, or for those that moved most, and its first and last number."""
    values, names, steps = history.over_time(metric), [*history.names], [*history.steps]
    shown = np.sort(np.argsort(-history.movement(metric), kind="stable")[:most]).tolist()
    label = max(len(names[index]) for index in shown) + 2
    count = min(len(steps), max(width - label - 2 * _NUMBER, 1))
    each = min(max(width - label - 2 * _NUMBER, 1) // count, _WIDEST_CELL)
    drawn = values[shown][:, np.linspace(0, len(steps) - 1, count).round().astype(int)]
    finite = values[np.isfinite(values)]
    scale = Scale(float(finite.min(initial=0.0)), float(finite.max(initial=0.0)) or 1.0)
    if metric == "max_score" and (positive := finite[finite > 0]).size:
        scale = Scale(float(positive.min()), scale.high, "log")
    more = f" · {len(names) - len(shown):,} more heads" * (len(shown) < len(names))
    lines = [[Segment(metric, BOLD), Segment(f": {_MEANINGS[metric]}{more}", DIM)]]
    for index, cells in zip(shown, palette.cells(drawn, np.isfinite(drawn), scale, 1), strict=True):
        wide = [(glyph.center(each) if glyph == "0" else glyph * each, style) for glyph, style in cells]
        colors = [Segment(*cell) for cell in wide if palette.tier != "plain"]
        numbers = "".join(number_text(values[index][at], 2).rjust(_NUMBER) for at in (0, -1))
        lines.append([Segment(names[index].ljust(label)), *colors, Segment(numbers)])
    first, last = f"step {steps[0]}", str(steps[-1])
    axis = first + last.rjust(max(count * each - len(first), len(last) + 1)) * (count > 1)
    axis = axis.ljust(count * each) + "first".rjust(_NUMBER) + "last".rjust(_NUMBER)
    lines.append([Segment("".ljust(label) + axis, DIM)])
    return block([*lines, trimmed(ramp_line(scale, palette, width, 1))])
