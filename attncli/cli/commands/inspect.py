"""`attn inspect`: from sentences to tables, JSON, rows or a saved trace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import typer

from attncli.cli import options
from attncli.errors import ExitCode, InputError, UsageError

if TYPE_CHECKING:
    from attncli.cli.resume import ContinuedFile, Resumed
    from attncli.cli.sentences import Answers
    from attncli.errors import Failure
    from attncli.trace.trace import Derivation, Trace
    from attncli.trace.view import View

_NOT_OF_PAGES = ("words", "norms", "rollout", "reduce", "no_sink", "log", "top_keys", "min_weight")


def inspect(
    context: typer.Context,
    text: options.Texts = None,
    file: options.File = None,
    whole: options.Whole = None,
    fail_fast: options.FailFast = None,
    keep_errors: options.KeepErrors = None,
    pair: options.Pair = None,
    target: options.Target = None,
    generate: options.Generate = None,
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
    verify: options.Verify = None,
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
    layer: options.Layer = None,
    head: options.Head = None,
    kind: options.Kind = None,
    query: options.Query = None,
    key: options.Key = None,
    rows: options.Rows = None,
    top_keys: options.TopKeys = None,
    min_weight: options.MinWeight = None,
    no_special: options.NoSpecial = None,
    hide_special: options.HideSpecial = None,
    show: options.Show = None,
    words: options.Words = None,
    norms: options.Norms = None,
    rollout: options.Rollout = None,
    reduce: options.Reduce = None,
    over: options.Over = None,
    no_sink: options.NoSink = None,
    log: options.Log = None,
    precision: options.Precision = None,
    colormap: options.Colormap = None,
    color: options.Color = None,
    width: options.Width = None,
    format_: options.Format = None,
    output: options.Output = None,
    resume: options.Resume = None,
    interactive: options.Interactive = None,
    save: options.Save = None,
) -> None:
    """Show the attention of a sentence, from its tokens to a heat map per head.

    Examples:
    attn inspect "time flies like an arrow"
    attn inspect -m gpt2 "time flies like an arrow" --head 3
    attn inspect -F jsonl - < sentences.txt
    """
    given = {name: value for name, value in context.params.items() if value not in (None, ())}
    view = _view(given)
    chosen = _format(given, view)
    _refuse_contradictions(given, chosen)
    if (_show if resume is None else _resume)(context, given, view, chosen):
        raise typer.Exit(ExitCode.INPUT)


def _view(given: dict[str, Any]) -> View:
    from attncli.text import names_in
    from attncli.trace.selection import RowRange
    from attncli.trace.view import PARTS, View

    return View(
        show=names_in("--show", given["show"], PARTS) if "show" in given else None,
        queries=tuple(given.get("query", ())),
        keys=tuple(given.get("key", ())),
        hide_special=given.get("hide_special", False),
        precision=given.get("precision"),
        span=RowRange.of(given["rows"]) if "rows" in given else None,
        top_keys=given.get("top_keys"),
        min_weight=given.get("min_weight"),
        no_sink=given.get("no_sink", False),
        log=given.get("log", False),
    )


def _format(given: dict[str, Any], view: View) -> str:
    from attncli.formats import choose_format

    if "resume" in given:
        return _resumable_format(given)
    return (
        _page_format(given, view)
        if "interactive" in given
        else choose_format(given.get("format_"), given.get("output"))
    )


def _refuse_contradictions(given: dict[str, Any], chosen: str) -> None:
    from attncli.cli.request import refuse_misplaced_errors

    save, output = given.get("save"), given.get("output")
    if save is not None and output is not None and save.absolute() == output.absolute():
        raise UsageError(f"--save and --output both name {save}; give each a file of its own")
    if "hide_special" in given and not {"from_", "model"} & given.keys() and given.get("vocab", "words") == "words":
        raise UsageError("--hide-special does not apply to --vocab words, which adds no special tokens")
    if "norms" not in given and given.get("min_weight", 0) > 1:
        raise UsageError(f"--min-weight {given['min_weight']}: no weight is more than 1; a norm may be, with --norms")
    refuse_misplaced_errors(given, chosen)
    if chosen == "parquet":
        from attncli.formats.parquet import check_parquet

        check_parquet(output)


def _answers(
    context: typer.Context, given: dict[str, Any], view: View, resumed: Resumed | None = None
) -> Answers[Trace]:
    """Return what is to be shown: the traces that the options ask for, followed by a bar and counted."""
    from attncli.cli.environment import is_terminal
    from attncli.cli.progress import Following
    from attncli.cli.request import answers_of, derivation_of, is_alone, tolerated
    from attncli.cli.sentences import Answers, fitting, last_number

    wish, asked = derivation_of(given)
    only = "--save keeps" if "save" in given else "--interactive draws" if "interactive" in given else None
    computed = answers_of(asked, layers="0", only=only, resumed=resumed)
    traces = tolerated(given, fitting(_derived(computed, wish), view), only is not None)
    noted = _noted(traces, view, given.get("save"), is_alone(given))
    last = last_number(given.get("text", ()), given.get("file"))
    bar = context.with_resource(Following(last, is_terminal(given.get("resume", given.get("output")))))
    return Answers(bar.follow(noted), given.get("keep_errors", False))


def _show(context: typer.Context, given: dict[str, Any], view: View, chosen: str) -> int:
    """Write what was asked for; return how many sentences were bad."""
    from attncli.cli.environment import output
    from attncli.formats import DRAWN, STREAMS

    answers = _answers(context, given, view)
    if "interactive" in given:
        _emit_page(answers.good(), view, given)
    elif chosen in DRAWN:
        _draw(answers.good(), view, chosen, given)
    elif chosen == "parquet":
        from attncli.formats.parquet import write_parquet

        write_parquet(answers, view, given["output"])
    else:
        with output(given.get("output"), is_stream=chosen in STREAMS) as stream:
            _emit(answers, view, chosen, stream)
    return answers.failures


def _resume(context: typer.Context, given: dict[str, Any], view: View, chosen: str) -> int:
    """Go on with what an interrupted run left; return how many of all sentences were bad."""
    from attncli.cli.environment import note
    from attncli.cli.resume import is_whole, resumed

    path = given["resume"]
    if is_whole(path):
        note(f"{path} is whole already; remove it to compute it again")
        return _bad_of_whole(context, given, view, chosen)
    with resumed(path, chosen) as left:
        answers = _answers(context, given, view, left)
        if left.goes_on:
            note(f"{left.part}: going on from sentence {left.sentence}")
        with left.stream() as stream:
            _emit(answers, view, chosen, stream)
    return answers.failures + left.failures


def _bad_of_whole(context: typer.Context, given: dict[str, Any], view: View, chosen: str) -> int:
    """Return how many sentences of a whole file were bad; the run that made it may have been killed before it said."""
    from attncli.cli.environment import complain
    from attncli.cli.resume import Resumed, bad_of
    from attncli.cli.sentences import sentences

    if "min_weight" in given and chosen != "jsonl":  # which leaves good ones without a row, so they are answered again
        left = Resumed(given["resume"], given["resume"], chosen)
        answers = _answers(context, given, view, left)
        for _ in answers:
            pass
        return answers.failures
    texts = sentences(given.get("text", ()), given.get("file"), given.get("whole", False))
    bad = bad_of(given["resume"], chosen, (number for number, _ in texts))
    if bad:
        complain(f"sentences that it has no numbers of: {bad}; they were bad, or are not those that it was made of")
    return bad


def _derived(answers: Iterable[tuple[int, Trace | Failure]], wish: Derivation) -> Iterator[tuple[int, Trace | Failure]]:
    """Pass the answers on; of a trace, the numbers that were asked to be made of its own."""
    from attncli.analysis.derive import derived_trace
    from attncli.errors import Failure

    for number, answer in answers:
        yield number, answer if isinstance(answer, Failure) else derived_trace(answer, wish)


def _noted(
    answers: Iterable[tuple[int, Trace | Failure]], view: View, save: Path | None, is_alone: bool
) -> Iterator[tuple[int, Trace | Failure]]:
    """Pass the answers on, saying on stderr what their numbers cannot; a trace is saved as it was recorded."""
    from attncli.analysis.cautions import warnings_of
    from attncli.cli.sentences import warn
    from attncli.errors import Failure

    said: tuple[str, ...] = ()
    for number, answer in answers:
        if not isinstance(answer, Failure):
            if answer.source.notes != said:
                said = answer.source.notes
                warn(said, number, is_alone=True)  # of all sentences, whichever came first
            warn(warnings_of(answer, view), number, is_alone)
            if save is not None:
                answer.recorded.save(save)
        yield number, answer


def _draw(traces: Iterable[tuple[int, Trace]], view: View, chosen: str, given: dict[str, Any]) -> None:
    from attncli.cli.environment import canvas, note
    from attncli.render.inspect import Layout

    with canvas(chosen, given.get("output"), given.get("color"), given.get("width"), "attn inspect") as shown:
        palette = shown.palette(given.get("colormap", "viridis"))
        layout = None
        for _, trace in traces:
            layout = Layout(trace, view, palette, shown.width, shown.is_cut)
            title = " / ".join(filter(None, (trace.text, trace.pair, trace.target)))
            shown.show(layout.renderables(), title)
            for each in layout.notes():
                note(each)
        if layout is None:
            raise InputError("there is nothing to draw: no sentence could be read")


def _emit(
    answers: Iterable[tuple[int, Trace | Failure]], view: View, chosen: str, stream: IO[str] | ContinuedFile
) -> None:
    from attncli.formats import writer

    for piece in writer(chosen)(answers, view):
        stream.write(piece)
        stream.flush()


def _resumable_format(given: dict[str, Any]) -> str:
    from attncli.cli.resume import resumable

    for name in ("output", "save", "interactive"):
        if name in given:
            raise UsageError(f"--{name} does not apply to --resume, which is --output for rows; drop one of them")
    return resumable(given.get("format_"), given["resume"])


def _page_format(given: dict[str, Any], view: View) -> str:
    from attncli.formats.page import check_page

    for name in _NOT_OF_PAGES:
        if name in given:
            option = "--" + name.replace("_", "-")
            raise UsageError(f"{option} does not apply to --interactive, whose page holds all weights as they are")
    check_page(given.get("format_"), given.get("output"), view.show)
    return "html"


def _emit_page(traces: Iterable[tuple[int, Trace]], view: View, given: dict[str, Any]) -> None:
    from attncli.cli.environment import write
    from attncli.formats.page import write_page

    write(write_page(traces, view, given.get("colormap", "viridis")), given["output"])
