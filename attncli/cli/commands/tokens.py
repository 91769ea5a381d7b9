"""`attn tokens`: the tokenization alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from attncli.cli import options
from attncli.errors import ExitCode, InputError, UsageError

if TYPE_CHECKING:
    from attncli.errors import Failure
    from attncli.trace.tokenization import Choice, Tokenization

Model = Annotated[
    str | None,
    Option(
        "--model",
        "-m",
        metavar="NAME_OR_FOLDER",
        help="A checkpoint, for its tokenizer alone; without it, --vocab.",
        envvar="ATTN_MODEL",
        rich_help_panel="Model",
    ),
]
From = Annotated[
    Path | None,
    Option("--from", metavar="FILE", help="The tokens of a saved trace.", rich_help_panel="Input"),
]
Words = Annotated[
    bool | None,
    Option("--words", help="One line a word, with its pieces.", rich_help_panel="What to look at"),
]
Truncate = Annotated[
    bool | None,
    Option("--truncate", help="Cut to the tokens that the model has positions for.", rich_help_panel="Model"),
]
HideSpecial = Annotated[
    bool | None,
    Option("--hide-special", help="Leave the special tokens out of the view.", rich_help_panel="What to look at"),
]


def tokens(
    context: typer.Context,
    text: options.Texts = None,
    file: options.File = None,
    whole: options.Whole = None,
    fail_fast: options.FailFast = None,
    keep_errors: options.KeepErrors = None,
    pair: options.Pair = None,
    from_: From = None,
    model: Model = None,
    revision: options.Revision = None,
    offline: options.Offline = None,
    trust_remote_code: options.TrustRemoteCode = None,
    truncate: Truncate = None,
    vocab: options.Vocab = None,
    no_special: options.NoSpecial = None,
    hide_special: HideSpecial = None,
    words: Words = None,
    color: options.Color = None,
    width: options.Width = None,
    format_: options.Format = None,
    output: options.Output = None,
) -> None:
    """Show the tokens of a sentence: ids, places, words, what the vocabulary lacks.

    Examples:
    attn tokens -m gpt2 "time flies like an arrow"

    attn tokens -m gpt2 "naïve café" --words

    attn tokens -m gpt2 -F tsv - < sentences.txt
    """
    from attncli.cli.environment import is_terminal
    from attncli.cli.progress import Following
    from attncli.cli.request import is_alone, refuse_misplaced_errors, tokenizations_of
    from attncli.cli.sentences import Answers, last_number
    from attncli.formats import DRAWN, choose_format
    from attncli.trace.tokenization import Choice

    given = {name: value for name, value in context.params.items() if value not in (None, ())}
    chosen = choose_format(format_, output)
    refuse_misplaced_errors(given, chosen)
    if hide_special and from_ is None and model is None and vocab in (None, "words"):
        raise UsageError("--hide-special does not apply to --vocab words, which adds no special tokens")
    choice = Choice(bool(hide_special), bool(words))
    found = _noted(tokenizations_of(given), choice, is_alone(given))
    bar = context.with_resource(Following(last_number(text or (), file), is_terminal(output)))
    answers = Answers(bar.follow(found), bool(keep_errors))
    if chosen in DRAWN:
        _draw(answers.good(), choice, chosen, given)
    else:
        _emit(answers, choice, chosen, given)
    if answers.failures:
        raise typer.Exit(ExitCode.INPUT)


def _noted(
    answers: Iterable[tuple[int, Tokenization | Failure]], choice: Choice, is_alone: bool
) -> Iterator[tuple[int, Tokenization | Failure]]:
    """Pass the answers on, saying on stderr what surprises about them."""
    from attncli.cli.sentences import warn
    from attncli.errors import Failure

    for number, answer in answers:
        if not isinstance(answer, Failure):
            answer.shown(choice)  # refused here, before anything is written
            warn(answer.notes, number, is_alone)
        yield number, answer


def _draw(found: Iterable[tuple[int, Tokenization]], choice: Choice, chosen: str, given: dict[str, Any]) -> None:
    from attncli.cli.environment import canvas
    from attncli.render.tokens import tokens_parts

    with canvas(chosen, given.get("output"), given.get("color"), given.get("width"), "attn tokens") as shown:
        palette = shown.palette("viridis")
        is_empty = True
        for _, one in found:
            shown.show(tokens_parts(one, choice, palette, shown.width), " / ".join(filter(None, (one.text, one.pair))))
            is_empty = False
        if is_empty:
            raise InputError("there is nothing to draw: no sentence could be read")


def _emit(
    answers: Iterable[tuple[int, Tokenization | Failure]], choice: Choice, chosen: str, given: dict[str, Any]
) -> None:
    from attncli.cli.environment import output
    from attncli.formats import STREAMS
    from attncli.formats import tokens as writers

    if chosen == "parquet":
        from attncli.formats.parquet import check_parquet

        check_parquet(given.get("output"))
        writers.write_parquet(answers, choice, given["output"])
        return
    writer = {
        "json": writers.write_json,
        "jsonl": writers.write_lines,
        "tsv": writers.write_tsv,
        "csv": writers.write_csv,
    }[chosen]
    with output(given.get("output"), is_stream=chosen in STREAMS) as stream:
        for piece in writer(answers, choice):
            stream.write(piece)
            stream.flush()
