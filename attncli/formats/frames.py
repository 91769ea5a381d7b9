"""Data frames of pandas or polars: the rows of TSV with types."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attncli.errors import UsageError
from attncli.formats.columns import head_columns
from attncli.text import visible

if TYPE_CHECKING:
    from jaxtyping import Int

    from attncli.analysis.heads import HeadReport
    from attncli.trace.trace import Trace
    from attncli.trace.view import View

_LIBRARIES = ("pandas", "polars")


class StringColumn(NamedTuple):
    """A column of texts, of which there are few.

    Attributes:
        texts: each of them.
        places: which of them stands in each row.
    """

    texts: Sequence[str]
    places: Int[np.ndarray, " N"]


def library_of(wanted: str | None) -> str:
    """Return whose data frames are made; see `attncli.trace.display.Tabular`.

    Raises:
        UsageError: it is not installed.
    """
    if wanted is not None and wanted not in _LIBRARIES:
        raise UsageError(f"library '{visible(wanted)}': expected pandas or polars")
    possible = _LIBRARIES if wanted is None else (wanted,)
    found = [name for name in possible if name in sys.modules] or [name for name in possible if find_spec(name)]
    if not found:
        raise UsageError(f"a data frame needs {' or '.join(possible)}: pip install {possible[0]}")
    return found[0]


def framed(columns: Mapping[str, Any], library: str, *, nan_to_null: bool = False) -> Any:
    """Return columns as a data frame.

    Args:
        columns: arrays, and `StringColumn`.
        library: whose.
        nan_to_null: whether NaN says that there is no number, for which pandas has nothing else.
    """
    module = import_module(library)
    if library == "pandas":
        return module.DataFrame({
            name: np.array(column.texts, object)[column.places] if isinstance(column, StringColumn) else column
            for name, column in columns.items()
        })  # fmt: skip
    return module.DataFrame([
        module.Series(name, column.texts, dtype=module.String).gather(column.places)
        if isinstance(column, StringColumn)
        else module.Series(name, column, nan_to_null=nan_to_null)
        for name, column in columns.items()
    ])  # fmt: skip


def columns_of(trace: Trace, view: View) -> dict[str, Any]:
    """Return the cells of a trace, a row a cell, as `attncli.formats.rows` writes them."""
    parts = list(_heads_of(trace, view))
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: _joined([part[name] for part in parts]) for name in names}


def _heads_of(trace: Trace, view: View) -> Iterator[dict[str, Any]]:
    """Yield the columns of each head."""
    for layer in trace.layers:
        cells = view.cells(trace, layer)
        rows, columns = len(cells.rows), len(cells.columns)
        queries = np.repeat(np.array(cells.rows, np.int32), columns)
        keys = np.tile(np.array(cells.columns, np.int32), rows)
        for index in layer.heads:
            head = layer.head(index, cells.rows)

            def same(value: int | str, count: int = rows * columns) -> Any:
                return (
                    StringColumn([value], np.zeros(count, int))
                    if isinstance(value, str)
                    else np.full(count, value, np.int32)
                )

            def flat(array: Any, wanted: Any = cells.of_columns) -> Any:
                return array[:, wanted].ravel()

            # Derived numbers have no scores.
            scores = {} if "scores" in layer.missing else {"score": flat(head.scores)}
            yield {
                "layer": same(layer.label),
                "kind": same(layer.kind),
                "head": same(layer.head_label(index)),
                "query": queries,
                "query_token": StringColumn([token.text for token in cells.row_tokens], queries),
                "key": keys,
                "key_token": StringColumn([token.text for token in cells.column_tokens], keys),
                **scores,
                "allowed": flat(head.mask),
                "norm" if layer.measure == "norms" else "weight": flat(head.weights),
            }


def _joined(parts: Sequence[Any]) -> Any:
    """Return the same column of several heads as one."""
    if not isinstance(parts[0], StringColumn):
        return np.concatenate(parts)
    places = {text: place for place, text in enumerate(dict.fromkeys(text for part in parts for text in part.texts))}
    return StringColumn(
        list(places),
        np.concatenate([np.array([places[text] for text in part.texts])[part.places] for part in parts]),
    )


def columns_of_heads(report: HeadReport) -> dict[str, Any]:
    """Return a row a head, as `attn heads -F tsv` writes them; what is not defined is NaN."""

    def column(values: list[Any]) -> Any:
        if values and isinstance(values[0], str):
            return StringColumn(values, np.arange(len(values)))
        return np.array([np.nan if value is None else value for value in values])

    return {name: column(values) for name, values in head_columns(report).items()}
