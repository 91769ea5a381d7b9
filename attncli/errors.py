"""What can go wrong, and the exit code that each kind of failure ends with."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """The exit codes of every command, and what each means."""

    meaning: str

    OK = 0, "ok"
    FINDINGS = 1, "a check found something"
    USAGE = 2, "usage: an option, a layer, a head, a token or a mask expression that does not exist"
    LOAD = 3, "the model or tokenizer cannot be loaded"
    NOT_EXPOSED = 4, "the model does not expose what was asked"
    INPUT = (
        5,
        "bad input: an empty or too long text, a mask or a file that does not fit; a stream with a bad sentence, at "
        "its end",
    )
    INTERRUPTED = 130, "interrupted"  # 128 + SIGINT, as shells report it
    CLOSED_PIPE = 141, "nobody reads the output any more, and nothing is said"  # 128 + SIGPIPE
    TERMINATED = 143, "ended by SIGTERM"  # 128 + SIGTERM

    def __new__(cls, code: int, meaning: str) -> ExitCode:
        """Return a code that knows what it means."""
        self = int.__new__(cls, code)
        self._value_ = code
        self.meaning = meaning
        return self


class AttnError(Exception):
    """Base of every error attncli raises on purpose: one sentence that says what to do."""

    exit_code = ExitCode.INPUT


class UsageError(AttnError):
    """The options contradict each other, or name something that does not exist."""

    exit_code = ExitCode.USAGE


class MisfitError(UsageError):
    """An option does not fit a sentence, such as a token that it has not; it may fit another one."""


class LoadError(AttnError):
    """A model or a tokenizer cannot be loaded."""

    exit_code = ExitCode.LOAD


class NotExposedError(AttnError):
    """The model ran, but does not expose what was asked."""

    exit_code = ExitCode.NOT_EXPOSED


class InputError(AttnError):
    """The text, the mask or the file is not usable."""

    exit_code = ExitCode.INPUT
