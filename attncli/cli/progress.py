"""What a person at a terminal sees while the program works: a line while a model loads, a bar while sentences run.

Both are on stderr, only where that is a terminal, and gone when the work is done; elsewhere they cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from attncli.cli.environment import Environment, Stderr, listening, stderr_console
from attncli.signals import OnInterrupt
from attncli.text import visible

if TYPE_CHECKING:
    from rich.progress import Progress

_BAR_WIDTH = 30  # cells

Answer = TypeVar("Answer")


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

    def show(said: str, share: float | None) -> None:
        shown = Table.grid(padding=(0, 1))
        bar = () if share is None else (ProgressBar(1, share, _BAR_WIDTH),)
        shown.add_row(*bar, Text(visible(said)))
        spinner.update(text=shown)
        line.refresh()  # at once: a step may be over before the next frame

    with OnInterrupt(line.stop), line, listening(show, is_detailed=True):
        yield


class Following:
    """A bar that follows numbered answers, or nothing; a context that takes it away whatever happens.

    Args:
        environment: that of the run.
        total: the number of the last sentence, if that is known.
        shares_terminal: whether the answers are written to the terminal that the bar is on; it would be in the way.
    """

    def __init__(self, environment: Environment, total: int | None, shares_terminal: bool) -> None:
        is_shown = environment.use_of_stderr() is not Stderr.ABSENT and not shares_terminal
        self._total = total
        self._bar: Progress | None = _bar() if is_shown and total != 1 else None

    def __enter__(self) -> Following:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def follow(self, numbered: Iterable[tuple[int, Answer]]) -> Iterator[tuple[int, Answer]]:
        """Pass numbered answers on; the bar is there from the first one to the last."""
        if self._bar is None:
            yield from numbered
            return
        task, last = None, 0
        with OnInterrupt(self._bar.stop):  # a Ctrl-C takes it away
            for number, answer in numbered:
                if task is None:
                    self._bar.start()
                    task, last = self._bar.add_task("", total=self._total, completed=number - 1), number - 1
                self._bar.advance(task, number - last if number > last else number)  # another file begins anew
                last = number
                yield number, answer
        self._bar.stop()


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
