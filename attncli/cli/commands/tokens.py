"""`attn tokens`: the tokenization alone."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from attncli.cli import options
from attncli.cli.environment import Environment
from attncli.cli.groups import Options
from attncli.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Generator

    from attncli.corpus.jobs import Result


class TokenizeOptions(Options):
    """Options of the tokens to show: those of a vocabulary, a checkpoint's tokenizer, or a saved trace."""

    texts: options.TextOptions
    hub: options.HubOptions
    parallel: options.Parallel
    vocab: options.Vocab = None
    model: str | None = options.model_option(
        "Use a checkpoint's tokenizer. Default: the words of the text.", "MODEL", "-m", env=True
    )
    truncate: bool = options.model_option("Cut texts to the most tokens that the model reads.")
    from_: options.From = None


def tokens(
    environment: Environment,
    request: TokenizeOptions,
    output: options.OutputOptions,
) -> ExitCode:
    """Show the tokens of a sentence: ids, positions, words, unknown pieces.

    Examples:
    attn tokens -m demo "time flies like an arrow"
    attn tokens -m gpt2 "naïve café"
    attn tokens -m gpt2 -F tsv - < sentences.txt
    """
    from attncli.cli.loop import ResultStream, run_job, sentences, write_results
    from attncli.corpus.jobs import ModelJob, encode, open_tokenizations
    from attncli.engines.source import PARALLEL_FROM_LATE
    from attncli.formats import DRAWN

    chosen, texts = output.chosen(), request.texts
    form = None if chosen in DRAWN else chosen
    tokenizer = {
        "model": request.model,
        **texts.of_model,
        **dict(request.hub.explicit_values()),
        **{name: value for name, value in request.explicit_values() if name in ("vocab", "truncate")},
    }
    task = partial(encode, form=form)
    job = ModelJob[Any](open_tokenizations, task, tokenizer, texts.pair, parallel_from=PARALLEL_FROM_LATE)
    results: Generator[Result[Any], None, None]
    if request.from_ is None:
        workers = 1 if form is None else request.parallel.workers
        results = run_job(environment, job, sentences(texts, environment), workers)
    else:
        from attncli.engines import load_saved
        from attncli.trace.tokenization import tokenizations_in

        trace = load_saved(request.from_, request.model, **dict(request.hub.explicit_values()))
        saved = list(enumerate(tokenizations_in(trace), start=1))
        results = (job.result(number, tokens) for number, tokens in saved)
    stream = ResultStream(
        environment,
        results,
        total=texts.last_number,
        is_alone=request.from_ is not None or texts.is_alone,
        shares_terminal=environment.is_terminal(output.file),
        draws=form is None,
    )
    if form is None:
        from attncli.render.tokens import tokens_parts

        with output.view(environment, chosen, "tokens") as canvas:
            palette = canvas.palette("viridis")
            for _, tokenization in stream.values():
                parts = tokens_parts(tokenization, palette, canvas.width)
                canvas.show(parts, " / ".join(filter(None, (tokenization.text, tokenization.pair))))
    else:
        write_results(environment, stream, "tokens", form, output.file)
    return ExitCode.INPUT if stream.failures else ExitCode.OK
