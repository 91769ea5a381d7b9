"""`attn inspect`: from sentences to tables, JSON, rows or a saved trace."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from attncli.cli import options
from attncli.cli.environment import Environment
from attncli.cli.groups import Options
from attncli.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from attncli.cli.loop import ResultStream
    from attncli.formats.figures import Size
    from attncli.trace.selection import Indices
    from attncli.trace.trace import Derivation, Trace
    from attncli.trace.view import View


class Inspection(Options):
    """Options of generation, and of the processes that write a folder."""

    generate: int | None = options.input_option("Let a causal model write N more tokens first.", "N", low=1)
    on: str | None = options.model_option(
        "Compute the parts of -o FOLDER/ on Ray, here or on a cluster.", "ray|ray://HOST:PORT", rare=True
    )


def inspect(
    environment: Environment,
    request: options.CommonOptions,
    parallel: options.Parallel,
    more: Inspection,
    shown: options.ViewOptions,
    derive: options.Derive,
    output: options.InspectOutput,
    save: Path | None = options.output_option("Save the trace as .safetensors, for --from.", "FILE"),
) -> ExitCode:
    """Show the attention of a sentence, from its tokens to a heat map per head.

    --query shows where a word looks: its heaviest keys in every head of every layer, or of --layer.
    -o x.html writes an interactive page, -o x.pdf or x.png a figure of the maps.

    --show takes tokens, shapes, embeddings, q, k, v, scores, mask, weights, heatmap, output, metrics, proof and
    next, the likeliest next tokens.

    Examples:
    attn inspect "time flies like an arrow"
    attn inspect -m demo "time flies like an arrow" --query arrow
    attn inspect -F jsonl - < sentences.txt
    attn inspect -m demo -f sentences.txt --show metrics -o metrics/
    """
    from attncli.cli.loop import ResultStream, results_of, trace_job, write_folder, write_results
    from attncli.corpus.jobs import render
    from attncli.formats import DRAWN, FIGURES

    chosen, workers = output.chosen(takes_folder=True), parallel.workers
    view, size = _view(shown), _size(shown.size)
    _check_outputs(save, output.file, chosen, view)
    form = None if chosen in DRAWN else chosen
    is_figure = chosen in FIGURES or size is not None
    derivation, layers = _derivation(derive, request)
    task = partial(render, derivation=derivation, view=view, form=form, save=save)
    more_of_job = {"generate": more.generate or 0, "predicts": "next" in (view.show or ())}
    asks_where = view.queries and view.show is None and view.top_keys is None and form is None and not is_figure
    job = trace_job(request, task, "all" if asks_where else "0", layers, **more_of_job)
    if output.folder is not None:
        made = options.provenance("inspect", request, more, derive, shown)
        failures = write_folder(environment, request, job, output.folder, chosen, view, made, workers, more.on)
    else:
        only = "a page of html shows" if chosen == "html" else "a figure shows" if is_figure else None
        only = "--save keeps" if save is not None else only
        results = results_of(
            environment, request, job, layers=layers, only=only,
            workers=1 if form is None or save is not None else workers,
        )  # fmt: skip
        stream = ResultStream(
            environment,
            results,
            total=request.texts.last_number,
            is_alone=request.is_alone,
            raises=only is not None,
            shares_terminal=environment.is_terminal(output.file),
            draws=form is None,
        )
        colormap = shown.colormap or "viridis"
        if chosen == "html" or is_figure:
            ((_, trace),) = stream.values()
            environment.write(_picture(trace, view, output, chosen, colormap, size), output.file)
        elif form is None:
            _draw(environment, stream, view, output, chosen, colormap, request)
        else:
            write_results(environment, stream, view, form, output.file)
        failures = stream.failures
    return ExitCode.INPUT if failures else ExitCode.OK


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


def _size(text: str | None) -> Size | None:
    if text is None:
        return None
    from attncli.formats.figures import check_figures, parse_size

    check_figures()
    return parse_size(text)


def _check_outputs(save: Path | None, path: Path | None, chosen: str, view: View) -> None:
    from attncli.formats import FORMATS

    if chosen == "html":
        from attncli.formats.page import check_page

        check_page(view.show)
    if save is None:
        return
    if path is not None and save.absolute() == path.absolute():
        raise UsageError(f"--save and --output both name {save}; give two files")
    if (ending := save.suffix).removeprefix(".") in FORMATS:
        raise UsageError(f"--save writes a trace, such as x.safetensors; use -o x{ending} for {ending}")


def _derivation(derive: options.Derive, request: options.CommonOptions) -> tuple[Derivation, Indices | None]:
    """Return the derivation, and the layers that it needs; None leaves them to `--layer`.

    A rollout needs every layer up to the one that is shown, by default the last one; a mean over layers is
    over all of them unless some were chosen.
    """
    from attncli.trace.selection import Indices
    from attncli.trace.trace import Derivation

    chosen, is_saved = request.selection.layer, request.from_ is not None
    shown = None if chosen is None or not derive.rollout else Indices.of("layer", chosen)
    derivation = Derivation(derive.norms, derive.rollout, derive.words, derive.mean, shown)
    if derive.rollout and not (is_saved and shown is None):
        return derivation, (shown or Indices.of("layer", -1)).and_below
    if derive.mean in ("layers", "all") and chosen is None and not is_saved:
        return derivation, Indices.of("layer", "all")
    return derivation, None


def _draw(
    environment: Environment,
    stream: ResultStream[Trace],
    view: View,
    output: options.InspectOutput,
    chosen: str,
    colormap: str,
    request: options.CommonOptions,
) -> None:
    from attncli.cli.loop import first_layer_note
    from attncli.render.inspect import Layout

    with output.view(environment, chosen, "inspect") as canvas:
        palette = canvas.palette(colormap)
        before = 0
        for _, trace in stream.values():
            if trace.has_image_keys and (note := first_layer_note(request, trace)):
                environment.note(note)
            if request.mask is not None:
                from attncli.masks.comparison import idle_notes

                environment.note(*idle_notes(layer.mask for layer in trace.layers))
            height = canvas.height
            if height is not None:  # notes above the view take lines of the screen, but not most of them
                height = max(height - (environment.noted_lines - before), height // 2)
            layout = Layout(trace, view, palette, canvas.width, height, output.all_)
            canvas.show(layout.renderables(), _title(trace))
            environment.note(*layout.notes())
            before = environment.noted_lines


def _picture(
    trace: Trace, view: View, output: options.InspectOutput, chosen: str, colormap: str, size: Size | None
) -> Iterable[str] | bytes:
    """Return the page or the figure of a trace."""
    if chosen == "html":
        from attncli.formats.page import write_page

        return write_page(trace, view, colormap)
    from attncli.formats.figures import figure_of, written

    colormap = "gray" if output.color == "never" else colormap
    return written(figure_of(trace, view, colormap, size), chosen, f"attn inspect: {_title(trace)}")


def _title(trace: Trace) -> str:
    return " / ".join(filter(None, (trace.text, trace.pair, trace.target)))
