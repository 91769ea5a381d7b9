"""The JSON documents of the checks and of masks: `attncli.findings/1` and `attncli.mask/1`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.analysis.check.report import Invariance, Report
from attncli.attention import row_blocks
from attncli.formats.numbers import number, written_rows
from attncli.masks.expressions import biases
from attncli.masks.findings import Finding
from attncli.masks.layout import Subject

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int


def write_findings(is_ok: bool, findings: Sequence[Finding], extra: dict[str, Any]) -> str:
    """Return the document of a check."""
    listed = [finding.as_dict() for finding in findings]
    return (
        json.dumps({"schema": "attncli.findings/1", "ok": is_ok, **extra, "findings": listed}, allow_nan=False) + "\n"
    )


def what_was_run(report: Report) -> dict[str, Any]:
    """Return what the document of a checkpoint's check says besides the findings."""
    masks = [{"mask": mask, "kind": kind, "layers": list(layers)} for mask, kind, layers in report.masks]
    return {
        "model": report.model,
        "architecture": report.architecture,
        "dtype": report.dtype,
        "tokens": list(report.tokens),
        "implied": masks,
        "invariances": [_compared(each) for each in report.invariances],
    }


def _compared(invariance: Invariance) -> dict[str, Any]:
    named = {name: value for name, value in vars(invariance).items() if name != "has_failed"}
    for place in ("layer", "first"):
        index, kind = named[place] or (None, None)
        named[place] = None if index is None else {"layer": index, "kind": kind}
    changes = [
        {"layer": layer, "kind": kind, "change": number(size, None)}
        for (layer, kind), size in invariance.changes.items()
    ]
    return named | {"change": number(invariance.change, None), "changes": changes}


def what_was_read(subject: Subject) -> dict[str, Any]:
    """Return what the document of a mask's check says besides the findings."""
    return {
        "convention": None if subject.reading is None or subject.is_ambiguous else subject.reading.convention,
        "dtype": subject.loaded and subject.loaded.dtype,
        "shape": list(subject.shape),
    }


def write_masks(subjects: Sequence[Subject], more: Sequence[dict[str, Any]] | None = None) -> Iterator[str]:
    """Yield one document for one mask; an array of them for two alignments, or masks that differ by head.

    Args:
        subjects: the masks.
        more: members that the documents of each mask have besides; with them it is always an array.
    """
    extra = [{} for _ in subjects] if more is None else more
    pairs = zip(subjects, extra, strict=True)
    planes = [(subject, plane, added) for subject, added in pairs for plane in range(len(subject.allowed))]
    is_array = more is not None or len(planes) > 1
    opening = "[" if is_array else ""
    for subject, plane, added in planes:
        yield opening
        yield from _mask(subject, plane, added)
        opening = ",\n"
    yield "]\n" if is_array else "\n"


def _mask(subject: Subject, plane: int, more: dict[str, Any]) -> Iterator[str]:
    allowed = subject.allowed[plane]
    queries, keys = allowed.shape
    visible = allowed.sum(axis=1)
    members = {
        "schema": "attncli.mask/1",
        "expression": subject.name or None,
        "queries": queries,
        "keys": keys,
        "past": subject.past,
        "plane": subject.planes[plane] or None,
        "visible": {"min": int(visible.min()), "max": int(visible.max())},
        "density": int(visible.sum()) / allowed.size,
        **more,
    }
    yield json.dumps(members)[:-1] + ', "mask": '
    yield from _matrix(queries, keys, lambda rows: allowed[rows])
    yield ', "bias": '
    heads = subject.bias_heads
    if heads is None:
        yield "null"
    else:
        opening = "["
        for bias in biases(heads, keys, subject.past):
            yield opening
            yield from _matrix(queries, keys, bias)
            opening = ", "
        yield "]"
    yield "}"


def _matrix(
    queries: int,
    keys: int,
    rows_of: Callable[[Int[np.ndarray, " R"]], Bool[np.ndarray, "R K"] | Float[np.ndarray, "R K"]],
) -> Iterator[str]:
    opening = "["
    for rows in row_blocks(np.arange(queries), keys):
        yield opening + written_rows(rows_of(rows), None)[1:-1]
        opening = ","
    yield "]"
