"""What the commands of `attn mask` write: their formats, and what stderr says of a picture."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

from typer import Option

from attncli.errors import UsageError

Format = Annotated[
    Literal["table", "json"] | None,
    Option("--format", "-F", help="Default: table, or what --output ends in.", rich_help_panel="Output"),
]


def chosen_format(given: str | None, output: Path | None) -> str:
    """Return `table` or `json`."""
    from attncli.formats import choose_format

    chosen = choose_format(given, output)
    if chosen not in ("table", "json"):
        raise UsageError(f"--output {output}: expected a file ending in .json or .txt")
    return chosen


def write(pieces: Iterable[str], path: Path | None) -> None:
    """Write a document to a file, or to standard output."""
    from attncli.terminal import output

    with output(path, is_stream=False) as stream:
        for piece in pieces:
            stream.write(piece)


def complain_of_pooling(pool: tuple[int, int], command: str) -> None:
    """Say on stderr that a picture has fewer cells than the mask."""
    from attncli.terminal import complain

    if pool != (1, 1):
        complain(f"each cell drawn stands for {pool[0]}×{pool[1]}; `attn mask {command} -F json` has all of them")
