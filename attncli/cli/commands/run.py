"""`attn run`: run a Python program, and show every attention that ran."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from attncli.cli import options
from attncli.cli.environment import Environment
from attncli.cli.groups import argument
from attncli.errors import UsageError

if TYPE_CHECKING:
    from attncli.cli.calls import CallRun, ProofRun
    from attncli.cli.training import TrainingRun

# Options that a program may be meant to get.
_NAMES = "every", "expect", "fail", "lengths", "no-fail", "place", "prove", "save", "steps", "warn"


def run(
    environment: Environment,
    output: options.OutputOptions,
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
) -> int:
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
    job: CallRun | ProofRun | TrainingRun
    if every is not None:
        from attncli.cli.training import TrainingRun

        job = TrainingRun(stderr, output, every, warn, fail)
    else:
        from attncli.cli.calls import CallRun, ProofRun

        again = shlex.join([*([] if module is None else ["-m"]), target, *arguments])
        job = (
            CallRun(stderr, output, expect or [], place, save, no_fail, again)
            if prove is None
            else ProofRun(stderr, output, prove, options.parse_lengths(lengths), no_fail)
        )
    return run_program(run_it, arguments, job.watching, job.report, job.notes, steps)
