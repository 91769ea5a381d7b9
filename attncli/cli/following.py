"""What sentences or batches of them have become: followed by a bar, the bad ones counted, warnings said on stderr."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from attncli.cli.environment import Environment
from attncli.cli.progress import Following
from attncli.cli.sentences import Answers, last_number, warn
from attncli.corpus.work import Answer, Result
from attncli.errors import Failure, raise_on_failure

if TYPE_CHECKING:
    from pathlib import Path

    from typer import Context

    from attncli.cli.options import Texts

_SAID = 20  # different warnings; a file of sentences may have one for each


class State(Protocol):
    """What is known after some sentences."""

    def merged(self, other: Self, /) -> Self:
        """Return what is known after the sentences of both."""


Known = TypeVar("Known", bound=State)


def followed(
    context: Context,
    environment: Environment,
    answers: Generator[Answer[Result], None, None],
    texts: Texts,
    *,
    is_alone: bool,
    stops: bool,
    keeps_errors: bool,
    output: Path | None,
) -> Answers[Result]:
    """Return what sentences have become, followed by a bar, counted, and with what is said of them on stderr.

    Args:
        context: of the command; when it ends, so do the processes that work for it.
        environment: that of the run.
        answers: of the sentences.
        texts: that they are made of.
        is_alone: whether there can be one sentence only.
        stops: whether the first bad one ends the run with its error.
        keeps_errors: whether a bad one has a place in the output, so that the only one is as one of many.
        output: where that goes; None is standard output.
    """
    stops = stops or (is_alone and not keeps_errors)
    bar = Following(environment, last_number(texts), environment.is_terminal(output))
    found = _followed(context, bar, answers, is_alone=is_alone, stops=stops)
    return Answers(_each_warned(environment, found, is_alone), keeps_errors)


def followed_together(
    context: Context,
    environment: Environment,
    answers: Generator[Answer[Any], None, None],
    total: int | None,
    *,
    is_alone: bool,
    stops: bool,
) -> Answers[Any]:
    """Return what batches have become; see `followed`. Each warning is said once, however many sentences it is about.

    Args:
        context: of the command.
        environment: that of the run.
        answers: of batches, and of the sentences that are bad or warned of.
        total: the number of the last sentence, if that is known.
        is_alone: whether there can be one sentence only.
        stops: whether the first bad one ends the run with its error.
    """
    bar = Following(environment, total, shares_terminal=False)  # it is gone before anything is written
    found = _followed(context, bar, answers, is_alone=is_alone, stops=stops or is_alone)
    return Answers(_warned_once(environment, found))


def _followed(
    context: Context, bar: Following, answers: Generator[Answer[Result], None, None], *, is_alone: bool, stops: bool
) -> Iterator[tuple[int, Answer[Result] | Failure]]:
    """Pass numbered answers on, each a failure or as it is; both the workers and the bar end with the command."""
    context.with_resource(closing(answers))
    context.with_resource(bar)
    numbered = ((each.number, each.result if isinstance(each.result, Failure) else each) for each in answers)
    return bar.follow(raise_on_failure(numbered, is_alone) if stops else numbered)


def _each_warned(
    environment: Environment, answers: Iterable[tuple[int, Answer[Result] | Failure]], is_alone: bool
) -> Iterator[tuple[int, Result | Failure]]:
    """Yield the results, saying on stderr what each is warned of."""
    notes: tuple[str, ...] = ()
    for number, answer in answers:
        if isinstance(answer, Failure):
            yield number, answer
            continue
        if answer.notes and answer.notes != notes:  # what tells of progress alone has none
            notes = answer.notes
            warn(environment, notes, number, is_alone=True)  # of all sentences, whichever came first
        warn(environment, answer.said, number, is_alone)
        yield number, answer.result


def _warned_once(
    environment: Environment, answers: Iterable[tuple[int, Answer[Any] | Failure]]
) -> Iterator[tuple[int, Any | Failure]]:
    """Yield the results, saying on stderr what their numbers cannot."""
    said: set[str] = set()
    unsaid = 0
    for number, answer in answers:
        if isinstance(answer, Failure):
            yield number, answer
            continue
        for warning in (*answer.notes, *answer.said):
            if warning in said:
                continue
            if len(said) < _SAID:
                said.add(warning)
                environment.note(f"warning: {warning}")
            else:
                unsaid += 1
        yield number, answer.result
    if unsaid:
        environment.note(f"warning: {unsaid} more of other sentences; attn inspect says them all")


def merged(answers: Answers[Known | None]) -> Known | None:
    """Return what is known after all batches; None after no good sentence."""
    whole: Known | None = None
    for _, state in answers.good():
        whole = state if whole is None else whole if state is None else whole.merged(state)
    return whole
