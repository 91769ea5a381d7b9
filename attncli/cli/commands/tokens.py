"""`attn tokens`: the tokenization alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from attncli.cli import options
from attncli.cli.environment import Environment
from attncli.cli.groups import Options
from attncli.errors import ExitCode, InputError

if TYPE_CHECKING:
    from collections.abc import Generator

    from attncli.corpus.protocol import Result
    from attncli.trace.tokenization import Choice


class TokenizeOptions(Options):
    """Options of the tokens to show: those of a vocabulary, a checkpoint's tokenizer, or a saved trace."""

    texts: options.TextOptions
    hub: options.HubOptions
    parallel: options.Parallel
    vocab: options.Vocab = None
    model: Annotated[
        str | None,
        options.model_option("Use a checkpoint's tokenizer. Default: --vocab.", "NAME_OR_FOLDER", "-m", setting=None),
    ] = None
    truncate: Annotated[bool, options.model_option("Cut texts to the most tokens that the model reads.")] = False
    from_: options.From = None


def tokens(
    environment: Environment,
    request: TokenizeOptions,
    output: options.OutputOptions,
    hide_special: Annotated[bool, options.choice_option("Hide the special tokens.")] = False,
    words: Annotated[bool, options.choice_option("Show one word per line, with its pieces.")] = False,
) -> None:
    """Show the tokens of a sentence: ids, positions, words, unknown pieces.

    Examples:
    attn tokens -m demo "time flies like an arrow"

    attn tokens -m gpt2 "naïve café" --words

    attn tokens -m gpt2 -F tsv - < sentences.txt
    """
    from attncli.cli.loop import ResultStream, write_results
    from attncli.formats import DRAWN
    from attncli.trace.tokenization import Choice

    chosen, texts = output.chosen(), request.texts
    choice = Choice(hide_special, words)
    stream = ResultStream(
        environment,
        _results(environment, request, choice, None if chosen in DRAWN else chosen),
        total=texts.last_number,
        is_alone=request.from_ is not None or texts.is_alone,
        shares_terminal=environment.is_terminal(output.file),
    )
    if chosen not in DRAWN:
        write_results(environment, stream, choice, chosen, output.file)
    else:
        from attncli.render.tokens import tokens_parts

        with output.view(environment, chosen, "tokens") as canvas:
            palette, is_empty = canvas.palette("viridis"), True
            for _, one in stream.values():
                title = " / ".join(filter(None, (one.text, one.pair)))
                canvas.show(tokens_parts(one, choice, palette, canvas.width), title)
                is_empty = False
            if is_empty:
                raise InputError("nothing to draw: no sentence could be read")
    if stream.failures:
        raise typer.Exit(ExitCode.INPUT)


def _results(
    environment: Environment, request: TokenizeOptions, choice: Choice, form: str | None
) -> Generator[Result[Any], None, None]:
    """Yield the results for the chosen tokens; a bad request is refused before the first ones."""
    from attncli.cli.loop import loading
    from attncli.cli.sentences import sentences
    from attncli.corpus.jobs import TokenizeJob
    from attncli.corpus.run import batched, first_batched, run
    from attncli.engines.source import PARALLEL_FROM_LATE

    if request.from_ is not None:
        from attncli.trace.store import load
        from attncli.trace.tokenization import tokenizations_in

        saved = list(enumerate(tokenizations_in(load(request.from_)), start=1))
        return (TokenizeJob(choice, form).result(number, tokens) for number, tokens in saved)
    workers = request.parallel.workers if form else 1
    texts = sentences(request.texts, environment)
    tokenizer = {
        "model": request.model,
        "special": not request.texts.no_special,
        **({"chat": True} if request.texts.chat else {}),
        **dict(request.hub.explicit_values()),
        **{name: value for name, value in request.explicit_values() if name in ("vocab", "truncate")},
    }
    job = TokenizeJob(choice, form, tokenizer, request.texts.pair)
    with loading(environment, request.model, request.vocab):
        opened = job.open()
    return run(job, batched(texts, first_batched(workers, PARALLEL_FROM_LATE)), workers, opened, PARALLEL_FROM_LATE)
