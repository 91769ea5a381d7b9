"""Attention over training: heads × steps as strips of colour, the first warnings, and what became of heads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from rich.console import RenderableType
from rich.segment import Segment
from rich.text import Text

from attncli.analysis.metric_names import MEANINGS, UNITS
from attncli.analysis.training import TrainingHistory
from attncli.render.block import COMFORTABLE, Block, block
from attncli.render.legend import ramp_line
from attncli.render.matrix import number_text
from attncli.render.palette import BOLD, DIM, Palette, Scale
from attncli.text import plural

if TYPE_CHECKING:
    from jaxtyping import Float

_METRICS = 2  # that are drawn, those that moved most
_WIDEST_CELL = 4  # of a step
_AROUND = 4  # lines of a strip besides its heads: title, axis, legend, and a blank one
_LEAST_HEADS, _LINES = 4, 40
_MOST_WARNINGS = 8
_NUMBER = 8  # cells of a number at the end of a line


def training_parts(
    history: TrainingHistory, headline: str, palette: Palette, width: int | None, height: int | None
) -> Iterator[RenderableType]:
    """Yield the headline, a strip for each metric that moved most, the first warnings, and changes of heads."""
    yield Text(headline)
    if not history.steps:
        return
    changes, warnings = history.changes(), history.warnings
    notes = [Text(f"{change.what}: {', '.join(change.heads)}", BOLD) for change in changes]
    below = min(len(warnings), _MOST_WARNINGS) + 2 + len(notes)
    metrics = history.moved()[:_METRICS]
    room = ((height or _LINES) - below - 3) // len(metrics) - _AROUND
    most = len(history.heads) if height is None else max(room, _LEAST_HEADS)
    for metric in metrics:
        yield _strip(history, metric, palette, width or COMFORTABLE, most)
    if warnings:
        lines = [str(each) for each in warnings[:_MOST_WARNINGS]]
        lines += [f"{len(warnings) - len(lines):,} more"] if len(warnings) > len(lines) else []
        yield Text("\n").join([Text("first steps of warnings", DIM), *(Text(palette.label(line)) for line in lines)])
    if notes:
        yield Text("\n").join(notes)


def _strip(history: TrainingHistory, metric: str, palette: Palette, width: int, most: int) -> Block:
    """Return a metric: a line of colours for each head, or for those that moved most, and its first and last number."""
    values, names = history.over_time(metric), [f"L{layer}H{head}" for layer, head in history.heads]
    shown = np.sort(np.argsort(-history.movement(metric), kind="stable")[:most])
    left_out = len(names) - len(shown)
    label = max(max(len(names[index]) for index in shown), len("head")) + 2
    room = max(width - label - 2 * _NUMBER, 1)
    count = min(len(history.steps), room)
    places = np.linspace(0, len(history.steps) - 1, count).round().astype(int)
    each = min(room // count, _WIDEST_CELL)
    finite = values[np.isfinite(values)]
    scale = Scale(float(finite.min(initial=0.0)), float(finite.max(initial=0.0)))
    unit = UNITS.get(metric, "")
    title = f"{metric}{f', in {unit}' if unit not in ('', 'score') else ''}"
    what = f"  {MEANINGS[metric]}" if len(title) + len(MEANINGS[metric]) + 2 <= width else ""
    lines: list[list[Segment]] = [[Segment(title, BOLD), Segment(what, DIM)]]
    for index in shown.tolist():
        numbers = "".join(number_text(values[index][at], 2).rjust(_NUMBER) for at in (0, -1))
        cells = _colors(values[index][places], palette, scale, each)
        lines.append([Segment(names[index].ljust(label)), *cells, Segment(numbers)])
    first, last = (str(history.steps[at]) for at in (0, -1))
    axis = f"{first}{last.rjust(max(count * each - len(first), len(last) + 1))}" if count > 1 else first
    more = f"  {plural(left_out, 'more head')}, which moved less" if left_out else ""
    ends = "first".rjust(_NUMBER) + "last".rjust(_NUMBER)
    lines.append([Segment("step".ljust(label) + axis.ljust(count * each) + ends, DIM)])
    lines.append([*ramp_line(scale, palette, width, each), Segment(more, DIM)] if scale.low < scale.high else [])
    return block(lines)


def _colors(values: Float[np.ndarray, " S"], palette: Palette, scale: Scale, each: int) -> list[Segment]:
    cells = palette.cells(values[None], np.isfinite(values)[None], scale, 1)[0]
    return [Segment(glyph.strip().ljust(each, glyph[-1]), style) for glyph, style in cells]
