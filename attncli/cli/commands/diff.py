"""`attn diff`: what changed between two sentences, two checkpoints or two traces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Context, Exit

from attncli.cli import options
from attncli.cli.environment import Environment
from attncli.errors import ExitCode, UsageError, raise_on_failure

if TYPE_CHECKING:
    from attncli.analysis.diff import Difference, Differences
    from attncli.engines.source import CorpusItem
    from attncli.trace.trace import Trace

Texts = Annotated[
    list[str] | None,
    Argument(
        metavar="TEXT",
        help="Two sentences; one for two checkpoints. - reads them from standard input, one a line.",
        show_default=False,
    ),
]
From = Annotated[
    list[str] | None, options.input_option("--from", metavar="FILE", help="A saved trace or a dump; give two.")
]
Model = Annotated[
    list[str] | None,
    options.model_option(
        "--model",
        "-m",
        metavar="NAME_OR_FOLDER",
        help="A checkpoint; without it, the toy layer. Give two to compare them on one sentence.",
        envvar="ATTN_MODEL",
    ),
]
Query = Annotated[
    list[str] | None,
    options.choice_option(
        "--query",
        "-q",
        metavar="TOKEN",
        help="Compare this query row: a token of the first, or its index. May be repeated. Default: all shared.",
    ),
]
Top = Annotated[
    int | None, options.view_option(min=1, metavar="N", help="Heads and cells that are listed. Default: 10.")
]


def diff(
    context: Context,
    environment: Environment,
    computed: options.Computed,
    selection: options.Selection,
    output: options.Document,
    text: Texts = None,
    from_: From = None,
    model: Model = None,
    layer: options.EveryLayer = None,
    query: Query = None,
    top: Top = None,
    precision: options.Precision = None,
    colormap: options.Colormap = None,
    ramp: options.Ramp = None,
    jobs: options.Jobs = None,
) -> None:
    """Show what changed between two sentences, checkpoints or traces.

    The heads that changed most come first, then the cells, then two maps and their difference. Of two checkpoints on
    several sentences it is the heads alone. It ends with 0 whether or not they differ.

    Examples:
    attn diff "time flies like an arrow" "fruit flies like an arrow"
    attn diff "time flies like an arrow" -m gpt2 -m distilgpt2
    attn diff --file sentences.txt -m gpt2 -m distilgpt2
    attn diff --from before.safetensors --from after.safetensors
    """
    from attncli.analysis.diff import TOP, warnings_of_both
    from attncli.analysis.diff import diff as compare
    from attncli.cli.request import jobs_of

    chosen, workers = output.chosen(), jobs_of(context, jobs)
    if len(model or []) == 2 and not from_:
        computed, many = _several(environment, computed)
        if many is not None:
            requests = [options.Request(computed, selection, model=name) for name in model or []]
            found, failures = _over_sentences(context, environment, requests, many, tuple(query or ()), workers)
            _show_over_sentences(environment, found, output, top or TOP, precision)
            if failures:
                raise Exit(ExitCode.INPUT)
            return
    traces = _traces(environment, computed, selection, from_ or [], model or [])
    difference = compare(*traces, queries=query or (), top=top or TOP)
    warnings = (f"warning: {each}" for each in warnings_of_both(difference))
    for each in (*_notes(difference), *warnings, *difference.notes):
        environment.note(each)
    if chosen == "json":
        from attncli.formats.documents import write_difference

        environment.write([write_difference(difference, precision)], output.file)
        return
    from attncli.render.diff import DiffView
    from attncli.render.matrix import DIGITS

    with output.canvas(environment, chosen, "diff") as shown:
        palette = shown.palette(colormap or "viridis")
        both = (difference.first, difference.second)
        title = " / ".join(dict.fromkeys(trace.text or trace.target or "" for trace in both))
        digits = DIGITS if precision is None else precision
        changes = DiffView(difference, palette, shown.width, digits, top or TOP, ramp)
        shown.show(changes.renderables(), title)


def _several(
    environment: Environment, computed: options.Computed
) -> tuple[options.Computed, Iterator[CorpusItem] | None]:
    """Return the sentences, if they are several; else the options with the one that was read."""
    from attncli.cli.sentences import sentences

    numbered = sentences(computed.sentences, environment)
    first = list(islice(numbered, 2))
    if len(first) > 1:
        return computed, chain(first, numbered)
    (text,) = (text for _, text in raise_on_failure(((one.number, one.text) for one in first), is_alone=True))
    return _of_texts(computed, [text]), None


def _of_texts(computed: options.Computed, texts: list[str]) -> options.Computed:
    """Return the options with sentences in the place of those that they name."""
    unread: dict[str, Any] = {"file": None, "column": None, "whole": False}
    return replace(computed, sentences=replace(computed.sentences, text=texts, **unread))


def _over_sentences(
    context: Context,
    environment: Environment,
    requests: Sequence[options.Request],
    many: Iterator[CorpusItem],
    queries: tuple[str, ...],
    jobs: int | None,
) -> tuple[Differences, int]:
    """Return how far two checkpoints are apart over many sentences, and how many of these are bad."""
    from attncli.analysis.diff import DiffStats
    from attncli.cli.request import Task, open_job
    from attncli.cli.results import ResultStream
    from attncli.cli.sentences import last_number
    from attncli.corpus.jobs import DiffJob, Identity
    from attncli.corpus.run import batched, run

    (first, source), (second, other) = (open_job(environment, request, Task(Identity(), "all")) for request in requests)
    job = DiffJob(first, second, queries)
    results = run(job, batched(many), jobs, job.open(source, other), max(source.parallel_from, other.parallel_from))
    total = last_number(requests[0].computed.sentences)
    stream = ResultStream(context, environment, results, total=total, is_alone=False, warns_once=True)
    stats = DiffStats()
    for _, difference in stream.values():
        stats.add(difference)
    for note in (found := stats.differences()).notes:
        environment.note(note)
    return found, stream.failures


def _show_over_sentences(
    environment: Environment, found: Differences, output: options.Document, top: int, precision: int | None
) -> None:
    chosen = output.chosen()
    if chosen == "json":
        from attncli.formats.documents import write_differences

        environment.write([write_differences(found, precision)], output.file)
        return
    from attncli.render.diff import DiffView
    from attncli.render.matrix import DIGITS

    with output.canvas(environment, chosen, "diff") as shown:
        digits = DIGITS if precision is None else precision
        view = DiffView(found, shown.palette("viridis"), shown.table_width, digits, top)
        shown.show(view.renderables(), " / ".join(dict.fromkeys((found.first.title, found.second.title))))


def _traces(
    environment: Environment,
    computed: options.Computed,
    selection: options.Selection,
    files: list[str],
    models: list[str],
) -> tuple[Trace, Trace]:
    """Return the two traces that the options ask for.

    Raises:
        UsageError: the options do not name two things to compare, or name more.
    """
    from attncli.cli.request import traces_of
    from attncli.engines.source import CorpusItem

    traces = partial(traces_of, environment, default_layers="all")
    if files:
        if models:
            raise UsageError("--model does not apply to --from, whose attention is already computed; drop one of them")
        if len(files) != 2:
            raise UsageError(f"--from is given {_times(len(files))}; give it twice: --from A --from B")
        one, other = (options.Request(computed, selection, from_=Path(path)) for path in files)
        return _only(traces(one)), _only(traces(other))
    if len(models) > 2:
        raise UsageError(f"--model is given {_times(len(models))}; give it once, or twice to compare two checkpoints")
    texts = _texts(environment, computed.sentences, 1 if len(models) == 2 else 2)
    computed = _of_texts(computed, texts)
    traces = partial(traces, texts=[CorpusItem(number, text) for number, text in enumerate(texts, start=1)])
    if len(models) == 2:
        one, other = (options.Request(computed, selection, model=name) for name in models)
        return _only(traces(one)), _only(traces(other))
    both = traces(options.Request(computed, selection, model=models[0] if models else None))
    return _only(both), _only(both)


def _only(traces: Iterator[tuple[int, Trace]]) -> Trace:
    return next(traces)[1]


def _texts(environment: Environment, inputs: options.Sentences, wanted: int) -> list[str]:
    """Return as many sentences as are wanted, from wherever they are."""
    from attncli.cli.sentences import texts_of

    texts = list(islice(texts_of(inputs, environment, may_be_words=wanted == 1), wanted + 1))
    if len(texts) == wanted:
        return texts
    found = "one sentence" if len(texts) == 1 else "more than two sentences"
    raise UsageError(f"{found} to compare; give two, or one and two checkpoints: -m A -m B")


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _notes(difference: Difference) -> Iterator[str]:
    """Yield what the words of a toy layer are, where that is another thing in each sentence."""
    first, second = difference.first, difference.second
    has_tables = all(trace.source.kind == "toy" and trace.source.details["rng"] == "torch" for trace in (first, second))
    if has_tables and any(
        first.key_tokens[one].id != second.key_tokens[other].id for one, other in difference.keys.pairs
    ):
        yield (
            "--rng torch draws the words of each sentence afresh, so that a word may have two embeddings; "
            "--rng numpy, or --vocab TOKENIZER, gives it one"
        )
