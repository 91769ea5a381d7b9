"""`attn check`: lint the attention of a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument

from attncli.cli import options
from attncli.cli.environment import Environment
from attncli.errors import ExitCode, UsageError

if TYPE_CHECKING:
    pass

Texts = Annotated[
    list[str] | None,
    Argument(
        metavar="TEXT", help="Sentences; - reads them from standard input. Default: built in.", show_default=False
    ),
]
Model = Annotated[
    str | None,
    options.model_option(
        "--model", "-m", metavar="NAME_OR_FOLDER", help="The checkpoint to check.", envvar="ATTN_MODEL"
    ),
]


def check(
    environment: Environment,
    load: options.Load,
    prompt: options.ChatOptions,
    output: options.Document,
    text: Texts = None,
    file: options.File = None,
    column: options.Column = None,
    target: options.Target = None,
    docs: Annotated[
        bool, options.input_option("--docs", help="Pack the texts into one sequence too; none may attend to another.")
    ] = False,
    model: Model = None,
    layer: options.EveryLayer = None,
    no_special: options.NoSpecial = False,
    fail_on: options.FailOn = None,
) -> None:
    """Say what is wrong with a checkpoint's attention; exit with 1 if something is.

    Without a text it runs on sentences of its own. Where a model does not call the attention function of
    transformers, its attention is looked for in modules with Attention in the name of their class.

    Examples:
    attn check -m demo
    attn check -m gpt2 "time flies like an arrow" --fail-on leak,pad
    attn check -m gpt2 --docs "one document" "and another one"
    """
    from attncli.analysis.check import check as check_model
    from attncli.cli.progress import status
    from attncli.cli.request import check_chat
    from attncli.cli.sentences import texts_of
    from attncli.formats.documents import what_was_run, write_findings
    from attncli.masks.findings import fails, parse_fail_on
    from attncli.render.findings import report_parts

    if model is None:
        raise UsageError("--model: give the checkpoint to check, a folder or a name on the hub")
    codes = parse_fail_on(fail_on)
    chosen = output.chosen()
    inputs = options.TextOptions(text, file, column, prompt=prompt)
    check_chat(inputs, target)
    texts = list(texts_of(inputs, environment)) if any((text, file, column)) else []
    with status(environment, f"checking {model}"):
        report = check_model(
            model,
            texts,
            target=target,
            documents=docs,
            layers=layer or "all",
            special=not no_special,
            **dict(prompt.explicit_values()),
            **dict(load.explicit_values()),
        )
    for note in report.notes:
        environment.note(note)
    failed = fails(report.findings, codes)
    if chosen == "json":
        environment.write([write_findings(not failed, report.findings, what_was_run(report))], output.file)
    else:
        with output.canvas(environment, chosen, "check") as shown:
            shown.show(report_parts(report, shown.palette("viridis"), shown.width), model)
    if failed:
        raise typer.Exit(ExitCode.FINDINGS)
