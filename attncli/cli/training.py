"""`attn run --every`: run a program, and show the attention of its training over time."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import numpy as np

from attncli.analysis.training import DEFAULT_RULES, TrainingHistory, parse_rules
from attncli.cli import options
from attncli.cli.environment import Environment, is_accessible, measured_size
from attncli.errors import ExitCode, InputError, UsageError
from attncli.formats import DATASETS, DRAWN
from attncli.formats.rows import TrainingTable
from attncli.recording.notes import Notes
from attncli.recording.run_script import Program, rank_of_process, run_program
from attncli.render.training import training_parts
from attncli.text import plural

if TYPE_CHECKING:
    from attncli.recording.call import LayerMetrics
    from attncli.recording.training import StepMeter

_PAUSE, _LIVE = 0.5, 48  # seconds between two live lines, and the cells of each


class TrainingRun:
    """A program whose heads are measured in each N-th step of its training."""

    def __init__(self, stderr: Environment, output: options.StderrOutput, every: int, warn: str | None) -> None:
        self._history, self._notes = TrainingHistory(DEFAULT_RULES if warn is None else parse_rules(warn)), Notes()
        self._stderr, self._output, self._every = stderr, output, every
        self._form = output.chosen(takes_folder=True)
        self._rank, ranks = rank_of_process() or (0, 1)
        self._of_rank = f"rank {self._rank} of {ranks}: " if ranks > 1 else ""
        self._table: TrainingTable | None = None
        self._meter: StepMeter | None = None
        self._drawn = 0.0  # when the live line was
        if self._form not in {*DATASETS, *DRAWN} or (self._form in DATASETS and output.file is None):
            raise UsageError(f"--every writes {', '.join(DATASETS)} or a picture to a file; give -o stats.jsonl")
        if output.file is not None:
            ending = f".rank{self._rank}{output.file.suffix}" if ranks > 1 else output.file.suffix
            file = output.file.absolute().with_suffix(ending)
            if output.folder is not None:
                file = Path(output.folder) / f"rank-{self._rank}.{self._form}"
            self._output = output.changed(output=str(file))
            self._table = TrainingTable(file, self._form, self._rank) if self._form in DATASETS else None

    def run(self, program: Program, arguments: Sequence[str], steps: int | None, fails: bool) -> int:
        """Run the program, and return the exit code to end with; `fails` makes one of a warning."""
        return run_program(program, arguments, self._watching, lambda: self._report(fails), self._notes, steps)

    def _watching(self) -> AbstractContextManager[None]:
        from attncli.recording.training import StepMeter  # when the program has imported torch

        self._meter = StepMeter(self._every, self._add, self._notes)
        return self._meter.watching()

    def _add(self, step: int, layers: list[LayerMetrics]) -> None:
        lines = [f"warning: {warning}" for warning in self._history.add(step, layers)]
        try:
            if self._table is not None:
                self._table.add(step, layers)
        except InputError as error:
            self._table, lines = None, [*lines, f"{error}; the table ends before step {step}"]
        self._note(lines)
        if self._stderr.has_live_stderr() and not is_accessible() and monotonic() > self._drawn + _PAUSE:
            scores, entropies = np.hstack([layer.values[:2] for layer in layers])
            worst = np.nanmax(scores, initial=-np.inf), np.nanmin(entropies, initial=np.inf)
            text = "step {:,} · max_score {:.2f} · entropy {:.2f}".format(step, *worst)
            # At the right: the output of the program begins at the left.
            column = measured_size(sys.stderr)[0] - _LIVE
            sys.stderr.write(f"\x1b7\x1b[{column}G\x1b[2m{text:>{_LIVE}}\x1b[22m\x1b8")
            sys.stderr.flush()
            self._drawn = monotonic()

    def _note(self, lines: Sequence[str]) -> None:
        if self._drawn and lines:  # the live line may be there
            sys.stderr.write("\x1b[K")
        for line in lines:
            self._stderr.note(f"{self._of_rank}{line}")

    def _report(self, fails: bool) -> int:
        """Finish the table, and show the picture; return the exit code that the warnings ask for."""
        history, meter, output = self._history, self._meter, self._output
        missing = [] if history.measured else ["no attention was measured in a step of training"]
        self._note([*self._notes, *missing])
        if meter is not None and history.measured:
            if self._table is not None:
                self._table.close()
            parts = plural(len(history.sizes), "layer"), plural(len(history.names), "head"), meter.sampling
            of = f"{self._of_rank}{history.measured:,} of {plural(meter.steps, meter.unit)} measured"
            headline = " · ".join(filter(None, (of, *parts)))
            files = [output] if self._form in DRAWN and output.file is not None else []
            for one in [*files, output.changed(output=None)]:
                with one.view(self._stderr, "table" if one.file is None else self._form, "run") as canvas:
                    palette = canvas.palette("viridis")
                    canvas.show(training_parts(history, headline, palette, canvas.width, canvas.height))
        is_wrong = bool(history.warnings or missing) or self._notes.fault is not None
        return ExitCode.FINDINGS if is_wrong and fails else ExitCode.OK
