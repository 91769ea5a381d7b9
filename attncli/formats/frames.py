"""Data frames of pandas or polars: the rows of TSV with types."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from attncli.errors import LoadError, UsageError, install_command
from attncli.formats.columns import IndexedColumn, Table, is_shared, row_count
from attncli.text import visible

_LIBRARIES = ("pandas", "polars")


def library_of(wanted: str | None) -> str:
    """Return the name of the data frame library; see `attncli.trace.display.Tabular`.

    Raises:
        UsageError: it is neither of the two.
        LoadError: it is not installed.
    """
    if wanted is not None and wanted not in _LIBRARIES:
        raise UsageError(f"library '{visible(wanted)}': expected pandas or polars")
    possible = _LIBRARIES if wanted is None else (wanted,)
    names = [name for name in possible if name in sys.modules] or [name for name in possible if find_spec(name)]
    if not names:
        raise LoadError(f"a data frame needs {' or '.join(possible)}: {install_command(possible[0])}")
    return names[0]


def frame_of_table(table: Table, library: str) -> Any:
    """Return a table as a data frame; undefined values are NaN in pandas, and null in polars."""
    module = import_module(library)
    blocks = list(table.blocks)
    counts = [row_count(block) for block in blocks]
    columns = {}
    for name, kind in table.types.items():
        parts = [block[name] for block in blocks]
        if not all(part is None for part in parts):  # scores of derived layers
            columns[name] = _joined(parts, counts, kind.removesuffix("_"))
    if library == "pandas":
        return module.DataFrame({
            name: np.array(column.values, object if table.types[name] == "string" else float)[column.places]
            if isinstance(column, IndexedColumn)
            else column
            for name, column in columns.items()
        })  # fmt: skip
    return module.DataFrame([
        module.Series(name, column.values, dtype=getattr(module, table.types[name].title())).gather(column.places)
        if isinstance(column, IndexedColumn)
        else module.Series(name, column, nan_to_null=isinstance(blocks[0][name], list))
        for name, column in columns.items()
    ])  # fmt: skip


def _joined(parts: Sequence[Any], counts: Sequence[int], kind: str) -> Any:
    """Return the same column of several blocks as one."""
    first = parts[0]
    if isinstance(first, list) and kind != "string":
        return np.array([np.nan if value is None else value for part in parts for value in part])
    if kind != "string" and not isinstance(first, IndexedColumn):
        shared = (np.full(n, part) if is_shared(part) else part for part, n in zip(parts, counts, strict=True))
        return np.concatenate([part.astype(kind, copy=False) for part in shared])
    if isinstance(first, list):
        parts = [IndexedColumn(part, np.arange(len(part))) for part in parts]
    elif is_shared(first):
        parts = [IndexedColumn([part], np.zeros(n, int)) for part, n in zip(parts, counts, strict=True)]
    places = {each: place for place, each in enumerate(dict.fromkeys(each for part in parts for each in part.values))}
    return IndexedColumn(
        list(places),
        np.concatenate([np.array([places[each] for each in part.values], int)[part.places] for part in parts]),
    )
