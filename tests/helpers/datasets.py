"""Parts of a dataset for tests, small ones; run as a program, it writes some until it is killed."""

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import attncli.corpus.work
from attncli.corpus.dataset import Tally, dataset
from attncli.corpus.inspecting import Inspected
from attncli.corpus.local import answered
from attncli.corpus.parts import Each, Parts, Receipt, in_parts
from attncli.corpus.tracing import Tracing
from attncli.corpus.work import Answer
from attncli.engines.source import CorpusItem
from attncli.errors import Failure
from attncli.formats.compact import compact_types
from attncli.formats.parquet import CELLS
from attncli.trace.trace import Derivation
from attncli.trace.view import View

SMALL = 64  # sentences of a part
PARTS = [f"part-{file:05}-{part:05}.parquet" for file in range(2) for part in range(3)]  # of 150 sentences a file
_WHOLE = View()
MADE = {"command": "inspect"}


def sentences_of(count: int) -> Iterator[CorpusItem]:
    """Yield sentences of two files, of which some are bad."""
    for file in ("a.txt", "b.txt"):
        for number in range(1, count + 1):
            words = " ".join(f"w{number * k % 11}" for k in range(1, 2 + number % 7))
            text = Failure(f"no text in {file}") if number % 50 == 20 else words
            yield CorpusItem(number, text, {"file": file, "id": number * 10})


def parts_of_toy(folder: Path | str, view: View = _WHOLE, is_compact: bool = True, **options: Any) -> Parts[Any]:
    """Return the work that writes the toy layer's heads into a folder."""
    made = Inspected(Derivation(), view, "compact" if is_compact else "parquet")
    types = compact_types(view) if is_compact else CELLS
    return Parts(Tracing(made, {"layers": "0", "given": "text", **options}), str(folder), partial(Each, types))


def write(
    folder: Path | str,
    count: int = 150,
    jobs: int = 1,
    work: Parts[Any] | None = None,
    made: Any = MADE,
    **options: Any,
) -> tuple[Tally, list[Answer[Receipt | None]]]:
    """Write a dataset, and return what was counted and answered."""
    answers = []
    batches = in_parts(sentences_of(count), ["a.txt", "b.txt"])
    with dataset(str(folder), made) as tally:
        for answer in answered(work or parts_of_toy(folder, **options), batches, jobs):
            answers.append(answer)
            if isinstance(answer.result, Receipt):
                tally.add(answer.result)
    return tally, answers


def files_of(folder: Path) -> dict[str, bytes]:
    """Return what the files of a folder hold, by their names."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def main() -> None:
    """Write a dataset into the folder of the first argument, with as many jobs as the second one says."""
    attncli.corpus.work.PART = SMALL
    write(sys.argv[1], jobs=int(sys.argv[2]))


if __name__ == "__main__":
    main()
