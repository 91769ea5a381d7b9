"""`attn ablate`: a prediction without some heads or edges."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from attncli.cli import options
from attncli.cli.environment import Environment
from attncli.cli.groups import Options
from attncli.errors import ExitCode

if TYPE_CHECKING:
    from attncli.corpus.jobs import ModelJob


class PredictorOptions(Options):
    """Options of the model whose prediction is ablated."""

    texts: options.TextOptions
    load: options.Engine
    parallel: options.Parallel
    model: str | None = options.model_option("Use a causal language model. Default: demo.", "MODEL", "-m", env=True)
    image: options.Image = None


class CutOptions(Options):
    """Options of the cuts and the measure."""

    next: str | None = options.choice_option("Measure this next token. Default: the model's first choice.", "TOKEN")
    against: str | None = options.choice_option("Subtract the logit of this token.", "TOKEN")
    loss: str | None = options.choice_option("Measure the loss of these tokens instead: 50:, a token or all.", "TOKENS")
    head: str | None = options.choice_option("Cut these heads: 18.6,17.3 or, with --layer, 0-2.", "HEADS", "-H")
    layer: str | None = options.choice_option("Cut in these layers: 0, 2-4. Default: all.", "LAYERS", "-l")
    each: bool = options.choice_option("Cut every head alone, as without --head, --layer and --edges.")
    edges: str | None = options.choice_option(
        "Allow only these keys: ~keys(0,1) is all keys but the first.", "EXPR|FILE"
    )
    with_: str | None = options.choice_option(
        "Set the new output: zero, mean, or the head's in TEXT. Default: zero.", "zero|mean|TEXT"
    )


def ablate(
    environment: Environment,
    request: PredictorOptions,
    chosen: CutOptions,
    output: options.TraceOutput,
    precision: options.Precision = None,
    colormap: options.Colormap = None,
) -> ExitCode:
    """Cut heads or edges, and see what it does to the prediction.

    --edges masks keys in the chosen layers. A query keeps the keys that the expression allows.
    Without --head, --layer and --edges, attn cuts every head alone: a map of layers × heads and a ranking.

    Examples:
    attn ablate "one two three four one two"
    attn ablate "one two three four one two" --head 2.3 --next three
    attn ablate "one two three one two" --edges "~keys(0,1)" --layer 1-3
    attn ablate -m gpt2 --file sentences.txt -o ablations/
    """
    from attncli.analysis.ablation import AblationChoice
    from attncli.cli.loop import ResultStream, run_job, sentences, write_folder, write_results
    from attncli.corpus.jobs import ModelJob, encode, open_ablations
    from attncli.formats import DRAWN
    from attncli.trace.view import View

    written, texts, workers = output.chosen(takes_folder=True), request.texts, request.parallel.workers
    form = None if written in DRAWN else written
    image = request.image or (() if texts.names_pictures else None)
    predictor = {
        "choice": AblationChoice(**dict(chosen.explicit_values())),
        "model": request.model,
        **texts.of_model,
        **({} if image is None else {"image": image}),
        **dict(request.load.explicit_values()),
    }
    shown = View(precision=precision)
    job: ModelJob[Any] = ModelJob(open_ablations, partial(encode, form=form, shown=shown), predictor, texts.pair)
    if output.folder is not None:
        made = options.provenance("ablate", request, chosen)
        failures = write_folder(environment, request, job, output.folder, written, "cuts", made, workers)
    else:
        stream = ResultStream(
            environment,
            run_job(environment, job, sentences(texts, environment), 1 if form is None else workers, request.load),
            total=texts.last_number,
            is_alone=texts.is_alone,
            shares_terminal=environment.is_terminal(output.file),
            draws=form is None,
        )
        if form is not None:
            write_results(environment, stream, "cuts", form, output.file)
        else:
            from attncli.render.ablation import ablation_parts

            with output.view(environment, written, "ablate") as canvas:
                palette = canvas.palette(colormap or "viridis")
                for number, cuts in stream.values():
                    height = None if canvas.height is None else canvas.height - len(cuts.notes)
                    named = None if texts.last_number == 1 else number
                    canvas.show(ablation_parts(cuts, palette, canvas.width, height, precision, named), cuts.text)
        failures = stream.failures
    return ExitCode.INPUT if failures else ExitCode.OK
