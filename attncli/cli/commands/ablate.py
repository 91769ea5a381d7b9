"""`attn ablate`: a prediction without some heads or edges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from attncli.cli import options
from attncli.cli.environment import Environment
from attncli.cli.groups import Options
from attncli.errors import ExitCode, InputError

if TYPE_CHECKING:
    from collections.abc import Generator

    from attncli.corpus.jobs import AblateJob
    from attncli.corpus.protocol import BatchFn, Result


class PredictorOptions(Options):
    """Options of the model whose prediction is ablated."""

    texts: options.TextOptions
    load: options.Engine
    parallel: options.Parallel
    model: Annotated[
        str | None,
        options.model_option("Use a causal language model. Default: demo.", "NAME_OR_FOLDER", "-m", setting=None),
    ] = None
    image: options.Image = None


class CutOptions(Options):
    """Options of the cuts and the measure."""

    next: Annotated[
        str | None, options.choice_option("Measure this next token. Default: the model's first choice.", "TOKEN")
    ] = None
    against: Annotated[str | None, options.choice_option("Subtract the logit of this token.", "TOKEN")] = None
    loss: Annotated[
        str | None, options.choice_option("Measure the loss of these tokens instead: 50:, a token or all.", "TOKENS")
    ] = None
    head: Annotated[
        str | None, options.choice_option("Cut these heads: 18.6,17.3 or, with --layer, 0-2.", "HEADS", "-H")
    ] = None
    layer: Annotated[
        str | None, options.choice_option("Cut in these layers: 0, 2-4. Default: all.", "LAYERS", "-l")
    ] = None
    each: Annotated[bool, options.choice_option("Cut every head alone. Default: if nothing is chosen.")] = False
    edges: Annotated[
        str | None, options.choice_option("Keep only these keys, such as ~keys(0,1); heads stay.", "EXPR|FILE")
    ] = None
    with_: Annotated[
        str | None,
        options.choice_option("Replace a head's output: zero, mean, or that in TEXT. Default: zero.", "zero|mean|TEXT"),
    ] = None


def ablate(
    environment: Environment,
    request: PredictorOptions,
    chosen: CutOptions,
    output: options.TraceOutput,
    precision: options.Precision = None,
    colormap: options.Colormap = None,
) -> None:
    """Cut heads or edges, and see what it does to the prediction.

    --edges masks keys in the layers chosen; a query keeps those that the expression allows.
    Without --head, --layer and --edges every head is cut alone: a map of layers × heads and a ranking.

    Examples:
    attn ablate "one two three four one two"
    attn ablate "one two three four one two" --head 2.3 --next three
    attn ablate "one two three one two" --edges "~keys(0,1)" --layer 1-3
    attn ablate -m gpt2 --file sentences.txt -o ablations/
    """
    from attncli.analysis.ablation import AblationChoice
    from attncli.corpus.jobs import AblateJob
    from attncli.formats import DRAWN

    form = output.chosen(takes_folder=True)
    choice = AblationChoice(**dict(chosen.explicit_values()))
    image = request.image or (() if request.texts.names_pictures else None)
    predictor = {
        "model": request.model or "demo",
        "special": not request.texts.no_special,
        **({"chat": True} if request.texts.chat else {}),
        **({} if image is None else {"image": image}),
        **dict(request.load.explicit_values()),
    }
    job = AblateJob(choice, None if form in DRAWN else form, predictor, request.texts.pair, precision)
    failures = _written(environment, request, chosen, output, form, job, colormap or "viridis")
    if failures:
        raise typer.Exit(ExitCode.INPUT)


def _written(
    environment: Environment,
    request: PredictorOptions,
    chosen: CutOptions,
    output: options.TraceOutput,
    form: str,
    job: AblateJob,
    colormap: str,
) -> int:
    """Write or draw the effects of cuts; return how many sentences failed."""
    from attncli.cli.loop import ResultStream, loading, write_results
    from attncli.engines.source import PARALLEL_FROM
    from attncli.formats import DRAWN

    def open_job() -> tuple[BatchFn[Any], int]:
        with loading(environment, job.options["model"], None):
            return job.open(), PARALLEL_FROM

    if output.folder is not None:
        from attncli.cli.datasets import provenance, write_folder
        from attncli.formats.columns import ABLATIONS

        made = provenance("ablate", request, chosen) | {"--format": form}
        return write_folder(
            environment, request.texts, request.load, job, open_job, folder=output.folder, form=form, types=ABLATIONS,
            made=made, workers=request.parallel.workers,
        )  # fmt: skip
    stream = ResultStream(
        environment,
        _results(environment, request, job, open_job()[0]),
        total=request.texts.last_number,
        is_alone=request.texts.is_alone,
        shares_terminal=environment.is_terminal(output.file),
    )
    if form not in DRAWN:
        write_results(environment, stream, None, form, output.file)
        return stream.failures
    from attncli.render.ablation import ablation_parts

    is_empty, last = True, request.texts.last_number
    with output.view(environment, form, "ablate") as canvas:
        palette = canvas.palette(colormap)
        for number, one in stream.values():
            height = None if canvas.height is None else canvas.height - len(one.notes)
            named = None if last == 1 else number
            canvas.show(ablation_parts(one, palette, canvas.width, height, job.precision, named), one.text)
            is_empty = False
    if is_empty:
        raise InputError("nothing to draw: no sentence could be read")
    return stream.failures


def _results(
    environment: Environment, request: PredictorOptions, job: AblateJob, opened: BatchFn[Any]
) -> Generator[Result[Any], None, None]:
    from attncli.cli.loop import workers_on_device
    from attncli.cli.sentences import sentences
    from attncli.corpus.run import batched, first_batched, run
    from attncli.engines.source import PARALLEL_FROM

    workers = workers_on_device(request.load, request.parallel.workers if job.form else 1)
    texts = sentences(request.texts, environment)
    return run(job, batched(texts, first_batched(workers, PARALLEL_FROM)), workers, opened, PARALLEL_FROM)
