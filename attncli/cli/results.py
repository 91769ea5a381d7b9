"""What sentences have become: followed by a bar, the bad ones counted and named, warnings said on stderr."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any, Generic

from attncli.cli.environment import Environment, complain
from attncli.cli.progress import ProgressBar
from attncli.corpus.protocol import Result, Value
from attncli.errors import Failure

if TYPE_CHECKING:
    from pathlib import Path

    from typer import Context

    from attncli.trace.tokenization import Choice
    from attncli.trace.view import View

_MAX_WARNINGS = 20  # different ones; a file of sentences may have one for each


class ResultStream(Generic[Value]):
    """The results of a run; it is read once. What works for it ends with the command.

    Args:
        context: of the command.
        environment: that of the run.
        results: of the sentences.
        total: the number of the last sentence, if that is known.
        is_alone: whether there can be one sentence only.
        raises: whether the first bad one ends the run with its error, as the only one does.
        warns_once: whether each warning is said once, and not with the number of each sentence.
        shares_terminal: whether the results are written to the terminal that the bar is on, as they come.
        goes_on: whether the same command goes on where a run is stopped.

    Attributes:
        failures: how many bad ones have come by.
    """

    def __init__(
        self,
        context: Context,
        environment: Environment,
        results: Generator[Result[Value], None, None],
        *,
        total: int | None,
        is_alone: bool,
        raises: bool = False,
        warns_once: bool = False,
        shares_terminal: bool = False,
        goes_on: bool = False,
    ) -> None:
        self.failures = 0
        self._environment, self._is_alone, self._raises = environment, is_alone, raises or is_alone
        self._results, self._warns_once = results, warns_once
        self._bar = ProgressBar(environment, total, shares_terminal, goes_on)
        self._notes: tuple[str, ...] = ()
        self._warnings: set[str] = set()
        context.with_resource(closing(results))
        context.with_resource(self._bar)

    def __iter__(self) -> Iterator[tuple[int, Value | Failure]]:
        """Yield the number and the value of each result, saying on stderr what is wrong with it.

        Raises:
            AttnError: of the first failure's kind, where it ends the run.
        """
        for number, value, warnings, notes in self._bar.track(self._results):
            if isinstance(value, Failure):
                if self._raises:
                    raise value.kind(value.reason if self._is_alone else value.of(number))
                self.failures += 1
                complain(value.of(number))
            if self._warns_once:
                self._warn_once((*notes, *warnings))
            else:
                self._warn(number, warnings, notes)
            yield number, value
        if (more := len(self._warnings) - _MAX_WARNINGS) > 0:
            self._environment.note(f"warning: {more} more of other sentences; attn inspect says them all")

    def values(self) -> Iterator[tuple[int, Value]]:
        """Yield those that are no failures."""
        for number, value in self:
            if not isinstance(value, Failure):
                yield number, value

    def _warn(self, number: int, warnings: tuple[str, ...], notes: tuple[str, ...]) -> None:
        """Say what a sentence is warned of; one among several is named."""
        if notes and notes != self._notes:
            self._notes = notes
            for note in notes:  # of all sentences, whichever came first
                self._environment.note(f"warning: {note}")
        place = "" if self._is_alone else f"sentence {number}: "
        for warning in warnings:
            self._environment.note(f"warning: {place}{warning}")

    def _warn_once(self, warnings: tuple[str, ...]) -> None:
        for warning in warnings:
            if warning not in self._warnings:
                self._warnings.add(warning)
                if len(self._warnings) <= _MAX_WARNINGS:
                    self._environment.note(f"warning: {warning}")


def write_results(
    environment: Environment,
    results: ResultStream[Any],
    shown: View | Choice,
    form: str,
    path: Path | None,
) -> None:
    """Write results that are pieces of a machine format to a file, or to standard output.

    Args:
        environment: of the run.
        results: the pieces of each sentence.
        shown: what of each result is shown, which says what the columns of rows are.
        form: the format.
        path: of the file; see `check_parquet`.

    Raises:
        InputError: the file cannot be written.
        UsageError: the format needs a file, or what writes it is not installed.
    """
    from attncli.formats import STREAMS, joined

    types: Mapping[str, str] = {}
    if form not in ("json", "jsonl"):
        from attncli.formats.columns import types_of  # which imports NumPy

        types = types_of(shown)
    if form == "parquet":
        from attncli.formats.parquet import check_parquet, write_parquet

        write_parquet(results, types, check_parquet(path))
        return
    with environment.output(path, is_stream=form in STREAMS) as stream:
        for piece in joined(form, results, types):
            stream.write(piece)
            stream.flush()
