"""From the options of a command to the traces it is about: sentences through a source, or one that was saved."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from itertools import islice
from typing import TYPE_CHECKING, Any

from attncli.cli.environment import tell
from attncli.errors import Answer, Failure, InputError, UsageError, refusing
from attncli.trace.selection import Indices

if TYPE_CHECKING:
    from attncli.cli.resume import Resumed
    from attncli.sources.options import EngineOptions, ToyOptions
    from attncli.sources.stream import Numbered
    from attncli.sources.tokenize import Tokenizer
    from attncli.trace.tokenization import Tokenization
    from attncli.trace.trace import Derivation, Trace


def derivation_of(given: Mapping[str, Any]) -> tuple[Derivation, dict[str, Any]]:
    """Return what is to be derived, and the options with the layers that it needs.

    A rollout needs every layer up to the one that is shown, by default the last one; what is reduced over layers is
    reduced over all of them unless some were chosen.

    Args:
        given: options by the name of their parameter; those that were not given are left out.

    Raises:
        UsageError: they do not go together.
    """
    from attncli.analysis.derive import parse_over  # with NumPy; `attn tokens` needs none
    from attncli.trace.trace import Derivation

    if "over" in given and "reduce" not in given:
        raise UsageError("--over says what --reduce merges; give --reduce mean or --reduce max")
    if "words" in given and "generate" in given:
        raise UsageError("--words merges pieces by their places in the text, and what --generate writes has none")
    over = parse_over(given.get("over"))
    is_rollout, asked = "rollout" in given, dict(given)
    spans_layers = "reduce" in given and "layers" in over
    if is_rollout and "head" in given:
        raise UsageError("--rollout is the mean over all heads of a layer; drop --head")
    chosen = given.get("layer", "all" if spans_layers else None)
    layers = None
    if is_rollout:
        layers = None if chosen is None else Indices.of("layer", chosen)
    wish = Derivation("norms" in given, is_rollout, "words" in given, given.get("reduce"), over, layers)
    if is_rollout and not ("from_" in given and chosen is None):
        asked["layer"] = (layers or Indices.of("layer", -1)).and_below
    elif spans_layers and "from_" not in given:
        asked["layer"] = chosen
    return wish, asked


Given = Mapping[str, Any]  # options by the name of their parameter; those that were not given are left out

# The usual options of a trace, wherever it comes from.
_OF_SAVED = {"from_", "layer", "head", "kind", "query", "key", "rows", "top_keys", "hide_special", "show", "precision"}
_OF_SAVED |= {"words", "norms", "rollout", "reduce", "over", "no_sink", "log", "min_weight"}
_OF_SAVED |= {"colormap", "color", "width", "format_", "output", "interactive", "save"}
_OF_SENTENCES = ("text", "file", "whole", "fail_fast", "keep_errors", "resume", "pair", "target", "no_special")


def answers_of(
    given: Given, layers: str, only: str | None = None, resumed: Resumed | None = None
) -> Iterator[tuple[int, Trace | Failure]]:
    """Yield the numbered traces that a command's options ask for; a bad request is refused before the first one.

    A bad sentence is answered by a `Failure`.

    Args:
        given: the options.
        layers: which layers, where `--layer` does not say.
        only: what takes a single trace, for the error; None takes any number.
        resumed: the run that this one goes on from; sentences that it answered are not answered again.

    Raises:
        UsageError: options contradict each other, or do not apply.
        LoadError: the checkpoint cannot be loaded.
        InputError: a file cannot be read.
    """
    if "from_" in given:
        return iter([(1, saved(given))])
    return _computed(given, layers, only, resumed)


def tolerated(
    given: Given, answers: Iterator[tuple[int, Answer | Failure]], is_single: bool = False
) -> Iterator[tuple[int, Answer | Failure]]:
    """Pass the answers on; the first bad one raises InputError with `--fail-fast`, or where there is one sentence.

    Where `--keep-errors` gives the error a place, the only sentence is as one of many.

    Args:
        given: the options.
        answers: to the sentences that they ask for.
        is_single: whether there may be only one.
    """
    alone = is_alone(given)
    stops = is_single or "fail_fast" in given or (alone and "keep_errors" not in given)
    return refusing(answers, alone) if stops else answers


def is_alone(given: Given) -> bool:
    """Return whether there can be one sentence only, which need not be named by its number."""
    return "from_" in given or "whole" in given or (len(given.get("text", ())) == 1 and given["text"] != ["-"])


def refuse_misplaced_errors(given: Given, chosen: str) -> None:
    """Raise UsageError where `--keep-errors` has no errors to keep, or the format no place for them."""
    if "keep_errors" in given and "fail_fast" in given:
        raise UsageError("--keep-errors does not apply to --fail-fast, which stops at an error; drop one of them")
    if "keep_errors" in given and chosen not in ("json", "jsonl"):
        raise UsageError(f"--keep-errors does not apply to {chosen}, which has no place for them; give --format jsonl")


def traces_of(given: Given, layers: str, only: str | None = None) -> Iterator[tuple[int, Trace]]:
    """Yield the same, up to the first bad sentence, which raises InputError."""
    return refusing(answers_of(given, layers, only), is_alone(given))


def _computed(
    given: Given, layers: str, only: str | None, resumed: Resumed | None
) -> Iterator[tuple[int, Trace | Failure]]:
    from attncli.cli.sentences import sentences
    from attncli.sources import open_source
    from attncli.sources.stream import traced

    texts = sentences(given.get("text", ()), given.get("file"), given.get("whole", False))
    if only is not None:
        texts = _the_only(texts, only)
    with _loading(given):
        source = open_source(
            layers=given.get("layer", layers),
            heads=given.get("head"),
            kind=given.get("kind"),
            special="no_special" not in given,
            **{name: given[name] for name in _of_source(given)},
        )
    if "model" not in given:
        tell(f"the toy layer: {source}")
    pair, target = given.get("pair"), given.get("target")
    if resumed is None:
        return traced(source, texts, pair, target)
    return traced(source, texts, pair, target, resumed.is_due, resumed.sentence)


def _loading(given: Given) -> AbstractContextManager[None]:
    """Return the line of a terminal while what is named is loaded; `words` are a vocabulary that nobody loads."""
    from attncli.cli.progress import status

    name = given.get("model", given.get("vocab", "words"))
    return nullcontext() if name == "words" else status(f"loading {name}")


def _the_only(texts: Iterator[Numbered], what: str) -> Iterator[Numbered]:
    first = list(islice(texts, 2))
    if len(first) > 1:
        raise UsageError(f"{what} one trace; give one sentence, or each in a run of its own")
    return iter(first)


def saved(given: Given) -> Trace:
    """Return the trace of `--from`; refuse the options that make one."""
    from attncli.trace.store import load

    if refused := [*(name for name in _OF_SENTENCES if name in given), *_of_source(given)]:
        option = "TEXT" if refused[0] == "text" else "--" + refused[0].replace("_", "-")
        raise UsageError(f"{option} does not apply to --from, whose attention is already computed; drop one of them")
    return load(given["from_"], given.get("layer"), given.get("head"), given.get("kind"))


def _of_source(given: Given) -> list[str]:
    """Return the names of the options that make a source."""
    known = ["model", "mask", "generate"]
    for options in (_load_options, _toy_options) if "model" in given else (_toy_options, _load_options):
        # What they are called costs an import of what they are for; most runs need one of the two, or neither.
        if given.keys() - {*_OF_SAVED, *_OF_SENTENCES, *known}:
            known += [field.name for field in fields(options())]
    return [name for name in dict.fromkeys(known) if name in given]


def _load_options() -> type[EngineOptions]:
    from attncli.sources.options import EngineOptions

    return EngineOptions


def _toy_options() -> type[ToyOptions]:
    from attncli.sources.options import ToyOptions

    return ToyOptions


def tokenizations_of(given: Given) -> Iterator[tuple[int, Tokenization | Failure]]:
    """Yield the numbered tokens that a command's options ask for; see `answers_of`."""
    from attncli.cli.sentences import sentences
    from attncli.sources.reading import check_texts
    from attncli.sources.tokenize import OPTIONS, open_tokenizer
    from attncli.trace.tokenization import tokenizations_in

    if "from_" in given:
        return iter(list(enumerate(tokenizations_in(saved(given)), start=1)))
    texts = sentences(given.get("text", ()), given.get("file"), given.get("whole", False))
    named = {name: given[name] for name in OPTIONS if name in given}
    with _loading(given):
        tokenizer = open_tokenizer(special="no_special" not in given, **named)
    check_texts(None, given.get("pair"))
    return tolerated(given, _tokenized(tokenizer, texts, given.get("pair")))


def _tokenized(
    tokenizer: Tokenizer, texts: Iterable[Numbered], pair: str | None
) -> Iterator[tuple[int, Tokenization | Failure]]:
    for number, text in texts:
        try:
            yield number, text if isinstance(text, Failure) else tokenizer.tokenize(text, pair)
        except InputError as error:
            yield number, Failure(str(error))
