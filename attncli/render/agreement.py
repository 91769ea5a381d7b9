"""Agreement of two runs: a line a layer with the difference at each stage, and what differs in sentences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.style import Style
from rich.text import Text

from attncli.analysis.agreement.compare import digits
from attncli.analysis.agreement.stages import STAGES
from attncli.render.block import Column, table
from attncli.render.findings import SEVERITY_STYLES
from attncli.render.palette import BOLD, DIM, Palette

if TYPE_CHECKING:
    from rich.console import RenderableType

    from attncli.analysis.agreement.compare import Agreement, Cell, Parting

_AGREES = Style(color="green", bold=True)


def agreement_parts(agreement: Agreement, palette: Palette, width: int | None) -> Iterator[RenderableType]:
    """Yield the names, the table of layers × stages, and the sentences; the first stage that parts is red."""
    first, second = map(palette.label, agreement.names)
    yield Text.assemble(("A ", BOLD), first, ("   B ", BOLD), second)
    parted = {(layer, parting.stage): parting for parting in reversed(agreement.partings) for layer in parting.layers}
    shown = {stage for row in agreement.rows.values() for stage in row} | {stage for _, stage in parted}
    columns = [Column("layer", [str(layer) for layer in agreement.rows])]
    for stage in (stage for stage in STAGES if stage in shown):
        cells = [_cell(row.get(stage), parted.get((layer, stage))) for layer, row in agreement.rows.items()]
        columns.append(Column(stage, [text for text, _ in cells], [style for _, style in cells]))
    yield table(columns, width)
    for sentence in agreement.sentences:
        yield Text(palette.label(sentence), _AGREES if agreement.agrees else "")


def _cell(cell: Cell | None, parting: Parting | None) -> tuple[str, Style | None]:
    if parting is not None and not parting.is_rounding:
        return digits(parting.cell.difference if cell is None else cell.difference), SEVERITY_STYLES["error"]
    return ("", None) if cell is None else (digits(cell.difference), DIM if cell.agrees else None)
