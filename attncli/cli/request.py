"""From the options of a command to the traces it is about: sentences through a source, or one that was saved."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from typing import TYPE_CHECKING, Any

from attncli.cli.sentences import sentences
from attncli.errors import Answer, Failure, UnconfirmedError, UsageError, refusing
from attncli.trace.selection import Indices

if TYPE_CHECKING:
    from pathlib import Path

    from attncli.cli.environment import Environment
    from attncli.cli.options import Computed, Derive, Load, Request, Texts
    from attncli.cli.resume import Resumed
    from attncli.sources.reading import Given
    from attncli.sources.stream import Numbered, Source
    from attncli.trace.trace import Derivation, Trace


def derivation_of(derive: Derive, request: Request) -> tuple[Derivation, Indices | None]:
    """Return what is to be derived, and the layers that it needs; None leaves them to `--layer`.

    A rollout needs every layer up to the one that is shown, by default the last one; what is reduced over layers is
    reduced over all of them unless some were chosen.

    Raises:
        UsageError: the options do not go together.
    """
    from attncli.analysis.derive import parse_over
    from attncli.trace.trace import Derivation

    if derive.over is not None and derive.reduce is None:
        raise UsageError("--over says what --reduce merges; give --reduce mean or --reduce max")
    if derive.rollout and request.selection.head is not None:
        raise UsageError("--rollout is the mean over all heads of a layer; drop --head")
    over, chosen, is_saved = parse_over(derive.over), request.selection.layer, request.from_ is not None
    shown = None if chosen is None or not derive.rollout else Indices.of("layer", chosen)
    wish = Derivation(derive.norms, derive.rollout, derive.words, derive.reduce, over, shown)
    if derive.rollout and not (is_saved and shown is None):
        return wish, (shown or Indices.of("layer", -1)).and_below
    if derive.reduce is not None and "layers" in over and chosen is None and not is_saved:
        return wish, Indices.of("layer", "all")
    return wish, None


def answers_of(
    environment: Environment,
    request: Request,
    usual: str,
    *,
    layers: Indices | None = None,
    generate: int | None = None,
    only: str | None = None,
    values: bool = True,
    resumed: Resumed | None = None,
    texts: Iterable[Numbered] | None = None,
) -> Iterator[tuple[int, Trace | Failure]]:
    """Yield the numbered traces that a command is asked for; a bad request is refused before the first one.

    A bad sentence is answered by a `Failure`.

    Args:
        environment: that of the run.
        request: the options.
        usual: which layers are computed where `--layer` does not say.
        layers: which layers are needed, whatever `--layer` says.
        generate: how many tokens the model writes.
        only: what takes a single trace, for the error; None takes any number.
        values: whether V is going to be read; see `open_source`.
        resumed: the run that this one goes on from; sentences that it answered are not answered again.
        texts: in the place of the sentences that the options name.

    Raises:
        UsageError: options contradict each other, or do not apply.
        LoadError: the checkpoint cannot be loaded.
        InputError: a file cannot be read.
    """
    if request.from_ is not None:
        refuse_beside_saved(request.making())
        from attncli.trace.store import load

        chosen = request.selection
        return iter([(1, load(request.from_, layers or chosen.layer, chosen.head, chosen.kind))])
    return _computed(
        environment, request, layers or request.selection.layer or usual, generate or 0, only, values, resumed, texts
    )


def traces_of(
    environment: Environment, request: Request, usual: str, only: str | None = None, *, values: bool = True
) -> Iterator[tuple[int, Trace]]:
    """Yield the numbered traces up to the first bad sentence, which raises its error; see `answers_of`."""
    return refusing(
        answers_of(environment, request, usual, only=only, values=values),
        is_alone(request.computed.sentences, request.from_),
    )


def is_alone(texts: Texts, saved: Path | None) -> bool:
    """Return whether there can be one sentence only, which need not be named by its number."""
    return saved is not None or texts.is_one or (texts.text != ["-"] and len(texts.sentences) == 1)


def takes_target_alone(environment: Environment, computed: Computed, model: str | None) -> bool:
    """Return whether a target that no sentence is given with is all that a model reads: one that hears."""
    texts = computed.sentences
    if model is None or texts.target is None or texts.text or texts.file is not None:
        return False
    from attncli.sources.engines import decodes_alone

    with loading(environment, model, None):
        return decodes_alone(model, **dict(computed.load.said()))


def refuse_beside_saved(names: Iterable[str]) -> None:
    """Refuse the options that make what `--from` holds already.

    Raises:
        UsageError: there is one.
    """
    for name in names:
        option = "TEXT" if name == "text" else "--" + name.replace("_", "-")
        raise UsageError(f"{option} does not apply to --from, whose attention is already computed; drop one of them")


def check_chat(texts: Texts, target: str | None = None) -> None:
    """Raise UsageError, before anything is loaded, for a second text beside a chat."""
    if texts.prompt.chat:
        from attncli.sources.chat import refuse_beside_chat

        refuse_beside_chat(texts.pair, target)


def tolerated(
    answers: Iterator[tuple[int, Answer | Failure]], *, stops: bool, is_alone: bool, keeps_errors: bool
) -> Iterator[tuple[int, Answer | Failure]]:
    """Pass answers on; the first bad one raises its error with `--fail-fast`, or where there is one sentence.

    Where `--keep-errors` gives the error a place, the only sentence is as one of many.
    """
    return refusing(answers, is_alone) if stops or (is_alone and not keeps_errors) else answers


def refuse_misplaced_errors(keeps_errors: bool, fail_fast: bool, chosen: str) -> None:
    """Raise UsageError where `--keep-errors` has no errors to keep, or the format no place for them."""
    if keeps_errors and fail_fast:
        raise UsageError("--keep-errors does not apply to --fail-fast, which stops at an error; drop one of them")
    if keeps_errors and chosen not in ("json", "jsonl"):
        raise UsageError(f"--keep-errors does not apply to {chosen}, which has no place for them; give --format jsonl")


def loading(environment: Environment, model: str | None, vocab: str | None) -> AbstractContextManager[None]:
    """Return the line of a terminal while what is named is loaded; `words` are a vocabulary that nobody loads."""
    from attncli.cli.progress import status

    name = vocab or "words" if model is None else model
    return nullcontext() if name == "words" else status(environment, f"loading {name}")


def agreed(environment: Environment, load: Load, opened: Callable[[dict[str, Any]], Answer]) -> Answer:
    """Return what is opened with the options of a checkpoint; a person is asked if much would be fetched for it.

    Raises:
        UnconfirmedError: nobody says yes.
    """
    options = dict(load.said())
    try:
        return opened(options)
    except UnconfirmedError as error:
        if not environment.agrees(f"{error.said}; go on?"):
            raise
    return opened(options | {"yes": True})


def _computed(
    environment: Environment,
    request: Request,
    layers: str | Indices,
    generate: int,
    only: str | None,
    values: bool,
    resumed: Resumed | None,
    made: Iterable[Numbered] | None,
) -> Iterator[tuple[int, Trace | Failure]]:
    from attncli.sources import open_source
    from attncli.sources.stream import traced

    asked = request.computed
    pair, target = asked.sentences.pair, asked.sentences.target
    check_chat(asked.sentences, target)
    given, texts = _sentences(environment, asked, request.model, made)
    if only is not None:
        texts = _the_only(texts, only)

    def opened(load: dict[str, Any]) -> Source:
        with loading(environment, request.model, asked.toy.vocab):
            return open_source(
                model=request.model,
                layers=layers,
                heads=request.selection.head,
                kind=request.selection.kind,
                mask=asked.mask,
                special=not asked.sentences.no_special,
                generate=generate,
                values=values,
                given=given,
                **dict(asked.sentences.prompt.said()),
                **load,
                **dict(asked.toy.said()),
            )

    source = agreed(environment, asked.load, opened)
    if request.model is None:
        environment.tell(f"the toy layer: {source}")
    due = () if resumed is None else (resumed.is_due, resumed.sentence)
    answers = traced(source, texts, pair, target, *due)
    keeps_errors = getattr(request, "keep_errors", False)
    return refusing(answers, is_alone=True) if given == "target" and not keeps_errors else answers


def _sentences(
    environment: Environment, asked: Computed, model: str | None, made: Iterable[Numbered] | None
) -> tuple[Given, Iterator[Numbered]]:
    """Return what the sentences have, and the sentences."""
    if made is not None:
        return "text", iter(made)
    if takes_target_alone(environment, asked, model):
        return "target", iter([(1, "")])
    texts = sentences(asked.sentences, environment)
    return "text" if asked.sentences.target is None else "both", texts


def _the_only(texts: Iterator[Numbered], what: str) -> Iterator[Numbered]:
    first = list(islice(texts, 2))
    if len(first) > 1:
        raise UsageError(f"{what} one trace; give one sentence, or each in a run of its own")
    return iter(first)
