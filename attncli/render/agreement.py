"""Agreement of two runs: a line a layer with the difference at each stage, and what differs in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from rich.style import Style
from rich.text import Text

from attncli.analysis.steps import STAGE_OF, STAGES
from attncli.render.block import Column, table
from attncli.render.findings import SEVERITY_STYLES
from attncli.render.palette import BOLD, DIM, Palette
from attncli.text import layers_named

if TYPE_CHECKING:
    from rich.console import RenderableType

    from attncli.analysis.agreement.compare import Agreement, Parting
    from attncli.analysis.agreement.question import Cell

_AGREES = Style(color="green", bold=True)


def agreement_parts(agreement: Agreement, palette: Palette, width: int | None) -> Iterator[RenderableType]:
    """Yield the names, the table of layers × stages, and the sentences; stages that part are red."""
    first, second = map(palette.label, agreement.names)
    yield Text.assemble(("A ", BOLD), first, ("   B ", BOLD), second)
    shown_here = [parting for parting in reversed(agreement.partings) if parting.kind is None]
    parted = {(layer, parting.stage): parting for parting in shown_here for layer in parting.layers}
    rows = {layer: _by_stage(row) for layer, row in agreement.rows.items()}
    shown = {stage for row in rows.values() for stage in row} | {stage for _, stage in parted}
    columns = [Column("layer", [str(layer) for layer in rows])]
    for stage in (stage for stage in STAGES if stage in shown):
        cells = [_cell(row.get(stage), parted.get((layer, stage))) for layer, row in rows.items()]
        columns.append(Column(stage, [text for text, _ in cells], [style for _, style in cells]))
    yield table(columns, width)
    for sentence in sentences(agreement):
        yield Text(palette.label(sentence), _AGREES if agreement.agrees else "")


def sentences(agreement: Agreement) -> list[str]:
    """Return the result in words, a sentence or two for each stage at which the runs part."""
    parted = [_sentence(parting) for parting in agreement.partings]
    for number, parting in enumerate(agreement.partings):  # padding and a cache are of the other run as it is
        if number and agreement.partings[0].cause is not None and parting.stage in STAGES:
            parted[number] = f"With that undone: {parted[number][0].lower()}{parted[number][1:]}"
    if not agreement.agrees:
        return parted
    agreeing = [cell for row in agreement.rows.values() for cell in row.values() if cell.agrees]
    largest = max((cell.difference for cell in agreeing), default=0.0)
    if not largest and not parted:
        return ["A and B agree to the last bit."]
    ratio = max((cell.difference / cell.rounding for cell in agreeing if cell.rounding), default=0.0)
    times = f", {ratio:.1f}× what rounding gives" if ratio else ""
    return [*parted, f"A and B agree: only rounding of {agreement.dtype}, at most {_digits(largest)}{times}."]


def _sentence(parting: Parting) -> str:
    where, cell = layers_named(parting.layers, parting.kind).capitalize() + f", {parting.stage}", parting.cell
    apart = f"A and B differ by {_digits(cell.difference)}; rounding gives {_digits(cell.rounding or 0.0)}"
    if parting.stage == "last output":
        return f"{where}: the attention agrees, and what follows it differs by {_digits(cell.difference)}."
    if (cause := parting.cause) is None:
        return f"{where}: {apart}. No candidate explains this difference."
    if parting.stage == "padding" and cell.difference != cell.difference:
        return f"{where}: {cause.b.replace('missing', 'padding')} makes the weights of B NaN."
    if parting.stage == "padding":
        weight = f"B gives it a weight of up to {_digits(cell.difference)} instead of 0"
        return f"{where}: {weight}. Cause: {cause.name} {cause.b}."
    if parting.stage == "cache":
        apart = f"run in steps, B differs from B as a whole by {_digits(cell.difference)}"
        return f"{where}: {apart}. The {cause.name} of the first of these layers {cause.b}."
    if cause.undone is None:
        return f"{where}: {apart}. No candidate is proved. The other projections agree, so look at the {cause.name}."
    name, proof = "The weights are rounded" if parting.is_rounding else "Cause", f"undone: {_digits(cause.undone)}"
    values = f"{cause.b} instead of {cause.a}" if cause.a and cause.b else cause.a or cause.b
    return f"{where}: {apart}. {name}: {cause.name} {values} ({proof})."


def _by_stage(row: Mapping[str, Cell]) -> dict[str, Cell]:
    """Return the largest difference of each stage."""
    stages: dict[str, Cell] = {}
    for name, cell in row.items():
        before = stages.setdefault(STAGE_OF[name], cell)
        if (cell.agrees, -cell.difference) < (before.agrees, -before.difference):
            stages[STAGE_OF[name]] = cell
    return stages


def _cell(cell: Cell | None, parting: Parting | None) -> tuple[str, Style | None]:
    if parting is not None and not parting.is_rounding:
        return _digits((cell or parting.cell).difference), SEVERITY_STYLES["error"]
    return ("", None) if cell is None else (_digits(cell.difference), DIM if cell.agrees else None)


def _digits(value: float) -> str:
    """Return a difference in two digits, such as 0.38 or 3e-7."""
    return "0" if not value else f"{value:.2g}" if 0.001 <= value < 1e6 else f"{value:.0e}".replace("e-0", "e-")
