"""One row a head: the metrics of a sentence alone, which `--show metrics` asks of tsv, csv and Parquet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from attncli.analysis.metric_names import NAMES
from attncli.analysis.metrics import trace_metrics

if TYPE_CHECKING:
    from attncli.trace.trace import Trace

_PLACE = {"sentence": "int64", "layer": "int32", "kind": "string", "head": "int32", "queries": "int32", "keys": "int32"}
METRIC_TYPES: dict[str, str] = _PLACE | dict.fromkeys(NAMES, "float32")


def metric_rows(number: int, trace: Trace, precision: int | None) -> Iterator[list[Any]]:
    """Yield the rows of a trace's heads, in the order of `METRIC_TYPES`; None is what is not defined."""
    numbers = iter(trace_metrics(trace).heads)
    for layer in trace.layers:
        for head in layer.heads:
            place = [number, layer.label, layer.kind, layer.head_label(head), layer.num_queries, layer.num_keys]
            yield [*place, *(_number(value, precision) for value in next(numbers))]


def _number(value: Any, precision: int | None) -> float | None:
    """Return a float32 by its own shortest digits."""
    if value != value:
        return None
    return float(str(value)) if precision is None else round(float(value), precision)
