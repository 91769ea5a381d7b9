"""Tidy rows, one a cell: the form that sort, awk and a data frame read."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, repeat
from typing import TYPE_CHECKING

import numpy as np

from attncli.errors import Failure
from attncli.formats import gathered
from attncli.formats.numbers import as_numbers
from attncli.text import visible
from attncli.trace.layer import HeadTrace
from attncli.trace.ranking import Heaviest, Places, top_keys
from attncli.trace.trace import Trace
from attncli.trace.view import Columns, View

if TYPE_CHECKING:
    from jaxtyping import Float

COLUMNS = (
    "sentence", "layer", "kind", "head", "query", "query_token", "key", "key_token", "score", "allowed", "weight",
)  # fmt: skip


Join = Callable[[Iterable[str]], str]  # fields to a line, without its end


def write_tsv(answers: Iterable[tuple[int, Trace | Failure]], view: View) -> Iterator[str]:
    """Write tab-separated rows, the header first."""
    return _written(answers, view, "\t".join, "\t")


def write_csv(answers: Iterable[tuple[int, Trace | Failure]], view: View) -> Iterator[str]:
    """Write comma-separated rows, quoted where they must be, the header first."""
    return _written(answers, view, comma_separated, ",")


def _written(answers: Iterable[tuple[int, Trace | Failure]], view: View, join: Join, comma: str) -> Iterator[str]:
    header = join(COLUMNS) + "\n"
    for number, answer in answers:
        if not isinstance(answer, Failure):  # the first that is none says what is measured
            if answer.layers[0].measure == "norms":
                header = header.replace("weight", "norm")
            yield from gathered(chain([header], _rows(number, answer, view, join, comma)))
            header = ""
    # Where no sentence could be read, and no error ended the stream.
    yield header


def comma_separated(fields: Iterable[str]) -> str:
    """Return fields as a line of CSV, without its end."""
    stream = io.StringIO()
    csv.writer(stream, lineterminator="").writerow(fields)
    return stream.getvalue()


def _rows(number: int, trace: Trace, view: View, join: Join, comma: str) -> Iterator[str]:
    """Yield the lines of one query row of one head at a time."""
    for layer in trace.layers:
        cells = view.cells(trace, layer)
        columns = cells.of_columns
        # What repeats is joined once: there is a line a cell.
        names = [f"{comma}{join((str(key), escaped(cells.column_tokens[key].text)))}{comma}" for key in cells.columns]
        keys = np.array(names, object)
        flags = {False: f"{comma}false{comma}", True: f"{comma}true{comma}"}
        for index in layer.heads:
            for block in layer.head(index, cells.rows).blocks():
                kept = _kept(block, columns, view.heaviest)
                rows = zip(block.queries.tolist(), kept, _scores(block), block.mask, block.weights, strict=True)
                for query, own, scores, allowed, weights in rows:
                    token = escaped(cells.row_tokens[query].text)
                    place = (str(number), str(layer.label), layer.kind, str(layer.head_label(index)))
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


def _kept(head: HeadTrace, columns: Columns, wanted: Heaviest | None) -> Iterable[slice | Places]:
    """Return which of the columns each query has a line for: all of them, or the heaviest ones, heaviest first."""
    if wanted is None:
        return [slice(None)] * len(head.queries)
    return (places for places, _ in top_keys(head, columns, wanted))


def escaped(token: str) -> str:
    r"""Return a token without the characters that separate fields: `\t`, `\n` and `\\` as two characters each."""
    return visible(token.replace("\\", "\\\\"))
