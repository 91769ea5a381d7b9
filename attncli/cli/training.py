"""`attn run --every`: run a program, and show the attention of its training over time."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console

from attncli.analysis.training import DEFAULT_RULES, HeadHistory, parse_rules
from attncli.cli import options
from attncli.cli.environment import Environment
from attncli.errors import ExitCode, UsageError
from attncli.formats import DATASETS, DRAWN
from attncli.formats.rows import TrainingTable
from attncli.recording.notes import Notes
from attncli.recording.run_script import rank_of_process
from attncli.render.training import history_parts
from attncli.text import plural, visible

if TYPE_CHECKING:
    from attncli.recording.call import LayerMetrics
    from attncli.recording.training import StepMeter


class TrainingRun:
    """A program whose heads are measured in each N-th step of its training."""

    def __init__(
        self, stderr: Environment, output: options.OutputOptions, every: int, warn: str | None, fails: bool
    ) -> None:
        self._history = HeadHistory(rules=DEFAULT_RULES if warn is None else parse_rules(warn))
        self._stderr, self._every, self._fails = stderr, every, fails
        self._form, self._is_folder, self.notes = output.chosen(takes_folder=True), bool(output.folder), Notes()
        if self._form not in {*DATASETS, *DRAWN} or (self._form in DATASETS and output.file is None):
            raise UsageError(f"--every writes {', '.join(DATASETS)} or a picture to a file; give -o stats.jsonl")
        self._meter: StepMeter | None = None
        self._output = output.changed(output=output.file and str(output.file.absolute()))  # wherever the program goes

    def watching(self) -> AbstractContextManager[None]:
        """Measure the attention that runs inside."""
        from attncli.recording.training import StepMeter  # when the program has imported torch

        self._meter = StepMeter(self._every, self._add, self.notes)
        return self._meter.watching()

    @cached_property
    def _rank(self) -> tuple[int, int]:
        return rank_of_process() or (0, 1)  # which a distributed program knows when it trains

    @cached_property
    def _table(self) -> TrainingTable | None:
        if self._form not in DATASETS or (file := self._output.file) is None:
            return None
        return TrainingTable(file, self._form, self._is_folder, *self._rank)

    def _add(self, step: int, layers: list[LayerMetrics]) -> None:
        for warning in self._history.add_layers(step, layers):
            self._stderr.note(f"warning: {warning}")
        try:
            if self._table is not None:
                self._table.add(step, layers)
        except OSError as error:
            self._table, self.notes.fault = None, error.with_traceback(None)
            where = f"cannot write {visible(str(self._output.output))}: {error.strerror or error}"
            self._stderr.note(f"{where}; the table ends before step {step}")
        if self._stderr.has_live_stderr():  # in the title, as lines of the screen are the program's
            scores, entropies, *_ = self._history.steps[step]
            worst = f"max_score {np.fmax.reduce(scores):.2f} · entropy {np.fmin.reduce(entropies):.2f}"
            Console(stderr=True).set_window_title(f"step {step:,} · {worst}")

    def report(self) -> int:
        """Show the picture, and finish the table; return the exit code that the warnings ask for."""
        history, meter = self._history, self._meter
        steps = "a step of training" if meter is None else plural(meter.steps, meter.unit)
        for note in [*self.notes, *[f"no attention was measured in {steps}"] * (not history.measured)]:
            self._stderr.note(note)
        if meter is not None and history.measured and self._rank[0] == 0:
            heads = plural(len(history.names), "head")
            sampling = f"means over 1 of {meter.stride} query rows" if meter.stride > 1 else ""
            headline = " · ".join(filter(None, (f"{history.measured:,} of {steps} measured", heads, sampling)))
            output = self._output if self._form in DRAWN else self._output.changed(output=None, format_=None)
            with output.view(self._stderr, output.chosen(), "run") as canvas:
                rows = [("first warnings",), *((warning,) for warning in history.warnings)]
                drawn_as = canvas.palette("viridis"), canvas.width, canvas.height
                canvas.show(history_parts(history, headline, rows, *drawn_as))
        if history.measured and self._table is not None:
            self._table.close()
        is_fine = history.measured and not history.warnings and self.notes.fault is None
        return ExitCode.FINDINGS if self._fails and not is_fine else ExitCode.OK
