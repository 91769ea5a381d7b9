"""The command line as far as it is typed: which command, and whose value the last word begins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

# What a backslash escapes inside quotes.
POSIX = {'"': '$`"\\\n', "'": ""}
FISH = {'"': '$"\\\n', "'": "\\'"}


@dataclass
class Cursor:
    """Where a line ends.

    Attributes:
        command: the command, or the group of commands, that was named last.
        parameter: whose value is being typed; None is a command or the name of an option.
        before: what of the last word stands before the value, such as `--mask=`.
        value: the value as far as it is typed.
        given: the values on the line, by parameter.
        names_option: whether the last word begins the name of an option.
        has_home: whether a ~ that the value begins with is somebody's home folder.
        root: the program's group of commands.
    """

    command: Any
    parameter: Any = None
    before: str = ""
    value: str = ""
    given: dict[str, list[str]] = field(default_factory=dict)
    names_option: bool = False
    has_home: bool = False
    root: Any = None


class Line(NamedTuple):
    """A line, split into words.

    Attributes:
        words: without their quotes; the last one is the one that is being typed, after a space it is empty.
        quote: the quote that is still open.
        has_home: whether the last word begins with a ~ that the shell reads as somebody's home folder.
    """

    words: list[str]
    quote: str
    has_home: bool


def split(line: str, escaped: Mapping[str, str] = POSIX) -> Line:
    """Split a line as a shell would, were it to end there; `shlex` refuses an open quote.

    Args:
        line: as it is typed.
        escaped: what a backslash escapes inside the quotes of that shell.
    """
    words, word, quote = [], "", ""
    has_begun = is_escaped = has_home = False
    for character in line:
        if is_escaped:
            word += character if not quote or character in escaped[quote] else "\\" + character
            is_escaped = False
        elif character == "\\" and (not quote or escaped[quote]):
            has_begun = is_escaped = True
        elif character == quote:
            quote = ""
        elif not quote and character in "'\"":
            quote, has_begun = character, True
        elif not quote and character in " \t\n":
            if has_begun:
                words.append(word)
            word, has_begun, has_home = "", False, False
        else:
            has_home |= character == "~" and not has_begun
            word, has_begun = word + character, True
    return Line([*words, word], quote, has_home)


def options(command: Any) -> dict[str, Any]:
    """Return the options of a command, by every name that they have."""
    return {
        name: parameter
        for parameter in command.params
        if parameter.param_type_name == "option"
        for name in (*parameter.opts, *parameter.secondary_opts)
    }


def is_group(command: Any) -> bool:
    """Return whether a command has commands of its own."""
    return hasattr(command, "list_commands")


def find_place(root: Any, words: Sequence[str], has_home: bool = True) -> Cursor | None:
    """Return where a line ends; None where it names a command that does not exist.

    Args:
        root: the program's group of commands.
        words: what follows the program's name, the word that is being typed last.
        has_home: whether a ~ that the last word begins with is somebody's home folder.
    """
    *before, last = words
    place = Cursor(root, value=last, has_home=has_home, root=root)
    awaiting = None
    positional = 0
    are_options_over = False
    for word in before:
        if awaiting is not None:
            place.given.setdefault(awaiting.name, []).append(word)
            awaiting = None
        elif word == "--" and not are_options_over:
            are_options_over = True
        elif word.startswith("-") and word != "-" and not are_options_over:
            awaiting = _option(place, word)
        elif is_group(place.command):
            place.command = place.command.get_command(None, word)
            if place.command is None:
                return None
        else:
            _keep_positional(place, positional, word)
            positional += 1
    return _ended(place, awaiting, positional, are_options_over)


def _option(place: Cursor, word: str) -> Any:
    """Note an option, and return it if its value is the next word."""
    known = options(place.command)
    name, equals, value = word.partition("=")
    option = known.get(name)
    if option is None and not word.startswith("--"):
        option, equals, value = known.get(word[:2]), "attached", word[2:]
    if option is None:
        return None
    if option.is_flag or equals:
        place.given.setdefault(option.name, []).append(value)
        return None
    return option


def _ended(place: Cursor, awaiting: Any, positional: int, are_options_over: bool) -> Cursor:
    """Return the place, its parameter found."""
    name, equals, value = place.value.partition("=")
    if awaiting is not None:
        place.parameter = awaiting
    elif place.value.startswith("-") and not are_options_over:
        place.names_option = not equals
        if equals:
            place.parameter = options(place.command).get(name)
            place.before, place.value, place.has_home = name + equals, value, False
    elif not is_group(place.command):
        place.parameter = _argument(place.command.params, positional)
    return place


def _keep_positional(place: Cursor, index: int, word: str) -> None:
    argument = _argument(place.command.params, index)
    if argument is not None:
        place.given.setdefault(argument.name, []).append(word)


def _argument(parameters: Iterable[Any], index: int) -> Any:
    """Return the positional parameter that takes a word; None where there are too many."""
    arguments = [parameter for parameter in parameters if parameter.param_type_name == "argument"]
    if index < len(arguments):
        return arguments[index]
    return arguments[-1] if arguments and arguments[-1].nargs == -1 else None
