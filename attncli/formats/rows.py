"""Rows of tabs or commas, the header first: the form that sort, awk and a data frame read."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from errno import ENOSPC
from functools import lru_cache
from itertools import chain, groupby, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from attncli.errors import NO_METADATA, Failure
from attncli.files import atomic_write, is_stream_path
from attncli.formats.columns import TRAINING, Block, Table, row_count, shortest, with_metadata
from attncli.text import visible

if TYPE_CHECKING:
    from attncli.formats.json import Parts
    from attncli.recording.call import LayerMetrics

_PIECE = 2**12  # rows that are held as texts


def table_rows(table: Table, form: str, precision: int | None = None) -> Iterator[str]:
    """Yield the header, and then rows."""
    yield header(table.types, form)
    for block in table.blocks:
        yield from _rows(block, form, precision)


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
    """Yield the lines of a block, some at a time; values that all of them share are joined once."""
    comma, count = _COMMAS[form], row_count(block)
    for start in range(0, count, _PIECE):
        fields: list[Iterable[str]] = []
        for has_rows, columns in groupby(block.values(), lambda column: isinstance(column, np.ndarray)):
            if has_rows:
                fields += [_fields(column[start : start + _PIECE], form, precision) for column in columns]
            else:
                fields.append(repeat(comma.join(_field(value, form, precision) for value in columns)))
        yield "".join([comma.join(row) + "\n" for row in zip(*fields, strict=False)])


def _fields(values: np.ndarray[Any, Any], form: str, precision: int | None) -> Iterable[str]:
    if values.dtype.kind == "f":
        return as_numbers(values, precision)
    if values.dtype == bool:
        return np.where(values, "true", "false").tolist()
    listed = values.tolist()
    return map(str, listed) if values.dtype.kind == "i" else [_field(each, form, precision) for each in listed]


def _field(value: Any, form: str, precision: int | None) -> str:
    """Return a value as a text; unknown is empty."""
    if isinstance(value, str):
        return _FIELDS[form](value)
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.{precision}f}" if precision is not None and isinstance(value, float) else str(value)


def as_numbers(values: np.ndarray[Any, Any], precision: int | None) -> list[str]:
    """Return numbers as texts; NaN and the infinities are `nan`, `inf` and `-inf`.

    Without a precision a float32 gets the fewest digits that read back as the same float32.
    """
    if precision is not None:
        return [f"{value:.{precision}f}" for value in values.tolist()]
    dumped = orjson.dumps(np.ascontiguousarray(values), option=orjson.OPT_SERIALIZE_NUMPY).decode()
    texts = dumped[1:-1].split(",")
    for place in np.flatnonzero(~np.isfinite(values)).tolist():
        texts[place] = str(values[place])
    return texts


@lru_cache(2**12)
def escaped(token: str) -> str:
    r"""Return a token without the characters that separate fields: `\t`, `\n` and `\\` as two characters each."""
    return visible(token.replace("\\", "\\\\"))


@lru_cache(2**12)
def _quoted(token: str) -> str:
    """Return a token as a field of CSV."""
    stream = io.StringIO()
    csv.writer(stream, lineterminator="").writerow([escaped(token), ""])  # alone, an empty one would have quotes
    return stream.getvalue()[:-1]


_COMMAS = {"tsv": "\t", "csv": ","}
_FIELDS: dict[str, Callable[[str], str]] = {"tsv": escaped, "csv": _quoted}


class TrainingTable:
    """A table with a row for each head in each measured step, which grows while a program runs.

    Parquet has its index at the end of a file, so its rows are lines of JSON beside it until the program ends.
    """

    def __init__(self, path: Path, form: str, is_folder: bool, rank: int, ranks: int) -> None:
        path = path / f"rank-{rank}.{form}" if is_folder else path
        if ranks > 1 and not is_folder and not is_stream_path(path):
            path = path.with_suffix(f".rank{rank}{path.suffix}")
        self._path, self._form, self._rank = path, form, rank
        path.parent.mkdir(parents=True, exist_ok=True)
        growing = path.with_name(f"{path.name}.jsonl") if form == "parquet" else path
        self._file = io.FileIO(growing, "w")  # unbuffered: a step is one write
        self._write(header(TRAINING, form) if form in _COMMAS else "")

    def add(self, step: int, layers: Iterable[LayerMetrics]) -> None:
        """Write the rows of a step, all at once. Raises OSError: they cannot be, and the file ends as before."""
        lines = ""
        for layer in layers:
            for head, values in enumerate(layer.values.T):
                row = step, layer.place, layer.module, layer.layer, head, *map(shortest, values), self._rank
                if self._form in _COMMAS:
                    lines += _COMMAS[self._form].join(_field(each, self._form, None) for each in row) + "\n"
                else:
                    lines += orjson.dumps(dict(zip(TRAINING, row, strict=True))).decode() + "\n"
        self._write(lines)

    def _write(self, lines: str) -> None:
        data = lines.encode()
        if (written := self._file.write(data)) < len(data):  # a full disk takes a part
            self._file.truncate(self._file.tell() - written)
            raise OSError(ENOSPC, os.strerror(ENOSPC))

    def close(self) -> None:
        """Finish the file: rows that were to be Parquet become it."""
        self._file.close()
        if self._form == "parquet":
            from pyarrow import json, parquet

            from attncli.formats.parquet import schema_of

            options = json.ParseOptions(explicit_schema=schema_of(TRAINING))
            with atomic_write(self._path) as aside:
                parquet.write_table(json.read_json(self._file.name, parse_options=options), aside, compression="zstd")
            os.unlink(self._file.name)
