"""Findings as a person reads them: in a list, in a mask, in the report on a checkpoint, and in a proof."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from linecache import getline
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.style import Style
from rich.text import Text

from attncli.masks.findings import Finding, Severity
from attncli.render.block import COMFORTABLE, Block, Cell, wrapping
from attncli.render.masks import MaskView, compared, difference, headline
from attncli.render.palette import BOLD, DIM, Palette
from attncli.text import layers_named, plural, visible

if TYPE_CHECKING:
    from attncli.analysis.check.report import Invariance, Report
    from attncli.analysis.prove.proof import ModelProof
    from attncli.masks.comparison import Comparison
    from attncli.masks.mask_grid import MaskGrid

_FINE = Style(color="green")
# How the word for each severity looks where there are colours.
SEVERITY_STYLES: dict[Severity, Style] = {"error": Style(color="red", bold=True), "note": Style(color="yellow")}
_FOLLOWING = ("varies", "nan")  # from wrong cells, and from queries without a key
_PLACES = 5  # of a finding, below its message
_MOST_MAPS = 2  # of wrong cells


def ordered(findings: Iterable[Finding]) -> list[Finding]:
    """Return the errors before the notes, and the causes before what follows from them."""
    return sorted(findings, key=lambda finding: (finding.severity != "error", finding.code in _FOLLOWING))


def finding_lines(findings: Iterable[Finding], width: int | None = None) -> Block:
    """Return the findings as a list, errors first: severity, code, message; below it the first cells and the advice."""
    rows: list[list[Cell]] = []
    for finding in ordered(findings):
        before: list[Cell] = [(finding.severity, SEVERITY_STYLES[finding.severity]), (finding.code, BOLD)]
        for text, style in ((finding.message, None), (_places(finding), DIM), (finding.advice, DIM)):
            if text:
                rows.append([*before, (visible(text), style)])
                before = [("", None)] * 2
    return wrapping(rows, "<<<", width)


def tally(findings: Sequence[Finding]) -> Text:
    """Return how many errors and notes there are, each in its colour."""
    errors = sum(finding.severity == "error" for finding in findings)
    counts: tuple[tuple[int, Severity], ...] = ((errors, "error"), (len(findings) - errors, "note"))
    parts = [Text(plural(count, name), SEVERITY_STYLES[name]) for count, name in counts if count]
    return Text(", ").join(parts) if parts else Text("ok: nothing found", _FINE)


def _places(finding: Finding) -> str:
    places = [f"({query},{key})" for query, key in finding.cells] or [str(row) for row in finding.rows]
    if not places:
        return ""
    more = " …" if len(places) > _PLACES else ""
    return f"{'cells' if finding.cells else 'rows'} {' '.join(places[:_PLACES])}{more}"


def checked(
    subject: MaskGrid, findings: Sequence[Finding], comparison: Comparison | None, view: MaskView, is_compared: bool
) -> Iterator[RenderableType]:
    """Yield what a check found, and where: the wrong cells, or without an expectation the mask."""
    yield Text(visible(headline(subject, has_rule=bool(findings) or not is_compared)))
    if findings:
        yield finding_lines(findings, view.width)
    if comparison is not None:
        names = (comparison.names[0], "expected")
        lines = view.lines and max(view.lines - 2 * len(findings) - 1, 4)
        yield difference(replace(comparison, names=names), view.palette, view.room, lines)
    elif findings and not subject.is_ambiguous:
        yield from view.drawn(subject)
    if findings or is_compared:
        yield tally(findings)
    else:
        yield Text("nothing found; give --expect EXPR to compare it with the mask you mean", SEVERITY_STYLES["note"])


def report_parts(report: Report, palette: Palette, width: int | None) -> Iterator[RenderableType]:
    """Yield what was run, what was found, and what was compared."""
    count, least, most = len(report.tokens), min(report.tokens), max(report.tokens)
    tokens = f"{least} to {most} tokens" if least < most else f"{most} tokens"
    what = [report.architecture, *(["text tower"] if report.tower else []), report.dtype]
    yield Text(visible(" · ".join([report.model, *what, f"{plural(count, 'sentence')}, {tokens}"])))
    whose = "masks of the graph" if report.is_graph else "implied masks"
    yield Text(f"{whose}: " + "; ".join(_implied(*mask) for mask in report.masks))
    findings = by_layers(report.findings)
    if findings:
        yield finding_lines(findings, width)
        yield from _wrong_cells(findings, palette, width or COMFORTABLE)
    yield _compared(report.invariances, width)
    yield tally(findings)


def _wrong_cells(findings: Sequence[Finding], palette: Palette, room: int) -> Iterator[RenderableType]:
    drawn = {id(one.comparison): one for one in reversed(ordered(findings)) if one.comparison is not None}
    for finding in [*reversed(drawn.values())][:_MOST_MAPS]:
        assert finding.comparison is not None
        name = layers_named([finding.layer or 0], None if finding.kind == "self" else finding.kind)
        title = Text.assemble((finding.code, SEVERITY_STYLES[finding.severity]), f" in {name}")
        yield Group(title, *compared(finding.comparison, palette, room))


def _implied(mask: str, kind: str, layers: Sequence[int]) -> str:
    return f"{mask} in {layers_named(layers, None if kind == 'self' else kind)}"


def by_layers(findings: Sequence[Finding]) -> list[Finding]:
    """Return one finding for all layers of a kind that have it: the worst, which names the others."""
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


def _compared(invariances: Sequence[Invariance], width: int | None) -> Block:
    rows: list[list[Cell]] = [[(title, DIM) for title in ("the same text", "in two ways", "change", "")]]
    for each in invariances:
        change = "-" if each.change is None else f"{each.change:.1e}"
        if each.change is None:
            verdict = f"{'failed' if each.has_failed else 'not run'}: {each.reason}"
        else:
            verdict = "rounding" if each.first is None else f"from {_place(each.first)} on"
        style = BOLD if each.has_failed or each.first is not None else None
        rows.append([(visible(text), style) for text in (each.name, each.ways, change, verdict)])
    return wrapping(rows, "<<><", width)


def _place(place: tuple[int, str]) -> str:
    layer, kind = place
    own = "" if kind == "self" else f"{kind} "
    return f"{own}embeddings" if layer < 0 else f"{own}layer {layer}"


def proof_parts(proof: ModelProof, width: int | None) -> Iterator[RenderableType]:
    """Yield the verdict with what exactly was asked, and each finding with its line of the program."""
    style = _FINE + BOLD if proof.is_proved else SEVERITY_STYLES["error"]
    claim = Text(visible(f"  {proof.expression} in {proof.model}"), BOLD)
    yield Text.assemble((proof.verdict, style), claim)
    yield Text(visible(proof.scope), DIM)
    for finding in proof.findings:
        yield finding_lines([finding], width)
        for place in finding.made_at:
            file, _, line = place.rpartition(":")
            source = getline(file, int(line)).strip()
            shown = visible(f"   {source}" if source else "")
            yield Text.assemble((f"  --> {visible(place)}", BOLD), shown)
