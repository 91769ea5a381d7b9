"""Findings of checks, as data, and those that fail a run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from attncli.text import as_ranges, names_in

if TYPE_CHECKING:
    from attncli.masks.comparison import Comparison

Severity = Literal["error", "note"]

CODES = (
    "leak", "missing", "pad", "document", "dead-row", "window", "shape", "varies", "ambiguous", "mixed-fill",
    "double-fill", "overflow", "row-sum", "no-mask", "proof", "batch", "padding-side", "cache", "backend", "packing",
    "tokenizer", "broadcast", "unscaled", "after-softmax", "axis", "added-bool", "bias", "dropout", "nan",
    "positions", "heads", "rerun", "unread", "label", "weights",
)  # fmt: skip

MOST_CELLS = 20  # cells listed with a finding


@dataclass(frozen=True)
class Finding:
    """A finding: something wrong, or worth knowing.

    Attributes:
        code: one of `CODES`.
        severity: `error`, or `note`, which does not fail a check.
        message: a sentence.
        count: number of cells, rows, heads or values it is about.
        cells: the first of them, as (query, key), where it is about cells.
        rows: the first of them, where it is about query rows.
        layer: the layer, where there are layers.
        kind: the layer's kind of attention.
        head: the head, where only one is meant.
        advice: what to do.
        made_at: the lines of a program that made the masks it is about, where all of them are known.
        comparison: the mask and the expected one, where it is about cells of a checkpoint's layer.
    """

    code: str
    severity: Severity
    message: str
    count: int = 1
    cells: tuple[tuple[int, int], ...] = ()
    rows: tuple[int, ...] = ()
    layer: int | None = None
    kind: str | None = None
    head: int | None = None
    advice: str | None = None
    made_at: tuple[str, ...] = ()
    comparison: Comparison | None = field(default=None, repr=False, compare=False)

    def as_dict(self) -> dict[str, Any]:
        """Return the finding as in the JSON document; `made_at` only for findings of calls."""
        return {name: value for name, value in vars(self).items() if name not in ("made_at", "comparison")}

    @property
    def maker(self) -> str:
        """Lines that made the masks, as the end of a message; empty where they are not known."""
        lines = " and ".join(self.made_at)
        return f"; mask{'s' * (len(self.made_at) > 1)} made at {lines}" if lines else ""


def error(code: str, message: str, count: int = 1, advice: str | None = None, **places: Any) -> Finding:
    """Return a finding that fails a check."""
    return Finding(code, "error", message, count, advice=advice, **places)


def note(code: str, message: str, count: int = 1, advice: str | None = None, **places: Any) -> Finding:
    """Return a finding that is worth knowing and fails no check."""
    return Finding(code, "note", message, count, advice=advice, **places)


def parse_fail_on(codes: str | None) -> frozenset[str] | None:
    """Return the codes that `--fail-on` names, separated by commas; None is every error.

    Raises:
        UsageError: one of them does not exist.
    """
    return None if codes is None else names_in("--fail-on", codes, CODES)


def fails(findings: Iterable[Finding], fail_on: frozenset[str] | None) -> bool:
    """Return whether findings fail a check: those of severity `error`, or those of the codes that are named."""
    return any(finding.severity == "error" if fail_on is None else finding.code in fail_on for finding in findings)


def in_batch(rows: Iterable[int]) -> str:
    """Return the batch rows of a finding, as the end of a message; empty without any."""
    listed = [int(row) for row in rows]
    return f", in batch row{'s' * (len(listed) > 1)} {as_ranges(listed).replace(',', ', ')}" if listed else ""
