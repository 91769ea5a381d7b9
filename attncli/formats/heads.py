"""The metrics of heads for programs: the JSON document `attncli.heads/1`, and tidy rows, one a head."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from attncli.analysis.heads import HeadSummary, Survey
from attncli.analysis.metric_names import NAMES
from attncli.formats.numbers import number


def write_json(survey: Survey, precision: int | None) -> str:
    """Return the document; with several sentences every metric is a mean, and `std` and `counts` stand beside it."""
    return json.dumps({
        "schema": "attncli.heads/1",
        "source": survey.source.as_dict(),
        "sentences": survey.sentences,
        "heads": [_entry(head, survey.sentences > 1, precision) for head in survey.heads],
    }) + "\n"  # fmt: skip


def _entry(head: HeadSummary, has_several: bool, precision: int | None) -> dict[str, Any]:
    entry = {"layer": head.layer, "kind": head.kind, "head": head.head, **_numbers(head.metrics, precision)}
    return entry | {"std": _numbers(head.std, precision), "counts": dict(head.counts)} if has_several else entry


def _numbers(values: Mapping[str, float | None], precision: int | None) -> dict[str, float | str | None]:
    return {name: number(value, precision) for name, value in values.items()}


def write_rows(survey: Survey, comma: str, precision: int | None) -> str:
    """Return a header and a row a head; what is not defined is an empty field.

    With several sentences `METRIC_std` and `METRIC_count` of every metric follow the means.
    """
    has_several = survey.sentences > 1
    columns = ["layer", "kind", "head", *NAMES]
    columns += [f"{name}_{what}" for what in ("std", "count") for name in NAMES] if has_several else []
    lines = [columns]
    for head in survey.heads:
        fields = [str(head.layer), head.kind, str(head.head)]
        for values in (head.metrics, head.std) if has_several else (head.metrics,):
            fields += [_field(value, precision) for value in values.values()]
        lines.append(fields + ([str(count) for count in head.counts.values()] if has_several else []))
    return "".join(comma.join(line) + "\n" for line in lines)


def _field(value: float | None, precision: int | None) -> str:
    if value is None:
        return ""
    return str(value) if precision is None else f"{value:.{precision}f}"
