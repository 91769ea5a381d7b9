"""Heads over the checkpoints of a run: strips of colour, and the heads whose label or weights changed."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from attncli.analysis.drift import LEAST, CheckpointHistory, HeadDrift
from attncli.render.block import COMFORTABLE, Column, lines_of, ranking
from attncli.render.palette import BOLD, DIM, Palette
from attncli.render.sections import cautioned, joined
from attncli.render.training import strips
from attncli.text import plural, visible

_AROUND = 5  # lines around the rows of heads: titles, what is left out, blank ones, and that of the prompt


def checkpoint_parts(
    history: CheckpointHistory, palette: Palette, width: int | None, height: int | None, top: int | None = None
) -> Iterator[RenderableType]:
    """Yield the headline, a strip for each metric that moved most, and the heads whose label or weights changed."""
    (first, report), *_, (last, _) = history.checkpoints.values()
    drifts, sources = history.drifts(), [report.source for _, report in history.checkpoints.values()]
    facts = [f"steps {min(history.steps)} to {max(history.steps)}", plural(len(history.names), "head")]
    facts += [f"mask {' and '.join(report.masks)}", plural(report.sentences, "sentence")]
    headline = cautioned(joined(f"{visible(first)} to {visible(last)}", facts, palette), sources)
    yield headline
    height = height and height - lines_of([headline], width or COMFORTABLE) + 1
    most = top or (len(drifts) if height is None else max(height // 4, 1))
    shown = drifts[: most + (len(drifts) == most + 1)]
    yield from strips(history, history.columns, palette, width, height and height - len(shown) - _AROUND)
    if not drifts:
        yield Text(f"no head changed its label, or a weight by {LEAST:g}")
        return
    columns = [
        Column("head", [drift.name for drift in shown], BOLD, "<"),
        Column("label", [" → ".join(dict.fromkeys(drift.labels)) for drift in shown], None, "<"),
        Column("since", [str(drift.since) for drift in shown], DIM),
        Column("change of weights", [_changes(drift) for drift in shown], None, "<"),
    ]
    yield ranking(columns, len(drifts) - len(shown), width, palette)


def _changes(drift: HeadDrift) -> str:
    return ", ".join(f"{label} {change:+.2f}" for change, label in drift.changes if abs(change) >= LEAST)
