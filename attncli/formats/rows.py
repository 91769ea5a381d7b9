"""Rows of tabs or commas, the header first: the form that sort, awk and a data frame read."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, groupby, repeat
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.errors import NO_METADATA, Failure
from attncli.formats.columns import Block, IndexedColumn, Table, is_shared, row_count, with_metadata
from attncli.formats.json_stream import gathered
from attncli.formats.numbers import as_numbers
from attncli.text import visible

if TYPE_CHECKING:
    from attncli.formats.json_stream import Parts

_PIECE = 2**12  # rows that are held as texts
_FLAGS = {False: "false", True: "true"}


def table_rows(table: Table, form: str, precision: int | None = None) -> Iterator[str]:
    """Yield the header, and then rows."""
    yield header(table.types, form)
    yield from gathered(chain.from_iterable(_rows(block, form, precision) for block in table.blocks))


def header(types: Iterable[str], form: str) -> str:
    """Return the line of the columns' names."""
    return _COMMAS[form].join(map(_FIELDS[form], types)) + "\n"


def joined_rows(answers: Parts, types: Mapping[str, str], form: str) -> Iterator[str]:
    """Write the rows of sentences, the header once."""
    metadata, is_begun = NO_METADATA, False
    for _, answer in answers:
        if isinstance(answer, Failure):
            metadata = answer.metadata
            continue
        pieces: Iterator[str] = iter(answer)
        opening = next(pieces)  # the first one has the measure
        yield from pieces if is_begun else chain([opening], pieces)
        is_begun = True
    if not is_begun:  # no sentence could be read, and no error ended the stream
        yield header(with_metadata(types, metadata), form)


def _rows(block: Block, form: str, precision: int | None) -> Iterator[str]:
    """Yield the lines of a block, some at a time."""
    comma, as_field, count = _COMMAS[form], _FIELDS[form], row_count(block)
    ready = {
        name: column._replace(values=[as_field(_text(value, precision)) for value in column.values])
        if isinstance(column, IndexedColumn)
        else column
        for name, column in block.items()
    }
    for start in range(0, count, _PIECE):
        rows = slice(start, min(start + _PIECE, count))
        fields: list[Iterable[str]] = []
        # The common part of all rows is joined once: there is a line a cell.
        for are_shared, columns in groupby(ready.values(), is_shared):
            if are_shared:
                fields.append(repeat(comma.join(as_field(_text(value)) for value in columns), rows.stop - start))
            else:
                fields += [_texts(column, rows, as_field, precision) for column in columns]
        yield "".join([comma.join(row) + "\n" for row in zip(*fields, strict=True)])


def _texts(column: Any, rows: slice, as_field: Callable[[str], str], precision: int | None) -> Iterable[str]:
    """Return the fields of a column in some rows."""
    if isinstance(column, IndexedColumn):
        return np.asarray(column.values, object)[column.places[rows]]
    values = column[rows]
    if not isinstance(values, np.ndarray):
        return [as_field(_text(value, precision)) for value in values]
    if values.dtype == bool:
        return map(_FLAGS.__getitem__, values.tolist())
    return as_numbers(values, precision) if values.dtype.kind == "f" else map(str, values.tolist())


def _text(value: Any, precision: int | None = None) -> str:
    """Return a value as a text; unknown is empty."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return _FLAGS[value]
    return f"{value:.{precision}f}" if precision is not None and isinstance(value, float) else str(value)


def escaped(token: str) -> str:
    r"""Return a token without the characters that separate fields: `\t`, `\n` and `\\` as two characters each."""
    return visible(token.replace("\\", "\\\\"))


def _quoted(token: str) -> str:
    """Return a token as a field of CSV."""
    stream = io.StringIO()
    csv.writer(stream, lineterminator="").writerow([escaped(token), ""])  # alone, an empty one would have quotes
    return stream.getvalue()[:-1]


_COMMAS = {"tsv": "\t", "csv": ","}
_FIELDS: dict[str, Callable[[str], str]] = {"tsv": escaped, "csv": _quoted}
