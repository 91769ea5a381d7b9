"""`attn diff`: changes between two sentences, two checkpoints or two traces."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attncli.cli import options
from attncli.cli.commands.heads import MetricChoice, heads
from attncli.cli.environment import Environment
from attncli.cli.groups import argument
from attncli.errors import ExitCode, UsageError
from attncli.formats import DATASETS
from attncli.text import plural

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from attncli.analysis.agreement.compare import Agreement
    from attncli.analysis.runs import Side
    from attncli.trace.trace import Trace

_FOR_MANY = "for many, run attn inspect --layer all --show metrics -o FOLDER/ with each, and join the folders"


def diff(
    environment: Environment,
    request: options.CommonOptions,
    output: options.TableOutput,
    text: list[str] | None = argument("Two sentences, or one for two checkpoints; - reads standard input.", "TEXT"),
    from_: list[str] | None = options.input_option("Compare this saved trace with another; give it twice.", "FILE"),
    model: list[str] | None = options.model_option(
        "Use a checkpoint or an adapter; give two to compare. Default: toy.", "MODEL", "-m", env=True
    ),
    layer: options.EveryLayer = None,
    first: bool = options.view_option("Show the first stage at which two runs of a text part."),
    query: list[str] | None = options.choice_option(
        "Compare only this query: a token of the first. Repeatable.", "TOKEN", "-q"
    ),
    top: int | None = options.view_option("List N heads and cells. Default: 10.", "N", low=1),
    precision: options.Precision = None,
    colormap: options.Colormap = None,
    ramp: options.Ramp = None,
) -> ExitCode:
    """Compare two sentences, checkpoints or traces.

    attn prints how many heads changed, layers × heads, the most changed cells, and maps of the most changed head.
    The exit code is 0 whether or not they differ.
    With --first attn compares two runs stage by stage, and solves for the cause; the exit code is 1 if they differ.
    Of three checkpoints or more attn shows the same as attn heads.
    To see what a LoRA adapter changed, give its base and its folder: -m BASE -m ADAPTER.

    Examples:
    attn diff "time flies like an arrow" "fruit flies like an arrow"
    attn diff "time flies like an arrow" -m gpt2 -m distilgpt2
    attn diff --from before.safetensors --from after.safetensors
    attn diff --first -m MODEL --from capture.safetensors
    """
    chosen, is_history = output.chosen(), len(model or []) > 2 and not from_ and not first
    if chosen in DATASETS and not is_history:
        raise UsageError(f"attn diff writes {chosen} of three checkpoints or more; of two give -F json")
    if first:
        return _show_agreement(environment, request, output, from_ or [], model or [])
    from attncli.analysis.diff import TOP, warnings_of_both
    from attncli.analysis.diff import diff as compare

    if is_history:
        choice = options.Parallel(), MetricChoice()
        return heads(environment, request, *choice, output, model, None, query, precision, colormap)
    top = top or TOP
    traces = _traces(environment, request, from_ or [], model or [])
    difference = compare(*traces, queries=query or (), top=top)
    warnings = (f"warning: {warning}" for warning in warnings_of_both(difference))
    environment.note(*warnings, *difference.notes)
    if chosen == "json":
        from attncli.formats.documents import write_difference

        environment.write([write_difference(difference, precision)], output.file)
        return ExitCode.OK
    from attncli.render.diff import DiffView

    with output.view(environment, chosen, "diff") as canvas:
        height = canvas.height and canvas.height - environment.noted_lines
        title = " / ".join(dict.fromkeys(trace.text or trace.target or "" for trace in traces))
        view = DiffView(difference, canvas.palette(colormap or "viridis"), canvas.width, precision, top, ramp, height)
        canvas.show(view.renderables(), title)
    return ExitCode.OK


def _show_agreement(
    environment: Environment,
    request: options.CommonOptions,
    output: options.OutputOptions,
    files: list[str],
    models: list[str],
) -> ExitCode:
    """Show the first stage at which two runs part; return 1 if they do."""
    from attncli.analysis.agreement.compare import compare
    from attncli.analysis.runs import saved_side, unseen_window
    from attncli.engines.captures import check_comparable

    if len(files) + len(models) != 2:
        count = f"--first is given {plural(len(models), 'model')} and {plural(len(files), 'file')}"
        raise UsageError(f"{count}; give two: -m A -m B, -m A --from FILE, or --from A --from B")
    saved = [saved_side(path) for path in files]
    ids = saved[0].token_ids if len(saved) == 1 else None
    text = _text_of_runs(environment, request.texts, ids) if models else None
    if text is None and ids is not None:
        request, text = request.changed(load=request.load.changed(ids=True)), " ".join(map(str, ids))
    runs = [_run_of(environment, request, name, text or "") for name in models]
    first, second = [*runs, *saved]
    for side, other in ((first, second), (second, first)):
        check_comparable(side.name, side.contents, other.contents)
    agreement = compare(first, second)
    agreement.not_compared += dict.fromkeys(filter(None, map(unseen_window, (first, second))))
    agreement.notes += _hints(agreement, *runs, *saved) if runs and saved else []
    return show_agreement(environment, output, agreement)


def _hints(agreement: Agreement, run: Side, file: Side) -> Iterator[str]:
    """Yield slips of the program that wrote a capture, which look like a fault of its engine."""
    last, layers = len(run.indices), getattr(file.contents, "layers", {})
    if last in layers and any(last - 1 in parting.layers for parting in agreement.partings):
        yield "transformers has the final norm in its last hidden states; leave them out of a capture"
    causes = [parting.cause for parting in agreement.partings]
    if None in causes and any(cause.name == "weights of layer" for cause in filter(None, causes)):
        yield "hidden states behind a layer look like weights of the next one; write those that enter it"
    for cause in filter(None, causes):
        if cause.name == "rotary width" and "0" in (cause.a, cause.b):
            yield "q and k before their rotation need rotated: before in the metadata of their file"
        if cause.name == "positions" and None in causes and not (cause.a[0] == cause.b[0] == "0"):
            yield "a file without the first tokens of a run lacks keys of the later ones; write them all"


def show_agreement(environment: Environment, output: options.OutputOptions, agreement: Agreement) -> ExitCode:
    """Show where two runs part; return 1 if they do."""
    chosen = output.chosen()
    environment.note(*agreement.notes)
    if chosen == "json":
        from attncli.formats.documents import write_agreement

        environment.write([write_agreement(agreement)], output.file)
    else:
        from attncli.render.agreement import agreement_parts

        with output.view(environment, chosen, "diff") as canvas:
            canvas.show(
                agreement_parts(agreement, canvas.palette("viridis"), canvas.width), " / ".join(agreement.names)
            )
    return ExitCode.OK if agreement.agrees else ExitCode.FINDINGS


def _text_of_runs(environment: Environment, texts: options.TextOptions, ids: Sequence[int] | None) -> str | None:
    """Return the text on the command line; None for the token ids of a file."""
    from attncli.cli.loop import sentences, texts_of

    if not texts.text and texts.file is None:
        if ids is None:
            raise UsageError("give the text that both runs read: attn diff --first TEXT")
        return None
    items = islice(sentences(texts, environment, may_be_words=False), 2)
    read = texts_of(items, is_alone=True)
    if len(read) != 1:
        raise UsageError("attn diff --first compares two runs of one text; give one")
    return str(read[0])


def _run_of(environment: Environment, request: options.CommonOptions, model: str, text: str) -> Side:
    from attncli.analysis.runs import side_of
    from attncli.cli.loop import loading, trace_job
    from attncli.corpus.jobs import source_of
    from attncli.trace.selection import Indices

    job = trace_job(request.changed(model=model, from_=None), None, layers=Indices("layer", None))
    with loading(environment, model, None):
        return side_of(source_of(**job.options), model or "toy", text, request.texts.pair)


def _traces(
    environment: Environment, request: options.CommonOptions, files: list[str], models: list[str]
) -> list[Trace]:
    """Return the two traces that the options ask for.

    Raises:
        UsageError: the options do not name two things to compare, or name more.
    """
    from attncli.cli.loop import sentences, texts_of, traces_of
    from attncli.engines.source import CorpusItem

    def times(count: int) -> str:
        return "once" if count == 1 else f"{count} times"

    if files:
        if len(files) != 2:
            raise UsageError(f"--from is given {times(len(files))}; give it twice: --from A --from B")
        if len(models) > 1:
            raise UsageError(f"--model is given {times(len(models))}; two captures are of one checkpoint: -m MODEL")
        both = [request.changed(model=models[0] if models else None, from_=Path(path)) for path in files]
        return [next(traces_of(environment, options_of_file, "all")) for options_of_file in both]
    expected = 1 if len(models) == 2 else 2
    first = list(islice(sentences(request.texts, environment, may_be_words=expected == 1), expected + 1))
    if len(first) > expected == 1:
        raise UsageError(f"attn diff compares two checkpoints on one sentence; {_FOR_MANY}")
    texts = texts_of(first, is_alone=expected == 1)
    if len(texts) != expected:
        number = "one sentence" if len(texts) == 1 else "more than two sentences"
        raise UsageError(f"{number} to compare; give two, or one with two checkpoints: -m A -m B")
    unread: dict[str, Any] = {"file": None, "column": None, "whole": False}
    request = request.changed(from_=None, texts=request.texts.changed(text=texts, **unread))
    items = [CorpusItem(number, text) for number, text in enumerate(texts, start=1)]
    if expected == 1:
        streams = (traces_of(environment, request.changed(model=name), "all", texts=items) for name in models)
        return [next(traces) for traces in streams]
    options_of_both = request.changed(model=models[0] if models else None)
    return list(traces_of(environment, options_of_both, "all", texts=items))
