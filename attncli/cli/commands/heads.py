"""`attn heads`: which head does what, over one sentence or many."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from attncli.analysis.metric_names import NAMES, Metric
from attncli.cli import options
from attncli.cli.environment import Environment
from attncli.cli.groups import Options
from attncli.errors import ExitCode, UsageError
from attncli.text import did_you_mean, names_in, visible

if TYPE_CHECKING:
    from rich.console import RenderableType

    from attncli.analysis.heads import HeadReport
    from attncli.cli.environment import PictureFile, Terminal
    from attncli.render.palette import Palette

_OF_TEST: tuple[Metric, ...] = ("induction", "previous", "duplicate")  # what a table of it has

Query = Annotated[
    list[str] | None,
    options.choice_option(
        "--query",
        "-q",
        metavar="TOKEN",
        help="Count this query row alone: a token or its index. May be repeated. Default: all.",
    ),
]


@dataclass(frozen=True, repr=False, eq=False)
class Wanted(Options):
    """What is shown of the heads, and in which order."""

    induction: Annotated[
        bool,
        options.input_option(
            "--induction", help="Run on random tokens of the model, each sequence twice: the test for induction heads."
        ),
    ] = False
    label: Annotated[
        bool,
        options.view_option(
            "--label", help="Say in a word what each head does: previous, induction, …; attn help metrics."
        ),
    ] = False
    metrics: Annotated[
        str | None,
        options.view_option(metavar="METRICS", help="With commas: the columns. Default: all; with --label, none."),
    ] = None
    sort: Annotated[
        str | None,
        options.view_option(
            metavar="METRIC",
            help="The heads of the highest value first; of the lowest with a - before it: -entropy. Default: by layer "
            "and head, or by label.",
        ),
    ] = None
    top: Annotated[
        int | None,
        options.view_option(
            min=1, metavar="N", help="With --sort: this many heads alone; with --label, of each label. Default: all."
        ),
    ] = None
    grid: Annotated[Metric | None, options.view_option(help="Layers × heads as a heat map of this metric.")] = None

    def check(self, request: options.Stream) -> None:
        """Raise UsageError, before anything is loaded, for options that do not go together."""
        order, _ = self.order, self.chosen  # a misspelt metric is refused here
        for name in ("sort", "label", "metrics"):
            if self.grid is not None and getattr(self, name):
                raise UsageError(
                    f"--{name} does not apply to --grid, which has every head in its place; drop one of them"
                )
        if self.top is not None and order is None and not self.label:
            raise UsageError("--top does not apply without --sort METRIC or --label, which say by what")
        if self.induction:
            inputs = [name for name, _ in request.computed.sentences.explicit_values() if name != "no_special"]
            if inputs := [*inputs, *["from"] * (request.from_ is not None)]:
                option = "TEXT" if inputs[0] == "text" else f"--{inputs[0]}"
                raise UsageError(f"{option} does not apply to --induction, which draws its tokens; drop one of them")

    @property
    def chosen(self) -> list[Metric] | None:
        """The metrics that `--metrics` names; None is all of them."""
        if self.metrics is None:
            return None
        metrics = {name: name for name in NAMES}
        names_in("--metrics", self.metrics, metrics)
        return [metrics[name.strip()] for name in self.metrics.split(",")]  # type: ignore[index]

    @property
    def order(self) -> Metric | None:
        """The metric by which heads are ranked; None where they stand by label, or by layer and head."""
        is_found_by = self.induction and not self.label and self.grid is None
        if self.sort is None:
            return "induction" if is_found_by else None
        metrics: dict[str, Metric] = {name: name for name in NAMES}
        name = self.sort.removeprefix("-")
        if name not in metrics:
            expected = ", ".join(metrics)
            raise UsageError(f"--sort '{visible(self.sort)}': expected one of {expected}{did_you_mean(name, metrics)}")
        return metrics[name]

    def of(self, found: HeadReport, is_drawn: bool) -> HeadReport:
        """Return a survey with the heads and the metrics that are wanted, in order."""
        if self.order is not None:
            found = found.ranked(self.order, reverse=(self.sort or "").startswith("-"), top=self.top)
        elif self.label:
            found = found.by_label(self.top)
        if self.chosen is not None:
            return found.only(self.chosen)
        if is_drawn and self.label:
            return found.only(())
        return found.only(_OF_TEST) if is_drawn and self.induction else found


def heads(
    context: typer.Context,
    environment: Environment,
    request: options.Stream,
    wanted: Wanted,
    output: options.Rows,
    layer: options.EveryLayer = None,
    query: Query = None,
    precision: options.Precision = None,
    colormap: options.Colormap = None,
) -> None:
    """Say what every head of every layer does, in numbers: one row a head.

    Over several sentences they are means, with standard deviations. `attn help metrics` says what they measure.

    Examples:
    attn heads -m demo --induction
    attn heads -m demo "one two three four five one two three four five" --label
    attn heads -m gpt2 --file sentences.txt -F tsv
    attn heads -m gpt2 "time flies like an arrow" --grid sink
    """
    from attncli.formats import DRAWN
    from attncli.formats.columns import head_table
    from attncli.formats.documents import write_heads

    wanted.check(request)
    if output.folder is not None:
        raise UsageError(
            "attn heads writes one table, and no folder of parts; attn inspect -o FOLDER/ --show metrics writes the "
            "metrics of each sentence"
        )
    chosen = output.chosen()
    if chosen == "parquet":
        from attncli.formats.parquet import check_parquet

        check_parquet(output.file)
    found, failures = _measured(context, environment, request, wanted, tuple(query or ()))
    report = wanted.of(found, chosen in DRAWN)
    if chosen in DRAWN:
        with output.canvas(environment, chosen, "heads") as canvas:
            _draw(report, wanted, canvas, canvas.palette(colormap or "viridis"), precision)
    elif chosen == "parquet":
        from attncli.formats.parquet import check_parquet, write_table

        write_table(head_table(report), check_parquet(output.file))
    elif chosen == "json":
        environment.write([write_heads(report, precision)], output.file)
    else:
        from attncli.formats.rows import table_rows

        environment.write(table_rows(head_table(report), chosen, precision), output.file)
    if failures:
        raise typer.Exit(ExitCode.INPUT)


def _measured(
    context: typer.Context,
    environment: Environment,
    request: options.Stream,
    wanted: Wanted,
    queries: tuple[str, ...],
) -> tuple[HeadReport, int]:
    """Return what is known of the heads after all sentences, and how many of these are bad."""
    from attncli.analysis.heads import HeadStats
    from attncli.cli.request import Task, is_alone, jobs_of, results_of
    from attncli.cli.results import ResultStream
    from attncli.cli.sentences import last_number
    from attncli.corpus.jobs import HeadMetricsTask
    from attncli.encoding.induction_probe import repeated_sequences
    from attncli.engines.source import CorpusItem
    from attncli.trace.view import View

    texts = request.computed.sentences
    drawn = repeated_sequences(request.model) if wanted.induction else None
    twice = None if drawn is None else [CorpusItem(number, text) for number, text in enumerate(drawn, start=1)]
    results = results_of(
        environment,
        request,
        Task(HeadMetricsTask(View(queries=queries), wanted.induction), "all"),
        texts=twice,
        jobs=jobs_of(context, request.jobs),
    )
    stream = ResultStream(
        context,
        environment,
        results,
        total=last_number(texts) if twice is None else len(twice),
        is_alone=is_alone(texts, request.from_),
        raises=wanted.induction,
        warns_once=True,
    )
    stats = HeadStats(wanted.induction)
    for _, metrics in stream.values():
        stats.add(metrics)
    return stats.report(), stream.failures


def _draw(
    report: HeadReport,
    wanted: Wanted,
    canvas: Terminal | PictureFile,
    palette: Palette,
    precision: int | None,
) -> None:
    from attncli.render.heads import HeadTable, grid_parts, table_parts

    parts: Iterable[RenderableType]
    if wanted.grid is not None:
        parts = grid_parts(report, wanted.grid, palette, canvas.width, precision)
    else:
        lines = canvas.height if wanted.top is None else None
        shown = HeadTable(wanted.order, wanted.label, precision, lines)
        parts = table_parts(report, shown, palette, canvas.table_width)
    canvas.show(parts, report.source.title)
