"""Files: machine formats of results, and pictures of views.

A machine format has two halves, so that many processes can write it. One makes the pieces of a sentence in the process
that computed it. The other joins the pieces of all sentences, without failures, to one text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attncli.errors import UsageError
from attncli.text import did_you_mean, visible

if TYPE_CHECKING:
    from attncli.analysis.ablation import Ablation
    from attncli.formats.json import Parts
    from attncli.trace.tokenization import Tokenization
    from attncli.trace.trace import Trace

FIGURES = frozenset({"pdf", "png"})  # of maps alone, by matplotlib
DRAWN = FIGURES | {"table", "svg", "html", "md"}  # the view of a terminal; `table` ends in .txt
STREAMS = frozenset({"jsonl", "tsv", "csv"})  # whole lines at any moment, so that an interrupted file is still of use
DATASETS = ("parquet", "jsonl", "tsv", "csv")  # which a folder of parts may be of
FORMATS = DRAWN | {"json", *DATASETS}


def part_of(form: str, number: int, result: Trace | Tokenization | Ablation, shown: Any) -> Iterator[Any]:
    """Return the pieces of a machine format that are a sentence's: texts, or tables of Parquet."""
    if form in ("json", "jsonl"):
        from attncli.formats.documents import document_of

        return document_of(number, result, shown)
    from attncli.formats.columns import table_of

    table = table_of(number, result, shown)
    if form == "parquet":
        from attncli.formats.parquet import arrow_tables

        return arrow_tables(table)
    from attncli.formats.rows import table_rows

    return table_rows(table, form, getattr(shown, "precision", None))


def joined(form: str, parts: Parts, types: Mapping[str, str]) -> Iterator[str]:
    """Yield a text in a machine format, given the parts of its sentences; `types` are the columns if none has rows."""
    if form in ("json", "jsonl"):
        from attncli.formats.json import write_array, write_each

        return write_array(parts) if form == "json" else write_each(parts)
    from attncli.formats.rows import joined_rows

    return joined_rows(parts, types, form)


def choose_format(form: str | None, output: Path | None, choices: Sequence[str], is_folder: bool = False) -> str:
    """Return the format that `--format` and the ending of `--output` agree on; a folder is of one of `DATASETS`.

    Raises:
        UsageError: they contradict each other, or the ending is none of the command's `choices`.
    """
    from attncli.files import is_stream_path

    if output is None or (not output.suffix and is_stream_path(output)):
        return form or "table"
    if is_folder:
        if form not in (None, *DATASETS):
            raise UsageError(f"--format {form} does not apply to a folder, whose parts are {', '.join(DATASETS)}")
        return form or "parquet"
    ending = output.suffix.lower().removeprefix(".").replace("txt", "table")
    where = f"--output {visible(str(output))}"
    if ending in FIGURES and ending not in choices:
        svg = visible(str(output.with_suffix(".svg")))
        raise UsageError(f"{where}: only attn inspect draws figures; give -o {svg}")
    if ending not in choices:
        *most, last = (f".{name}" for name in (*(name for name in choices if name != "table"), "txt"))
        near = did_you_mean(ending, choices)
        raise UsageError(f"{where}: expected a file ending in {', '.join(most)} or {last}{near}")
    if form not in (None, ending):
        raise UsageError(f"--format {form} contradicts the ending of {where}; drop one of them")
    return ending
