"""Tidy rows, one a cell: the form that sort, awk and a data frame read."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Sequence

from attncli.formats.numbers import written
from attncli.tokens import visible
from attncli.trace import Trace
from attncli.view import View

COLUMNS = (
    "sentence", "layer", "kind", "head", "query", "query_token", "key", "key_token", "score", "allowed", "weight",
)  # fmt: skip


def write_tsv(traces: Iterable[tuple[int, Trace]], view: View) -> Iterator[str]:
    """Write tab-separated rows, the header first."""
    return _written(traces, view, lambda rows: "".join("\t".join(row) + "\n" for row in rows))


def write_csv(traces: Iterable[tuple[int, Trace]], view: View) -> Iterator[str]:
    """Write comma-separated rows, quoted where they must be, the header first."""
    return _written(traces, view, _comma_separated)


def _written(
    traces: Iterable[tuple[int, Trace]], view: View, join: Callable[[Iterable[Sequence[str]]], str]
) -> Iterator[str]:
    header = join([COLUMNS])
    for number, trace in traces:
        yield header + join(_rows(number, trace, view))  # no header where not even the first sentence could be read
        header = ""


def _comma_separated(rows: Iterable[Sequence[str]]) -> str:
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows(rows)
    return stream.getvalue()


def _rows(number: int, trace: Trace, view: View) -> Iterator[tuple[str, ...]]:
    for layer in trace.layers:
        cells = view.cells(trace, layer)
        queries, keys = cells.rows, cells.columns
        query_names = [_escaped(cells.row_tokens[query].text) for query in queries]
        key_names = [_escaped(cells.column_tokens[key].text) for key in keys]
        for index in layer.heads:
            head = layer.head(index, queries)
            start = (str(number), str(layer.layer), layer.kind, str(index))
            scores = written(head.scores[:, keys], view.precision).tolist()
            weights = written(head.weights[:, keys], view.precision).tolist()
            allowed = head.mask[:, keys].tolist()
            for row, query in enumerate(queries):
                asks = (str(query), query_names[row])
                for column, key in enumerate(keys):
                    answer = (
                        scores[row][column],
                        "true" if allowed[row][column] else "false",
                        weights[row][column],
                    )
                    yield (*start, *asks, str(key), key_names[column], *answer)


def _escaped(token: str) -> str:
    r"""Return a token without the characters that separate fields: `\t`, `\n` and `\\` as two characters each."""
    return visible(token.replace("\\", "\\\\"))
