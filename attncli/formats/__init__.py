"""Files: machine formats, written from Traces, and pictures, written from what is drawn; in one registry.

A machine format has two halves, so that many processes can write it. One makes pieces of a sentence's trace, where that
was computed; they are made as they are asked for, so that what is written can be flushed while the next rows are still
being computed. The other joins the pieces of all sentences, and failures, to one text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attncli.errors import UsageError
from attncli.files import is_stream_path
from attncli.text import visible

if TYPE_CHECKING:
    from attncli.errors import Failure
    from attncli.formats.pictures import Drawing
    from attncli.trace.trace import Trace
    from attncli.trace.view import View

    Part = Callable[[int, Trace, View], Iterator[Any]]
    Parts = Iterable[tuple[int, Any | Failure]]
    PictureWriter = Callable[[Sequence[Drawing], str], Iterator[str]]

# name: the function that makes a sentence's part of it, and the one that joins them; the name is also the ending of its
# files. The parts of Parquet are tables, which `parquet.write_parquet` joins to a file.
_WRITERS = {
    "json": ("attncli.formats.json:document", "attncli.formats.answers:write_array"),
    "jsonl": ("attncli.formats.json:document", "attncli.formats.answers:write_each"),
    "tsv": ("attncli.formats.rows:tsv_rows", "attncli.formats.rows:write_tsv"),
    "csv": ("attncli.formats.rows:csv_rows", "attncli.formats.rows:write_csv"),
    "parquet": ("attncli.formats.parquet:tables", ""),
}

# What a terminal shows, as a file to hand to somebody.
_PICTURES = {
    "svg": "attncli.formats.pictures:write_svg",
    "html": "attncli.formats.pictures:write_html",
    "md": "attncli.formats.pictures:write_markdown",
}

MEANINGS = {
    "table": "what a terminal shows, for people; in a pipe without colour, nothing cut (.txt)",
    "json": "one document with a schema, every digit of a float32; several sentences are an array",
    "jsonl": "the same, one document a line, each written as soon as it is ready",
    "tsv": "tidy rows with tabs, the header first: one row a cell, or a head",
    "csv": "the same with commas, quoted where it must be",
    "parquet": "the rows of tsv with types, to a file; needs the extra attncli[parquet]",
    "svg": "the table as a picture",
    "html": "the table as a page; of attn inspect, a page to look around in",
    "md": "the table for a Markdown document",
    "pdf": "of attn inspect, heat maps as a figure for a paper; else the table; needs the extra attncli[figures]",
    "png": "the same in pixels, 300 to an inch",
}
FIGURES = frozenset({"pdf", "png"})  # bytes that are no text
DRAWN = frozenset({"table", *_PICTURES, *FIGURES})
DATASETS = ("parquet", "jsonl", "tsv", "csv")  # what a folder of parts may be of
STREAMS = frozenset({"jsonl", "tsv", "csv"})  # whole lines at any moment, so an interrupted file is still of use

_PIECE = 1_000_000  # characters


def part_of(name: str) -> Part:
    """Return what makes the part of a machine format that is a sentence's."""
    return _found(_WRITERS[name][0])


def joined(name: str, parts: Parts, columns: Iterable[str]) -> Iterator[str]:
    """Yield a text in a machine format, given the parts of its sentences.

    Args:
        name: of the format.
        parts: of each sentence, or why it has none.
        columns: those of rows where no sentence has any.
    """
    join = _found(_WRITERS[name][1])
    return join(parts) if name.startswith("json") else join(parts, columns)


def picture_writer(name: str) -> PictureWriter:
    """Return the writer of what is drawn, other than `table`."""
    return _found(_PICTURES[name])


def _found(place: str) -> Any:
    module, function = place.split(":")
    return getattr(import_module(module), function)


def gathered(pieces: Iterable[str]) -> Iterator[str]:
    """Join small pieces to large ones: each piece that is written is flushed."""
    waiting: list[str] = []
    size = 0
    for piece in pieces:
        waiting.append(piece)
        size += len(piece)
        if size >= _PIECE:
            yield "".join(waiting)
            waiting, size = [], 0
    if waiting:
        yield "".join(waiting)


def choose_format(given: str | None, output: Path | None, choices: Sequence[str], is_folder: bool = False) -> str:
    """Return the format that `--format` and the ending of `--output` agree on; that of a folder is one of `DATASETS`.

    Args:
        given: `--format`, if it was given.
        output: `--output`, if it was given.
        choices: what the command writes; `table` is among them, in files that end in .txt.
        is_folder: whether that is a folder of parts.

    Raises:
        UsageError: they contradict each other, or the ending is unknown.
    """
    if output is None or (not output.suffix and is_stream_path(output)):
        return given or "table"
    if is_folder:
        if given not in (None, *DATASETS):
            raise UsageError(f"--format {given} does not apply to a folder, whose parts are {', '.join(DATASETS)}")
        return given or "parquet"
    ending = output.suffix.lower().removeprefix(".")
    by_ending = "table" if ending == "txt" else ending
    if by_ending not in choices:
        *most, last = (f".{name}" for name in (*(name for name in choices if name != "table"), "txt"))
        raise UsageError(f"--output {visible(str(output))}: expected a file ending in {', '.join(most)} or {last}")
    if given not in (None, by_ending):
        raise UsageError(
            f"--format {given} contradicts the ending of --output {visible(str(output))}; drop one of them"
        )
    return by_ending
