"""Files: machine formats of Traces, and pictures of views, in one registry.

A machine format has two halves, so that many processes can write it. One encodes a sentence's trace in pieces, in the
process that computed it, on demand, so that written ones are flushed while the next rows are being computed. The other
joins the pieces of all sentences, and failures, to one text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from attncli.errors import UsageError
from attncli.text import did_you_mean, visible

if TYPE_CHECKING:
    from attncli.analysis.ablation import Ablation
    from attncli.formats.json_stream import Parts
    from attncli.formats.pictures import Drawing
    from attncli.trace.tokenization import Tokenization
    from attncli.trace.trace import Trace

    PictureWriter = Callable[[Sequence[Drawing], str], Iterator[str]]


class Format(NamedTuple):
    """Properties of a format."""

    name: str  # of it, which is also the ending of its files; `table` ends in .txt
    meaning: str  # description for users
    draws: str = ""  # function that writes the drawn view; empty is none
    is_drawn: bool = False  # whether it shows the view of a terminal
    is_text: bool = True  # whether the drawn form is text
    is_stream: bool = False  # whether it is whole lines at any moment, so that an interrupted file is still of use
    is_part: bool = False  # whether a folder of parts may be of it


_picture, _figure = partial(Format, is_drawn=True), partial(Format, is_drawn=True, is_text=False)
_lines = partial(Format, is_stream=True, is_part=True)
FORMATS = (
    _picture("table", "what a terminal shows, for people; in a pipe without colour, nothing cut (.txt)"),
    Format("json", "one document with a schema, every digit of a float32; several sentences are an array"),
    _lines("jsonl", "the same, one document a line, each written as soon as it is ready"),
    _lines("tsv", "tidy rows with tabs, the header first: one row a cell, or a head"),
    _lines("csv", "the same with commas, quoted where it must be"),
    Format("parquet", "the rows of tsv with types, to a file; needs pyarrow", is_part=True),
    _picture("svg", "the table as a picture", "write_svg"),
    _picture("html", "the table as a page; of attn inspect, an interactive page", "write_html"),
    _picture("md", "the table for a Markdown document", "write_markdown"),
    _figure("pdf", "of attn inspect a figure of the maps, else the table; needs matplotlib"),
    _figure("png", "the same in pixels, 300 to an inch"),
)
MEANINGS = {each.name: each.meaning for each in FORMATS}
FIGURES = frozenset(each.name for each in FORMATS if each.is_drawn and not each.is_text)
DRAWN = frozenset(each.name for each in FORMATS if each.is_drawn)
DATASETS = ("parquet", *(each.name for each in FORMATS if each.is_part and each.is_stream))
STREAMS = frozenset(each.name for each in FORMATS if each.is_stream)


def part_of(form: str, number: int, result: Trace | Tokenization | Ablation, shown: Any) -> Iterator[Any]:
    """Return the pieces of a machine format that are a sentence's: texts, or tables of Parquet."""
    if form in ("json", "jsonl"):
        from attncli.trace.tokenization import Tokenization
        from attncli.trace.trace import Trace

        if isinstance(result, Tokenization):
            from attncli.formats.documents import tokens_document

            return tokens_document(number, result, shown)
        if not isinstance(result, Trace):
            from attncli.formats.documents import ablation_document

            return ablation_document(number, result, shown.precision)
        from attncli.formats import json

        return json.document(number, result, shown)
    from attncli.formats.columns import table_of

    table = table_of(number, result, shown)
    if form == "parquet":
        from attncli.formats.parquet import arrow_tables

        return arrow_tables(table)
    from attncli.formats.rows import table_rows

    return table_rows(table, form, getattr(shown, "precision", None))


def joined(form: str, parts: Parts, types: Mapping[str, str]) -> Iterator[str]:
    """Yield a text in a machine format, given the parts of its sentences.

    Where no sentence has rows, `types` are their columns.
    """
    if form in ("json", "jsonl"):
        from attncli.formats.json_stream import write_array, write_each

        return write_array(parts) if form == "json" else write_each(parts)
    from attncli.formats.rows import joined_rows

    return joined_rows(parts, types, form)


def picture_writer(form: str) -> PictureWriter:
    """Return the writer of drawn views in a form other than `table`."""
    (draws,) = (each.draws for each in FORMATS if each.name == form)
    return getattr(import_module("attncli.formats.pictures"), draws)


def choose_format(form: str | None, output: Path | None, choices: Sequence[str], is_folder: bool = False) -> str:
    """Return the format that `--format` and the ending of `--output` agree on; that of a folder is one of `DATASETS`.

    Args:
        form: `--format`, if it was given.
        output: `--output`, if it was given.
        choices: the formats of the command; `table` is among them, in files that end in .txt.
        is_folder: whether that is a folder of parts.

    Raises:
        UsageError: they contradict each other, or the ending is unknown.
    """
    from attncli.files import is_stream_path

    if output is None or (not output.suffix and is_stream_path(output)):
        return form or "table"
    if is_folder:
        if form not in (None, *DATASETS):
            raise UsageError(f"--format {form} does not apply to a folder, whose parts are {', '.join(DATASETS)}")
        return form or "parquet"
    ending = output.suffix.lower().removeprefix(".")
    by_ending = "table" if ending == "txt" else ending
    if by_ending not in choices:
        *most, last = (f".{name}" for name in (*(name for name in choices if name != "table"), "txt"))
        expected = f"expected a file ending in {', '.join(most)} or {last}{did_you_mean(by_ending, choices)}"
        raise UsageError(f"--output {visible(str(output))}: {expected}")
    if form not in (None, by_ending):
        raise UsageError(f"--format {form} contradicts the ending of --output {visible(str(output))}; drop one of them")
    return by_ending
