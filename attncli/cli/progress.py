"""Progress on a terminal: a line while a model loads, a bar while sentences run.

Both are on stderr, only where that is a terminal, and gone when the work is done; elsewhere they cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from attncli.cli.environment import Environment, listening, stderr_console
from attncli.signals import OnInterrupt
from attncli.text import visible

if TYPE_CHECKING:
    from rich.progress import Progress

    from attncli.corpus.run import Result, Value


@contextmanager
def status(environment: Environment, text: str) -> Iterator[None]:
    """Show a line while the block runs, then the steps of the sources in it; with `--verbose` these are lines."""
    if environment.is_verbose or not environment.has_live_stderr():
        yield
        return
    from rich.text import Text

    line = stderr_console().status(Text(visible(text)))

    def show(message: str, share: float | None) -> None:
        shown = Text(visible(message if share is None else f"{share:4.0%}  {message}"))
        line.update(shown, spinner="dots")  # a spinner has it drawn at once: a step may be over before the next frame

    with OnInterrupt(line.stop), line, listening(show, is_detailed=True):
        yield


class ProgressBar:
    """A progress bar over numbered results, or nothing; where a signal ends the run, stderr has their number.

    Args:
        environment: that of the run.
        total: the number of the last sentence, if that is known.
        shares_terminal: whether the results are written to the terminal that the bar is on; it would be in the way.

    Attributes:
        hint: returns where the results of a run that is stopped are, given how many sentences are done.
    """

    def __init__(self, environment: Environment, total: int | None, shares_terminal: bool) -> None:
        self._environment, self._total, self._count = environment, total, 0
        self.hint: Callable[[int], str] = lambda _: ""
        self.bar: Progress | None = None
        if environment.has_live_stderr() and not shares_terminal and total != 1:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

            columns = BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
            self.bar = Progress(*columns, console=stderr_console(), transient=True, redirect_stdout=False)

    def close(self) -> None:
        """Remove the bar."""
        if self.bar is not None:
            self.bar.stop()

    def track(self, results: Iterable[Result[Value]]) -> Iterator[Result[Value]]:
        """Pass results on; the bar is there from the first one to the last."""
        task, last = None, 0
        with OnInterrupt(self._say_stopped):
            for result in results:
                step = result.number - last if result.number > last else result.number  # another file begins anew
                last, self._count = result.number, self._count + step
                if self.bar is not None:
                    if task is None:
                        self.bar.start()
                        task = self.bar.add_task("", total=self._total)
                    self.bar.advance(task, step)
                yield result
        self.close()

    def _say_stopped(self) -> None:
        self.close()
        hint = self.hint(self._count)
        if (self._count or hint) and self._total != 1:
            of = "" if self._total is None else f" of {self._total:,}"
            stopped = f"stopped after {self._count:,}{of} sentences" if self._count else "stopped"
            self._environment.note("; ".join(filter(None, (stopped, hint))))
