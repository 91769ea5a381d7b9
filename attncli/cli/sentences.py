"""Sentences in, numbered from 1: from the command line, a file or standard input; and what is said of the bad ones."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import IO, TYPE_CHECKING

from attncli.cli.environment import Environment, is_piped_in, stdin_bytes
from attncli.engines.source import CorpusItem
from attncli.errors import InputError, UsageError, raise_on_failure
from attncli.text import plural, visible

if TYPE_CHECKING:
    from attncli.cli.options import TextOptions


def sentences(options: TextOptions, environment: Environment, *, may_be_words: bool = True) -> Iterator[CorpusItem]:
    """Yield the sentences with their numbers: their place among the arguments, or their line.

    Args:
        options: where they are.
        environment: that of the run.
        may_be_words: whether several words as arguments may have been meant as one sentence, which is said.

    Raises:
        UsageError: there is no sentence, or there are two places to look for one.
        InputError: the file cannot be read, or holds no sentence.
    """
    texts, file = options.text or [], options.file
    if texts and file is not None:
        # What a shell makes of a glob without quotes.
        hint = "; a glob stands in quotes: --file 'corpus/*'" if all(map(os.path.exists, texts)) else ""
        raise UsageError(f"give sentences or --file, not both{hint}")
    if file == "":
        raise UsageError("--file: the file name is empty")
    reader = options.reader
    from_stdin = texts == ["-"] or file == "-" or (not texts and file is None and is_piped_in())
    if options.whole and not (from_stdin or reader):
        raise UsageError("--whole applies to --file and standard input; an argument is always one text")
    if reader is not None:
        return _begun(reader.sentences(environment.note))
    if options.column is not None:
        raise UsageError("--column applies to --file NAME, which may be .jsonl, .csv, .tsv or .parquet")
    if from_stdin:
        return _piped(stdin_bytes(), options.whole, environment)
    if not texts:
        raise UsageError('give a sentence, such as "time flies like an arrow"')
    if "-" in texts:
        raise UsageError("- reads the sentences from standard input; it cannot stand beside other sentences")
    say_how_taken(options, environment, may_be_words)
    return (CorpusItem(number, text) for number, text in enumerate(texts, start=1))


def texts_of(options: TextOptions, environment: Environment, *, may_be_words: bool = True) -> Iterator[str]:
    """Yield the sentences up to the first bad one, which raises its error; see `sentences`."""
    items = sentences(options, environment, may_be_words=may_be_words)
    return (text for _, text in raise_on_failure((one.number, one.text) for one in items))


def say_how_taken(options: TextOptions, environment: Environment, may_be_words: bool = True) -> None:
    """Say what may not have been meant so: words without quotes, and the name of a file or a model that is a text."""
    if options.are_words and may_be_words:
        environment.note(f"{len(options.text or ())} words were taken as a sentence each; quotes make them one")
    if name := next((text for text in options.text or () if os.path.isfile(text)), None):
        import shlex

        option = "--from" if name.endswith(".safetensors") else "--file"
        environment.note(
            f"{visible(name)} is the name of a file, and was taken as a text; {option} {shlex.quote(visible(name))} "
            "reads the file"
        )
    if model := _model_among(options.text or ()):
        import shlex

        environment.note(
            f"{visible(model)} is the name of a model, and was taken as a text; --model {shlex.quote(visible(model))} "
            "loads the model"
        )


def _model_among(texts: Sequence[str]) -> str | None:
    """Return the text that is a checkpoint's folder, or beside others the model in the box."""
    if found := next((text for text in texts if text and os.path.isfile(os.path.join(text, "config.json"))), None):
        return found
    if len(texts) > 1:  # for a single word it is not worth the import
        from attncli.checkpoints.checkpoint_folder import DEMO

        return DEMO if DEMO in texts else None
    return None


def last_number(options: TextOptions) -> int | None:
    """Return the number of the last sentence or empty line, if there is a quick way to know."""
    if options.file is None:
        return len(options.text) if options.text and options.text != ["-"] else None
    if options.is_one:
        return 1
    return None if options.reader is None else options.reader.last_number()


def _begun(numbered: Iterator[CorpusItem]) -> Iterator[CorpusItem]:
    """Read as far as the first sentence, so that what cannot be read is refused before a model is loaded."""
    return chain([next(numbered)], numbered)


def _piped(stream: IO[bytes], whole: bool, environment: Environment) -> Iterator[CorpusItem]:
    """Yield the lines of standard input that are not empty."""
    from attncli.corpus.readers.text import read_text

    name, number, empty = "standard input", 0, 0
    try:
        with stream:
            for sentence in read_text(stream, name, whole):
                number = sentence.number
                if sentence.text == "":
                    empty += 1
                else:
                    yield sentence
    except OSError as error:
        raise InputError(f"cannot read {name}: {error.strerror or error}") from None
    if empty == number:
        raise InputError(f"{name} holds no sentence; expected one a line")
    if empty:
        environment.note(f"{name}: {plural(empty, 'empty line')} {'was' if empty == 1 else 'were'} skipped")
