"""`attn run` without `--every`: run a program, and show its calls of attention, or what is proved of its models."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from attncli.analysis.calls import watching_all
from attncli.analysis.calls.calls import Calls
from attncli.analysis.calls.steps import MASK_CODES
from attncli.analysis.prove import Prover
from attncli.cli import options
from attncli.cli.environment import Environment, print_error
from attncli.errors import AttnError, ExitCode, InputError, LoadError, UsageError, require
from attncli.recording.notes import described
from attncli.text import plural, visible

if TYPE_CHECKING:
    from attncli.analysis.calls.groups import CallGroup
    from attncli.masks.findings import Finding


class CallRun:
    """A program whose calls of attention are checked."""

    def __init__(
        self,
        stderr: Environment,
        output: options.OutputOptions,
        expect: list[str],
        place: str | None,
        save: Path | None,
        no_fail: bool,
        again: str,
    ) -> None:
        self._stderr, self._form, self._output = stderr, *_opened(output)
        self._expects, self._no_fail, self._again, self._shown_folder = bool(expect), no_fail, again, save
        self._calls = Calls(expect or None, place, is_kept=save is not None)
        self._folder = None if save is None else _trace_folder(save)
        self._calls.start()
        self.notes, self.watching = self._calls.notes, partial(watching_all, self._calls)

    def report(self) -> int:
        """Show the calls, and return the exit code that they ask for."""
        code = _guarded(self._show, ExitCode.FINDINGS if self._expects else ExitCode.OK)
        return ExitCode.OK if code == ExitCode.FINDINGS and self._no_fail else code

    def _show(self) -> int:
        calls = self._calls
        calls.finish()
        unused = calls.unused
        calls.notes += unused
        self._stderr.note(*calls.notes, *_left_out(calls))
        self._write()
        if self._folder is not None:
            self._save(self._folder)
        is_wrong = any(finding.severity == "error" for finding in calls.findings)
        # What is expected and could not be looked at is not as expected.
        is_missed = bool(unused) or not calls.calls or calls.notes.fault is not None
        return ExitCode.FINDINGS if is_wrong or (self._expects and is_missed) else ExitCode.OK

    def _write(self) -> None:
        calls, stderr, file = self._calls, self._stderr, self._output.file
        if self._form != "table":
            from attncli.formats.documents import write_calls

            stderr.write([write_calls(calls)], file)
            return
        from attncli.render.calls import calls_parts

        with self._output.view(stderr, self._form, "run") as canvas:
            canvas.show(calls_parts(calls, canvas.palette("viridis"), canvas.width, self._commands, canvas.height))

    def _commands(self, row: CallGroup, finding: Finding) -> list[str]:
        """Return the commands that save the first call of a row and show what a finding is about."""
        rows, first = list(self._calls.rows), []
        if self._shown_folder is None:
            rows = [group for group in rows if str(group.place) == str(row.place)]
            first = [f"attn run --place {shlex.quote(str(row.place))} --save calls {self._again}"]
        index = row.tracks[0].padded_row if finding.comparison is None else finding.comparison.batch_row
        file = shlex.quote(str(_trace_file(self._shown_folder or Path("calls"), rows, row, index)))
        is_of_mask = finding.code in (*MASK_CODES, "not checked")
        return [*first, f"attn {'mask show' if is_of_mask else 'inspect'} --from {file}"]

    def _save(self, folder: Path) -> None:
        """Save the traces of every row, in the order of the table."""
        rows = self._calls.rows
        for row in rows:
            try:
                traces = row.traces
            except AttnError as error:
                self._stderr.note(f"{row.place} is not saved: {error}")
                continue
            for index, trace in enumerate(traces):
                trace.save(_trace_file(folder, rows, row, index))


class ProofRun:
    """A program whose models are run again with other inputs."""

    def __init__(
        self, stderr: Environment, output: options.OutputOptions, claim: str, lengths: list[int] | None, no_fail: bool
    ) -> None:
        self._stderr, self._form, self._output, self._no_fail = stderr, *_opened(output), no_fail
        self._prover = Prover(claim, lengths)
        self.notes, self.watching = self._prover.notes, self._prover.watching

    def report(self) -> int:
        """Show what was proved, and return the exit code that it asks for."""
        return _guarded(self._show, ExitCode.OK)

    def _show(self) -> int:
        prover, stderr = self._prover, self._stderr
        stderr.note(*prover.notes)
        if not prover.proofs and not prover.notes:
            ran_none = "nothing is proved: no torch module with attention ran in the main thread"
            stderr.note(_without_torch() or ran_none)
        if prover.left_out:
            stderr.note(f"not proved: {plural(prover.left_out, 'later forward')} that may differ")
        if self._form == "json":
            from attncli.formats.documents import write_proofs

            stderr.write([write_proofs(prover.proofs)], self._output.file)
        else:
            from attncli.render.findings import proof_parts

            with self._output.view(stderr, self._form, "run") as canvas:
                for proof in prover.proofs:
                    canvas.show(proof_parts(proof, canvas.width))
        is_proved = bool(prover.proofs) and all(proof.is_proved for proof in prover.proofs) and not prover.notes
        return ExitCode.OK if is_proved or self._no_fail else ExitCode.FINDINGS


def _opened(output: options.OutputOptions) -> tuple[str, options.OutputOptions]:
    """Return the format of what is shown, and the output, whose file stays where it is if the program changes folders.

    Its writers are imported before the program's folder comes first on the path.

    Raises:
        UsageError: it is one of attention over training.
    """
    for name in ("formats.documents", "render.calls", "render.findings"):
        import_module(f"attncli.{name}")
    form = output.chosen()
    if form not in ("table", "json"):
        raise UsageError(f"{form} is a format of attention over training; give --every N, or -F json")
    return form, output.changed(output=None if output.file is None else str(output.file.absolute()))


def _trace_folder(save: Path) -> Path:
    """Make the folder of traces, and return its absolute path. Raises InputError: it cannot be made."""
    try:
        save.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = "a file; --save takes a folder" if save.is_file() else error.strerror or error
        raise InputError(f"--save {visible(str(save))}: {why}") from None
    return save.absolute()


def _guarded(show: Callable[[], int], after_fault: int) -> int:
    """Return the exit code of a report; one after a fault of ours, which is printed."""
    try:
        return show()
    except AttnError as error:
        print_error(str(error))
        return error.exit_code
    except Exception as fault:
        with suppress(Exception):  # the program may have closed standard error
            print_error(f"the table cannot be shown: {described(fault)}")
        return after_fault


def _left_out(calls: Calls) -> list[str]:
    """Return what the table does not say."""
    if calls.calls:
        return []
    if calls.left_out:
        elsewhere = f"{plural(calls.left_out, 'call')} ran elsewhere; leave --place out to list them"
        return [f"no attention ran at the places of --place. {elsewhere}"]
    from attncli.recording.call import LOOKED_FOR

    return [_without_torch() or f"no attention was seen. attn looks for {LOOKED_FOR}"]


def _without_torch() -> str:
    """Return that the Python which runs the program has no torch; nothing where it has."""
    try:
        require("attn run", "torch")
    except LoadError as error:
        return str(error)
    return ""


def _trace_file(folder: Path, rows: Sequence[CallGroup], row: CallGroup, index: int) -> Path:
    """Return where the trace of a batch row is saved, by the number of its place in the table, and its line."""
    letters = (letter if letter.isalnum() or letter in "._-" else "-" for letter in str(row.place))
    name = "".join(letters).strip("-")[-100:]
    batch = f"-row{index}" if row.tracks[0].shape[0] > 1 else ""
    return folder / f"{rows.index(row) + 1:02}-{name}{batch}.safetensors"
