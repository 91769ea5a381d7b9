"""Proofs of models, with the lines where they leak."""

from __future__ import annotations

from collections.abc import Iterator
from linecache import getline
from typing import TYPE_CHECKING

from rich.style import Style
from rich.text import Text

from attncli.render.findings import SEVERITY_STYLES, finding_lines
from attncli.render.palette import BOLD, DIM, Palette

if TYPE_CHECKING:
    from rich.console import RenderableType

    from attncli.analysis.prove.proof import ModelProof

_PROVED = Style(color="green", bold=True)


def proof_parts(proof: ModelProof, palette: Palette, width: int | None) -> Iterator[RenderableType]:
    """Yield the verdict with what exactly was asked, and each finding with its line of the program.

    Args:
        proof: of a forward.
        palette: how words are written.
        width: cells in a line; None where the output sets none.
    """
    style = _PROVED if proof.is_proved else SEVERITY_STYLES["error"]
    claim = Text(palette.label(f"  {proof.expression} in {proof.model}"), BOLD)
    yield Text.assemble((proof.verdict, style), claim)
    yield Text(palette.label(proof.scope), DIM)
    for finding in proof.findings:
        yield finding_lines([finding], palette, width)
        for place in finding.made_at:
            file, _, line = place.rpartition(":")
            source = getline(file, int(line)).strip()
            yield Text.assemble(
                (f"  --> {palette.label(place)}", BOLD), palette.label(f"   {source}" if source else "")
            )
