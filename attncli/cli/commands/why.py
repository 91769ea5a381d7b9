"""`attn why`: one cell of the attention, stage by stage, or one row of it."""

from __future__ import annotations

from dataclasses import replace

from attncli.cli import options
from attncli.cli.environment import Environment
from attncli.errors import UsageError


def why(
    environment: Environment,
    request: options.CommonOptions,
    output: options.DocumentOutput,
    query: list[str] | None = options.choice_option("Explain this query: a token or an index.", "TOKEN", "-q"),
    key: list[str] | None = options.choice_option(
        "Explain this key: a token or an index. Default: all keys, by weight.", "TOKEN", "-k"
    ),
    model: options.DemoModel = None,  # replaces the group's option
    top: int | None = options.view_option(
        "List N dimensions or keys, and sum the rest. Default: one screen.", "N", low=1, high=1_000_000
    ),
    composition: bool = options.view_option("Split the score of one head by what wrote the key and the query."),
    precision: options.Precision = None,
    colormap: options.Colormap = None,
    ramp: options.Ramp = None,
) -> None:
    """Explain why a query attends to a key, stage by stage, in numbers that add up.

    One head is shown from q·k, a sum over dimensions, to the key's contribution. Several heads have a line each,
    the largest weight first. Without --key attn lists all keys of the query by weight. attn explains the
    last piece of a word. --composition shows which heads and MLPs of the layers below wrote what this head finds.

    Examples:
    attn why "time flies" --query flies --key time --head 3
    attn why -m demo "time flies like an arrow" -q arrow -k time --layer all
    attn why -m demo "time flies like an arrow" --query 4 --layer 1
    attn why -m demo "time flies like an arrow" --query 4 --head 1.3 --composition
    """
    from attncli.analysis.cell import AttentionRow
    from attncli.analysis.warnings import warnings_of_rows
    from attncli.analysis.why import explain
    from attncli.cli.loop import first_layer_note, traces_of

    for name, values in (("query", query or ()), ("key", key or ())):
        if len(values) > 1:
            raise UsageError(f"--{name} is given {len(values)} times; give it once")
    if not query:
        raise UsageError("--query is missing; name the token that attends, by its text or its index")
    chosen = output.chosen()
    (trace,) = traces_of(environment, request, only="attn why explains")
    explained = explain(trace, query[0], key[0] if key else None)
    pieces = [trace.query_tokens.pieces_note(query[0]), *([trace.key_tokens.pieces_note(key[0])] if key else [])]
    split = None
    if composition:
        from attncli.analysis.composition import composition as composition_of

        split = composition_of(explained)
    rows = [cell if isinstance(cell, AttentionRow) else cell.row for cell in explained]
    warnings = (f"warning: {warning}" for warning in warnings_of_rows(trace, rows))
    environment.note(*filter(None, [*pieces, first_layer_note(request, trace)]), *warnings)
    if chosen == "json":
        from attncli.formats.documents import write_composition, write_why

        written = write_why(trace, explained, precision) if split is None else write_composition(split, precision)
        environment.write(written, output.file)
        return
    from attncli.render.bars import TableFormat
    from attncli.render.why import CompositionPage, WhyPage

    with output.view(environment, chosen, "why") as canvas:
        table = TableFormat(canvas.palette(colormap or "viridis"), canvas.width, precision, ramp)
        lines = canvas.height and canvas.height - environment.noted_lines
        if split is not None:
            most = len(split.terms) if output.all_ else top
            canvas.show(CompositionPage(split, most, table, lines).parts(), trace.text)
            return
        page = WhyPage(trace, explained, top, table, lines)
        for _ in range(2 if lines is not None else 0):  # a page with fewer heads has a longer note
            below = sum(-(-len(f"attn: {note}") // table.room) for note in page.notes())
            page = replace(page, lines=(lines or 0) - below)
        canvas.show(page.parts(), trace.text or trace.target or "")
    environment.note(*page.notes())
