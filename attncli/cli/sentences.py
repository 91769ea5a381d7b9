"""Sentences in, numbered from 1: from the command line, a file or standard input."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING

from attncli.cli.environment import Environment, is_piped_in, stdin_bytes
from attncli.engines.source import CorpusItem
from attncli.errors import InputError, UsageError, raise_on_failure
from attncli.text import visible

if TYPE_CHECKING:
    from attncli.cli.options import TextOptions


class MissingSentenceError(UsageError):
    """There is no sentence on the command line, and nothing on standard input."""

    def __init__(self) -> None:
        super().__init__('give a sentence, such as "time flies like an arrow", or --file sentences.txt')


def sentences(options: TextOptions, environment: Environment, *, may_be_words: bool = True) -> Iterator[CorpusItem]:
    """Yield the sentences with their numbers: their place among the arguments, or their line.

    `may_be_words` tells whether several words as arguments may have been meant as one sentence, which is noted.

    Raises:
        MissingSentenceError: there is no sentence.
        UsageError: there are two places to look for one.
        InputError: the file cannot be read, or holds no sentence.
    """
    texts, file = options.text or [], options.file
    if texts and file is not None:
        # Several files, as a shell expands a glob without quotes.
        hint = "; a glob stands in quotes: --file 'corpus/*'" if all(map(os.path.exists, texts)) else ""
        raise UsageError(f"give sentences or --file, not both{hint}")
    if file == "":
        raise UsageError("--file: the file name is empty")
    if options.pictures:
        return (CorpusItem(number, path) for number, path in enumerate(options.pictures, start=1))
    is_bare = not texts and file is None
    if options.reader is not None or texts == ["-"] or file == "-" or (is_bare and is_piped_in()):
        reader = options.reader
        items = _piped(options.whole, environment, is_bare) if reader is None else reader.sentences(environment.note)
        # Up to the first sentence, so that an unreadable file is refused before a model is loaded.
        return items if reader is None and not is_bare else chain([next(items)], items)
    if not texts:
        raise MissingSentenceError()
    if "-" in texts:
        raise UsageError("- reads standard input; give it without other sentences")
    check_meant(texts, environment, may_be_words)
    return (CorpusItem(number, text) for number, text in enumerate(texts, start=1))


def texts_of(options: TextOptions, environment: Environment) -> Iterator[str]:
    """Yield the sentences up to the first bad one, which raises its error; see `sentences`."""
    items = sentences(options, environment)
    return (text for _, text in raise_on_failure((item.number, item.text) for item in items))


def check_meant(texts: list[str], environment: Environment, may_be_words: bool = True) -> None:
    """Note sentences that look like words without quotes or files; UsageError for the name of a model."""
    if len(texts) > 1 and may_be_words and not any(map(str.isspace, "".join(texts))):
        environment.note(f"each of the {len(texts)} words is a sentence here; put a sentence in quotes")
    for text in filter(None, texts):
        is_model = any(os.path.isfile(os.path.join(text, name)) for name in ("config.json", "adapter_config.json"))
        if not is_model and len(texts) > 1 and text.isidentifier():  # for a single word it is not worth the import
            from attncli.checkpoints.checkpoint_folder import DEMOS

            is_model = text in DEMOS
        if is_model or os.path.isfile(text):
            from shlex import quote

            name = visible(text)
            if is_model:
                raise UsageError(f"{name} is a model, not a sentence; did you mean -m {quote(name)}?")
            option = f"{'--from' if text.endswith('.safetensors') else '--file'} {quote(name)}"
            environment.note(f"{name} is a file, read as a sentence here; {option} opens it")


def _piped(whole: bool, environment: Environment, is_bare: bool) -> Iterator[CorpusItem]:
    """Yield the lines of standard input that are not empty; MissingSentenceError if it is, and was not asked for."""
    from attncli.corpus.read import without_empty
    from attncli.corpus.readers import read_text

    name = "standard input"
    try:
        with stdin_bytes() as stream:
            lines = read_text(stream, name, whole)
            if is_bare:
                if (first := next(lines, None)) is None:
                    raise MissingSentenceError()
                lines = chain([first], lines)
            yield from without_empty(lines, name, "line", environment.note)
    except OSError as error:
        raise InputError(f"cannot read {name}: {error.strerror or error}") from None
