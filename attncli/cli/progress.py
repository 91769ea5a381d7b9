"""Progress on a terminal: a line while a model loads, a bar while sentences run.

Both are on stderr, only where that is a terminal, and gone when the work is done; elsewhere they cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from attncli.cli.environment import Environment, listening, stderr_console
from attncli.signals import OnInterrupt
from attncli.text import visible

if TYPE_CHECKING:
    from rich.progress import Progress


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
    """Progress bar over numbered results; hidden it only counts them.

    Args:
        total: the number of the last sentence, if that is known.
        is_hidden: whether a bar would be in the way.
    """

    def __init__(self, total: int | None, is_hidden: bool) -> None:
        self._total, self._last, self.count = total, 0, 0
        self._bar: Progress | None = None
        if not is_hidden and total != 1:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

            columns = BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
            self._bar = Progress(*columns, console=stderr_console(), transient=True, redirect_stdout=False)

    def advance(self, number: int) -> None:
        """Count a result; the bar is there from the first one on."""
        step = number - self._last if number > self._last else number  # another file begins anew
        self._last, self.count = number, self.count + step
        if self._bar is not None:
            if not self._bar.tasks:
                self._bar.start()
                self._bar.add_task("", total=self._total)
            self._bar.advance(self._bar.tasks[0].id, step)

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()

    def stopped(self, hint: str) -> str:
        """Return a note on a run that a signal stops, with a hint at its results; empty without results."""
        if not (self.count or hint) or self._total == 1:
            return ""
        of = "" if self._total is None else f" of {self._total:,}"
        count = f"stopped after {self.count:,}{of} sentences" if self.count else "stopped"
        return "; ".join(filter(None, (count, hint)))
