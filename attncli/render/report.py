"""The check of a checkpoint as a person reads it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from rich.console import RenderableType
from rich.style import Style
from rich.text import Text

from attncli.findings import Finding, Invariance, Report
from attncli.render.block import Block, grid
from attncli.render.findings import finding_lines, tally
from attncli.render.palette import BOLD, DIM, Palette
from attncli.selection import layers_named
from attncli.tokens import visible


def report_parts(report: Report, palette: Palette, width: int | None) -> Iterator[RenderableType]:
    """Yield what was run, what was found, and what was compared."""
    tokens = f"{min(report.tokens)} to {max(report.tokens)} tokens"
    said = [
        visible(report.model),
        visible(report.architecture),
        report.dtype,
        f"{len(report.tokens)} sentences, {tokens}",
    ]
    yield Text(palette.fit(" · ".join(said)))
    yield Text(palette.fit("implied masks: " + "; ".join(_implied(*mask) for mask in report.masks)))
    if report.findings:
        yield finding_lines(_by_layers(report.findings), palette)
    yield _compared(report.invariances, palette, width)
    yield Text(tally(report.findings))


def _implied(mask: str, kind: str, layers: Sequence[int]) -> str:
    return f"{mask} in {layers_named(layers, None if kind == 'self' else kind)}"


def _by_layers(findings: Sequence[Finding]) -> list[Finding]:
    """Return one finding for all layers of a kind that have it: the worst, which says where the others are."""
    groups: dict[tuple[Any, ...], list[Finding]] = {}
    for number, finding in enumerate(findings):
        place = number if finding.layer is None else None
        groups.setdefault((finding.code, finding.severity, finding.kind, place), []).append(finding)
    return [_merged(group) for group in groups.values()]


def _merged(group: Sequence[Finding]) -> Finding:
    worst = max(group, key=lambda finding: finding.count)
    if worst.layer is None:
        return worst
    layers = [finding.layer for finding in group if finding.layer is not None]
    where = layers_named(layers, None if worst.kind == "self" else worst.kind)
    where += f", here {worst.layer}" if len(layers) > 1 else ""
    return replace(worst, message=f"{where}: {worst.message}")


def _compared(invariances: Sequence[Invariance], palette: Palette, width: int | None) -> Block:
    """Return the comparisons as a table."""
    rows: list[list[tuple[str, Style | None]]] = [
        [(title, DIM) for title in ("the same text", "in two ways", "change", "")]
    ]
    for each in invariances:
        if each.change is None:
            change, verdict = "-", f"not run: {each.reason}"
        else:
            change = f"{each.change:.1e}"
            verdict = "rounding" if each.first is None else f"from {_place(each.first)} on"
        style = BOLD if each.first is not None else None
        rows.append([(palette.label(text), style) for text in (each.name, each.ways, change, verdict)])
    return grid(rows, "<<><", width)


def _place(place: tuple[int, str]) -> str:
    layer, kind = place
    own = "" if kind == "self" else f"{kind} "
    return f"{own}embeddings" if layer < 0 else f"{own}layer {layer}"
