"""`attn inspect`: from sentences to tables, JSON, rows or a saved trace."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import typer

from attncli.cli import options
from attncli.cli.datasets import made_by
from attncli.cli.environment import Environment, complain
from attncli.errors import ExitCode, InputError, UsageError

if TYPE_CHECKING:
    from attncli.cli.datasets import Writing
    from attncli.cli.resume import ContinuedFile, Resumed
    from attncli.cli.sentences import Answers
    from attncli.formats.figures.size import Size
    from attncli.trace.trace import Trace
    from attncli.trace.view import View

_NOT_OF_PAGES = ("words", "norms", "rollout", "mean", "top_keys")


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
        is_compact: whether a row of Parquet is a head.
        made: what the numbers depend on, in words.
    """

    environment: Environment
    request: options.Inspection
    derive: options.Derive
    view: View
    chosen: str
    output: options.Traces
    colormap: str
    save: Path | None
    size: Size | None
    is_compact: bool
    made: Mapping[str, str]

    @property
    def form(self) -> str | None:
        """The machine format, if it is one."""
        from attncli.formats import DRAWN

        return "compact" if self.is_compact else None if self.chosen in DRAWN else self.chosen

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
    output: options.Traces,
    colormap: options.Colormap = None,
    save: options.Save = None,
    size: options.FigureSize = None,
    compact: options.Compact = False,
) -> None:
    """Show the attention of a sentence, from its tokens to a heat map per head.

    In html it is a page to look around in, for any browser; --show q,k adds q×k. In pdf and png it is a figure
    for a paper, its maps alone.

    Examples:
    attn inspect "time flies like an arrow"
    attn inspect -m demo "time flies like an arrow" --layer 1
    attn inspect -F jsonl - < sentences.txt
    attn inspect -m demo --file sentences.txt --layer all --compact -o attention/
    """
    left = None
    if request.resume and output.folder is None:  # a folder is gone on with in any case
        from attncli.cli.resume import resumable

        left = resumable(output.file)
    chosen = output.chosen(takes_folder=True)
    colors, measured = colormap or "viridis", _size(size, chosen)
    made = made_by("inspect", request, derive, view, compact=compact)
    run = _Run(environment, request, derive, _view(view), chosen, output, colors, save, measured, compact, made)
    _refuse_contradictions(run)
    if run.chosen == "html":
        _check_page(view, run)
    elif run.is_figure:
        _check_figure(run)
    if output.folder is not None:
        failures = _write_parts(context, run, output.folder)
    else:
        failures = _show(context, run) if left is None else _resume(context, run, left)
    if failures:
        raise typer.Exit(ExitCode.INPUT)


def _view(given: options.View) -> View:
    from attncli.text import names_in
    from attncli.trace.selection import RowRange
    from attncli.trace.view import PARTS, View

    spans = {one: RowRange.of(one) for one in given.query or ()}
    ranges = [span for span in spans.values() if span is not None]
    if len(ranges) > 1:
        raise UsageError(f"--query {ranges[1]}: there is a range already, {ranges[0]}; give one")
    return View(
        show=None if given.show is None else names_in("--show", given.show, PARTS),
        queries=tuple(one for one in given.query or () if spans[one] is None),
        keys=tuple(given.key or ()),
        hide_special=given.hide_special,
        precision=given.precision,
        span=ranges[0] if ranges else None,
        top_keys=given.top_keys,
        ramp=given.ramp,
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

    request, path = run.request, run.output.file
    if run.save is not None and path is not None and run.save.absolute() == path.absolute():
        raise UsageError(f"--save and --output both name {run.save}; give each a file of its own")
    if run.save is not None and run.save.suffix.removeprefix(".") in MEANINGS:
        ending = run.save.suffix
        raise UsageError(f"--save keeps a trace, in a file such as x.safetensors; -o x{ending} writes a {ending} file")
    if run.view.hide_special and request.has_words:
        raise UsageError("--hide-special does not apply to --vocab words, which adds no special tokens")
    if run.derive.words and request.generate is not None:
        raise UsageError("--words merges pieces by their places in the text, and what --generate writes has none")
    if request.resume and run.save is not None:
        raise UsageError("--save does not apply to --resume, which goes on with rows; drop one of them")
    files = request.computed.sentences.files
    if request.resume and files and run.output.folder is None:
        raise UsageError(
            f"--resume goes on with the sentences of one file, and there are {len(files):,} files; -o FOLDER/ is gone "
            "on with in any case"
        )
    refuse_misplaced_errors(request.keep_errors, request.fail_fast, run.chosen)
    if run.chosen == "parquet":
        from attncli.formats.parquet import check_parquet

        check_parquet(path)
    if run.is_compact:
        if run.chosen != "parquet":
            raise UsageError(f"--compact does not apply to {run.chosen}; give -o attention.parquet, or -o folder/")
        from attncli.formats.compact import check_compact

        check_compact(run.view, is_derived=any(run.derive.said()))


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


def _answers(
    context: typer.Context,
    run: _Run,
    resumed: Resumed | None = None,
    dataset: Writing | None = None,
) -> Answers[Any]:
    """Return what is to be shown of the traces that are asked for: these, or their parts of a machine format.

    Where a dataset is written, there is nothing to show.
    """
    from attncli.cli.following import followed
    from attncli.cli.request import Task, derivation_of, is_alone, made_of
    from attncli.corpus.inspecting import Inspected

    request = run.request
    wish, layers = derivation_of(run.derive, request)
    inspected = Inspected(wish, run.view, run.form, run.save)
    made = made_of(
        run.environment,
        request,
        Task(inspected, "0", layers, request.generate, _reads_values(run)),
        only=run.only,
        resumed=resumed,
        jobs=_jobs(context, run),
        on=request.on,
        dataset=dataset,
    )
    return followed(
        context,
        run.environment,
        made,
        request.computed.sentences,
        is_alone=is_alone(request.computed.sentences, request.from_),
        stops=request.fail_fast or run.only is not None,
        keeps_errors=request.keep_errors,
        output=run.output.file,
    )


def _jobs(context: typer.Context, run: _Run) -> int | None:
    from attncli.cli.request import jobs_of
    from attncli.formats import DRAWN

    what = f"{run.chosen}, which is drawn" if run.chosen in DRAWN else None
    what = what if run.save is None else "--save, which keeps a trace"
    if run.request.on is not None:
        from attncli.cli.cluster import check_on

        unfit = None if what is None else f"{what}; give --format jsonl"
        if run.request.resume and run.output.folder is None:
            unfit = "--resume of a file; give -o FOLDER/, which goes on by itself"
        check_on(run.request, run.request.on, unfit)
    return jobs_of(context, run.request.jobs, what)


def _show(context: typer.Context, run: _Run) -> int:
    """Write what was asked for; return how many sentences were bad."""
    from attncli.formats import DRAWN, STREAMS

    path = run.output.file
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
        write_parquet(answers, _types(run), path)
    else:
        with run.environment.output(path, is_stream=run.chosen in STREAMS) as stream:
            _emit(answers, run, stream)
    return answers.failures


def _types(run: _Run) -> dict[str, str]:
    """Return the columns of Parquet where there are no rows."""
    from attncli.formats.compact import compact_types
    from attncli.formats.parquet import CELLS

    return compact_types(run.view) if run.is_compact else CELLS


def _write_parts(context: typer.Context, run: _Run, folder: str) -> int:
    """Write a dataset into a folder, or what is not there of it; return how many sentences were bad."""
    from functools import partial

    from attncli.cli.datasets import writing
    from attncli.corpus.parts import Each

    table, files = partial(Each, _types(run)), run.request.computed.sentences.files
    with writing(run.environment, folder, table, run.made, files) as dataset:
        for _ in _answers(context, run, dataset=dataset):
            pass
    return dataset.tally.failures


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
    from attncli.cli.resume import bad_of
    from attncli.cli.sentences import sentences

    bad = bad_of(path, run.chosen, (one.number for one in sentences(run.request.computed.sentences, run.environment)))
    if bad:
        complain(f"sentences that it has no numbers of: {bad}; they were bad, or are not those that it was made of")
    return bad


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
    path = run.output.file
    if path is not None and run.chosen in FIGURES:
        with run.environment.binary(path) as file:
            file.write(figure)
        return
    with run.environment.output(path, encoding="utf-8") as stream:
        stream.write(figure.decode())


def _title(trace: Trace) -> str:
    return " / ".join(filter(None, (trace.text, trace.pair, trace.target)))


def _emit(answers: Iterable[tuple[int, Any]], run: _Run, stream: IO[str] | ContinuedFile) -> None:
    from attncli.formats import joined

    for piece in joined(run.chosen, answers):
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
    if run.view.top_keys is not None:
        raise UsageError("--top-keys does not apply to a figure, whose maps show every key; give svg without --size")
    show = run.view.show
    if show is not None and not show & {"heatmap", "weights"}:
        raise UsageError(
            f"--show {','.join(sorted(show))} does not apply to a figure, which is maps of weights; give svg without "
            "--size"
        )
