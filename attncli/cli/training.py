"""`attn run --every`: run a program, and show the attention of its training over time."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import TemporaryFile
from time import monotonic
from typing import TYPE_CHECKING

import numpy as np

from attncli.analysis.training import DEFAULT_RULES, TrainingHistory, parse_rules
from attncli.cli import options
from attncli.cli.environment import Environment, is_accessible
from attncli.errors import ExitCode, InputError, UsageError
from attncli.formats import DATASETS, DRAWN
from attncli.formats.rows import TrainingTable
from attncli.recording.notes import Notes
from attncli.recording.run_script import rank_of_process
from attncli.render.training import training_parts
from attncli.text import plural, visible

if TYPE_CHECKING:
    from attncli.recording.call import LayerMetrics
    from attncli.recording.training import StepMeter

_PAUSE = 0.5  # seconds between two titles of the terminal


class TrainingRun:
    """A program whose heads are measured in each N-th step of its training."""

    def __init__(
        self, stderr: Environment, output: options.OutputOptions, every: int, warn: str | None, fails: bool
    ) -> None:
        self._history, self.notes = TrainingHistory(DEFAULT_RULES if warn is None else parse_rules(warn)), Notes()
        self._stderr, self._output, self._every, self._fails = stderr, output, every, fails
        self._form = output.chosen(takes_folder=True)
        self._table: TrainingTable | None = None
        self._meter: StepMeter | None = None
        self._is_lost = False  # whether rows could not be written
        self._titled = 0.0  # when the terminal got its title
        if self._form not in {*DATASETS, *DRAWN} or (self._form in DATASETS and output.file is None):
            raise UsageError(f"--every writes {', '.join(DATASETS)} or a picture to a file; give -o stats.jsonl")
        self._file = output.file and output.file.absolute()  # wherever the program goes
        self._of_rank = ""  # which rank of a distributed program this is
        if self._file is not None:
            _check_writable(self._file if output.folder is not None else self._file.parent)

    def _open(self) -> None:
        """Begin the file of this process, which is named by its rank where there are several."""
        rank, ranks = rank_of_process() or (0, 1)
        self._of_rank = f"rank {rank} of {ranks}: " if ranks > 1 else ""
        if (file := self._file) is None:
            return
        if self._output.folder is not None:
            file = file / f"rank-{rank}.{self._form}"
        elif ranks > 1:
            file = file.with_suffix(f".rank{rank}{file.suffix}")
        self._file = file
        self._table = TrainingTable(file, self._form, rank) if self._form in DATASETS else None

    def watching(self) -> AbstractContextManager[None]:
        """Measure the attention that runs inside."""
        from attncli.recording.training import StepMeter  # when the program has imported torch

        self._meter = StepMeter(self._every, self._add, self.notes)
        return self._meter.watching()

    def _add(self, step: int, layers: list[LayerMetrics]) -> None:
        lines = [f"warning: {warning}" for warning in self._history.add(step, layers)]
        try:
            if self._history.measured == 1:  # by now a distributed program knows its rank
                self._open()
            if self._table is not None and not self._is_lost:
                self._table.add(step, layers)
        except InputError as error:
            self._is_lost, lines = True, [*lines, f"{error}; the table ends before step {step}"]
        self._note(lines)
        if self._stderr.has_live_stderr() and not is_accessible() and monotonic() > self._titled + _PAUSE:
            scores, entropies = np.hstack([layer.values[:2] for layer in layers])
            worst = np.nanmax(scores, initial=-np.inf), np.nanmin(entropies, initial=np.inf)
            # Lines of the screen are the program's.
            sys.stderr.write("\x1b]2;step {:,} · max_score {:.2f} · entropy {:.2f}\a".format(step, *worst))
            sys.stderr.flush()
            self._titled = monotonic()

    def _note(self, lines: Sequence[str]) -> None:
        for line in lines:
            self._stderr.note(f"{self._of_rank}{line}")

    def report(self) -> int:
        """Finish the table, and show the picture; return the exit code that the warnings ask for."""
        history, meter, notes = self._history, self._meter, [*self.notes]
        if meter is None or not history.measured:
            why = ": an optimizer is there, and made no step" if meter is not None and meter.is_waiting else ""
            self._note([*notes, f"no attention was measured in a step of training{why}"])
            return ExitCode.FINDINGS if self._fails else ExitCode.OK
        try:
            if self._table is not None:
                self._table.close()
        except (InputError, OSError) as error:
            self._is_lost, notes = True, [*notes, f"{error}; the rows are in {self._table and self._table.growing}"]
        self._note(notes)
        of = f"{self._of_rank}{history.measured:,} of {plural(meter.steps, meter.unit)} measured"
        parts = of, plural(len(history.sizes), "layer"), plural(len(history.names), "head"), meter.sampling
        headline = " · ".join(filter(None, parts))
        files = [str(self._file)] if self._form in DRAWN and self._file is not None else []
        for output in [self._output.changed(output=file) for file in (*files, None)]:
            with output.view(self._stderr, "table" if output.file is None else self._form, "run") as canvas:
                palette = canvas.palette("viridis")
                canvas.show(training_parts(history, headline, palette, canvas.width, canvas.height))
        is_wrong = bool(history.warnings) or self._is_lost or self.notes.fault is not None
        return ExitCode.FINDINGS if is_wrong and self._fails else ExitCode.OK


def _check_writable(folder: Path) -> None:
    """Make a folder, and check that files can be made in it; raise InputError where they cannot."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=folder).close()
    except OSError as error:
        raise InputError(f"cannot write {visible(str(folder))}: {error.strerror or error}") from None
