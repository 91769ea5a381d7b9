"""From the options of a command to the traces it is about: sentences through a source, or one that was saved."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from itertools import islice
from typing import TYPE_CHECKING, Any

from attncli.errors import InputError, UsageError

if TYPE_CHECKING:
    from attncli.sources import Source
    from attncli.trace import Trace

_ROOM = 2**27  # bytes, for the traces of sentences that are computed side by side

Given = Mapping[str, Any]  # options by the name of their parameter; those that were not given are left out

# The usual options of a trace, wherever it comes from.
_OF_SAVED = {"from_", "layer", "head", "kind", "query", "key", "rows", "top_keys", "hide_special", "show", "precision"}
_OF_SAVED |= {"words", "norms", "rollout", "reduce", "over", "no_sink", "log"}
_OF_SAVED |= {"colormap", "color", "width", "format_", "output", "interactive", "save"}


def traces_of(given: Given, layers: str, only: str | None = None) -> Iterator[tuple[int, Trace]]:
    """Yield the numbered traces that a command's options ask for; a bad request is refused before the first one.

    Args:
        given: the options.
        layers: which layers, where `--layer` does not say.
        only: what takes a single trace, for the error; None takes any number.

    Raises:
        UsageError: options contradict each other, or do not apply.
        LoadError: the checkpoint cannot be loaded.
        InputError: a sentence or a file cannot be read.
    """
    if "from_" in given:
        return iter([(1, _saved(given))])
    return _computed(given, layers, only)


def _computed(given: Given, layers: str, only: str | None) -> Iterator[tuple[int, Trace]]:
    from attncli.sentences import sentences
    from attncli.sources import open_source

    texts = sentences(given.get("text", ()), given.get("file"), given.get("whole", False))
    if only is not None:
        texts = _the_only(texts, only)
    source = open_source(
        layers=given.get("layer", layers),
        heads=given.get("head"),
        kind=given.get("kind"),
        special="no_special" not in given,
        **{name: given[name] for name in _source_options() if name in given},
    )
    is_alone = len(given.get("text", ())) == 1 and given["text"] != ["-"]
    return traced(source, texts, given.get("pair"), given.get("target"), is_alone)


def traced(
    source: Source, texts: Iterable[tuple[int, str]], pair: str | None, target: str | None, is_alone: bool = False
) -> Iterator[tuple[int, Trace]]:
    """Yield the numbered traces of numbered sentences, a group of them at a time that takes a bounded memory.

    Args:
        source: what computes them.
        texts: the sentences.
        pair: a second text in the same sequence as each.
        target: the text whose queries attend to each sentence's keys.
        is_alone: whether there is only one sentence, so that an error need not name it.

    Raises:
        InputError: a sentence cannot be read.
    """
    from attncli.sentences import MOST_TOGETHER, windows

    largest = 1

    def room() -> int:
        return min(max(_ROOM // largest, 1), MOST_TOGETHER)

    for window in windows(texts, room):
        numbers = iter([number for number, _ in window])
        number = window[0][0]
        try:
            found = source.traces([text for _, text in window], pair, target)
            for number in numbers:
                trace = next(found)
                largest = max(largest, trace.nbytes)
                yield number, trace
        except InputError as error:
            raise error if is_alone else InputError(f"sentence {number}: {error}") from None


def _the_only(texts: Iterator[tuple[int, str]], what: str) -> Iterator[tuple[int, str]]:
    first = list(islice(texts, 2))
    if len(first) > 1:
        raise UsageError(f"{what} one trace; give one sentence, or each in a run of its own")
    return iter(first)


def _saved(given: Given) -> Trace:
    """Return the trace of `--from`."""
    from attncli.sources.file import load

    # What the options of the sources are called costs an import of them, for which most runs have no need.
    others = given.keys() - _OF_SAVED
    for name in ("text", "file", "whole", "pair", "target", "no_special", *(_source_options() if others else ())):
        if name in given:
            option = "TEXT" if name == "text" else "--" + name.replace("_", "-")
            raise UsageError(
                f"{option} does not apply to --from, whose attention is already computed; drop one of them"
            )
    return load(given["from_"], given.get("layer"), given.get("head"), given.get("kind"))


def _source_options() -> list[str]:
    """Return the names of the options that make a source."""
    from attncli.sources.pretrained import LoadOptions
    from attncli.sources.toy import ToyOptions

    return [
        "model",
        "mask",
        "generate",
        *(field.name for options in (ToyOptions, LoadOptions) for field in fields(options)),
    ]
