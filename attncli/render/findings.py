"""Findings as a person reads them: a line each, and how many there are."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from attncli.masks.findings import Finding
from attncli.render.palette import BOLD, DIM, Palette
from attncli.text import counted

_PLACES = 5  # of a finding, in its line


def finding_lines(findings: Sequence[Finding], palette: Palette) -> Text:
    """Return a line for every finding: how bad, which, what, and the first places."""
    lines = []
    for finding in findings:
        line = Text.assemble((f"{finding.severity:<5}  ", BOLD), (f"{finding.code}  ", BOLD))
        line.append(palette.label(finding.message))
        line.append(palette.fit(_places(finding)), DIM)
        if finding.advice:
            line.append(palette.fit(f"\n       {finding.advice}"), DIM)
        lines.append(line)
    return Text("\n").join(lines)


def tally(findings: Sequence[Finding]) -> str:
    """Return how many errors and notes there are."""
    errors = sum(finding.severity == "error" for finding in findings)
    counts = ((errors, "error"), (len(findings) - errors, "note"))
    return ", ".join(counted(count, name) for count, name in counts if count) or "ok: nothing found"


def _places(finding: Finding) -> str:
    """Return the first places of a finding: (query, key), or query rows."""
    shown = [f"({query},{key})" for query, key in finding.cells[:_PLACES]] + [
        str(row) for row in finding.rows[:_PLACES]
    ]
    if not shown:
        return ""
    listed = max(len(finding.cells), len(finding.rows))
    return f"; {'cells' if finding.cells else 'rows'} {' '.join(shown)}" + (" …" if listed > _PLACES else "")
