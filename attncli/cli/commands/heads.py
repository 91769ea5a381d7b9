"""`attn heads`: which head does what, over one sentence or many."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from attncli.analysis.metric_names import Metric
from attncli.cli import options
from attncli.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from attncli.analysis.heads import Survey
    from attncli.trace.trace import Trace
    from attncli.trace.view import View

_VIEW = "View"
_SAID = 20  # different warnings; a file of sentences may have one for each

Query = Annotated[
    list[str] | None,
    Option(
        "--query",
        "-q",
        metavar="TOKEN",
        help="Count this query row alone: a token or its index. May be repeated. Default: all.",
        rich_help_panel="What to look at",
    ),
]
Sort = Annotated[
    Metric | None,
    Option(help="The heads of the highest value first. Default: by layer and head.", rich_help_panel=_VIEW),
]
Reverse = Annotated[bool | None, Option("--reverse", help="With --sort: the lowest first.", rich_help_panel=_VIEW)]
Top = Annotated[
    int | None,
    Option(min=1, metavar="N", help="With --sort: this many heads alone. Default: all.", rich_help_panel=_VIEW),
]
Grid = Annotated[Metric | None, Option(help="Layers × heads as a heat map of this metric.", rich_help_panel=_VIEW)]


def heads(
    context: typer.Context,
    text: options.Texts = None,
    file: options.File = None,
    whole: options.Whole = None,
    fail_fast: options.FailFast = None,
    pair: options.Pair = None,
    target: options.Target = None,
    from_: options.From = None,
    model: options.Model = None,
    revision: options.Revision = None,
    dtype: options.Dtype = None,
    device: options.Device = None,
    offline: options.Offline = None,
    trust_remote_code: options.TrustRemoteCode = None,
    allow_pickle: options.AllowPickle = None,
    device_map: options.DeviceMap = None,
    truncate: options.Truncate = None,
    engine: options.Engine = None,
    d_model: options.DModel = None,
    num_heads: options.NumHeads = None,
    d_k: options.DK = None,
    d_v: options.DV = None,
    init: options.Init = None,
    project: options.Project = None,
    positions: options.Positions = None,
    scale: options.Scale = None,
    seed: options.Seed = None,
    rng: options.Rng = None,
    vocab: options.Vocab = None,
    vocab_size: options.VocabSize = None,
    out_proj: options.OutProj = None,
    mask: options.Mask = None,
    layer: options.EveryLayer = None,
    head: options.Head = None,
    kind: options.Kind = None,
    query: Query = None,
    no_special: options.NoSpecial = None,
    sort: Sort = None,
    reverse: Reverse = None,
    top: Top = None,
    grid: Grid = None,
    precision: options.Precision = None,
    colormap: options.Colormap = None,
    color: options.Color = None,
    width: options.Width = None,
    format_: options.Tidy = None,
    output: options.Output = None,
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
    from attncli.cli.request import answers_of, tolerated
    from attncli.cli.sentences import Answers, fitting, last_number
    from attncli.formats import DRAWN, choose_rows
    from attncli.trace.view import View

    given = {name: value for name, value in context.params.items() if value not in (None, ())}
    _refuse_contradictions(given)
    chosen = choose_rows(format_, output)
    view = View(queries=tuple(query or ()))
    # It is gone before the first row is written, which is after the last sentence.
    bar = context.with_resource(Following(last_number(text or (), file), shares_terminal=False))
    traces = tolerated(given, fitting(answers_of(given, layers="all"), view))
    answers = Answers(bar.follow(traces))
    found = survey(_warned(answers.good(), view), view)
    if sort is not None:
        found = found.ranked(sort, reverse=bool(reverse), top=top)
    if chosen in DRAWN:
        _draw(found, chosen, given)
    else:
        _write(found, chosen, given)
    if answers.failures:
        raise typer.Exit(ExitCode.INPUT)


def _refuse_contradictions(given: dict[str, Any]) -> None:
    if "grid" in given and "sort" in given:
        raise UsageError("--sort does not apply to --grid, which has every head in its place; drop one of them")
    for name in ("reverse", "top"):
        if name in given and "sort" not in given:
            raise UsageError(f"--{name} does not apply without --sort METRIC, which says by what")


def _warned(traces: Iterable[tuple[int, Trace]], view: View) -> Iterator[Trace]:
    """Pass the traces on, saying on stderr what their numbers cannot: each warning once, however many sentences."""
    from attncli.analysis.cautions import warnings_of
    from attncli.cli.environment import note

    said: set[str] = set()
    unsaid = 0
    for _, trace in traces:
        view.check(trace)
        for warning in (*trace.source.notes, *warnings_of(trace, view)):
            if warning in said:
                continue
            if len(said) < _SAID:
                said.add(warning)
                note(f"warning: {warning}")
            else:
                unsaid += 1
        yield trace
    if unsaid:
        note(f"warning: {unsaid} more of other sentences; attn inspect says them all")


def _draw(found: Survey, chosen: str, given: dict[str, Any]) -> None:
    from attncli.cli.environment import canvas
    from attncli.render.heads import grid_parts, table_parts
    from attncli.render.summaries import title_of

    with canvas(chosen, given.get("output"), given.get("color"), given.get("width"), "attn heads") as shown:
        how = (shown.palette(given.get("colormap", "viridis")), shown.width, given.get("precision"))
        if "grid" in given:
            parts = grid_parts(found, given["grid"], *how)
        else:
            room = shown.width if shown.is_cut else None  # a picture is as wide as the table
            parts = table_parts(found, given.get("sort"), how[0], room, how[2])
        shown.show(parts, title_of(found.source))


def _write(found: Survey, chosen: str, given: dict[str, Any]) -> None:
    from attncli.cli.environment import write
    from attncli.formats.documents import write_head_rows, write_heads

    precision = given.get("precision")
    comma = "\t" if chosen == "tsv" else ","
    document = write_heads(found, precision) if chosen == "json" else write_head_rows(found, comma, precision)
    write([document], given.get("output"))
