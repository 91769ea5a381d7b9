"""`attn check`: lint the attention of a checkpoint."""

from __future__ import annotations

from typing import Any

from attncli.cli import options
from attncli.cli.environment import Environment
from attncli.cli.groups import argument
from attncli.errors import ExitCode, UsageError


def check(
    environment: Environment,
    load: options.Load,
    output: options.DocumentOutput,
    text: list[str] | None = argument("Sentences; - reads standard input. Default: built in.", "TEXT"),
    file: options.File = None,
    column: options.Column = None,
    target: options.Target = None,
    chat: options.Chat = False,
    model: str | None = options.model_option("Check this checkpoint.", "MODEL", "-m", env=True),
    layer: options.EveryLayer = None,
    no_special: options.NoSpecial = False,
    fail_on: options.FailOn = None,
    against: str | None = options.choice_option(
        "Compare MODEL with the checkpoint that it was made from.", "CHECKPOINT"
    ),
) -> ExitCode:
    """Check the attention of a checkpoint for errors; exit with 1 on findings.

    Without a text, attn uses sentences of its own. If a model does not call the attention function of transformers,
    attn traces the modules whose class has Attention in its name.
    attn runs an exported model on one text: alone, padded, and in steps with its cache.
    With --against attn compares an exported model with its checkpoint, and checks that it hides padding.

    Examples:
    attn check -m demo
    attn check -m gpt2 "time flies like an arrow" --fail-on leak,pad
    attn check -m model.onnx
    attn check -m model.onnx --against gpt2
    """
    from attncli.analysis.check import check as check_model
    from attncli.cli.environment import status
    from attncli.cli.loop import sentences, texts_of
    from attncli.formats.documents import what_was_run, write_findings
    from attncli.masks.findings import fails, parse_fail_on
    from attncli.render.findings import report_parts

    if model is None:
        raise UsageError("give the checkpoint with -m: attn check -m demo")
    codes, chosen = parse_fail_on(fail_on), output.chosen()
    texts = options.TextOptions(text=text, file=file, column=column, chat=chat)
    checked = texts_of(sentences(texts, environment)) if any((text, file, column)) else []
    loading: dict[str, Any] = {**dict(load.explicit_values()), **({"chat": True} if chat else {})}
    if against is not None:
        from attncli.analysis.check.against import against as compare_with
        from attncli.cli.commands.diff import show_agreement

        if len(checked) > 1:
            raise UsageError("--against compares on one text; give one")
        with status(environment, f"comparing {model}"):
            agreement = compare_with(model, against, *checked, special=not no_special, **loading)
        return show_agreement(environment, output, agreement)
    with status(environment, f"checking {model}"):
        report = check_model(model, checked, target=target, layer=layer or "all", special=not no_special, **loading)
    environment.note(*report.notes)
    failed = fails(report.findings, codes)
    if chosen == "json":
        environment.write([write_findings(not failed, report.findings, what_was_run(report))], output.file)
    else:
        with output.view(environment, chosen, "check") as canvas:
            canvas.show(report_parts(report, canvas.palette("viridis"), canvas.width), model)
    return ExitCode.FINDINGS if failed else ExitCode.OK
