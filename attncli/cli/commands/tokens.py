"""`attn tokens`: the tokenization alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attncli.cli import options
from attncli.cli.environment import Environment
from attncli.cli.groups import Options
from attncli.errors import ExitCode, Failure, InputError, UsageError

if TYPE_CHECKING:
    from attncli.sources.stream import Numbered
    from attncli.sources.tokenize import Tokenizer
    from attncli.trace.tokenization import Choice, Tokenization


@dataclass(frozen=True)
class _Tokenizing(Options):
    """Whose tokens are wanted: what a vocabulary or a checkpoint's tokenizer makes, or what was saved."""

    texts: options.Texts
    hub: options.Hub
    fail_fast: options.FailFast = False
    keep_errors: options.KeepErrors = False
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
    asked: _Tokenizing,
    output: options.Output,
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
    from attncli.cli.progress import Following
    from attncli.cli.request import is_alone, refuse_misplaced_errors, tolerated
    from attncli.cli.sentences import Answers, last_number
    from attncli.formats import DRAWN
    from attncli.trace.tokenization import Choice

    chosen = output.chosen()
    refuse_misplaced_errors(asked.keep_errors, asked.fail_fast, chosen)
    if hide_special and asked.from_ is None and asked.model is None and asked.vocab in (None, "words"):
        raise UsageError("--hide-special does not apply to --vocab words, which adds no special tokens")
    choice = Choice(hide_special, words)
    alone = is_alone(asked.texts, asked.from_)
    found = tolerated(
        _tokenized(environment, asked), stops=asked.fail_fast, is_alone=alone, keeps_errors=asked.keep_errors
    )
    bar = context.with_resource(
        Following(environment, last_number(asked.texts), environment.is_terminal(output.output))
    )
    answers = Answers(bar.follow(_noted(environment, found, choice, alone)), asked.keep_errors)
    if chosen in DRAWN:
        _draw(environment, answers.good(), choice, chosen, output)
    else:
        _emit(environment, answers, choice, chosen, output.output)
    if answers.failures:
        raise typer.Exit(ExitCode.INPUT)


def _tokenized(environment: Environment, asked: _Tokenizing) -> Iterator[tuple[int, Tokenization | Failure]]:
    """Yield the numbered tokens that are asked for; a bad request is refused before the first ones."""
    from attncli.cli.request import check_chat, loading, refuse_beside_saved
    from attncli.cli.sentences import sentences
    from attncli.sources.reading import check_texts
    from attncli.sources.tokenize import open_tokenizer

    if asked.from_ is not None:
        from attncli.trace.store import load
        from attncli.trace.tokenization import tokenizations_in

        refuse_beside_saved(name for name, _ in asked.said() if name != "from_")
        return iter(list(enumerate(tokenizations_in(load(asked.from_)), start=1)))
    texts = sentences(asked.texts, environment)
    check_chat(asked.texts)
    kept = {"vocab", "truncate"}
    with loading(environment, asked.model, asked.vocab):
        tokenizer = open_tokenizer(
            model=asked.model,
            special=not asked.texts.no_special,
            **dict(asked.texts.prompt.said()),
            **dict(asked.hub.said()),
            **{name: value for name, value in asked.said() if name in kept},
        )
    check_texts(None, asked.texts.pair)
    return _answers(tokenizer, texts, asked.texts.pair)


def _answers(
    tokenizer: Tokenizer, texts: Iterable[Numbered], pair: str | None
) -> Iterator[tuple[int, Tokenization | Failure]]:
    for number, text in texts:
        try:
            yield number, text if isinstance(text, Failure) else tokenizer.tokenize(text, pair)
        except InputError as error:
            yield number, Failure(str(error))


def _noted(
    environment: Environment, answers: Iterable[tuple[int, Tokenization | Failure]], choice: Choice, is_alone: bool
) -> Iterator[tuple[int, Tokenization | Failure]]:
    """Pass the answers on, saying on stderr what surprises about them."""
    from attncli.cli.sentences import warn

    for number, answer in answers:
        if not isinstance(answer, Failure):
            answer.shown(choice)  # refused here, before anything is written
            warn(environment, answer.notes, number, is_alone)
        yield number, answer


def _draw(
    environment: Environment,
    found: Iterable[tuple[int, Tokenization]],
    choice: Choice,
    chosen: str,
    output: options.Output,
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


def _emit(
    environment: Environment,
    answers: Iterable[tuple[int, Tokenization | Failure]],
    choice: Choice,
    chosen: str,
    path: Path | None,
) -> None:
    from attncli.formats import STREAMS
    from attncli.formats import tokens as writers

    if chosen == "parquet":
        from attncli.formats.parquet import check_parquet

        check_parquet(path)
        assert path is not None
        writers.write_parquet(answers, choice, path)
        return
    writer = {
        "json": writers.write_json,
        "jsonl": writers.write_lines,
        "tsv": writers.write_tsv,
        "csv": writers.write_csv,
    }[chosen]
    with environment.output(path, is_stream=chosen in STREAMS) as stream:
        for piece in writer(answers, choice):
            stream.write(piece)
            stream.flush()
