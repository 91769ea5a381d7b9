"""Two models compared over many sentences, as a person reads it: which heads changed most."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from attncli.analysis.alignment import NAMES
from attncli.analysis.diff import Differences, HeadDifferences
from attncli.render.matrix import number_text
from attncli.render.palette import BOLD, DIM, Palette
from attncli.render.sections import architecture_of, cautioned, joined, numbers_of
from attncli.render.tables import Column, table
from attncli.text import plural


def differences_parts(
    found: Differences, top: int, palette: Palette, width: int | None, digits: int
) -> Iterator[RenderableType]:
    """Yield what ran, the heads that changed most, and what their numbers are.

    Args:
        found: what is shown.
        top: how many heads are listed.
        palette: how words look.
        width: cells in a line; None is as many as it takes.
        digits: after the point.
    """
    sources = found.first, found.second
    lines = [joined(each.title, [*architecture_of(each), *numbers_of(each)], palette) for each in sources]
    named = (Text.assemble((f"{name}  ", BOLD), line) for name, line in zip(NAMES, lines, strict=True))
    yield cautioned(Text("\n").join(named), sources, palette)
    title = f"heads that changed most, of {len(found.heads)}"
    facts = f" · Jensen-Shannon divergence, 0 to 1 bit · {plural(found.sentences, 'sentence')}"
    yield Text.assemble((title, BOLD), (palette.fit(facts), DIM))
    yield table(_columns(found, found.heads[:top], palette, digits), width)
    notes = ["mean ± standard deviation over sentences"]
    if any(each.elsewhere and max(each.elsewhere) > 0 for each in found.heads):
        notes.append("elsewhere: mean weight on tokens that are not shared, or taken by sinks")
    yield Text(palette.fit("; ".join(notes)), DIM)


def _columns(found: Differences, heads: Sequence[HeadDifferences], palette: Palette, digits: int) -> list[Column]:
    def number(value: float | None) -> str:
        return palette.fit("–") if value is None else number_text(value, digits)

    columns = [Column("layer", [str(each.layer) for each in heads], BOLD)]
    if len({each.kind for each in found.heads}) > 1:
        columns.append(Column("kind", [each.kind for each in heads]))
    columns += [
        Column("head", [str(each.head) for each in heads], BOLD),
        Column("divergence", [palette.fit(f"{number(each.jensen_shannon)} ±{number(each.std)}") for each in heads]),
    ]
    if any(each.count < found.sentences for each in found.heads):
        columns.append(Column("sentences", [str(each.count) for each in heads]))
    if any(each.elsewhere and max(each.elsewhere) > 0 for each in found.heads):
        for side, name in enumerate(NAMES):
            columns.append(
                Column(f"elsewhere {name}", [number(each.elsewhere and each.elsewhere[side]) for each in heads])
            )
    return columns
