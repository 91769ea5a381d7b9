"""Sentences in, numbered from 1: from the command line, a file or standard input; and what is said of the bad ones."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Generic

from attncli.cli.environment import Environment, complain, is_piped_in, stdin_bytes
from attncli.errors import Answer, Failure, InputError, MisfitError, UsageError
from attncli.files import check_file
from attncli.text import visible

if TYPE_CHECKING:
    from attncli.cli.options import Texts
    from attncli.sources.stream import Numbered
    from attncli.trace.trace import Trace
    from attncli.trace.view import View

MOST_BYTES = 2**24  # of a line; no model reads a text that is nearly as long

_BOM = b"\xef\xbb\xbf"
# By their own marks, the longer one first: that of UTF-16 begins it.
_FOREIGN = {
    b"\xff\xfe\0\0": "UTF-32",
    b"\0\0\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
# What unpacks a file, by the bytes that it begins with.
_PACKED = {
    b"\x1f\x8b": "gunzip -c",
    **{b"BZh%d1AY&SY" % level: "bunzip2 -c" for level in range(1, 10)},
    b"\xfd7zXZ": "unxz -c",
    b"\x28\xb5\x2f\xfd": "unzstd -c",
}
# And what else is no text, though no byte of its first line may be 0. No sentence begins with any of these.
_BINARY = {
    b"PK\x03\x04": "a zip archive",
    b"%PDF-": "a PDF document",
    b"\x89PNG": "a picture",
    b"\xff\xd8\xff": "a picture",
}
_LOOKED_AT = 256  # bytes


def sentences(given: Texts, environment: Environment) -> Iterator[Numbered]:
    """Yield the sentences with their numbers: their place among the arguments, or their line.

    Raises:
        UsageError: there is no sentence, or there are two places to look for one.
        InputError: the file cannot be read, or holds no sentence.
    """
    texts, file = given.sentences, given.file
    if texts and file is not None:
        raise UsageError("give sentences or --file, not both")
    from_stdin = texts == ["-"] or file == Path("-") or (not texts and file is None and is_piped_in())
    if given.whole and not (from_stdin or file is not None):
        raise UsageError("--whole applies to --file and standard input; an argument is always one text")
    if given.whole and given.has_conversations:
        raise UsageError(f"--whole does not apply to {file}, which holds messages; drop it")
    if given.each and not (texts and not from_stdin):
        raise UsageError("--each applies to sentences of the command line; a file or standard input has one a line")
    if from_stdin:
        return _read(stdin_bytes(), "standard input", given.whole, environment, is_file=False)
    if file is not None:
        numbered = _read(_opened(file), visible(str(file)), given.is_one, environment)
        return _conversations(numbered) if given.has_conversations else numbered
    if not texts:
        raise UsageError('give a sentence, such as "time flies like an arrow"')
    if "-" in texts:
        raise UsageError("- reads the sentences from standard input; it cannot stand beside other sentences")
    if not given.each:
        say_how_taken(given, environment)
    return iter(enumerate(texts, start=1))


def say_how_taken(given: Texts, environment: Environment) -> None:
    """Say what may not have been meant so: words that became a sentence, and the name of a file that is a text."""
    if given.are_words:
        environment.note(f"{len(given.text or ())} words were taken as one sentence; --each takes each as its own")
    if name := next((text for text in given.text or () if os.path.isfile(text)), None):
        import shlex

        option = "--from" if name.endswith(".safetensors") else "--file"
        environment.note(
            f"{visible(name)} is the name of a file, and was taken as a text; {option} {shlex.quote(visible(name))} "
            "reads the file"
        )
    if model := _model_among(given.text or ()):
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
        from attncli.sources.folder import DEMO

        return DEMO if DEMO in texts else None
    return None


def _conversations(numbered: Iterable[Numbered]) -> Iterator[Numbered]:
    """Yield what each text spells in JSON."""
    from attncli.sources.chat import Conversation

    for number, text in numbered:
        try:
            yield number, text if isinstance(text, Failure) else Conversation.parsed(text)
        except InputError as error:
            yield number, Failure(str(error))


def last_number(given: Texts) -> int | None:
    """Return the number of the last sentence or empty line, if there is a quick way to know."""
    if given.file is None:
        return len(given.sentences) if given.text and given.text != ["-"] else None
    if given.is_one:
        return 1
    try:
        if not given.file.is_file():
            return None
        with open(given.file, "rb") as stream:
            return sum(1 for _ in _lines(stream))
    except OSError:  # which is said where it is read
        return None


def _opened(path: Path) -> IO[bytes]:
    with _readable(visible(str(path))):
        check_file(path, is_stream=True)
        return open(path, "rb")


@contextmanager
def _readable(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot read {name}: {error.strerror or error}") from None


def _read(
    stream: IO[bytes], name: str, whole: bool, environment: Environment, is_file: bool = True
) -> Iterator[Numbered]:
    """Yield the lines that are not empty; a byte order mark and the ends of lines are not text."""
    number = empty = 0
    with stream, _readable(name):
        ahead = _ahead(stream)
        for number, line in enumerate([stream.read(MOST_BYTES + 1)] if whole else _lines(stream), start=1):
            if number == 1:
                _refuse_foreign(line, ahead, name, is_file)
            content = line.removeprefix(_BOM) if number == 1 else line
            content = content if whole else content.rstrip(b"\r\n")
            if content and not (whole and content.isspace()):
                yield number, _decoded(content, name)
            else:
                empty += 1
    if empty == number:
        raise InputError(f"{name} holds no sentence; expected one a line")
    if empty:
        environment.note(f"{name}: {empty} empty line{'s were' if empty > 1 else ' was'} skipped")


def _lines(stream: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines; of one that is too long, as much as shows it, and the rest of it is not kept."""
    while line := stream.readline(MOST_BYTES + 1):
        yield line
        while len(line) > MOST_BYTES and not line.endswith(b"\n"):
            line = stream.readline(MOST_BYTES + 1)


def _ahead(stream: IO[bytes]) -> bytes:
    """Return as much of what comes next as is there already, without taking it."""
    peek = getattr(stream, "peek", None)
    return peek(1) if peek else b""


def _refuse_foreign(beginning: bytes, ahead: bytes, name: str, is_file: bool) -> None:
    """Raise InputError where a text is none, or in an encoding none of whose lines is UTF-8, by how it begins.

    Args:
        beginning: the first line.
        ahead: the first bytes, of other lines too: binary data has line ends by chance.
        name: what the file is called.
        is_file: whether that is the name of a file.
    """

    def found(kinds: Mapping[bytes, str]) -> str | None:
        return next((kind for mark, kind in kinds.items() if beginning.startswith(mark)), None)

    if packed := found(_PACKED):
        import shlex

        before = f"{packed} {shlex.quote(name)} |" if is_file else f"… | {packed.split()[0]} |"
        raise InputError(f"{name} is packed and no text; unpack it first: {before} attn inspect -")
    if encoding := found(_FOREIGN):
        by = "by the byte order mark that it begins with"
    elif encoding := _of_two_bytes(beginning[:_LOOKED_AT]):
        by = "by its zero bytes"
    if encoding:
        raise InputError(
            f"{name} is {encoding}, {by}; convert it to UTF-8 first, such as with iconv -f {encoding} -t UTF-8"
        )
    what = found(_BINARY) or ("binary" if b"\0" in beginning or b"\0" in ahead else None)
    if what:
        hint = "; --from reads a saved trace" if name.endswith(".safetensors") else ""
        raise InputError(f"{name} is {what} and no text; expected UTF-8, one sentence a line{hint}")


def _of_two_bytes(beginning: bytes) -> str | None:
    """Return which UTF-16 a text without a mark is in: of most letters one of the two bytes is 0."""
    for encoding, zeros, others in (
        ("UTF-16LE", beginning[1::2], beginning[::2]),
        ("UTF-16BE", beginning[::2], beginning[1::2]),
    ):
        if zeros and zeros.count(0) > len(zeros) * 0.8 and 0 not in others.rstrip(b"\n"):
            return encoding
    return None


def _decoded(content: bytes, name: str) -> str | Failure:
    if len(content) > MOST_BYTES:
        return Failure(f"it is longer than {MOST_BYTES >> 20} MiB; split it into sentences, one a line")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        return Failure(f"it is not UTF-8 at byte {error.start + 1}; convert {name} to UTF-8 first")


class Answers(Generic[Answer]):
    """Numbered answers; those that are failures are said on stderr as they come by.

    Attributes:
        failures: how many have come by so far.
    """

    def __init__(self, numbered: Iterable[tuple[int, Answer | Failure]], keeps_errors: bool = False) -> None:
        self.failures = 0
        self._numbered = numbered
        self._keeps_errors = keeps_errors

    def __iter__(self) -> Iterator[tuple[int, Answer | Failure]]:
        """Yield all of them."""
        for number, answer in self._numbered:
            if isinstance(answer, Failure):
                self.failures += 1
                complain(answer.of(number))
                yield number, answer._replace(is_kept=self._keeps_errors)
            else:
                yield number, answer

    def good(self) -> Iterator[tuple[int, Answer]]:
        """Yield those that are no failures."""
        for number, answer in self:
            if not isinstance(answer, Failure):
                yield number, answer


def fitting(numbered: Iterable[tuple[int, Trace | Failure]], view: View) -> Iterator[tuple[int, Trace | Failure]]:
    """Pass numbered traces on; one that lacks the tokens to be shown is a failure, as a sentence that cannot be read.

    Raises:
        UsageError: no trace could give what is wanted.
        NotExposedError: the layers can give nothing of what is wanted.
    """
    for number, answer in numbered:
        if not isinstance(answer, Failure):
            try:
                view.check(answer)
            except MisfitError as error:
                answer = Failure(str(error), kind=MisfitError)
        yield number, answer


def warn(environment: Environment, warnings: Iterable[str], number: int, is_alone: bool) -> None:
    """Say warnings about a sentence on stderr; one among several is named."""
    for warning in warnings:
        environment.note(f"warning: {warning}" if is_alone else f"warning: sentence {number}: {warning}")
