"""`attn tokens`: the tokenization alone."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attncli.cli import options
from attncli.cli.environment import Environment
from attncli.cli.groups import Options
from attncli.errors import ExitCode, InputError, UsageError

if TYPE_CHECKING:
    from attncli.corpus.jobs import TokenizeTask
    from attncli.corpus.protocol import Result
    from attncli.trace.tokenization import Choice, Tokenization


@dataclass(frozen=True)
class _Tokenizing(Options):
    """Whose tokens are wanted: what a vocabulary or a checkpoint's tokenizer makes, or what was saved."""

    texts: options.TextOptions
    hub: options.Hub
    jobs: options.Jobs = None
    vocab: options.Vocab = None
    model: Annotated[
        str | None,
        options.model_option(
            "--model",
            "-m",
            metavar="NAME_OR_FOLDER",
            help="A checkpoint, for its tokenizer alone; without it, --vocab.",
            envvar="ATTN_MODEL",
        ),
    ] = None
    truncate: Annotated[
        bool, options.model_option("--truncate", help="Cut to the tokens that the model has positions for.")
    ] = False
    from_: Annotated[
        Path | None, options.input_option("--from", metavar="FILE", help="The tokens of a saved trace.")
    ] = None


def tokens(
    context: typer.Context,
    environment: Environment,
    request: _Tokenizing,
    output: options.OutputOptions,
    hide_special: Annotated[
        bool, options.choice_option("--hide-special", help="Leave the special tokens out of the view.")
    ] = False,
    words: Annotated[bool, options.choice_option("--words", help="One line a word, with its pieces.")] = False,
) -> None:
    """Show the tokens of a sentence: ids, places, words, what the vocabulary lacks.

    Examples:
    attn tokens -m demo "time flies like an arrow"

    attn tokens -m gpt2 "naïve café" --words

    attn tokens -m gpt2 -F tsv - < sentences.txt
    """
    from attncli.cli.request import is_alone
    from attncli.cli.results import ResultStream, write_results
    from attncli.cli.sentences import last_number
    from attncli.corpus.jobs import TokenizeTask
    from attncli.formats import DRAWN
    from attncli.trace.tokenization import Choice

    chosen = output.chosen()
    if hide_special and request.from_ is None and request.model is None and request.vocab in (None, "words"):
        raise UsageError("--hide-special does not apply to --vocab words, which adds no special tokens")
    choice = Choice(hide_special, words)
    task = TokenizeTask(choice, None if chosen in DRAWN else chosen)
    stream = ResultStream(
        context,
        environment,
        _results(context, environment, request, task),
        total=last_number(request.texts),
        is_alone=is_alone(request.texts, request.from_),
        shares_terminal=environment.is_terminal(output.file),
    )
    if chosen in DRAWN:
        _draw(environment, stream.values(), choice, chosen, output)
    else:
        write_results(environment, stream, choice, chosen, output.file)
    if stream.failures:
        raise typer.Exit(ExitCode.INPUT)


def _results(
    context: typer.Context, environment: Environment, request: _Tokenizing, task: TokenizeTask
) -> Generator[Result[Any], None, None]:
    """Yield what is made of the tokens that are asked for; a bad request is refused before the first ones."""
    from attncli.cli.request import check_chat, jobs_of, loading, refuse_beside_saved
    from attncli.cli.sentences import sentences
    from attncli.corpus.jobs import TokenizeJob
    from attncli.corpus.run import batched, first_batched, run
    from attncli.engines.source import PARALLEL_FROM_LATE

    if request.from_ is not None:
        from attncli.trace.store import load
        from attncli.trace.tokenization import tokenizations_in

        refuse_beside_saved(name for name, _ in request.explicit_values() if name != "from_")
        saved = list(enumerate(tokenizations_in(load(request.from_)), start=1))
        return (task(number, tokens) for number, tokens in saved)
    jobs = jobs_of(context, request.jobs, None if task.form else "what is drawn")
    texts = sentences(request.texts, environment)
    check_chat(request.texts)
    options = {
        "model": request.model,
        "special": not request.texts.no_special,
        **dict(request.texts.prompt.explicit_values()),
        **dict(request.hub.explicit_values()),
        **{name: value for name, value in request.explicit_values() if name in ("vocab", "truncate")},
    }
    job = TokenizeJob(task, options, request.texts.pair)
    with loading(environment, request.model, request.vocab):
        opened = job.open()
    return run(job, batched(texts, first_batched(jobs, PARALLEL_FROM_LATE)), jobs, opened, PARALLEL_FROM_LATE)


def _draw(
    environment: Environment,
    found: Iterable[tuple[int, Tokenization]],
    choice: Choice,
    chosen: str,
    output: options.OutputOptions,
) -> None:
    from attncli.render.tokens import tokens_parts

    with output.canvas(environment, chosen, "tokens") as shown:
        palette = shown.palette("viridis")
        is_empty = True
        for _, one in found:
            shown.show(tokens_parts(one, choice, palette, shown.width), " / ".join(filter(None, (one.text, one.pair))))
            is_empty = False
        if is_empty:
            raise InputError("there is nothing to draw: no sentence could be read")
