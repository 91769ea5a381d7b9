"""`attn why`: one cell of the attention, stage by stage, or one row of it."""

from __future__ import annotations

from typing import Annotated

from attncli.cli import options
from attncli.cli.environment import Environment
from attncli.errors import UsageError

Query = Annotated[
    list[str] | None,
    options.choice_option("--query", "-q", metavar="TOKEN", help="The token that attends: its text or its index."),
]
Key = Annotated[
    list[str] | None,
    options.choice_option(
        "--key",
        "-k",
        metavar="TOKEN",
        help="The token that is attended to: its text or its index. Default: the whole row, keys by weight.",
    ),
]
Top = Annotated[
    int | None,
    options.view_option(
        min=1,
        max=1_000_000,
        metavar="N",
        help="Dimensions, or keys of a row, in the table; the rest is summed up. Default: 8.",
    ),
]


def why(
    environment: Environment,
    request: options.Request,
    output: options.Document,
    query: Query = None,
    key: Key = None,
    top: Top = None,
    precision: options.Precision = None,
    colormap: options.Colormap = None,
    ramp: options.Ramp = None,
) -> None:
    """Say why a query attends to a key, stage by stage, in numbers that add up.

    One head is taken apart, from q·k as a sum over dimensions to what the weight carries; several heads have a line
    each. Without --key the whole row is explained, its keys by weight.

    Examples:
    attn why "time flies" --query flies --key time --head 3
    attn why -m demo "time flies like an arrow" --query 4 --layer 1
    """
    from attncli.analysis.cell import AttentionRow
    from attncli.analysis.warnings import warnings_of_rows
    from attncli.analysis.why import explain
    from attncli.cli.request import traces_of

    wanted_query, wanted_key = _the_only("query", query), _the_only("key", key)
    if wanted_query is None:
        raise UsageError("--query: give the token that attends, its text or its index")
    chosen = output.chosen()
    ((_, trace),) = traces_of(environment, request, "0", only="attn why explains")
    explained = explain(trace, wanted_query, wanted_key)
    for warning in warnings_of_rows(trace, [one if isinstance(one, AttentionRow) else one.row for one in explained]):
        environment.note(f"warning: {warning}")
    if chosen == "json":
        from attncli.formats.documents import write_why

        environment.write(write_why(trace, explained, precision), output.file)
        return
    from attncli.render.bars import TableFormat
    from attncli.render.why import WhyPage

    with output.canvas(environment, chosen, "why") as shown:
        sheet = TableFormat(shown.palette(colormap or "viridis"), shown.width, precision, ramp)
        page = WhyPage(trace, explained, top or 8, sheet)
        shown.show(page.parts(), trace.text or trace.target or "")
    for each in page.notes():
        environment.note(each)


def _the_only(name: str, values: list[str] | None) -> str | None:
    if values and len(values) > 1:
        raise UsageError(f"--{name} is given {len(values)} times; one cell or one row is explained at a time")
    return values[0] if values else None
