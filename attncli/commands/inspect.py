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
    from attncli.trace import Trace
    from attncli.view import View

_NOT_OF_PAGES = ("words", "norms", "rollout", "reduce", "no_sink", "log", "top_keys")


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
    interactive: options.Interactive = None,
    save: options.Save = None,
) -> None:
    """Show the attention of a sentence: tokens, Q/K/V shapes, scores, masked weights, a heat map per head.

    Examples:
    attn inspect "time flies like an arrow"

    attn inspect -m sentence-transformers/all-MiniLM-L6-v2 --head 3 "time flies like an arrow"

    attn inspect -F jsonl - < sentences.txt
    """
    from attncli.derived.asked import derivation_of
    from attncli.formats import DRAWN, choose_format
    from attncli.inputs import answers_of
    from attncli.selection import RowRange
    from attncli.stream import Answers
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
    chosen = _page_format(given, view) if interactive else choose_format(format_, output)
    if save is not None and output is not None and save.absolute() == output.absolute():
        raise UsageError(f"--save and --output both name {save}; give each a file of its own")
    if hide_special and from_ is None and model is None and vocab in (None, "words"):
        raise UsageError("--hide-special does not apply to --vocab words, which adds no special tokens")
    only = "--save keeps" if save is not None else "--interactive draws" if interactive else None
    _refuse_contradictions(given, chosen)
    if chosen == "parquet":
        from attncli.formats.parquet import check_parquet, write_parquet

        check_parquet(output)
    answers = Answers(_checked(answers_of(asked, layers="0", only=only), view, save, wish), bool(keep_errors))
    if interactive:
        _emit_page(answers.good(), view, given)
    elif chosen in DRAWN:
        _draw(answers.good(), view, chosen, given)
    elif chosen == "parquet":
        write_parquet(answers, view, given["output"])
    else:
        _emit(answers, view, chosen, given)
    if answers.failures:
        raise typer.Exit(ExitCode.INPUT)


def _refuse_contradictions(given: dict[str, Any], chosen: str) -> None:
    if "keep_errors" in given and "fail_fast" in given:
        raise UsageError("--keep-errors does not apply to --fail-fast, which stops at an error; drop one of them")
    if "keep_errors" in given and chosen not in ("json", "jsonl"):
        raise UsageError(f"--keep-errors does not apply to {chosen}, which has no place for them; give --format jsonl")


def _checked(
    answers: Iterable[tuple[int, Trace | Failure]], view: View, save: Path | None, wish: Derivation
) -> Iterator[tuple[int, Trace | Failure]]:
    """Pass the traces on, derived if asked, once the view fits them; what is saved is the trace as it was recorded.

    What their numbers cannot say is said on stderr.
    """
    from attncli.derived import derived_trace
    from attncli.failure import Failure
    from attncli.terminal import complain
    from attncli.warnings import warnings_of

    for number, answer in answers:
        if isinstance(answer, Failure):
            yield number, answer
            continue
        shown = answer if wish.is_none else derived_trace(answer, wish)
        view.check(shown)
        for warning in warnings_of(shown, view):
            complain(f"warning: {warning}")
        if save is not None:
            answer.save(save)
        yield number, shown


def _draw(traces: Iterable[tuple[int, Trace]], view: View, chosen: str, given: dict[str, Any]) -> None:
    from attncli.render.layout import Layout
    from attncli.terminal import canvas, complain

    with canvas(chosen, given.get("output"), given.get("color"), given.get("width"), "attn inspect") as shown:
        palette = shown.palette(given.get("colormap", "viridis"))
        layout = None
        for _, trace in traces:
            layout = Layout(trace, view, palette, shown.width, shown.is_cut)
            title = " / ".join(filter(None, (trace.text, trace.pair, trace.target)))
            shown.show(layout.renderables(), title)
            for note in layout.notes():
                complain(note)
        if layout is None:
            raise InputError("there is nothing to draw: no sentence could be read")


def _emit(answers: Iterable[tuple[int, Trace | Failure]], view: View, chosen: str, given: dict[str, Any]) -> None:
    from attncli.formats import STREAMS, writer
    from attncli.terminal import output

    with output(given.get("output"), is_stream=chosen in STREAMS) as stream:
        for piece in writer(chosen)(answers, view):
            stream.write(piece)
            stream.flush()


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
