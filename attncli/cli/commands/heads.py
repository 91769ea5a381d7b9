"""`attn heads`: which head does what, over one sentence or many."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from attncli.analysis.metric_names import DETECTORS, NAMES, Metric
from attncli.cli import options
from attncli.cli.environment import Environment
from attncli.cli.groups import Options
from attncli.errors import ExitCode, UsageError
from attncli.text import names_in

if TYPE_CHECKING:
    from rich.console import RenderableType

    from attncli.analysis.heads import Survey
    from attncli.cli.environment import PictureFile, Terminal
    from attncli.render.palette import Palette
    from attncli.trace.trace import Trace
    from attncli.trace.view import View

_OF_TEST: tuple[Metric, ...] = ("induction", "previous", "duplicate", *DETECTORS)  # what a table of it has
_SAID = 20  # different warnings; a file of sentences may have one for each

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
        Metric | None,
        options.view_option(help="The heads of the highest value first. Default: by layer and head, or by label."),
    ] = None
    reverse: Annotated[bool, options.view_option("--reverse", help="With --sort: the lowest first.")] = False
    top: Annotated[
        int | None,
        options.view_option(
            min=1, metavar="N", help="With --sort: this many heads alone; with --label, of each label. Default: all."
        ),
    ] = None
    grid: Annotated[Metric | None, options.view_option(help="Layers × heads as a heat map of this metric.")] = None

    def check(self, request: options.Request) -> None:
        """Raise UsageError, before anything is loaded, for options that do not go together."""
        for name in ("sort", "label", "metrics"):
            if self.grid is not None and getattr(self, name):
                raise UsageError(
                    f"--{name} does not apply to --grid, which has every head in its place; drop one of them"
                )
        if self.reverse and self.order is None:
            raise UsageError("--reverse does not apply without --sort METRIC, which says by what")
        if self.top is not None and self.order is None and not self.label:
            raise UsageError("--top does not apply without --sort METRIC or --label, which say by what")
        for metric in (self.sort, self.grid, *(self.chosen or ())):
            if metric in DETECTORS and not self.induction:
                raise UsageError(f"{metric} is measured on random tokens that come twice; give --induction")
        if self.induction:
            given = [name for name, _ in request.computed.sentences.said() if name != "no_special"]
            if given := [*given, *["from"] * (request.from_ is not None)]:
                option = "TEXT" if given[0] == "text" else f"--{given[0]}"
                raise UsageError(f"{option} does not apply to --induction, which draws its tokens; drop one of them")

    @property
    def chosen(self) -> list[Metric] | None:
        """The metrics that `--metrics` names; None is all of them."""
        if self.metrics is None:
            return None
        known = {name: name for name in (*NAMES, *DETECTORS)}
        names_in("--metrics", self.metrics, known)
        return [known[name.strip()] for name in self.metrics.split(",")]  # type: ignore[index]

    @property
    def order(self) -> Metric | None:
        """The metric by which heads are ranked; None where they stand by label, or by layer and head."""
        is_found_by = self.induction and not self.label and self.grid is None
        return self.sort or ("induction" if is_found_by else None)

    def of(self, found: Survey, is_drawn: bool) -> Survey:
        """Return a survey with the heads and the metrics that are wanted, in order."""
        if self.order is not None:
            found = found.ranked(self.order, reverse=self.reverse, top=self.top)
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
    from attncli.analysis.heads import survey
    from attncli.cli.progress import Following
    from attncli.cli.request import answers_of, is_alone, tolerated
    from attncli.cli.sentences import Answers, fitting, last_number
    from attncli.formats import DRAWN
    from attncli.formats.documents import write_head_rows, write_heads
    from attncli.sources.repeated import repeated
    from attncli.trace.view import View

    wanted.check(request)
    chosen = output.chosen()
    view, texts = View(queries=tuple(query or ())), request.computed.sentences
    # It is gone before the first row is written, which is after the last sentence.
    twice = list(enumerate(repeated(request.model), start=1)) if wanted.induction else None
    last = last_number(texts) if twice is None else len(twice)
    bar = context.with_resource(Following(environment, last, shares_terminal=False))
    traces = tolerated(
        fitting(answers_of(environment, request, "all", values=False, texts=twice), view),
        stops=request.fail_fast or wanted.induction,
        is_alone=is_alone(texts, request.from_),
        keeps_errors=False,
    )
    answers = Answers(bar.follow(traces))
    good = _warned(environment, answers.good(), view, wanted.induction)
    found = wanted.of(survey(good, view, detects=wanted.induction), chosen in DRAWN)
    if chosen in DRAWN:
        with output.canvas(environment, chosen, "heads") as canvas:
            _draw(found, wanted, canvas, canvas.palette(colormap or "viridis"), precision)
    elif chosen == "json":
        environment.write([write_heads(found, precision)], output.output)
    else:
        environment.write([write_head_rows(found, "\t" if chosen == "tsv" else ",", precision)], output.output)
    if answers.failures:
        raise typer.Exit(ExitCode.INPUT)


def _warned(
    environment: Environment, traces: Iterable[tuple[int, Trace]], view: View, is_test: bool
) -> Iterator[Trace]:
    """Pass the traces on, saying on stderr what their numbers cannot: each warning once, however many sentences."""
    from attncli.analysis.cautions import warnings_of
    from attncli.analysis.induction import cautions

    said: set[str] = set()
    unsaid = 0
    for _, trace in traces:
        view.check(trace)
        for warning in (*trace.source.notes, *warnings_of(trace, view), *(cautions(trace) if is_test else ())):
            if warning in said:
                continue
            if len(said) < _SAID:
                said.add(warning)
                environment.note(f"warning: {warning}")
            else:
                unsaid += 1
        yield trace
    if unsaid:
        environment.note(f"warning: {unsaid} more of other sentences; attn inspect says them all")


def _draw(
    found: Survey, wanted: Wanted, canvas: Terminal | PictureFile, palette: Palette, precision: int | None
) -> None:
    from attncli.render.heads import Shown, grid_parts, table_parts

    parts: Iterable[RenderableType]
    if wanted.grid is not None:
        parts = grid_parts(found, wanted.grid, palette, canvas.width, precision)
    else:
        lines = canvas.height if wanted.top is None else None
        shown = Shown(wanted.order, wanted.label, precision, lines)
        parts = table_parts(found, shown, palette, canvas.table_width)
    canvas.show(parts, found.source.title)
