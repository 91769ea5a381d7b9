"""What a person at a terminal sees while the program works: a line while a model loads, a bar while sentences run.

Both are on stderr, only where that is a terminal, and gone when the work is done; elsewhere they cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from attncli.cli.environment import Environment, Stderr, listening, stderr_console
from attncli.signals import OnInterrupt
from attncli.text import visible

if TYPE_CHECKING:
    from rich.progress import Progress

    from attncli.corpus.protocol import Result, Value

_BAR_WIDTH = 30  # cells


@contextmanager
def status(environment: Environment, text: str) -> Iterator[None]:
    """Show a line while the block runs, which then says what the sources do."""
    if environment.use_of_stderr() is not Stderr.WATCHED:
        yield
        return
    from rich.live import Live
    from rich.progress_bar import ProgressBar
    from rich.spinner import Spinner
    from rich.table import Table
    from rich.text import Text

    spinner = Spinner("dots", Text(visible(text)), style="status.spinner")
    line = Live(spinner, console=stderr_console(), transient=True, refresh_per_second=12.5)

    def show(message: str, share: float | None) -> None:
        shown = Table.grid(padding=(0, 1))
        bar = () if share is None else (ProgressBar(1, share, _BAR_WIDTH),)
        shown.add_row(*bar, Text(visible(message)))
        spinner.update(text=shown)
        line.refresh()  # at once: a step may be over before the next frame

    with OnInterrupt(line.stop), line, listening(show, is_detailed=True):
        yield


class ProgressBar:
    """A bar that follows numbered results, or nothing; a context that takes it away whatever happens.

    Where a signal ends the run, stderr says how far it came.

    Args:
        environment: that of the run.
        total: the number of the last sentence, if that is known.
        shares_terminal: whether the results are written to the terminal that the bar is on; it would be in the way.
        goes_on: whether the same command goes on where a run is stopped.
    """

    def __init__(self, environment: Environment, total: int | None, shares_terminal: bool, goes_on: bool) -> None:
        is_shown = environment.use_of_stderr() is not Stderr.ABSENT and not shares_terminal
        self._environment, self._total, self._goes_on = environment, total, goes_on
        self._bar: Progress | None = _bar() if is_shown and total != 1 else None
        self._count = 0

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def track(self, results: Iterable[Result[Value]]) -> Iterator[Result[Value]]:
        """Pass results on; the bar is there from the first one to the last."""
        task, last = None, 0
        with OnInterrupt(self._say_stopped):
            for result in results:
                number = result.number
                step = number - last if number > last else number  # another file begins anew
                if self._bar is not None:
                    if task is None:
                        self._bar.start()
                        task = self._bar.add_task("", total=self._total)
                    self._bar.advance(task, step)
                last, self._count = number, self._count + step
                yield result
        self.__exit__()

    def _say_stopped(self) -> None:
        """Take the bar away, and say how far the run came."""
        self.__exit__()
        if self._count and self._total != 1:
            of = "" if self._total is None else f" of {self._total:,}"
            hint = "; the same command goes on" if self._goes_on else ""
            self._environment.note(f"stopped after {self._count:,}{of} sentences{hint}")


def _bar() -> Progress:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TimeRemainingColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(f"{task.speed:.1f} sentences/s" if task.speed else "")

    return Progress(
        BarColumn(),
        MofNCompleteColumn(),
        Rate(),
        TimeRemainingColumn(),
        console=stderr_console(),
        transient=True,
        redirect_stdout=False,  # it is data
    )
