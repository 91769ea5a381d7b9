"""`attn diff`: what changed between two sentences, two checkpoints or two traces."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument

from attncli.cli import options
from attncli.cli.environment import Environment
from attncli.errors import UsageError

if TYPE_CHECKING:
    from attncli.analysis.diff import Difference
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
Maps = Annotated[
    int | None,
    options.view_option(min=0, metavar="N", help="Heads that are drawn, the most changed first. Default: 1."),
]


def diff(
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
    maps: Maps = None,
    precision: options.Precision = None,
    colormap: options.Colormap = None,
    ramp: options.Ramp = None,
) -> None:
    """Show what changed between two sentences, checkpoints or traces.

    The heads that changed most come first, then the cells, then two maps and their difference. It ends with 0 whether
    or not they differ.

    Examples:
    attn diff "time flies like an arrow" "fruit flies like an arrow"
    attn diff "time flies like an arrow" -m gpt2 -m distilgpt2
    attn diff --from before.safetensors --from after.safetensors
    """
    from attncli.analysis.diff import TOP
    from attncli.analysis.diff import diff as compare

    chosen = output.chosen()
    traces = _traces(environment, computed, selection, from_ or [], model or [])
    difference = compare(*traces, queries=query or (), top=top or TOP)
    for each in (*_warnings(difference), *difference.notes):
        environment.note(each)
    if chosen == "json":
        from attncli.formats.documents import write_difference

        environment.write([write_difference(difference, precision)], output.output)
        return
    from attncli.render.diff import Changes
    from attncli.render.matrix import DIGITS

    with output.canvas(environment, chosen, "diff") as shown:
        palette = shown.palette(colormap or "viridis")
        both = (difference.first, difference.second)
        title = " / ".join(dict.fromkeys(trace.text or trace.target or "" for trace in both))
        digits, drawn = DIGITS if precision is None else precision, 1 if maps is None else maps
        changes = Changes(difference, palette, shown.width, digits, top or TOP, drawn, ramp)
        shown.show(changes.renderables(), title)


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
    from attncli.cli.request import takes_target_alone, traces_of

    traces = partial(traces_of, environment, usual="all", values=False)
    if files:
        if models:
            raise UsageError("--model does not apply to --from, whose attention is already computed; drop one of them")
        if len(files) != 2:
            raise UsageError(f"--from is given {_times(len(files))}; give it twice: --from A --from B")
        one, other = (options.Request(computed, selection, from_=Path(path)) for path in files)
        return _only(traces(one)), _only(traces(other))
    if len(models) > 2:
        raise UsageError(f"--model is given {_times(len(models))}; give it once, or twice to compare two checkpoints")
    is_alone = bool(models) and takes_target_alone(environment, computed, models[0])
    if is_alone and len(models) == 1:
        raise UsageError("one target to compare; give two checkpoints, -m A -m B, or two traces, --from A --from B")
    if not is_alone:
        texts = _texts(environment, computed.sentences, 1 if len(models) == 2 else 2)
        given = replace(computed.sentences, text=texts, file=None, each=True, whole=False)
        computed = replace(computed, sentences=given)
    if len(models) == 2:
        one, other = (options.Request(computed, selection, model=name) for name in models)
        return _only(traces(one)), _only(traces(other))
    both = traces(options.Request(computed, selection, model=models[0] if models else None))
    return _only(both), _only(both)


def _only(traces: Iterator[tuple[int, Trace]]) -> Trace:
    return next(traces)[1]


def _texts(environment: Environment, given: options.Sentences, wanted: int) -> list[str]:
    """Return as many sentences as are wanted, from wherever they are."""
    from attncli.cli.sentences import say_how_taken, sentences
    from attncli.errors import refusing

    if wanted == 2 and len(given.text or ()) > 1:
        if given.are_words and len(given.text or ()) > 2:
            example = 'attn diff "time flies" "fruit flies"'
            raise UsageError(f"more than two sentences to compare; put each in quotes: {example}")
        if not given.each:
            given = replace(given, each=True)
            say_how_taken(given, environment)
    texts = [text for _, text in islice(refusing(sentences(given, environment)), wanted + 1)]
    if len(texts) == wanted:
        return texts
    if wanted == 1:
        raise UsageError("two checkpoints are compared on one sentence; give one sentence, or one --model")
    found = "one sentence" if len(texts) == 1 else "more than two sentences"
    raise UsageError(f"{found} to compare; give two, or one and two checkpoints: -m A -m B")


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _warnings(difference: Difference) -> Iterator[str]:
    """Yield what the numbers of the traces do not say, once where it is true of both."""
    from attncli.analysis.alignment import NAMES
    from attncli.analysis.cautions import warnings_of
    from attncli.trace.view import View

    first, second = difference.first, difference.second
    has_tables = all(trace.source.kind == "toy" and trace.source.details["rng"] == "torch" for trace in (first, second))
    if has_tables and any(
        first.key_tokens[one].id != second.key_tokens[other].id for one, other in difference.keys.pairs
    ):
        yield (
            "--rng torch draws the words of each sentence afresh, so that a word may have two embeddings; "
            "--rng numpy, or --vocab TOKENIZER, gives it one"
        )
    said: dict[str, list[str]] = {}
    for name, trace in zip(NAMES, (first, second), strict=True):
        for warning in (*trace.source.notes, *warnings_of(trace, View())):
            said.setdefault(warning, []).append(name)
    for warning, names in said.items():
        yield f"warning: {'' if len(names) == len(NAMES) else f'{names[0]}: '}{warning}"
