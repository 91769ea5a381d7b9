"""What can go wrong, and the exit code that each kind of failure ends with."""

from enum import IntEnum


class ExitCode(IntEnum):
    """The exit codes of every command."""

    OK = 0
    FINDINGS = 1  # a check found something
    USAGE = 2
    LOAD = 3  # the model or tokenizer cannot be loaded
    NOT_EXPOSED = 4  # the model does not expose what was asked
    INPUT = 5  # bad input data
    INTERRUPTED = 130  # 128 + SIGINT, as shells report it
    CLOSED_PIPE = 141  # 128 + SIGPIPE: nobody reads standard output any more
    TERMINATED = 143  # 128 + SIGTERM


class AttnError(Exception):
    """Base of every error attncli raises on purpose: one sentence that says what to do."""

    exit_code = ExitCode.INPUT


class UsageError(AttnError):
    """The options contradict each other, or name something that does not exist."""

    exit_code = ExitCode.USAGE


class LoadError(AttnError):
    """A model or a tokenizer cannot be loaded."""

    exit_code = ExitCode.LOAD


class NotExposedError(AttnError):
    """The model ran, but does not expose what was asked."""

    exit_code = ExitCode.NOT_EXPOSED


class InputError(AttnError):
    """The text, the mask or the file is not usable."""

    exit_code = ExitCode.INPUT
