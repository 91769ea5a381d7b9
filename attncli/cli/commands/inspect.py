"""`attn inspect`: from sentences to tables, JSON, rows or a saved trace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

import typer

from attncli.cli import options
from attncli.cli.environment import Environment, complain
from attncli.errors import ExitCode, InputError, UsageError

if TYPE_CHECKING:
    from attncli.cli.resume import ContinuedFile, Resumed
    from attncli.cli.sentences import Answers
    from attncli.errors import Failure
    from attncli.formats.figures.size import Size
    from attncli.trace.trace import Derivation, Trace
    from attncli.trace.view import View

_NOT_OF_PAGES = ("words", "norms", "rollout", "reduce", "top_keys", "min_weight")


@dataclass(frozen=True)
class _Run:
    """A run of the command.

    Attributes:
        environment: where it writes.
        request: whose attention is shown.
        derive: which numbers stand in place of the weights.
        view: what of it is shown.
        chosen: the format.
        output: where it goes, and how it looks.
        colormap: the colours of the heat maps.
        save: where the trace is kept as well.
        size: of a figure; None leaves it to what is drawn.
    """

    environment: Environment
    request: options.Inspection
    derive: options.Derive
    view: View
    chosen: str
    output: options.Output
    colormap: str
    save: Path | None
    size: Size | None

    @property
    def is_figure(self) -> bool:
        """Whether what is drawn is a figure for a paper, and not the view of a terminal."""
        from attncli.formats import FIGURES

        return self.chosen in FIGURES or self.size is not None

    @property
    def only(self) -> str | None:
        """What takes a single trace, if anything does."""
        if self.save is not None:
            return "--save keeps"
        return "a page of html shows" if self.chosen == "html" else "a figure shows" if self.is_figure else None


def inspect(
    context: typer.Context,
    environment: Environment,
    request: options.Inspection,
    view: options.View,
    derive: options.Derive,
    output: options.Output,
    colormap: options.Colormap = None,
    save: options.Save = None,
    size: options.FigureSize = None,
) -> None:
    """Show the attention of a sentence, from its tokens to a heat map per head.

    In html it is a page to look around in, for any browser; --show q,k adds q×k. In pdf and png it is a figure
    for a paper, its maps alone.

    Examples:
    attn inspect "time flies like an arrow"
    attn inspect -m demo "time flies like an arrow" --layer 1
    attn inspect -F jsonl - < sentences.txt
    """
    left = None
    if request.resume:
        from attncli.cli.resume import resumable

        left = resumable(output.output)
    chosen = output.chosen()
    colors, measured = colormap or "viridis", _size(size, chosen)
    run = _Run(environment, request, derive, _view(view), chosen, output, colors, save, measured)
    _refuse_contradictions(run)
    if run.chosen == "html":
        _check_page(view, run)
    elif run.is_figure:
        _check_figure(run)
    if _show(context, run) if left is None else _resume(context, run, left):
        raise typer.Exit(ExitCode.INPUT)


def _view(given: options.View) -> View:
    from attncli.text import names_in
    from attncli.trace.selection import RowRange
    from attncli.trace.view import PARTS, View

    return View(
        show=None if given.show is None else names_in("--show", given.show, PARTS),
        queries=tuple(given.query or ()),
        keys=tuple(given.key or ()),
        hide_special=given.hide_special,
        precision=given.precision,
        span=None if given.rows is None else RowRange.of(given.rows),
        top_keys=given.top_keys,
        min_weight=given.min_weight,
        ramp=given.ramp,
        range_=given.range or "all",
    )


def _size(given: str | None, chosen: str) -> Size | None:
    """Return the size of a figure.

    Raises:
        UsageError: it is none, or what is written is no figure.
    """
    if given is None:
        return None
    from attncli.formats import FIGURES
    from attncli.formats.figures import check_figures
    from attncli.formats.figures.size import Size

    size = Size.of(given)
    if chosen not in FIGURES | {"svg"}:
        raise UsageError(f"--size does not apply to {chosen}; it is of a figure: give -o figure.pdf, .png or .svg")
    check_figures()
    return size


def _refuse_contradictions(run: _Run) -> None:
    from attncli.cli.request import refuse_misplaced_errors
    from attncli.formats import MEANINGS

    request, path = run.request, run.output.output
    if run.save is not None and path is not None and run.save.absolute() == path.absolute():
        raise UsageError(f"--save and --output both name {run.save}; give each a file of its own")
    if run.save is not None and run.save.suffix.removeprefix(".") in MEANINGS:
        ending = run.save.suffix
        raise UsageError(f"--save keeps a trace, in a file such as x.safetensors; -o x{ending} writes a {ending} file")
    if run.view.hide_special and request.has_words:
        raise UsageError("--hide-special does not apply to --vocab words, which adds no special tokens")
    if run.derive.words and request.generate is not None:
        raise UsageError("--words merges pieces by their places in the text, and what --generate writes has none")
    least = run.view.min_weight
    if least is not None and least > 1 and not run.derive.norms:
        raise UsageError(f"--min-weight {least}: no weight is more than 1; a norm may be, with --norms")
    if request.resume and run.save is not None:
        raise UsageError("--save does not apply to --resume, which goes on with rows; drop one of them")
    refuse_misplaced_errors(request.keep_errors, request.fail_fast, run.chosen)
    if run.chosen == "parquet":
        from attncli.formats.parquet import check_parquet

        check_parquet(path)


def _reads_values(run: _Run) -> bool:
    """Return whether V is certain or likely to be read: by what is shown, made of it or saved, or by a single row."""
    from attncli.formats import DRAWN

    view = run.view
    if run.save is not None or run.derive.norms:
        return True
    if run.is_figure:
        return False
    if view.show is None:
        return run.chosen in DRAWN and (bool(view.queries) or view.span is not None)
    return not view.show.isdisjoint({"v", "output"})


def _answers(context: typer.Context, run: _Run, resumed: Resumed | None = None) -> Answers[Trace]:
    """Return what is to be shown: the traces that are asked for, followed by a bar and counted."""
    from attncli.cli.progress import Following
    from attncli.cli.request import answers_of, derivation_of, is_alone, tolerated
    from attncli.cli.sentences import Answers, fitting, last_number

    request, texts = run.request, run.request.computed.sentences
    wish, layers = derivation_of(run.derive, request)
    computed = answers_of(
        run.environment,
        request,
        "0",
        layers=layers,
        generate=request.generate,
        only=run.only,
        values=_reads_values(run),
        resumed=resumed,
    )
    alone = is_alone(texts, request.from_)
    traces = tolerated(
        fitting(_derived(computed, wish), run.view),
        stops=request.fail_fast or run.only is not None,
        is_alone=alone,
        keeps_errors=request.keep_errors,
    )
    is_seen = run.environment.is_terminal(run.output.output)
    bar = context.with_resource(Following(run.environment, last_number(texts), is_seen))
    return Answers(bar.follow(_noted(traces, run, alone)), request.keep_errors)


def _show(context: typer.Context, run: _Run) -> int:
    """Write what was asked for; return how many sentences were bad."""
    from attncli.formats import DRAWN, STREAMS

    path = run.output.output
    answers = _answers(context, run)
    if run.chosen == "html":
        from attncli.formats.page import write_page

        with run.environment.output(path, encoding="utf-8") as stream:
            stream.writelines(write_page(answers.good(), run.view, run.colormap))
    elif run.is_figure:
        _write_figure(answers.good(), run)
    elif run.chosen in DRAWN:
        _draw(answers.good(), run)
    elif run.chosen == "parquet":
        from attncli.formats.parquet import write_parquet

        assert path is not None
        write_parquet(answers, run.view, path)
    else:
        with run.environment.output(path, is_stream=run.chosen in STREAMS) as stream:
            _emit(answers, run, stream)
    return answers.failures


def _resume(context: typer.Context, run: _Run, path: Path) -> int:
    """Go on with what an interrupted run left; return how many of all sentences were bad."""
    from attncli.cli.resume import is_whole, resumed

    if is_whole(path):
        run.environment.note(f"{path} is whole already; remove it to compute it again")
        return _bad_of_whole(context, run, path)
    with resumed(path, run.chosen) as left:
        answers = _answers(context, run, left)
        if left.goes_on:
            run.environment.note(f"{left.part}: going on from sentence {left.sentence}")
        with left.stream() as stream:
            _emit(answers, run, stream)
    return answers.failures + left.failures


def _bad_of_whole(context: typer.Context, run: _Run, path: Path) -> int:
    """Return how many sentences of a whole file were bad; the run that made it may have been killed before it said."""
    from attncli.cli.resume import Resumed, bad_of
    from attncli.cli.sentences import sentences

    if run.view.min_weight is not None and run.chosen != "jsonl":
        # It leaves good sentences without a row, so that all of them are answered again.
        answers = _answers(context, run, Resumed(path, path, run.chosen))
        for _ in answers:
            pass
        return answers.failures
    bad = bad_of(path, run.chosen, (number for number, _ in sentences(run.request.computed.sentences, run.environment)))
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
    answers: Iterable[tuple[int, Trace | Failure]], run: _Run, is_alone: bool
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
                warn(run.environment, said, number, is_alone=True)  # of all sentences, whichever came first
            warn(run.environment, warnings_of(answer, run.view), number, is_alone)
            if run.save is not None:
                answer.recorded.save(run.save)
        yield number, answer


def _draw(traces: Iterable[tuple[int, Trace]], run: _Run) -> None:
    from attncli.render.inspect import Layout

    with run.output.canvas(run.environment, run.chosen, "inspect") as shown:
        palette = shown.palette(run.colormap)
        layout, before = None, 0
        for _, trace in traces:
            height = shown.height
            if height is not None:  # what was said above the view takes lines of the screen, but not most of them
                height = max(height - (run.environment.lines_said - before), height // 2)
            layout = Layout(trace, run.view, palette, shown.width, height, run.output.all_)
            shown.show(layout.renderables(), _title(trace))
            for each in layout.notes():
                run.environment.note(each)
            before = run.environment.lines_said
        if layout is None:
            raise InputError("there is nothing to draw: no sentence could be read")


def _write_figure(traces: Iterable[tuple[int, Trace]], run: _Run) -> None:
    from attncli.formats import FIGURES
    from attncli.formats.figures import figure_of, written

    (trace,) = (trace for _, trace in traces)
    colormap = "gray" if run.output.color == "never" else run.colormap
    figure = written(figure_of(trace, run.view, colormap, run.size), run.chosen, f"attn inspect: {_title(trace)}")
    path = run.output.output
    if path is not None and run.chosen in FIGURES:
        with run.environment.binary(path) as file:
            file.write(figure)
        return
    with run.environment.output(path, encoding="utf-8") as stream:
        stream.write(figure.decode())


def _title(trace: Trace) -> str:
    return " / ".join(filter(None, (trace.text, trace.pair, trace.target)))


def _emit(answers: Iterable[tuple[int, Trace | Failure]], run: _Run, stream: IO[str] | ContinuedFile) -> None:
    from attncli.formats import writer

    for piece in writer(run.chosen)(answers, run.view):
        stream.write(piece)
        stream.flush()


def _check_page(view: options.View, run: _Run) -> None:
    from attncli.formats.page import check_page

    for name, _ in (*run.derive.said(), *view.said()):
        if name in _NOT_OF_PAGES:
            option = "--" + name.replace("_", "-")
            raise UsageError(
                f"{option} does not apply to html, whose page holds all weights as they are; give svg or md"
            )
    check_page(run.view.show)


def _check_figure(run: _Run) -> None:
    for name, is_given in (("top-keys", run.view.top_keys), ("min-weight", run.view.min_weight)):
        if is_given is not None:
            raise UsageError(f"--{name} does not apply to a figure, whose maps show every key; give svg without --size")
    show = run.view.show
    if show is not None and not show & {"heatmap", "weights"}:
        raise UsageError(
            f"--show {','.join(sorted(show))} does not apply to a figure, which is maps of weights; give svg without "
            "--size"
        )
