"""One row a head: the metrics of a sentence alone, which `--show metrics` asks of tsv, csv and Parquet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
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


def metric_lines(
    number: int, trace: Trace, precision: int | None, join: Callable[[Iterable[str]], str]
) -> Iterator[str]:
    """Yield the rows as lines of tsv or csv."""
    from attncli.formats.rows import field

    kept = [field(value) for value in trace.kept.values()]
    for first, *others in metric_rows(number, trace, precision):
        yield join([str(first), *kept, *map(field, others)]) + "\n"


def metric_table(number: int, trace: Trace) -> Any:
    """Return the rows as a table of pyarrow."""
    import pyarrow

    from attncli.formats.parquet import typed

    columns = zip(*metric_rows(number, trace, None), strict=True)
    schema = typed(METRIC_TYPES)
    return pyarrow.table([pyarrow.array(one, field.type) for one, field in zip(columns, schema, strict=True)], schema)
