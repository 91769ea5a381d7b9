"""`attn run --every`: run a program, and show the attention of its training over time."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from time import monotonic
from typing import TYPE_CHECKING

from attncli.analysis.calls.calls import rank_of_process
from attncli.analysis.calls.expectations import matches
from attncli.analysis.training import DEFAULT_RULES, TrainingHistory, parse_rules
from attncli.cli import options
from attncli.cli.environment import Environment, print_error
from attncli.cli.terminal import is_accessible
from attncli.errors import AttnError, ExitCode, InputError, UsageError
from attncli.formats import DATASETS, DRAWN
from attncli.formats.training import TrainingTable
from attncli.recording.notes import Notes, described
from attncli.recording.run_script import Program, run_program
from attncli.render.training import training_parts
from attncli.text import plural

if TYPE_CHECKING:
    from attncli.recording.head_metrics import LayerMetrics
    from attncli.recording.training import StepMeter

_PAUSE = 0.5  # seconds between two live lines
_MOST_LINES = 4  # of warnings in a step


class TrainingRun:
    """A program whose attention is measured in each N-th step of its training.

    Args:
        stderr: takes the live line, warnings and the picture.
        output: the options of the file.
        every: N.
        warn: the rules of warnings; None is the usual ones.
        is_failing: whether a warning is an exit code.
        place: a pattern of the places that are measured.

    Raises:
        UsageError: the rules or the format do not exist.
        InputError: the file cannot be written.
    """

    def __init__(
        self, stderr: Environment, output: options.StderrOutput, every: int, warn: str | None, is_failing: bool,
        place: str | None,
    ) -> None:  # fmt: skip
        self._rules = DEFAULT_RULES if warn is None else parse_rules(warn)
        self._stderr, self._output, self._every = stderr, output, every
        self._is_failing, self._place = is_failing, place
        self._form, self._rank = output.chosen(takes_folder=True), rank_of_process()
        if self._form not in {*DATASETS, *DRAWN}:
            raise UsageError(
                f"--every writes a table as {', '.join(DATASETS)}, or a picture; drop --format {self._form}"
            )
        self._table: TrainingTable | None = None
        if self._form in DATASETS:
            if output.file is None:
                raise UsageError(f"--format {self._form} grows in a file; give -o stats.{self._form}")
            rank = None if self._rank is None else self._rank[0]
            self._table = TrainingTable(output.file.absolute(), self._form, rank, output.folder is not None)
        self._history, self._notes = TrainingHistory(self._rules), Notes()
        self._meter: StepMeter | None = None
        self._drawn, self._has_line = -_PAUSE, False

    def run(self, program: Program, arguments: Sequence[str], steps: int | None) -> int:
        """Run the program, and return the exit code to end with."""
        return run_program(program, arguments, self._watching, self._report, self._notes, steps)

    def _watching(self) -> AbstractContextManager[None]:
        from attncli.recording.training import StepMeter  # when the program has imported torch

        pattern = self._place
        self._meter = StepMeter(
            self._every, self._add, self._restart, lambda site: pattern is None or matches(site, pattern), self._notes
        )
        return self._meter.watching()

    def _add(self, step: int, layers: list[LayerMetrics]) -> None:
        warnings = self._history.add(step, layers)
        if self._table is not None:
            try:
                self._table.add(step, layers)
            except InputError as error:
                self._note(f"{error}; the table ends before step {step}")
                self._table = None
        for warning in warnings[:_MOST_LINES]:
            self._note(f"warning: {warning}")
        if len(warnings) > _MOST_LINES:
            self._note(f"warning: step {step}: {plural(len(warnings) - _MOST_LINES, 'more layer')}")
        self._draw_line(step, layers)

    def _restart(self) -> None:
        self._history = TrainingHistory(self._rules)
        if self._table is not None:
            self._table.restart()

    def _note(self, message: str) -> None:
        self._clear_line()
        self._stderr.note(message)

    def _draw_line(self, step: int, layers: list[LayerMetrics]) -> None:
        """Show the step, its largest score and its lowest entropy in a line that the next output overwrites."""
        if not self._stderr.has_live_stderr() or is_accessible() or monotonic() < self._drawn + _PAUSE:
            return
        self._drawn, self._has_line = monotonic(), True
        texts = [f"step {step}"]
        for column, name, choose in ((0, "max_score", max), (1, "lowest entropy", min)):
            found = [
                (float(value), f"L{layer.layer}H{head}")
                for layer in layers
                for head, value in enumerate(layer.values[column])
                if value == value
            ]
            texts += ["{} {:.2f} ({})".format(name, *choose(found))] if found else []
        sys.stderr.write(f"\r\x1b[2K{' · '.join(texts)[:78]}\r")
        sys.stderr.flush()

    def _clear_line(self) -> None:
        if self._has_line:
            sys.stderr.write("\x1b[2K")
            self._has_line = False

    def _report(self) -> int:
        """Finish the table, and show the picture; return the exit code that the warnings ask for."""
        is_measured = self._history.measured > 0
        try:
            self._clear_line()
            for note in [*self._notes, *self._missing()]:
                self._stderr.note(note)
            if self._table is not None:
                self._table.close()
            if is_measured:
                self._show("table", None)
                if self._output.file is not None and self._form in DRAWN:
                    self._show(self._form, self._output)
        except AttnError as error:
            print_error(str(error))
            return error.exit_code
        except Exception as fault:
            with suppress(Exception):  # the program may have closed standard error
                print_error(f"the picture cannot be shown: {described(fault)}")
            return ExitCode.FINDINGS if self._is_failing else ExitCode.OK
        is_wrong = bool(self._history.warnings) or not is_measured or self._notes.fault is not None
        return ExitCode.FINDINGS if is_wrong and self._is_failing else ExitCode.OK

    def _show(self, form: str, output: options.StderrOutput | None) -> None:
        options = self._output.changed(output=None) if output is None else output
        with options.view(self._stderr, form, "run") as canvas:
            palette = canvas.palette("viridis")
            canvas.show(training_parts(self._history, self._headline(), palette, canvas.width, canvas.height))

    def _headline(self) -> str:
        history, meter = self._history, self._meter
        assert meter is not None
        of_rank = "" if self._rank is None else "rank {} of {} · ".format(*self._rank)
        sampled = f" · {meter.sampled}" if meter.is_sampled else ""
        return (
            f"{of_rank}{plural(len(history.layers), 'layer')}, {plural(len(history.heads), 'head')} · "
            f"{history.measured:,} of {plural(meter.steps, meter.unit or 'step')} measured{sampled}"
        )

    def _missing(self) -> list[str]:
        """Return why nothing was measured."""
        if self._history.measured:
            return []
        if self._meter is None:
            return ["no attention was measured: the program did not import torch"]
        return [f"no attention was measured in {plural(self._meter.steps, self._meter.unit or 'step')} of training"]
