"""Agreement of two runs: a line a layer with the difference at each stage, and what differs in sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from rich.style import Style
from rich.text import Text

from attncli.analysis.steps import LEVELS, STAGE_OF, STAGES
from attncli.render.block import Column, table, width_of
from attncli.render.findings import SEVERITY_STYLES, by_layers
from attncli.render.palette import BOLD, DIM, Palette
from attncli.text import layers_named, visible

if TYPE_CHECKING:
    from rich.console import RenderableType

    from attncli.analysis.agreement.compare import Agreement, Parting
    from attncli.analysis.agreement.question import Cell

_AGREES = Style(color="green", bold=True)


def agreement_parts(agreement: Agreement, palette: Palette, width: int | None) -> Iterator[RenderableType]:
    """Yield the names, the stages that both runs have, the differences that are not 0, and the sentences.

    Stages that part are red. A narrow terminal has these alone, so that the table stays one.
    """
    first, second = map(visible, agreement.names)
    yield Text.assemble(("A ", BOLD), first, ("   B ", BOLD), second)
    shown_here = [parting for parting in reversed(agreement.partings) if parting.kind is None]
    parted = {(layer, parting.stage): parting for parting in shown_here for layer in parting.layers}
    rows = {layer: _by_stage(row) for layer, row in agreement.rows.items()}
    yield Text.assemble(("compared: ", DIM), _compared(rows) or "no layer")
    columns, of_partings = [Column("layer", [str(layer) for layer in rows])], {stage for _, stage in parted}
    for stage in STAGES:
        cells = [_cell(row, stage, parted.get((layer, stage))) for layer, row in rows.items()]
        if any(text not in ("", "0") for text, _ in cells):
            columns.append(Column(stage, [text for text, _ in cells], [style for _, style in cells]))
    if width is not None and width_of(columns) - 2 > width:
        columns = [column for column in columns if column.title in {"layer", *of_partings}]
    if len(columns) > 1:
        yield table(columns, width, palette)
    for sentence in sentences(agreement):
        yield Text(visible(sentence), _AGREES if agreement.agrees and not agreement.not_compared else "")


def sentences(agreement: Agreement) -> list[str]:
    """Return the result in words, a sentence or two for each stage at which the runs part."""
    parted, is_undone = list[str](), False
    for parting in agreement.partings:
        sentence = _sentence(parting)
        # A decoder is of the other run as it is.
        if is_undone and parting.stage in STAGES and parting.kind is None:
            sentence = f"With that undone: {sentence[0].lower()}{sentence[1:]}"
        parted.append(sentence)
        is_undone |= parting.cause is not None and parting.cause.undone is not None
    parted += [f"B, {one.message}." for one in by_layers(agreement.findings)]
    if not agreement.agrees:
        return parted
    agreeing = [cell for row in agreement.rows.values() for cell in row.values() if cell.agrees]
    largest = max((cell.difference for cell in (*agreeing, *(one.cell for one in agreement.partings))), default=0.0)
    where = "in the attention of every layer" if agreement.not_compared else "in every layer"
    where = f"in {layers_named(agreement.rows)}" if agreement.missing else where
    verdict = f"A and B agree {where}, to the last bit."
    ratio = max((cell.difference / cell.rounding for cell in agreeing if cell.rounding), default=0.0)
    if agreement.dtype in LEVELS:  # faults may be as small as this rounding
        times = f", {ratio:.1f}× what rounding to {agreement.dtype} gives" if ratio else ""
        verdict = f"A and B differ by at most {_digits(largest)}{times}."
        return [*parted, " ".join((verdict, *agreement.not_compared, "A smaller fault does not show."))]
    if largest or parted:
        times = f", {ratio:.1f}× what rounding gives" if ratio else ""
        verdict = f"A and B agree {where}: only rounding of {agreement.dtype}, at most {_digits(largest)}{times}."
    return [*parted, " ".join((verdict, *agreement.not_compared))]


def _sentence(parting: Parting) -> str:
    where, cell = layers_named(parting.layers, parting.kind).capitalize() + f", {parting.stage}", parting.cell
    cause, apart = (
        parting.cause,
        f"A and B differ by {_digits(cell.difference)}; rounding gives {_digits(cell.rounding or 0.0)}",
    )
    if parting.stage == "last output":
        return f"{where}: the attention agrees, and what follows it differs by {_digits(cell.difference)}."
    if parting.stage == "tokens" and cause is not None:
        return f"Token ids: B has {cause.b}, and A has {cause.a}. attn compares the rest on the same tokens."
    if cause is None and math.isinf(cell.difference):
        return f"{where}: A or B has numbers that are not finite."
    if cause is None:
        return f"{where}: {apart}. No candidate explains this difference."
    if cause.undone is None:
        return f"{where}: {apart}. No candidate is proved. The other projections agree, so look at the {cause.name}."
    values = f"{cause.b} instead of {cause.a}" if cause.a and cause.b else cause.a or cause.b
    return f"{where}: {apart}. Cause: {cause.name} {values} (undone: {_digits(cause.undone)})."


def _compared(rows: Mapping[int, Mapping[str, Cell]]) -> str:
    """Return the stages that were compared, such as `layers 0-2: input, output · layer 3: input`."""
    layers: dict[str, list[int]] = {}
    for layer, row in rows.items():
        layers.setdefault(", ".join(stage for stage in STAGES if stage in row), []).append(layer)
    return " · ".join(f"{layers_named(among)}: {stages}" for stages, among in layers.items())


def _by_stage(row: Mapping[str, Cell]) -> dict[str, Cell]:
    """Return the largest difference of each stage."""
    stages: dict[str, Cell] = {}
    for name, cell in row.items():
        before = stages.setdefault(STAGE_OF[name], cell)
        if (cell.agrees, -cell.difference) < (before.agrees, -before.difference):
            stages[STAGE_OF[name]] = cell
    return stages


def _cell(row: Mapping[str, Cell], stage: str, parting: Parting | None) -> tuple[str, Style | None]:
    """Return the difference at a stage; of one that parts, such as a mask, the first one that it makes."""
    cell = row.get(stage)
    if parting is not None:
        if cell is None or cell.agrees:
            cell = next((one for one in row.values() if not one.agrees), parting.cell)
        return _digits(cell.difference), SEVERITY_STYLES["error"]
    return ("", None) if cell is None else (_digits(cell.difference), DIM if cell.agrees else None)


def _digits(value: float) -> str:
    """Return a difference in two digits, such as 0.38 or 3e-7."""
    return "0" if not value else f"{value:.2g}" if 0.001 <= value < 1e6 else f"{value:.0e}".replace("e-0", "e-")
