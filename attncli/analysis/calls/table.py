"""Rows of calls as words, for every table of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attncli.text import visible

if TYPE_CHECKING:
    from attncli.analysis.calls.rows import Row
    from attncli.analysis.calls.tracks import Noticed

LOOKED_FOR = (
    "scaled_dot_product_attention, nn.MultiheadAttention and nn.Transformer, flex_attention, a softmax between two "
    "products, transformers' attention functions, and those of flash_attn and xformers"
)
TITLES = ("place", "module", "calls", "kind", "heads", "queries×keys", "mask", "findings")


def cells(row: Row) -> list[str]:
    """Return the words of a row but its findings, in the order of `TITLES`."""
    _, heads, queries, keys = row.sizes
    place = f"{row.place}  {row.place.function}"
    return [place, row.module or "", str(row.calls), row.api, str(heads), f"{queries}×{keys}", row.mask]


def said(one: Noticed, calls: int) -> str:
    """Return a finding in words, in how many of the calls it was found where that is not all, and what to do."""
    often = f" (in {one.calls} of {calls} calls)" if one.calls < calls else ""
    kind = "" if one.finding.severity == "error" else "note: "
    advice = f"; {one.finding.advice}" if one.finding.advice else ""
    return f"{kind}{one.finding.code}: {one.finding.message}{often}{one.finding.maker}{advice}"


def plain_table(headline: str, shown: Sequence[Row]) -> str:
    """Return the table of calls as text, below a line that says what was seen in numbers."""
    rows: list[Sequence[str]] = [TITLES]
    for row in shown:
        first, *more = [said(one, row.calls) for one in row.noticed] or [row.unfound]
        rows.append([*cells(row), first])
        rows += [[""] * (len(TITLES) - 1) + [one] for one in more]
    if not shown:
        return headline
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([headline, *map(visible, lines)])
