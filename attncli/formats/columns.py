"""Results as columns of values, once; what writes rows (csv, tsv, Parquet, data frames) reads them here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attncli.analysis.heads import HeadReport

Columns = dict[str, list[Any]]


def head_columns(report: HeadReport) -> Columns:
    """Return a row a head; None is what is not defined.

    Over several sentences `METRIC_std` and `METRIC_count` of every metric follow the means. The columns of the label
    are those of the strongest one; `labels` are all of them.
    """
    heads, names = report.heads, report.names
    columns: Columns = {name: [getattr(head, name) for head in heads] for name in ("layer", "kind", "head")}
    columns |= {name: [head.metrics[name] for head in heads] for name in names}
    if report.sentences > 1:
        columns |= {f"{name}_std": [head.std[name] for head in heads] for name in names}
        columns |= {f"{name}_count": [head.counts[name] for head in heads] for name in names}
    strongest = [head.labels[0] if head.labels else None for head in heads]
    columns["label"] = ["" if label is None else label.name for label in strongest]
    for name in ("score", "baseline", "gain"):
        columns[f"label_{name}"] = [None if label is None else getattr(label, name) for label in strongest]
    return columns | {"labels": [";".join(label.name for label in head.labels) for head in heads]}


def head_types(columns: Columns) -> dict[str, str]:
    """Return the type of each column of `head_columns` in Parquet."""
    types = {"layer": "int32", "head": "int32", **dict.fromkeys(("kind", "label", "labels"), "string")}
    return {name: types.get(name, "int64" if name.endswith("_count") else "float64") for name in columns}
