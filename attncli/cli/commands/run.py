"""`attn run`: run a Python program, and show every attention that ran."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from attncli.cli import options
from attncli.cli.environment import Environment, print_error
from attncli.cli.groups import argument
from attncli.errors import AttnError, ExitCode, InputError, LoadError, UsageError, require
from attncli.text import plural, visible

if TYPE_CHECKING:
    from attncli.analysis.calls.calls import Calls
    from attncli.analysis.calls.groups import CallGroup
    from attncli.analysis.prove import Prover
    from attncli.masks.findings import Finding

    _Commands = Callable[[CallGroup, Finding], Sequence[str]]  # which show more of a row and its finding

# Options that a program may be meant to get.
_NAMES = "every", "expect", "fail", "lengths", "no-fail", "place", "prove", "save", "steps", "warn"


def run(
    environment: Environment,
    output: options.StderrOutput,
    program: list[str] | None = argument(
        "Python program and its arguments; with -m the arguments alone.", "SCRIPT ARGS"
    ),
    module: str | None = options.input_option("Run a module, as python -m does.", "MODULE", flags="-m"),
    steps: int | None = options.choice_option("End the program after N optimizer steps.", "N", low=1),
    place: str | None = options.choice_option(
        "Watch only these files, file:line places, functions or modules.", "GLOB"
    ),
    expect: list[str] | None = options.choice_option(
        "Expect this mask; with PATTERN=, at those places. Repeatable.", "[PATTERN=]EXPR"
    ),
    prove: str | None = options.choice_option("Change inputs, and find outputs that EXPR forbids to change.", "EXPR"),
    lengths: options.Lengths = None,
    every: int | None = options.choice_option("Measure heads in each N-th step of training.", "N", low=1),
    warn: str | None = options.choice_option("Warn of heads by rules such as max_score>50. Needs --every.", "RULES"),
    fail: bool = options.choice_option("Exit with 1 if a warning came. Needs --every."),
    no_fail: bool = options.choice_option("Keep the program's exit code. Default: 1 if attn finds an error."),
    save: Path | None = options.output_option("Save the first call of each place as traces for --from.", "DIR"),
) -> None:
    """Run a Python program, and check every attention in it.

    The program runs unchanged: same streams, arguments and results. attn prints to standard error. The exit code is
    the program's own, or 1 if that is 0 and attn finds an error.

    Without --expect, attn does not check a mask that shows later keys: it may be an encoder's.

    For `pad`, lengths come from the embedding's padding_idx, the model's attention_mask or input_lengths, or else the
    first padding mask of the step. PATTERN names places as --place does. The last --expect that matches a place
    decides.

    --prove runs the model again with other inputs, changed alone or in groups, and reports outputs that move and must
    not. Its `pad` takes lengths from --lengths, ids, an attention mask, or the masks themselves, in this order.

    Examples:
    attn run -m pytest tests/test_model.py
    attn run --expect "causal & pad" --steps 1 train.py
    attn run --prove "causal & pad" --lengths 6,10 train.py
    attn run --every 10 --warn "max_score>50" train.py
    attn run --expect pad --expect "decoder.*self*=causal & pad" translate.py
    """
    from attncli.recording.run_script import program_of, run_program

    target, *arguments = [*([] if module is None else [module]), *(program or [])] or [""]
    if not target:
        raise UsageError("give a program: attn run train.py, or attn run -m package.module")
    run_it = program_of(target, is_module=module is not None)
    stderr = Environment(environment.is_quiet, environment.is_verbose, sys.stderr)
    if passed := [f"--{name}" for name in _NAMES if any(word.partition("=")[0] == f"--{name}" for word in arguments)]:
        stderr.note(f"{' and '.join(passed)} went to the program; write options of attn run before it")
    if every is not None:
        from attncli.cli.training import TrainingRun

        raise typer.Exit(TrainingRun(stderr, output, every, warn).run(run_it, arguments, steps, fail))
    from attncli.analysis.calls import watching_all
    from attncli.analysis.calls.calls import Calls
    from attncli.analysis.calls.steps import MASK_CODES
    from attncli.analysis.prove import Prover
    from attncli.recording.notes import described

    for name in ("formats.columns", "formats.documents", "formats.rows", "render.calls", "render.findings"):
        import_module(f"attncli.{name}")  # before the program's folder comes first on sys.path
    chosen = output.chosen()
    if chosen not in ("table", "json", "tsv"):
        raise UsageError(f"{chosen} is a format of attention over training; give --every N, or -F json")
    calls = Calls(expect or None, place, is_kept=save is not None)
    prover = None if prove is None else Prover(prove, options.parse_lengths(lengths))
    if prover is not None and chosen == "tsv":
        raise UsageError("--prove writes a table or JSON; give --format json")
    folder, again = save, shlex.join([*([] if module is None else ["-m"]), target, *arguments])

    def commands(row: CallGroup, finding: Finding) -> list[str]:
        """Return the commands that save the first call of a row and show what a finding is about."""
        rows, first = list(calls.rows), []
        if folder is None:
            rows = [group for group in rows if str(group.place) == str(row.place)]
            first = [f"attn run --place {shlex.quote(str(row.place))} --save calls {again}"]
        index = row.tracks[0].padded_row if finding.comparison is None else finding.comparison.batch_row
        file = shlex.quote(str(_trace_file(folder or Path("calls"), rows, row, index)))
        is_of_mask = finding.code in (*MASK_CODES, "not checked")
        return [*first, f"attn {'mask show' if is_of_mask else 'inspect'} --from {file}"]

    def report() -> int:
        try:
            if prover is not None:
                is_proved = _write_proofs(prover, output, chosen, stderr)
                return ExitCode.OK if is_proved or no_fail else ExitCode.FINDINGS
            calls.finish()
            unused = calls.unused
            calls.notes += unused
            for note in [*calls.notes, *_left_out(calls)]:
                stderr.note(note)
            _write(calls, output, chosen, stderr, commands)
            if save is not None:
                _save(calls, save, stderr)
            is_wrong = any(finding.severity == "error" for finding in calls.findings)
            # What is expected and could not be looked at is not as expected.
            is_missed = bool(unused) or not calls.calls or calls.notes.fault is not None
        except AttnError as error:
            print_error(str(error))
            return error.exit_code
        except Exception as fault:
            with suppress(Exception):  # the program may have closed standard error
                print_error(f"the table cannot be shown: {described(fault)}")
            is_wrong, is_missed = False, True
        is_failed = is_wrong or (bool(expect) and is_missed)
        return ExitCode.FINDINGS if is_failed and not no_fail else ExitCode.OK

    # The program may go to another folder.
    output = output.changed(output=None if output.file is None else str(output.file.absolute()))
    if save is not None:
        try:
            save.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            why = "a file; --save takes a folder" if save.is_file() else error.strerror or error
            raise InputError(f"--save {visible(str(save))}: {why}") from None
        save = save.absolute()
    calls.start()
    watch = prover.watching if prover is not None else lambda: watching_all(calls)
    code = run_program(run_it, arguments, watch, report, calls.notes if prover is None else prover.notes, steps)
    raise typer.Exit(code)


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


def _write(calls: Calls, output: options.StderrOutput, chosen: str, stderr: Environment, commands: _Commands) -> None:
    if chosen != "table":
        from attncli.formats.columns import call_table
        from attncli.formats.documents import write_calls
        from attncli.formats.rows import table_rows

        stderr.write([write_calls(calls)] if chosen == "json" else table_rows(call_table(calls), chosen), output.file)
        return
    from attncli.render.calls import calls_parts

    with output.view(stderr, chosen, "run") as canvas:
        canvas.show(calls_parts(calls, canvas.palette("viridis"), canvas.width, commands, canvas.height))


def _write_proofs(prover: Prover, output: options.StderrOutput, chosen: str, stderr: Environment) -> bool:
    """Write what was proved, and return whether all of it was."""
    for note in prover.notes:
        stderr.note(note)
    if not prover.proofs and not prover.notes:
        ran_none = "nothing is proved: no torch module with attention ran in the main thread"
        stderr.note(_without_torch() or ran_none)
    if prover.left_out:
        stderr.note(f"not proved: {plural(prover.left_out, 'later forward')} that may differ")
    if chosen == "json":
        from attncli.formats.documents import write_proofs

        stderr.write([write_proofs(prover.proofs)], output.file)
    else:
        from attncli.render.findings import proof_parts

        with output.view(stderr, chosen, "run") as canvas:
            for proof in prover.proofs:
                canvas.show(proof_parts(proof, canvas.palette("viridis"), canvas.width))
    return bool(prover.proofs) and all(proof.is_proved for proof in prover.proofs) and not prover.notes


def _trace_file(folder: Path, rows: Sequence[CallGroup], row: CallGroup, index: int) -> Path:
    """Return where the trace of a batch row is saved, by the number of its place in the table, and its line."""
    letters = (letter if letter.isalnum() or letter in "._-" else "-" for letter in str(row.place))
    name = "".join(letters).strip("-")[-100:]
    batch = f"-row{index}" if row.tracks[0].shape[0] > 1 else ""
    return folder / f"{rows.index(row) + 1:02}-{name}{batch}.safetensors"


def _save(calls: Calls, folder: Path, stderr: Environment) -> None:
    """Save the traces of every row, in the order of the table."""
    rows = calls.rows
    for row in rows:
        try:
            traces = row.traces
        except AttnError as error:
            stderr.note(f"{row.place} is not saved: {error}")
            continue
        for index, trace in enumerate(traces):
            trace.save(_trace_file(folder, rows, row, index))
