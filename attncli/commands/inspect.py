"""`attn inspect`: from sentences to tables, JSON, rows or a saved trace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from attncli import derive_options, options
from attncli.errors import ExitCode, InputError, UsageError

if TYPE_CHECKING:
    from attncli.derived import Derivation
    from attncli.failure import Failure
    from attncli.resume import Resumed
    from attncli.trace import Trace
    from attncli.view import View

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
    words: derive_options.Words = None,
    norms: derive_options.Norms = None,
    rollout: derive_options.Rollout = None,
    reduce: derive_options.Reduce = None,
    over: derive_options.Over = None,
    no_sink: derive_options.NoSink = None,
    log: derive_options.Log = None,
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
    from attncli.derived.asked import derivation_of
    from attncli.formats import DRAWN, choose_format
    from attncli.inputs import answers_of, is_alone, refuse_misplaced_errors
    from attncli.progress import Following
    from attncli.selection import RowRange
    from attncli.sentences import last_number
    from attncli.stream import Answers
    from attncli.terminal import is_terminal, note
    from attncli.view import View, parse_show

    given = {name: value for name, value in context.params.items() if value not in (None, ())}
    view = View(
        show=None if show is None else parse_show(show),
        queries=tuple(query or ()),
        keys=tuple(key or ()),
        hide_special=bool(hide_special),
        precision=precision,
        span=None if rows is None else RowRange.of(rows),
        top_keys=top_keys,
        min_weight=min_weight,
        no_sink=bool(no_sink),
        log=bool(log),
    )
    wish, asked = derivation_of(given)
    if resume is not None:
        chosen = _resumable_format(given)
    else:
        chosen = _page_format(given, view) if interactive else choose_format(format_, output)
    if save is not None and output is not None and save.absolute() == output.absolute():
        raise UsageError(f"--save and --output both name {save}; give each a file of its own")
    if hide_special and from_ is None and model is None and vocab in (None, "words"):
        raise UsageError("--hide-special does not apply to --vocab words, which adds no special tokens")
    only = "--save keeps" if save is not None else "--interactive draws" if interactive else None
    refuse_misplaced_errors(given, chosen)
    if chosen == "parquet":
        from attncli.formats.parquet import check_parquet, write_parquet

        check_parquet(output)
    resumed = None
    if resume is not None:
        from attncli.resume import Resumed

        resumed = Resumed(resume, chosen, chosen == "jsonl" or min_weight is None)
        if resumed.is_whole:
            note(f"{resume} is whole already; remove it to compute it again")
            return
    traces = _checked(answers_of(asked, layers="0", only=only, resumed=resumed), view, save, wish, is_alone(given))
    bar = context.with_resource(Following(last_number(text or (), file), is_terminal(resume or output)))
    answers = Answers(bar.follow(traces), bool(keep_errors))
    if interactive:
        _emit_page(answers.good(), view, given)
    elif chosen in DRAWN:
        _draw(answers.good(), view, chosen, given)
    elif chosen == "parquet":
        write_parquet(answers, view, given["output"])
    else:
        _emit(answers, view, chosen, given, resumed)
    if answers.failures or (resumed is not None and resumed.failures):
        raise typer.Exit(ExitCode.INPUT)


def _checked(
    answers: Iterable[tuple[int, Trace | Failure]], view: View, save: Path | None, wish: Derivation, is_alone: bool
) -> Iterator[tuple[int, Trace | Failure]]:
    """Pass the traces on, derived if asked, once the view fits them; what is saved is the trace as it was recorded.

    What their numbers cannot say is said on stderr.
    """
    from attncli.derived import derived_trace
    from attncli.failure import Failure
    from attncli.stream import warn
    from attncli.warnings import warnings_of

    for number, answer in answers:
        if isinstance(answer, Failure):
            yield number, answer
            continue
        shown = answer if wish.is_none else derived_trace(answer, wish)
        view.check(shown)
        warn(warnings_of(shown, view), number, is_alone)
        if save is not None:
            answer.save(save)
        yield number, shown


def _draw(traces: Iterable[tuple[int, Trace]], view: View, chosen: str, given: dict[str, Any]) -> None:
    from attncli.render.layout import Layout
    from attncli.terminal import canvas, note

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
    answers: Iterable[tuple[int, Trace | Failure]],
    view: View,
    chosen: str,
    given: dict[str, Any],
    resumed: Resumed | None,
) -> None:
    from attncli.formats import STREAMS, writer
    from attncli.terminal import note, output

    if resumed is not None and resumed.goes_on:
        note(f"{resumed.part}: going on from sentence {resumed.sentence}")
    fresh = output(given.get("output"), is_stream=chosen in STREAMS)
    with fresh if resumed is None else resumed.written_on() as stream:
        for piece in writer(chosen)(answers, view):
            stream.write(piece)
            stream.flush()


def _resumable_format(given: dict[str, Any]) -> str:
    from attncli.resume import resumable

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
    from attncli.formats.page import write_page
    from attncli.terminal import write

    write(write_page(traces, view, given.get("colormap", "viridis")), given["output"])
