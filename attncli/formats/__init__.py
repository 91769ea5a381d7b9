"""Machine formats: writers over Traces, in one registry.

A writer is a function from numbered traces to pieces of text; it is a generator, so what it has written can be
flushed while the next rows, or the next sentence, are still being computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from attncli.errors import UsageError
from attncli.tokens import visible

if TYPE_CHECKING:
    from attncli.trace import Trace
    from attncli.view import View

    Writer = Callable[[Iterable[tuple[int, Trace]], View], Iterator[str]]

# name: the function that writes it; the name is also the ending of its files
_WRITERS = {
    "json": "attncli.formats.json:write_json",
    "jsonl": "attncli.formats.json:write_lines",
    "tsv": "attncli.formats.tsv:write_tsv",
    "csv": "attncli.formats.tsv:write_csv",
}

FORMATS = ("table", *_WRITERS)
STREAMS = frozenset({"jsonl", "tsv", "csv"})  # whole lines at any moment, so an interrupted file is still of use

_PIECE = 1_000_000  # characters


def writer(name: str) -> Writer:
    """Return the writer of a format other than `table`."""
    module, function = _WRITERS[name].split(":")
    return getattr(import_module(module), function)


def gathered(pieces: Iterable[str]) -> Iterator[str]:
    """Join small pieces, each of which would be flushed by itself, to large ones; one sentence is often one of them."""
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


def choose_format(given: str | None, output: Path | None) -> str:
    """Return the format that `--format` and the ending of `--output` agree on.

    Raises:
        UsageError: they contradict each other, or the ending is unknown.
    """
    if output is None:
        return given or "table"
    ending = output.suffix.lower().removeprefix(".")
    by_ending = "table" if ending == "txt" else ending
    if by_ending not in FORMATS:
        endings = ", ".join(f".{name}" for name in (*_WRITERS, "txt"))
        raise UsageError(f"--output {visible(str(output))}: expected a file ending in {endings}")
    if given not in (None, by_ending):
        raise UsageError(
            f"--format {given} contradicts the ending of --output {visible(str(output))}; drop one of them"
        )
    return by_ending


def choose_document(given: str | None, output: Path | None, formats: tuple[str, ...] = ("table", "json")) -> str:
    """Return one of the formats of what is no trace; without rows these are `table` and `json`.

    Raises:
        UsageError: `--format` and the ending of `--output` contradict each other, or the ending is another one.
    """
    chosen = choose_format(given, output)
    if chosen not in formats:
        *endings, last = (f".{name}" for name in (*formats[1:], "txt"))
        raise UsageError(f"--output {visible(str(output))}: expected a file ending in {', '.join(endings)} or {last}")
    return chosen
