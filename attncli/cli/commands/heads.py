"""`attn heads`: roles of heads, over one sentence or many."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attncli.analysis import NAMES, Metric
from attncli.cli import options
from attncli.cli.environment import Environment
from attncli.cli.groups import Options
from attncli.errors import ExitCode, InputError, UsageError
from attncli.text import did_you_mean, names_in, plural, visible

if TYPE_CHECKING:
    from rich.console import RenderableType

    from attncli.analysis.heads import HeadReport
    from attncli.cli.environment import PictureFile, Terminal
    from attncli.cli.loop import ResultStream
    from attncli.corpus.jobs import ModelJob, Value
    from attncli.engines.source import CorpusItem
    from attncli.formats.columns import Table

    Draw = Callable[[Terminal | PictureFile], Iterable[RenderableType]]

_OF_TEST: tuple[Metric, ...] = ("induction", "previous", "duplicate")  # columns of the test's table
_EXAMPLE = "one two three four five one two three four five"  # which induction heads show themselves on
_AROUND = 8  # lines of a screen around the rows of a table
_METRICS: dict[str, Metric] = {name: name for name in NAMES}


class MetricChoice(Options):
    """Options of the shown metrics, and their order."""

    induction: bool = options.input_option("Test for induction heads, on random tokens repeated twice.")
    pairs: Path | None = options.input_option("Rank heads by the right keys they find; lines of JSON.", "FILE")
    metrics: str | None = options.view_option("List these metrics of every head. Default: all.", "METRICS")
    sort: str | None = options.view_option(
        "List heads by this metric, the highest first; -entropy: the lowest.", "METRIC"
    )
    top: int | None = options.view_option("List only N heads, with --sort or --pairs. Default: all.", "N", low=1)

    @property
    def chosen(self) -> list[Metric]:
        """The metrics that `--metrics` names; none is all of them."""
        if self.metrics is None:
            return []
        names_in("--metrics", self.metrics, _METRICS)
        return [_METRICS[name.strip()] for name in self.metrics.split(",")]

    @property
    def order(self) -> Metric | None:
        """The metric by which heads are ranked; None where they stand by layer and head."""
        if self.sort is None:
            return "induction" if self.induction else None
        name = self.sort.removeprefix("-")
        if name not in _METRICS:
            near = did_you_mean(name, _METRICS)
            raise UsageError(f"--sort '{visible(self.sort)}': expected one of {', '.join(_METRICS)}{near}")
        return _METRICS[name]

    def applied(self, report: HeadReport, is_drawn: bool) -> HeadReport:
        """Return a report with the chosen heads and metrics, in order."""
        if self.order is not None:
            report = report.ranked(self.order, reverse=(self.sort or "").startswith("-"), top=self.top)
        names = self.chosen or (_OF_TEST if is_drawn and self.induction else ())
        return report.only(names) if names else report


def heads(
    environment: Environment,
    request: options.CommonOptions,
    parallel: options.Parallel,
    choice: MetricChoice,
    output: options.TableOutput,
    model: list[str] | None = options.model_option(  # replaces the group's option
        "Use a checkpoint, or those of a run. Default: demo.", "MODEL", "-m", env=True
    ),
    layer: options.EveryLayer = None,
    query: list[str] | None = options.choice_option(
        "Count only this query: a token or an index. Repeatable.", "TOKEN", "-q"
    ),
    precision: options.Precision = None,
    colormap: options.Colormap = None,
) -> ExitCode:
    """Show what every head attends to: the previous, first or a repeated token.

    attn draws a grid of layers × heads. --all lists the numbers, --sort ranks them, and -F tsv writes them.
    Over several sentences the numbers are means, with standard deviations.
    Over checkpoints of a run attn draws heads × checkpoints, and lists the heads that changed most.

    Examples:
    attn heads "one two three four five one two three four five"
    attn heads -m gpt2 --induction
    attn heads -m gpt2 "time flies like an arrow" --metrics sink,entropy
    attn heads -m gpt2 --file sentences.txt -F tsv
    attn heads -m gpt2 --pairs coreference.jsonl
    """
    from attncli.analysis.training import steps_of
    from attncli.cli.loop import sentences
    from attncli.formats import DRAWN

    _ = choice.order, choice.chosen  # a misspelt metric is refused before anything is loaded
    if output.folder is not None:
        metrics = "attn inspect -o FOLDER/ --show metrics writes the metrics of each sentence"
        raise UsageError(f"attn heads writes one table, not a folder; {metrics}")
    chosen = output.chosen()
    show = partial(_show_report, environment, output, "heads", chosen, precision)
    color = colormap or "viridis"
    models: list[str | None] = [*model] if model else [None]
    queries = tuple(query or ())
    request = request.changed(model=models[0])
    if len(models) > 1:
        if chosen == "json":
            raise UsageError("checkpoints of a run are rows; give -F csv")
        texts = None if choice.induction else [*sentences(request.texts, environment)]
        how: dict[str, Any] = {"workers": parallel.workers, "is_induction": choice.induction, "texts": texts}
        failures, reports = 0, dict[int, tuple[str, Any]]()
        for step, name in steps_of([each or "toy" for each in models]).items():  # one open at a time
            try:
                stream, report = _measured(environment, request.changed(model=name), queries=queries, **how)
            except InputError as error:
                raise InputError(f"{visible(name)}: {error}") from error
            failures += stream.failures
            reports[step] = name, report.only(choice.chosen) if choice.chosen else report
        _show_checkpoints(environment, reports, color, show)
    elif choice.pairs is not None:
        failures = _pairs(environment, request, parallel.workers, choice, output.all_, precision, color, show)
    else:
        stream, measured = _measured(environment, request, parallel.workers, choice.induction, queries)
        failures = stream.failures
        _show_heads(environment, choice.applied(measured, chosen in DRAWN), choice, output.all_, precision, color, show)
    return ExitCode.INPUT if failures else ExitCode.OK


def _show_heads(
    environment: Environment,
    report: HeadReport,
    choice: MetricChoice,
    is_all: bool,
    precision: int | None,
    color: str,
    show: Callable[..., None],
) -> None:
    """Show the labels of heads, or the numbers that are asked for."""
    from attncli.formats.columns import head_table
    from attncli.formats.documents import write_heads

    def draw(canvas: Terminal | PictureFile) -> Iterable[RenderableType]:
        from attncli.render.heads import head_parts, table_parts

        palette, shown = canvas.palette(color), report
        height = canvas.height and canvas.height - environment.noted_lines
        if not (choice.sort or choice.top or choice.metrics or is_all):
            return head_parts(report, palette, canvas.width, height, precision)
        if height is not None and choice.top is None:
            shown = replace(report, heads=report.heads[: max(height - _AROUND, 1)])
        return table_parts(shown, choice.order, palette, canvas.table_width, precision)

    show(report, draw, head_table, write_heads)


def _show_checkpoints(
    environment: Environment, reports: Mapping[int, tuple[str, HeadReport]], color: str, show: Callable[..., None]
) -> None:
    """Show how heads change over the checkpoints of a run, by their steps."""
    from attncli.analysis.training import HeadHistory, changed_heads, names_of
    from attncli.formats.columns import checkpoint_table

    (start, first), *_, (end, last) = reports.values()
    history = HeadHistory(first.names)
    for step, (name, report) in reports.items():
        if names_of(report) != names_of(first):
            raise UsageError(f"{visible(name)} has other heads than {visible(start)}; give checkpoints of one run")
        history.add(step, names_of(first), [[head.metrics[each] for each in first.names] for head in report.heads])

    def draw(canvas: Terminal | PictureFile) -> Iterable[RenderableType]:
        from attncli.render.training import history_parts

        changed, height = changed_heads(first, last), canvas.height and canvas.height - environment.noted_lines
        facts = f"{len(changed)} of {plural(len(history.names), 'head')} changed", plural(first.sentences, "sentence")
        headline = " · ".join((f"{visible(start)} to {visible(end)}", *facts))
        rows = [("head", "label", "largest change of a weight"), *changed]
        return history_parts(history, headline, rows, canvas.palette(color), canvas.width, height)

    show(first, draw, lambda _: checkpoint_table(reports))


def _show_report(
    environment: Environment,
    output: options.OutputOptions,
    command: str,
    form: str,
    precision: int | None,
    report: Any,
    draw: Draw,
    table_of: Callable[[Any], Table],
    document_of: Callable[[Any, int | None], str] | None = None,
) -> None:
    """Draw a report, or write its rows or its document."""
    from attncli.formats import DRAWN

    if form in DRAWN:
        with output.view(environment, form, command) as canvas:
            canvas.show(draw(canvas), report.source.title)
    elif form == "parquet":
        from attncli.formats.parquet import check_parquet, write_table

        write_table(table_of(report), check_parquet(output.file))
    elif document_of is not None and form == "json":
        environment.write([document_of(report, precision)], output.file)
    else:
        from attncli.formats.rows import table_rows

        environment.write(table_rows(table_of(report), form, precision), output.file)


def _pairs(
    environment: Environment,
    request: options.CommonOptions,
    workers: int | None,
    choice: MetricChoice,
    is_all: bool,
    precision: int | None,
    colormap: str,
    show: Callable[..., None],
) -> int:
    """Show how often each head finds the right keys of a file; return how many texts failed."""
    from attncli.analysis.pairs import PairStats, paired_items, read_pairs, source_options
    from attncli.cli.loop import trace_job
    from attncli.corpus.jobs import score_pairs
    from attncli.formats.columns import pair_table
    from attncli.formats.documents import write_pairs

    assert choice.pairs is not None
    texts = read_pairs(choice.pairs)
    if request.texts.image:  # beside each text
        request = request.changed(texts=request.texts.changed(tower="text"))
    needed = source_options(texts, request.texts.image)
    job = trace_job(request, partial(score_pairs, texts={text.number: text for text in texts}), "all")
    needed = {name: value for name, value in needed.items() if job.options.get(name) is None}
    job = replace(job, options={**job.options, **needed})
    stats = PairStats()
    stream = _stream(environment, request, job, workers, [*paired_items(texts)])
    for _, scores in stream.values():
        stats.add(scores)
    report = stats.report()
    if count := len(report.left_out):
        total = plural(report.pairs + count, "pair")
        which = "the first is " * (count > 1) + report.left_out[0]
        environment.note(f"warning: {count:,} of {total} {'are' if count > 1 else 'is'} left out; {which}")

    def draw(canvas: Terminal | PictureFile) -> Iterable[RenderableType]:
        from attncli.render.pairs import pair_parts

        listed = len(report.heads) if is_all else choice.top
        return pair_parts(report, canvas.palette(colormap), canvas.width, canvas.height, precision, listed)

    show(replace(report, heads=report.heads[: choice.top]), draw, pair_table, write_pairs)
    return stream.failures


def _measured(
    environment: Environment,
    request: options.CommonOptions,
    workers: int | None,
    is_induction: bool,
    queries: tuple[str, ...],
    texts: Iterable[CorpusItem] | None = None,
) -> tuple[ResultStream[Any], HeadReport]:
    """Return the stream of all sentences, or of `texts`, which is read, and the report on the heads after them."""
    from attncli.analysis.heads import HeadStats
    from attncli.cli.loop import MissingSentenceError, sentences, trace_job
    from attncli.corpus.jobs import measure
    from attncli.encoding.induction_probe import repeated_sequences
    from attncli.engines.source import CorpusItem
    from attncli.trace.view import View

    if is_induction:
        texts = [CorpusItem(*sequence) for sequence in enumerate(repeated_sequences(request.model), 1)]
    elif texts is None and request.model == "demo" and not any(request.texts.explicit_values()):
        try:
            texts = sentences(request.texts, environment)
        except MissingSentenceError:
            request = request.changed(texts=request.texts.changed(text=[_EXAMPLE]))
            environment.note('this sentence is built in; attn heads "time flies like an arrow" measures yours')
    job = trace_job(request, partial(measure, view=View(queries=queries), is_test=is_induction), "all")
    stream = _stream(environment, request, job, workers, texts, raises=is_induction)
    stats = HeadStats(is_induction)
    for _, metrics in stream.values():
        stats.add(metrics)
    return stream, stats.report()


def _stream(
    environment: Environment,
    request: options.CommonOptions,
    job: ModelJob[Value],
    workers: int | None,
    texts: Iterable[CorpusItem] | None,
    raises: bool = False,
) -> ResultStream[Value]:
    """Return the results of a job for each sentence, or for `texts`."""
    from attncli.cli.loop import ResultStream, results_of

    return ResultStream(
        environment,
        results_of(environment, request, job, texts=texts, workers=workers),
        total=len(texts) if isinstance(texts, list) else request.texts.last_number,
        is_alone=request.is_alone,
        raises=raises,
        warns_once=True,
    )
