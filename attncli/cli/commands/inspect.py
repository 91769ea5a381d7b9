"""`attn inspect`: from sentences to tables, JSON, rows or a saved trace."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from attncli.cli import options
from attncli.cli.datasets import provenance
from attncli.cli.environment import Environment
from attncli.errors import ExitCode, InputError, UsageError

if TYPE_CHECKING:
    from attncli.cli.request import Task
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
    made: dict[str, str]

    @property
    def form(self) -> str | None:
        """The machine format, if it is one."""
        from attncli.formats import DRAWN

        return None if self.chosen in DRAWN else self.chosen

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
    view: options.ViewOptions,
    derive: options.Derive,
    output: options.Traces,
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
    attn inspect -m demo -f sentences.txt --show metrics -o metrics/
    """
    chosen = output.chosen(takes_folder=True)
    colors, measured = colormap or "viridis", _size(size, chosen)
    made = provenance("inspect", request, derive, view)
    run = _Run(environment, request, derive, _view(view), chosen, output, colors, save, measured, made)
    _refuse_contradictions(run)
    if run.chosen == "html":
        _check_page(view, run)
    elif run.is_figure:
        _check_figure(run)
    if _show(context, run) if output.folder is None else _write_folder(context, run, output.folder):
        raise typer.Exit(ExitCode.INPUT)


def _view(chosen: options.ViewOptions) -> View:
    from attncli.text import names_in
    from attncli.trace.view import PARTS, View

    return View(
        show=None if chosen.show is None else names_in("--show", chosen.show, PARTS),
        queries=tuple(chosen.query or ()),
        keys=tuple(chosen.key or ()),
        hide_special=chosen.hide_special,
        precision=chosen.precision,
        top_keys=chosen.top_keys,
        ramp=chosen.ramp,
    )


def _size(text: str | None, chosen: str) -> Size | None:
    """Return the size of a figure.

    Raises:
        UsageError: it is none, or what is written is no figure.
    """
    if text is None:
        return None
    from attncli.formats import FIGURES
    from attncli.formats.figures import check_figures
    from attncli.formats.figures.size import Size

    size = Size.of(text)
    if chosen not in FIGURES | {"svg"}:
        raise UsageError(f"--size does not apply to {chosen}; it is of a figure: give -o figure.pdf, .png or .svg")
    check_figures()
    return size


def _refuse_contradictions(run: _Run) -> None:
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
    if request.on is not None:
        from attncli.cli.datasets import check_on

        check_on(request, request.on, run.output.folder)
    if run.chosen == "parquet":
        from attncli.formats.parquet import check_parquet

        check_parquet(path)


def _task(run: _Run) -> Task:
    """Return what is made of the traces that are asked for: to be drawn, or their pieces of a format."""
    from attncli.cli.request import Task, derivation_of
    from attncli.corpus.jobs import RenderTask

    derivation, layers = derivation_of(run.derive, run.request)
    task = RenderTask(derivation, run.view, run.form, run.save)
    return Task(task, "0", layers, run.request.generate)


def _jobs(context: typer.Context, run: _Run) -> int | None:
    from attncli.cli.request import jobs_of
    from attncli.formats import DRAWN

    what = f"{run.chosen}, which is drawn" if run.chosen in DRAWN else None
    return jobs_of(context, run.request.jobs, what if run.save is None else "--save, which keeps a trace")


def _show(context: typer.Context, run: _Run) -> int:
    """Write what was asked for; return how many sentences were bad."""
    from attncli.cli.request import is_alone, results_of
    from attncli.cli.results import ResultStream, write_results
    from attncli.cli.sentences import last_number
    from attncli.formats import DRAWN

    path, texts = run.output.file, run.request.computed.sentences
    stream = ResultStream(
        context,
        run.environment,
        results_of(run.environment, run.request, _task(run), only=run.only, jobs=_jobs(context, run)),
        total=last_number(texts),
        is_alone=is_alone(texts, run.request.from_),
        raises=run.only is not None,
        shares_terminal=run.environment.is_terminal(path),
    )
    if run.chosen == "html":
        from attncli.formats.page import write_page

        with run.environment.output(path, encoding="utf-8") as file:
            file.writelines(write_page(stream.values(), run.view, run.colormap))
    elif run.is_figure:
        _write_figure(stream.values(), run)
    elif run.chosen in DRAWN:
        _draw(stream.values(), run)
    else:
        write_results(run.environment, stream, run.view, run.chosen, path)
    return stream.failures


def _write_folder(context: typer.Context, run: _Run, folder: str) -> int:
    """Write a dataset into a folder, or what is not there of it; return how many sentences were bad."""
    from attncli.cli.datasets import write_folder
    from attncli.formats.columns import types_of

    return write_folder(
        context,
        run.environment,
        run.request,
        _task(run),
        folder=folder,
        form=run.chosen,
        types=types_of(run.view),
        made=run.made | {"--format": run.chosen},
        jobs=_jobs(context, run),
    )


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


def _check_page(view: options.ViewOptions, run: _Run) -> None:
    from attncli.formats.page import check_page

    for name, _ in (*run.derive.explicit_values(), *view.explicit_values()):
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
