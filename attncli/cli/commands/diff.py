"""`attn diff`: what changed between two sentences, two checkpoints or two traces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Exit

from attncli.cli import options
from attncli.cli.environment import Environment
from attncli.cli.groups import argument
from attncli.errors import ExitCode, UsageError, raise_on_failure

if TYPE_CHECKING:
    from attncli.analysis.diff import Differences
    from attncli.engines.source import CorpusItem
    from attncli.trace.trace import Trace


def diff(
    environment: Environment,
    request: options.CommonOptions,
    parallel: options.Parallel,
    output: options.DocumentOutput,
    text: Annotated[
        list[str] | None,
        argument("Two sentences, or one for two checkpoints; - reads standard input.", "TEXT"),
    ] = None,
    from_: Annotated[
        list[str] | None, options.input_option("Compare this saved trace with another; give it twice.", "FILE")
    ] = None,
    model: Annotated[
        list[str] | None,
        options.model_option(
            "Use a checkpoint or an adapter; two compare. Default: the toy layer.",
            "NAME_OR_FOLDER",
            "-m",
            setting=None,
        ),
    ] = None,
    layer: options.EveryLayer = None,
    query: Annotated[
        list[str] | None,
        options.choice_option(
            "Compare only this query: a token of the first. Repeatable.",
            "TOKEN",
            "-q",
        ),
    ] = None,
    top: Annotated[int | None, options.view_option("List this many heads and cells. Default: 10.", "N", low=1)] = None,
    precision: options.Precision = None,
    colormap: options.Colormap = None,
    ramp: options.Ramp = None,
) -> None:
    """Compare two sentences, checkpoints or traces.

    It prints how many heads changed, layers × heads, the most changed cells, and maps of the most changed head.
    Two checkpoints on several sentences are compared by head alone. The exit code is 0 whether or not they differ.
    To see what a LoRA adapter changed, give its base and its folder: -m BASE -m ADAPTER.

    Examples:
    attn diff "time flies like an arrow" "fruit flies like an arrow"
    attn diff "time flies like an arrow" -m gpt2 -m distilgpt2
    attn diff --file sentences.txt -m gpt2 -m distilgpt2
    attn diff --from before.safetensors --from after.safetensors
    """
    from attncli.analysis.diff import TOP, warnings_of_both
    from attncli.analysis.diff import diff as compare
    from attncli.render.matrix import DIGITS

    chosen, workers = output.chosen(), parallel.workers
    top, digits = top or TOP, DIGITS if precision is None else precision
    traces, many = _inputs(environment, request, from_ or [], model or [])
    if many is not None:
        requests = [request.changed(model=name) for name in model or []]
        found, failures = _over_sentences(environment, requests, many, tuple(query or ()), workers)
        if chosen == "json":
            from attncli.formats.documents import write_differences

            environment.write([write_differences(found, precision)], output.file)
        else:
            from attncli.render.diff import DiffView

            with output.view(environment, chosen, "diff") as canvas:
                view = DiffView(found, canvas.palette("viridis"), canvas.table_width, digits, top, height=canvas.height)
                canvas.show(view.renderables(), " / ".join(dict.fromkeys((found.first.title, found.second.title))))
        if failures:
            raise Exit(ExitCode.INPUT)
        return
    difference = compare(*traces, queries=query or (), top=top)
    warnings = (f"warning: {each}" for each in warnings_of_both(difference))
    for note in (*warnings, *difference.notes):
        environment.note(note)
    if chosen == "json":
        from attncli.formats.documents import write_difference

        environment.write([write_difference(difference, precision)], output.file)
        return
    from attncli.render.diff import DiffView

    with output.view(environment, chosen, "diff") as canvas:
        palette = canvas.palette(colormap or "viridis")
        title = " / ".join(dict.fromkeys(trace.text or trace.target or "" for trace in traces))
        view = DiffView(difference, palette, canvas.width, digits, top, ramp, canvas.height)
        canvas.show(view.renderables(), title)


def _inputs(
    environment: Environment, request: options.CommonOptions, files: list[str], models: list[str]
) -> tuple[Sequence[Trace], Iterator[CorpusItem] | None]:
    """Return the two traces that the options ask for, or the sentences of which two checkpoints are compared.

    Raises:
        UsageError: the options do not name two things to compare, or name more.
    """
    from attncli.cli.loop import traces_of
    from attncli.cli.sentences import sentences
    from attncli.engines.source import CorpusItem

    def times(count: int) -> str:
        return "once" if count == 1 else f"{count} times"

    if files:
        if len(files) != 2:
            raise UsageError(f"--from is given {times(len(files))}; give it twice: --from A --from B")
        both = [request.changed(model=None, from_=Path(path)) for path in files]
        return [next(traces_of(environment, one, "all")) for one in both], None
    if len(models) > 2:
        raise UsageError(f"--model is given {times(len(models))}; give it once, or twice to compare two checkpoints")
    expected = 1 if len(models) == 2 else 2
    numbered = sentences(request.texts, environment, may_be_words=expected == 1)
    first = list(islice(numbered, expected + 1))
    if expected == 1 and len(first) > 1:
        return (), chain(first, numbered)
    texts = list(raise_on_failure(((one.number, one.text) for one in first), is_alone=expected == 1))
    if len(texts) != expected:
        found = "one sentence" if len(texts) == 1 else "more than two sentences"
        raise UsageError(f"{found} to compare; give two, or one with two checkpoints: -m A -m B")
    unread: dict[str, Any] = {"file": None, "column": None, "whole": False}
    request = request.changed(from_=None, texts=request.texts.changed(text=[text for _, text in texts], **unread))
    items = [CorpusItem(number, text) for number, (_, text) in enumerate(texts, start=1)]
    if expected == 1:
        each = (traces_of(environment, request.changed(model=name), "all", texts=items) for name in models)
        return [next(traces) for traces in each], None
    one = request.changed(model=models[0] if models else None)
    return list(traces_of(environment, one, "all", texts=items)), None


def _over_sentences(
    environment: Environment,
    requests: Sequence[options.CommonOptions],
    many: Iterator[CorpusItem],
    queries: tuple[str, ...],
    workers: int | None,
) -> tuple[Differences, int]:
    """Return how far two checkpoints are apart over many sentences, and how many of these are bad."""
    from attncli.analysis.diff import DiffStats
    from attncli.cli.loop import ResultStream, open_source, trace_job
    from attncli.corpus.jobs import DiffJob, identity
    from attncli.corpus.run import batched, run

    first, second = (trace_job(one, identity, "all") for one in requests)
    source, other = (open_source(environment, *both) for both in zip(requests, (first, second), strict=True))
    job = DiffJob(first, second, queries)
    results = run(job, batched(many), workers, job.open(source, other), max(source.parallel_from, other.parallel_from))
    total = requests[0].texts.last_number
    stream = ResultStream(environment, results, total=total, is_alone=False, warns_once=True)
    stats = DiffStats()
    for _, difference in stream.values():
        stats.add(difference)
    for note in (found := stats.differences()).notes:
        environment.note(note)
    return found, stream.failures
