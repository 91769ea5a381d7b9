"""Works for the tests of what runs them; here, so that a worker can import them."""

import logging
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from attncli.corpus.work import Answer, Batch, Done
from attncli.errors import Failure, InputError, LoadError
from attncli.trace.trace import Trace


@dataclass(frozen=True)
class Told:
    """Answers a sentence with its length and the process that counted, and does what some sentences tell it to.

    Attributes:
        folder: of the files that count how often a sentence was done.
        by_sentence: see `Work`.
    """

    folder: Path
    by_sentence: bool = True

    def open(self) -> Done[tuple[int, int]]:
        """Return what answers batches."""
        if (self.folder / "locked").exists():
            raise LoadError("the folder is locked")
        if (self.folder / "deadly").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        return self._done

    def _done(self, batch: Batch) -> Iterator[Answer[tuple[int, int]]]:
        for number, text, _ in batch.sentences:
            if isinstance(text, Failure):
                yield Answer(number, text)
                continue
            logging.getLogger("attncli.told").info("%d is done", number)
            times = self._counted(number)
            what, _, most = text.partition(" ")
            if what == "kill" and times <= int(most):
                os.kill(os.getpid(), signal.SIGKILL)
            if what == "refuse":
                raise InputError(f"sentence {number}: {most}")
            if what == "fail":
                raise OSError(5, most)
            yield Answer(number, (len(text), os.getpid()), (f"said of {number}",))

    def _counted(self, number: int) -> int:
        """Return how often a sentence has been done."""
        path = self.folder / str(number)
        with path.open("ab") as file:
            file.write(b".")
        return path.stat().st_size


@dataclass(frozen=True)
class Written:
    """Answers a sentence with a number of large pieces, which are made as they are asked for."""

    pieces: int
    by_sentence: bool = True

    def open(self) -> Done[Iterator[str]]:
        """Return what answers batches."""
        return lambda batch: (
            Answer(number, (f"{number} " * 50_000 for _ in range(self.pieces))) for number, _, _ in batch.sentences
        )


@dataclass(frozen=True)
class Weights:
    """Makes the weights of a head of every trace."""

    by_sentence: ClassVar[bool] = True

    def __call__(self, batch: Batch, traces: Iterator[tuple[int, Trace | Failure]]) -> Iterator[Answer[dict[str, Any]]]:
        """Yield them; see `Made`."""
        for number, trace in traces:
            if isinstance(trace, Failure):
                yield Answer(number, trace)
            else:
                yield Answer(number, {"weights": trace.layer(0).head(1).weights, "kept": trace.kept})
