"""Tidy rows, one a cell: the form that sort, awk and a data frame read."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.errors import NO_METADATA, Failure, Metadata
from attncli.formats import gathered
from attncli.formats.metric_rows import METRIC_TYPES, metric_rows
from attncli.formats.numbers import as_numbers
from attncli.text import visible
from attncli.trace.layer import HeadTrace
from attncli.trace.top_keys import Places, top_keys
from attncli.trace.trace import Trace
from attncli.trace.view import Columns, View

if TYPE_CHECKING:
    from jaxtyping import Float

    from attncli.formats import Parts

COLUMNS = (
    "sentence", "layer", "kind", "head", "query", "query_token", "key", "key_token", "score", "allowed", "weight",
)  # fmt: skip


Join = Callable[[Iterable[str]], str]  # fields to a line, without its end


def tsv_rows(number: int, trace: Trace, view: View) -> Iterator[str]:
    """Yield the header, and then tab-separated rows."""
    return _with_header(number, trace, view, "\t".join, "\t")


def csv_rows(number: int, trace: Trace, view: View) -> Iterator[str]:
    """Yield the header, and then comma-separated rows, quoted where they must be."""
    return _with_header(number, trace, view, comma_separated, ",")


def _with_header(number: int, trace: Trace, view: View, join: Join, comma: str) -> Iterator[str]:
    if view.is_of_metrics:
        yield header(METRIC_TYPES, trace.kept, join)
        kept = [field(value) for value in trace.kept.values()]
        for first, *others in metric_rows(number, trace, view.precision):
            yield join([str(first), *kept, *map(field, others)]) + "\n"
        return
    columns = (*COLUMNS[:-1], "norm") if trace.layers[0].measure == "norms" else COLUMNS
    yield header(columns, trace.kept, join)
    yield from gathered(_rows(number, trace, view, join, comma))


def header(columns: Iterable[str], kept: Metadata, join: Join) -> str:
    """Return the line of the columns' names, with what is kept of a sentence behind its number."""
    number, *others = columns
    return join([number, *map(escaped, kept), *others]) + "\n"


def write_tsv(answers: Parts, columns: Sequence[str] = COLUMNS) -> Iterator[str]:
    """Write tab-separated rows, the header first; see `write_csv`."""
    return _written(answers, columns, "\t".join)


def write_csv(answers: Parts, columns: Sequence[str] = COLUMNS) -> Iterator[str]:
    """Write comma-separated rows, the header first.

    Args:
        answers: of each sentence a header and rows, or why it has none.
        columns: those of the header where no sentence has one.
    """
    return _written(answers, columns, comma_separated)


def _written(answers: Parts, columns: Sequence[str], join: Join) -> Iterator[str]:
    kept, is_begun = NO_METADATA, False
    for _, answer in answers:
        if isinstance(answer, Failure):
            kept = answer.kept
            continue
        pieces: Iterator[str] = iter(answer)
        opening = next(pieces)  # the first one says what is measured
        yield from gathered(pieces if is_begun else chain([opening], pieces))
        is_begun = True
    if not is_begun:  # no sentence could be read, and no error ended the stream
        yield header(columns, kept, join)


def comma_separated(fields: Iterable[str]) -> str:
    """Return fields as a line of CSV, without its end."""
    stream = io.StringIO()
    csv.writer(stream, lineterminator="").writerow(fields)
    return stream.getvalue()


def _rows(number: int, trace: Trace, view: View, join: Join, comma: str) -> Iterator[str]:
    """Yield the lines of one query row of one head at a time."""
    kept = [field(value) for value in trace.kept.values()]
    for layer in trace.layers:
        cells = view.cells(trace, layer)
        columns = cells.of_columns
        # What repeats is joined once: there is a line a cell.
        names = [f"{comma}{join((str(key), escaped(cells.column_tokens[key].text)))}{comma}" for key in cells.columns]
        keys = np.array(names, object)
        flags = {False: f"{comma}false{comma}", True: f"{comma}true{comma}"}
        for index in layer.heads:
            for block in layer.head(index, cells.rows).blocks():
                heaviest = _heaviest(block, columns, view.top_keys)
                rows = zip(block.queries.tolist(), heaviest, _scores(block), block.mask, block.weights, strict=True)
                for query, own, scores, allowed, weights in rows:
                    token = escaped(cells.row_tokens[query].text)
                    place = (str(number), *kept, str(layer.label), layer.kind, str(layer.head_label(index)))
                    start = join((*place, str(query), token))
                    answers = zip(
                        keys[own],
                        repeat("", len(keys[own]))
                        if scores is None
                        else as_numbers(scores[columns][own], view.precision),
                        allowed[columns][own].tolist(),
                        as_numbers(weights[columns][own], view.precision),
                        strict=True,
                    )
                    yield "".join([
                        f"{start}{key}{score}{flags[may]}{weight}\n" for key, score, may, weight in answers
                    ])  # fmt: skip


def _scores(block: HeadTrace) -> Iterable[Float[np.ndarray, " K"] | None]:
    """Return the scores of every row, or None for each where numbers are derived."""
    return repeat(None, len(block.queries)) if "scores" in block.layer.missing else block.scores


def _heaviest(head: HeadTrace, columns: Columns, most: int | None) -> Iterable[slice | Places]:
    """Return which of the columns each query has a line for: all of them, or the heaviest ones, heaviest first."""
    if most is None:
        return [slice(None)] * len(head.queries)
    return (places for places, _ in top_keys(head, columns, most))


def field(value: Any) -> str:
    """Return a value as a field, which is not yet quoted; what is not known is empty."""
    if isinstance(value, str):
        return escaped(value)
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def escaped(token: str) -> str:
    r"""Return a token without the characters that separate fields: `\t`, `\n` and `\\` as two characters each."""
    return visible(token.replace("\\", "\\\\"))
