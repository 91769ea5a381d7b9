"""`attn run`: run a Python program, and show every attention that ran."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attncli.cli import options
from attncli.cli.environment import Environment, print_error
from attncli.cli.groups import argument
from attncli.errors import AttnError, ExitCode, InputError, UsageError
from attncli.text import visible

if TYPE_CHECKING:
    from attncli.analysis.calls.calls import Calls


def run(
    environment: Environment,
    output: options.StderrOutput,
    program: Annotated[
        list[str] | None,
        argument("A program, as python takes it, and its arguments; with -m the arguments alone.", "SCRIPT ARGS"),
    ] = None,
    module: Annotated[
        str | None, options.input_option("Run a module, as python -m does.", "MODULE", flags="-m")
    ] = None,
    steps: Annotated[
        int | None, options.choice_option("End the program after N steps of an optimizer of torch.", "N", low=1)
    ] = None,
    place: Annotated[
        str | None,
        options.choice_option("Look at these places alone: a file, file:line, a function, or a module's name.", "GLOB"),
    ] = None,
    expect: Annotated[
        list[str] | None,
        options.choice_option(
            "What each mask should be, or those of the places that match; exit with 1 where one is not. May be "
            "repeated.",
            "[PATTERN=]EXPR",
        ),
    ] = None,
    fail_on: options.FailOn = None,
    save: Annotated[
        Path | None,
        options.output_option("Save the first call of each place there, a trace a batch row, for --from.", "DIR"),
    ] = None,
) -> None:
    """Run a Python program as python does, and show every attention that ran.

    The program keeps its streams, its arguments and its exit code, and computes what it computes without. The table
    goes to standard error. With --expect or --fail-on findings end it with exit code 1, unless the program failed.

    `pad` in --expect needs no numbers: the lengths come from an embedding's padding_idx, or else from the first mask of
    a step that hides keys at an end of a row. A PATTERN is one of places, as in --place. The last --expect that matches
    a place decides.

    Examples:
    attn run train.py --epochs 1
    attn run -m pytest tests/test_model.py
    attn run --expect "causal & pad" --steps 1 train.py
    attn run --expect pad --expect "decoder.*self*=causal & pad" translate.py
    """
    from attncli.analysis.calls import watching_all
    from attncli.analysis.calls.calls import Calls
    from attncli.masks.findings import fails, parse_fail_on
    from attncli.recording.notes import described
    from attncli.recording.run_script import ending_after, program_of, run_program

    target, *arguments = [*([] if module is None else [module]), *(program or [])] or [""]
    if not target:
        raise UsageError("give a program: a script, or a module by -m")
    codes, chosen = parse_fail_on(fail_on), output.chosen()
    run_it = program_of(target, is_module=module is not None)
    calls = Calls(expect or None, place, is_kept=save is not None)
    stderr = environment.on_stderr()
    is_judged = bool(expect) or fail_on is not None

    def report() -> int:
        try:
            calls.finish()
            unused = calls.unused
            calls.notes += unused
            for note in [*calls.notes, *_left_out(calls)]:
                stderr.note(note)
            _write(calls, output, chosen, stderr)
            if save is not None:
                _save(calls, save, stderr)
            is_wrong = fails(calls.findings, codes) or bool(unused) or (bool(expect) and not calls.calls)
        except AttnError as error:
            print_error(str(error))
            return error.exit_code
        except Exception as fault:
            with suppress(Exception):  # the program may have closed standard error
                print_error(f"the table cannot be shown: {described(fault)}")
            is_wrong = True
        # What could not be looked at is not as it should be.
        return ExitCode.FINDINGS if is_judged and (is_wrong or calls.notes.fault is not None) else ExitCode.OK

    # The program may go to another folder.
    output = replace(output, output=None if output.file is None else str(output.file.absolute()))
    if save is not None:
        try:
            save.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"--save {visible(str(save))}: {error.strerror or error}") from None
        save = save.absolute()
    calls.start()
    with ExitStack() as stack:
        if steps is not None:
            stack.enter_context(ending_after(steps))
        code = run_program(run_it, arguments, lambda: watching_all(calls), report, calls.notes)
    raise typer.Exit(code)


def _left_out(calls: Calls) -> list[str]:
    """Return what the table does not say."""
    if calls.calls:
        return []
    if calls.left_out:
        return [f"no attention ran at the places that --place names; {calls.left_out} calls ran elsewhere"]
    from attncli.recording.call import LOOKED_FOR

    return [f"no attention was seen; looked for {LOOKED_FOR}"]


def _write(calls: Calls, output: options.StderrOutput, chosen: str, stderr: Environment) -> None:
    if chosen != "table":
        from attncli.formats.columns import call_table
        from attncli.formats.documents import write_calls
        from attncli.formats.rows import table_rows

        stderr.write([write_calls(calls)] if chosen == "json" else table_rows(call_table(calls), chosen), output.file)
        return
    from attncli.render.calls import calls_parts

    with output.view(stderr, chosen, "run") as canvas:
        canvas.show(calls_parts(calls, canvas.palette("viridis"), canvas.width))


def _save(calls: Calls, folder: Path, stderr: Environment) -> None:
    """Save the traces of every row, in the order of the table."""
    for number, row in enumerate(calls.rows, 1):
        try:
            traces = row.traces
        except AttnError as error:
            stderr.note(f"{row.place} is not saved: {error}")
            continue
        place = f"{row.place}-{row.place.function}"
        name = "".join(one if one.isalnum() or one in "._-" else "-" for one in place).strip("-")[-100:]
        for index, trace in enumerate(traces):
            batch = f"-row{index}" if len(traces) > 1 else ""
            trace.save(folder / f"{number:02}-{name}{batch}.safetensors")
