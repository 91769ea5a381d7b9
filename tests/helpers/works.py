"""Jobs for the tests of what runs them; here, so that another process can import them."""

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from attncli.corpus.jobs import Batch, BatchFn, Result
from attncli.errors import Failure, InputError, LoadError


@dataclass(frozen=True)
class Obedient:
    """Answers a sentence with its length and the process that counted, and does what some sentences tell it to."""

    folder: Path  # whose file `locked` keeps it from being opened

    def open(self) -> BatchFn[tuple[int, int]]:
        if (self.folder / "locked").exists():
            raise LoadError("the folder is locked")
        return self._results

    def _results(self, batch: Batch) -> Iterator[Result[tuple[int, int]]]:
        for number, text, *_ in batch.sentences:
            if isinstance(text, Failure):
                yield Result(number, text)
                continue
            what, _, rest = text.partition(" ")
            if what == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if what == "refuse":
                raise InputError(f"sentence {number}: {rest}")
            if what == "fail":
                raise OSError(5, rest)
            yield Result(number, (len(text), os.getpid()), (f"said of {number}",))
