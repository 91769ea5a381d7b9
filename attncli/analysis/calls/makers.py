"""The lines of the program that made the masks which a finding is about."""

from __future__ import annotations

from dataclasses import replace

from attncli.analysis.calls.steps import Taken
from attncli.masks.findings import Finding

# What is said of which cells a mask hides, or of its numbers.
_OF_MASKS = (
    "leak", "missing", "pad", "document", "dead-row", "window", "shape", "varies", "ambiguous", "mixed-fill",
    "double-fill", "overflow", "no-mask", "batch", "backend", "padding-side", "broadcast", "added-bool", "bias",
)  # fmt: skip


def with_makers(finding: Finding, call: Taken) -> Finding:
    """Return a finding about masks of a call with the lines that made them, if they are known of all of them.

    It is about the mask that its message begins with, or else about all that hide keys.
    """
    if finding.code not in _OF_MASKS:
        return finding
    masks = [one for one in (*call.reads, *call.unused) if finding.message.startswith(f"{one.name} ")]
    if not masks and call.mask is not None and not call.mask.is_causal:
        masks = [one for one in call.reads if not one.allowed.all()] or [*call.reads] or [*call.unused]
    lines = tuple(dict.fromkeys(one.made_at for one in masks if one.made_at is not None))
    return replace(finding, made_at=lines) if masks and all(one.made_at for one in masks) else finding
