"""What goes between the program and a shell: how it asks, how it is answered, and the script that does so.

An answer is a line for each candidate: `=` (or `+`, if more has to follow and no space is wanted), a tab, the word,
a tab, a few words on it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from importlib.resources import files
from typing import Any, NamedTuple

from attncli.completion.candidate import Candidate
from attncli.completion.candidates import candidates
from attncli.completion.line import find_place, split
from attncli.errors import UsageError
from attncli.tokens import visible

_FILES = {"bash": "attn.bash", "zsh": "_attn", "fish": "attn.fish", "powershell": "attn.ps1"}
_NOT_PLAIN = re.compile(r"[^\w@%+=:,./~-]")


class _Asked(NamedTuple):
    """What a shell asked.

    Attributes:
        words: what follows the program's name, unquoted, the word that is being typed last.
        quote: the quote that is open.
        kept: how much of the last word the shell keeps in front of an answer.
    """

    words: list[str]
    quote: str = ""
    kept: int = 0


def script(shell: str) -> str:
    """Return the completion script of a shell."""
    return files("attncli.completion").joinpath("scripts", _FILES[shell]).read_text(encoding="utf-8")


def answer(root: Any, shell: str, arguments: Sequence[str]) -> str:
    """Return the answer to a TAB.

    Args:
        root: the program's group of commands.
        shell: who asks.
        arguments: what its script passes on.

    Raises:
        UsageError: nobody of that name asks.
    """
    if shell not in _ASKED:
        raise UsageError(f"'{visible(shell)}': expected a shell, one of {', '.join(_ASKED)}")
    asked = _ASKED[shell](arguments)
    place = find_place(root, asked.words)
    found = [] if place is None else candidates(place)
    return "".join(_lines(shell, asked, [one for one in found if one.value.isprintable()]))


def _lines(shell: str, asked: _Asked, found: Sequence[Candidate]) -> Iterator[str]:
    values = [(one.goes_on, one.value[asked.kept :], one.help) for one in found]
    if len(found) == 1 and found[0].goes_on and shell in ("bash", "fish") and (asked.quote or shell == "fish"):
        # The only match gets its quote closed, and a space in fish; beside how it is written in full it does not.
        values.append((True, found[0].form[asked.kept :], found[0].help))
    if shell == "bash" and not asked.quote:
        values = _quoted(values)
    if shell == "powershell":
        values = [(goes_on, _in_powershell(value, goes_on), text) for goes_on, value, text in values]
    for goes_on, value, text in values:
        yield f"{'+' if goes_on else '='}\t{value}\t{text}\n"


def _quoted(values: Sequence[tuple[bool, str, str]]) -> list[tuple[bool, str, str]]:
    """Return words as bash has to see them on its line: in a quote that stays open where more follows."""
    if not any(_NOT_PLAIN.search(value) for _, value, _ in values):
        return list(values)
    quoted = []
    for goes_on, value, text in values:
        tilde = value[:2] if value.startswith("~/") else ""  # in quotes it would be no home folder
        inner = value[len(tilde) :].replace("'", "'\\''")
        closed = "" if goes_on or len(values) > 1 else "'"
        quoted.append((goes_on, f"{tilde}'{inner}{closed}", text))
    return quoted


def _in_powershell(value: str, goes_on: bool) -> str:
    if not _NOT_PLAIN.search(value) and not value.startswith("@"):
        return value
    return "'" + value.replace("'", "''") + ("" if goes_on else "'")


def _bash(arguments: Sequence[str]) -> _Asked:
    """Read the command up to the cursor, and the part of its last word that bash is about to replace."""
    line, replaced = arguments[0], arguments[-1]
    words, quote = split(line)
    typed = replaced if quote else split(replaced)[0][-1]
    kept = len(words[-1]) - len(typed) if words[-1].endswith(typed) else 0
    return _Asked(words[1:] or [""], quote, kept)


def _fish(arguments: Sequence[str]) -> _Asked:
    """Read the words before the cursor's, and that one as it is typed, quotes and all."""
    *before, typed = arguments
    words, quote = split(typed)
    return _Asked([*before, words[-1]], quote)


def _zsh(arguments: Sequence[str]) -> _Asked:
    """Read the words, unquoted by zsh."""
    return _Asked(list(arguments))


def _powershell(arguments: Sequence[str]) -> _Asked:
    """Read the words; before the last stands a sign, for Windows PowerShell drops a word that is empty."""
    *before, typed = arguments
    return _Asked([*before, typed[1:].removeprefix("'").removeprefix('"')])


_ASKED: dict[str, Callable[[Sequence[str]], _Asked]] = {
    "bash": _bash,
    "fish": _fish,
    "powershell": _powershell,
    "zsh": _zsh,
}
