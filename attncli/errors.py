"""Errors, the exit code that each ends with, and the failure of a sentence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from typing import Any, NamedTuple, TypeVar


class ExitCode(IntEnum):
    """The exit codes of every command, and their meanings."""

    meaning: str

    OK = 0, "ok"
    FINDINGS = 1, "a check found something"
    USAGE = 2, "usage: an option, layer, head, token or mask expression that does not exist"
    LOAD = 3, "the model, its tokenizer or a package cannot be loaded"
    NOT_EXPOSED = 4, "the model does not expose what was asked"
    INPUT = 5, "bad input: an empty or too long text, a mask or file that does not fit, or a bad sentence in a stream"
    INTERRUPTED = 130, "interrupted"  # 128 + SIGINT, as shells report it
    CLOSED_PIPE = 141, "the reader closed the pipe; no message"  # 128 + SIGPIPE
    TERMINATED = 143, "ended by SIGTERM"  # 128 + SIGTERM

    def __new__(cls, code: int, meaning: str) -> ExitCode:
        """Return a code with its meaning."""
        self = int.__new__(cls, code)
        self._value_ = code
        self.meaning = meaning
        return self


class AttnError(Exception):
    """Base of every error attncli raises on purpose: one sentence, with the remedy."""

    exit_code = ExitCode.INPUT


class UsageError(AttnError):
    """The options contradict each other, or name something that does not exist."""

    exit_code = ExitCode.USAGE


class InputMismatchError(UsageError):
    """An option does not fit this sentence, such as a token that it does not have; it may fit another one."""


class LoadError(AttnError):
    """A model, a tokenizer or a package cannot be loaded."""

    exit_code = ExitCode.LOAD


class NotExposedError(AttnError):
    """The model ran, but does not expose the attention asked for."""

    exit_code = ExitCode.NOT_EXPOSED


class InputError(AttnError):
    """The text, the mask or the file is not usable."""


def is_panic(error: BaseException) -> bool:
    """Return whether an error is a panic of a library in Rust."""
    return type(error).__module__ == "pyo3_runtime"


# Names of packages for pip that differ from those of their imports, or need a version.
_REQUIREMENTS = {
    "PIL": "pillow", "google.protobuf": "protobuf", "jinja2": "jinja2>=3.1.6", "ray": "ray<2.64",
    "textual": "textual<9", "transformers": "transformers<6",
}  # fmt: skip


def install_command(*packages: str) -> str:
    """Return the command that installs packages, by the names of their imports, for this Python."""
    import os
    import shlex
    import sys
    from shutil import which

    is_own = os.path.dirname(which("pip") or "") == os.path.dirname(sys.executable)
    command = ["pip"] if is_own else [sys.executable, "-m", "pip"]
    return shlex.join([*command, "install", *(_REQUIREMENTS.get(name, name) for name in packages)])


def not_installed(*packages: str) -> list[str]:
    """Return the packages that are not installed, without importing any."""
    from importlib.util import find_spec

    # A package inside of one that is not installed is an error to `find_spec`.
    return [name for name in packages if not find_spec(name.partition(".")[0]) or not find_spec(name)]


def require(what: str, *packages: str) -> None:
    """Raise LoadError, with the command that installs them, where `what` needs packages that are not installed."""
    if missing := not_installed(*packages):
        are = "is" if len(missing) == 1 else "are"
        raise LoadError(f"{what} needs {' and '.join(missing)}, which {are} not installed: {install_command(*missing)}")


Answer = TypeVar("Answer")
Metadata = Mapping[str, str]  # further facts on a sentence, by names: `file`, where there are several
NO_METADATA: Metadata = {}


def metadata_json(metadata: Metadata) -> dict[str, Any]:
    """Return the metadata of a sentence as the members of a JSON document; empty without any."""
    return {"kept": dict(metadata)} if metadata else {}


class Failure(NamedTuple):
    """Failure of a sentence."""

    reason: str  # one sentence
    kind: type[AttnError] = InputError  # the error that is raised where there is no other sentence
    metadata: Metadata = NO_METADATA  # further fields of its file

    def of(self, number: int) -> str:
        """Return the reason, after the number of the sentence, and before that its file, where there are several."""
        file = f"{self.metadata['file']}, " if "file" in self.metadata else ""
        return f"{file}sentence {number}: {self.reason}"


def raise_on_failure(
    numbered: Iterable[tuple[int, Answer | Failure]], is_alone: bool = False
) -> Iterator[tuple[int, Answer]]:
    """Yield numbered answers until one is a failure.

    Raises:
        AttnError: of the failure's kind; it names the sentence, unless that is the only one.
    """
    for number, answer in numbered:
        if isinstance(answer, Failure):
            raise answer.kind(answer.reason if is_alone else answer.of(number))
        yield number, answer
