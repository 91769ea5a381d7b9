"""Attention over training as a table that grows while the program runs, and is of use if the program is killed.

Lines of text are written whole steps at a time. Parquet has its index at the end of a file, so its rows are lines of
JSON in a file beside it until the program ends.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from attncli.errors import InputError
from attncli.files import atomic_write
from attncli.formats.columns import Block, Table, objects
from attncli.formats.parquet import schema_of
from attncli.formats.rows import header, table_rows
from attncli.recording.head_metrics import COLUMNS, LayerMetrics
from attncli.text import visible

TRAINING = {
    "step": "int64", "place": "string", "module": "string", "layer": "int32", "head": "int32",
    **dict.fromkeys(COLUMNS, "float32"), "twin": "int32", "rank": "int32",
}  # fmt: skip


class TrainingTable:
    """A table with a row for each head in each measured step.

    Args:
        output: the file, or a folder with a Parquet file for each rank.
        form: `jsonl`, `csv`, `tsv` or `parquet`.
        rank: the number of this process in a distributed program, whose file has it in its name; None of one alone.

    Raises:
        InputError: the file cannot be written.
    """

    def __init__(self, output: Path, form: str, rank: int | None, is_folder: bool = False) -> None:
        if is_folder:
            output = output / f"rank-{rank or 0}.{form}"
        elif rank is not None:
            output = output.with_suffix(f".rank{rank}{output.suffix}")
        self.path, self._form, self._rank = output, form, rank or 0
        self.growing = output.with_name(output.name + ".jsonl") if form == "parquet" else output
        try:
            output.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self.growing, "wb", buffering=0)  # noqa: SIM115  # for as long as the program runs
        except OSError as error:
            raise InputError(f"cannot write {visible(str(output))}: {error.strerror or error}") from None
        self.restart()

    def restart(self) -> None:
        """Drop all rows."""
        self._file.truncate(0)
        self._file.seek(0)
        if self._form in ("csv", "tsv"):
            self._file.write(header(TRAINING, self._form).encode())

    def add(self, step: int, layers: Iterable[LayerMetrics]) -> None:
        """Write the rows of a step; InputError if they cannot be."""
        block = self._block(step, [*layers])
        if self._form in ("csv", "tsv"):
            lines = "".join(islice(table_rows(Table(TRAINING, iter([block])), self._form), 1, None)).encode()
        else:
            rows = (dict(zip(block, row, strict=True)) for row in zip(*block.values(), strict=True))
            lines = b"".join(orjson.dumps(row) + b"\n" for row in rows)
        try:
            while lines:
                lines = lines[self._file.write(lines) :]
        except OSError as error:
            raise InputError(f"cannot write {visible(str(self.growing))}: {error.strerror or error}") from None

    def _block(self, step: int, layers: list[LayerMetrics]) -> Block:
        columns: dict[str, list[Any]] = {name: [] for name in TRAINING}
        for layer in layers:
            for head, values in enumerate(layer.values.T):
                numbers = [None if value != value else float(str(value)) for value in values]
                twin = None if numbers[-1] is None else int(numbers[-1])
                row = (step, layer.place, layer.module, layer.layer, head, *numbers[:-1], twin, self._rank)
                for column, value in zip(columns.values(), row, strict=True):
                    column.append(value)
        return {name: objects(values) for name, values in columns.items()}

    def close(self) -> None:
        """Finish the file: rows that were to be Parquet become it."""
        self._file.close()
        if self._form != "parquet":
            return
        from pyarrow import json, parquet

        schema = schema_of(TRAINING)
        if self.growing.stat().st_size:
            options = json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error")
            table = json.read_json(self.growing, parse_options=options)
        else:
            table = schema.empty_table()
        with atomic_write(self.path) as aside:
            parquet.write_table(table, aside, compression="zstd")
        os.unlink(self.growing)
