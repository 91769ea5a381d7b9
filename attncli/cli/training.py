"""`attn run --every`: run a program, and show the attention of its training over time."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import numpy as np

from attncli.analysis.training import DEFAULT_RULES, HeadHistory, parse_rules
from attncli.cli import options
from attncli.cli.environment import Environment
from attncli.errors import ExitCode, UsageError
from attncli.formats import DATASETS, DRAWN
from attncli.formats.rows import TrainingTable
from attncli.recording.call import METRICS
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
        self, stderr: Environment, output: options.StderrOutput, every: int, warn: str | None, fails: bool
    ) -> None:
        self._history = HeadHistory(rules=DEFAULT_RULES if warn is None else parse_rules(warn))
        self._stderr, self._output, self._every, self._fails = stderr, output, every, fails
        self._form, self.notes = output.chosen(takes_folder=True), Notes()
        if self._form not in {*DATASETS, *DRAWN} or (self._form in DATASETS and output.file is None):
            raise UsageError(f"--every writes {', '.join(DATASETS)} or a picture to a file; give -o stats.jsonl")
        self._file = output.file and output.file.absolute()  # wherever the program goes
        self._meter: StepMeter | None = None
        self._table: TrainingTable | None = None
        self._rank, self._ranks = 0, 1  # of a distributed program

    def watching(self) -> AbstractContextManager[None]:
        """Measure the attention that runs inside."""
        from attncli.recording.training import StepMeter  # when the program has imported torch

        self._meter = StepMeter(self._every, self._add, self.notes)
        return self._meter.watching()

    def _open(self) -> None:
        """Begin the file of this process, which is named by its rank in a distributed program, known by now."""
        self._rank, self._ranks = rank_of_process() or (0, 1)
        if self._file is not None and self._output.folder is not None:
            self._file /= f"rank-{self._rank}.{self._form}"
        elif self._file is not None and self._ranks > 1:
            self._file = self._file.with_suffix(f".rank{self._rank}{self._file.suffix}")
        if self._file is not None and self._form in DATASETS:
            self._table = TrainingTable(self._file, self._form)

    def _add(self, step: int, layers: list[LayerMetrics]) -> None:
        for warning in self._history.add_layers(step, layers):
            self._stderr.note(f"warning: {warning}")
        try:
            if self._history.measured == 1:
                self._open()
            if self._table is not None:
                self._table.add(step, layers, self._rank)
        except OSError as error:
            self._table, self.notes.fault = None, error.with_traceback(None)
            why = error.strerror or error
            self._stderr.note(f"cannot write {visible(str(self._file))}: {why}; the table ends before step {step}")
        if self._stderr.has_live_stderr():  # in the title, as lines of the screen are the program's
            scores, entropies, *_ = self._history.steps[step]
            worst = f"max_score {np.fmax.reduce(scores):.2f} · entropy {np.fmin.reduce(entropies):.2f}"
            sys.stderr.write(f"\x1b]2;step {step:,} · {worst}\a")
            sys.stderr.flush()

    def report(self) -> int:
        """Show the picture, and finish the table; return the exit code that the warnings ask for."""
        history, meter = self._history, self._meter
        steps = "a step of training" if meter is None else plural(meter.steps, meter.unit)
        for note in [*self.notes, *[f"no attention was measured in {steps}"] * (not history.measured)]:
            self._stderr.note(note)
        if meter is not None and history.measured:
            parts = [f"rank {self._rank} of {self._ranks}"] * (self._ranks > 1)
            parts += [f"{history.measured:,} of {steps} measured", plural(len(history.names), "head"), meter.sampling]
            headline = " · ".join(filter(None, parts))
            rows = [("first warnings",), *((warning,) for warning in history.warnings)]
            form = self._form if self._form in DRAWN else "table"
            output = self._output.changed(output=str(self._file) if self._file and self._form in DRAWN else None)
            with output.view(self._stderr, form, "run") as canvas:
                drawn_as = canvas.palette("viridis"), canvas.width, canvas.height
                canvas.show(history_parts(history, METRICS, headline, rows, *drawn_as))
        if self._table is not None:
            self._table.close()
        is_fine = history.measured and not history.warnings and self.notes.fault is None
        return ExitCode.FINDINGS if self._fails and not is_fine else ExitCode.OK
