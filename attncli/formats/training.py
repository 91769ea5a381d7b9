"""Attention over training as a table that grows while the program runs, and can be read if the program is killed.

Parquet has its index at the end of a file, so its rows are lines of JSON in a file beside it until the program ends.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path

import orjson

from attncli.errors import InputError
from attncli.files import atomic_write
from attncli.formats.parquet import schema_of
from attncli.recording.call import COLUMNS, LayerMetrics
from attncli.text import visible

TRAINING = {
    "step": "int64", "place": "string", "module": "string", "layer": "int32", "head": "int32",
    **dict.fromkeys(COLUMNS, "float32"), "twin": "int32", "rank": "int32",
}  # fmt: skip


class TrainingTable:
    """A table with a row for each head in each measured step; InputError if it cannot be written."""

    def __init__(self, path: Path, form: str, rank: int) -> None:
        self._path, self._form, self._rank = path, form, rank
        self._growing = path.with_name(f"{path.name}.jsonl") if form == "parquet" else path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._write([TRAINING] if form in ("csv", "tsv") else [], "wb")

    def add(self, step: int, layers: Iterable[LayerMetrics]) -> None:
        """Write the rows of a step, all at once."""
        rows = []
        for layer in layers:
            for head, values in enumerate(layer.values.T):
                numbers = [float(str(value)) if value == value else None for value in values]  # the shortest digits
                *numbers, twin = numbers
                named = step, layer.place, layer.module, layer.layer, head
                rows.append((*named, *numbers, None if twin is None else int(twin), self._rank))
        self._write(rows)

    def _write(self, rows: Iterable[Iterable[object]], mode: str = "ab") -> None:
        text = io.StringIO()
        if self._form in ("csv", "tsv"):
            csv.writer(text, delimiter="," if self._form == "csv" else "\t", lineterminator="\n").writerows(rows)
        lines = (orjson.dumps(dict(zip(TRAINING, row, strict=True))) + b"\n" for row in rows)
        try:
            with open(self._growing, mode) as file:
                file.write(text.getvalue().encode() or b"".join(lines))
        except OSError as error:
            raise InputError(f"cannot write {visible(str(self._growing))}: {error.strerror or error}") from None

    def close(self) -> None:
        """Finish the file: rows that were to be Parquet become it."""
        if self._form == "parquet":
            from pyarrow import json, parquet

            schema = schema_of(TRAINING)
            options, has_rows = json.ParseOptions(explicit_schema=schema), self._growing.stat().st_size
            table = json.read_json(self._growing, parse_options=options) if has_rows else schema.empty_table()
            with atomic_write(self._path) as aside:
                parquet.write_table(table, aside, compression="zstd")
            self._growing.unlink()
