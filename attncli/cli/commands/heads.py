"""`attn heads`: which head does what, over one sentence or many."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from attncli.analysis.metric_names import Metric
from attncli.cli import options
from attncli.cli.environment import Environment
from attncli.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from attncli.analysis.heads import Survey
    from attncli.cli.environment import PictureFile, Terminal
    from attncli.render.palette import Palette
    from attncli.trace.trace import Trace
    from attncli.trace.view import View

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
Sort = Annotated[
    Metric | None, options.view_option(help="The heads of the highest value first. Default: by layer and head.")
]
Reverse = Annotated[bool, options.view_option("--reverse", help="With --sort: the lowest first.")]
Top = Annotated[
    int | None, options.view_option(min=1, metavar="N", help="With --sort: this many heads alone. Default: all.")
]
Grid = Annotated[Metric | None, options.view_option(help="Layers × heads as a heat map of this metric.")]


def heads(
    context: typer.Context,
    environment: Environment,
    request: options.Stream,
    output: options.Rows,
    layer: options.EveryLayer = None,
    query: Query = None,
    sort: Sort = None,
    reverse: Reverse = False,
    top: Top = None,
    grid: Grid = None,
    precision: options.Precision = None,
    colormap: options.Colormap = None,
) -> None:
    """Say what every head of every layer does, in numbers: one row a head.

    Over several sentences they are means, with standard deviations. `attn help metrics` says what they measure.

    Examples:
    attn heads -m gpt2 "a cat, a dog, a cat" --sort induction
    attn heads -m gpt2 --file sentences.txt -F tsv
    attn heads -m gpt2 "time flies like an arrow" --grid sink
    """
    from attncli.analysis.heads import survey
    from attncli.cli.progress import Following
    from attncli.cli.request import answers_of, is_alone, tolerated
    from attncli.cli.sentences import Answers, fitting, last_number
    from attncli.formats import DRAWN
    from attncli.formats.documents import write_head_rows, write_heads
    from attncli.trace.view import View

    if grid is not None and sort is not None:
        raise UsageError("--sort does not apply to --grid, which has every head in its place; drop one of them")
    for name, is_given in (("reverse", reverse), ("top", top is not None)):
        if is_given and sort is None:
            raise UsageError(f"--{name} does not apply without --sort METRIC, which says by what")
    chosen = output.chosen()
    view, texts = View(queries=tuple(query or ())), request.computed.sentences
    # It is gone before the first row is written, which is after the last sentence.
    bar = context.with_resource(Following(environment, last_number(texts), shares_terminal=False))
    traces = tolerated(
        fitting(answers_of(environment, request, "all", values=False), view),
        stops=request.fail_fast,
        is_alone=is_alone(texts, request.from_),
        keeps_errors=False,
    )
    answers = Answers(bar.follow(traces))
    found = survey(_warned(environment, answers.good(), view), view)
    if sort is not None:
        found = found.ranked(sort, reverse=reverse, top=top)
    if chosen in DRAWN:
        with output.canvas(environment, chosen, "heads") as shown:
            _draw(found, shown, shown.palette(colormap or "viridis"), precision, sort, grid)
    elif chosen == "json":
        environment.write([write_heads(found, precision)], output.output)
    else:
        environment.write([write_head_rows(found, "\t" if chosen == "tsv" else ",", precision)], output.output)
    if answers.failures:
        raise typer.Exit(ExitCode.INPUT)


def _warned(environment: Environment, traces: Iterable[tuple[int, Trace]], view: View) -> Iterator[Trace]:
    """Pass the traces on, saying on stderr what their numbers cannot: each warning once, however many sentences."""
    from attncli.analysis.cautions import warnings_of

    said: set[str] = set()
    unsaid = 0
    for _, trace in traces:
        view.check(trace)
        for warning in (*trace.source.notes, *warnings_of(trace, view)):
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
    found: Survey,
    shown: Terminal | PictureFile,
    palette: Palette,
    precision: int | None,
    sort: Metric | None,
    grid: Metric | None,
) -> None:
    from attncli.render.heads import grid_parts, table_parts
    from attncli.render.summaries import title_of

    if grid is not None:
        parts = grid_parts(found, grid, palette, shown.width, precision)
    else:
        room = shown.width if shown.is_cut else None  # a picture is as wide as the table
        parts = table_parts(found, sort, palette, room, precision)
    shown.show(parts, title_of(found.source))
