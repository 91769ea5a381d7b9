"""What goes between the program and a shell: how it asks, how it is answered, and the script that does so.

An answer is a line for each candidate: `=` (or `+`, if more has to follow and no space is wanted), a tab, the word,
a tab, a few words on it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from importlib.resources import files
from typing import Any, NamedTuple

from attncli.cli.completion.candidate import Candidate
from attncli.cli.completion.candidates import candidates
from attncli.cli.completion.line import FISH, find_place, split
from attncli.errors import UsageError
from attncli.text import visible

_FILES = {"bash": "attn.bash", "zsh": "_attn", "fish": "attn.fish", "powershell": "attn.ps1"}
_NOT_PLAIN = re.compile(r"[^\w@%+=:,./-]")
_HOME = re.compile(r"~[^/]*/")
# PowerShell takes typographic quotes for what they look like.
_POWERSHELL_QUOTES = re.compile("['\u2018-\u201b]")

# What expands in a line of bash and has no quotes in it, nor anything else that expands.
_SIMPLE = r"\$\([^()'\"`\\$<>]*\)|\$\{\w+\}|`[^`'\"\\$<>]*`"
# A line of bash whose quotes are those that are seen from its beginning: none is inside of something that expands.
_FOLLOWED = re.compile(
    rf"""(?: [^\\'"`$<>] | \\. | {_SIMPLE} | [<>]\([^()'"`\\$<>]*\) | [<>](?!\() | \$(?![({{['"])
        | '[^']*+(?:'|\Z)
        | "(?: [^"\\`$] | \\. | {_SIMPLE} | \$(?![({{[]) )*+ (?: "|\\?\Z )
    )*+ \\?""",
    re.VERBOSE | re.DOTALL,
)


class _Asked(NamedTuple):
    """What a shell asked.

    Attributes:
        words: what follows the program's name, unquoted, the word that is being typed last.
        quote: the quote that is open.
        kept: how much of the last word the shell keeps in front of an answer.
        has_home: whether a ~ that the last word begins with is somebody's home folder.
    """

    words: list[str]
    quote: str = ""
    kept: int = 0
    has_home: bool = True


def script(shell: str) -> str:
    """Return the completion script of a shell."""
    return files("attncli.cli.completion").joinpath("scripts", _FILES[shell]).read_text(encoding="utf-8")


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
    place = None if asked is None else find_place(root, asked.words, asked.has_home)
    if asked is None or place is None:
        return ""
    return "".join(_lines(shell, asked, [one for one in candidates(place) if one.value.isprintable()]))


def _lines(shell: str, asked: _Asked, found: Sequence[Candidate]) -> Iterator[str]:
    values = [(one.goes_on, one.value[asked.kept :], one.help) for one in found]
    if len(found) == 1 and found[0].goes_on and shell in ("bash", "fish") and (asked.quote or shell == "fish"):
        # The only match gets its quote closed, and a space in fish; beside how it is written in full it does not.
        values.append((True, found[0].form[asked.kept :], found[0].help))
    if shell == "bash":
        values = _in_bash(values, asked)
    if shell == "fish" and not asked.quote and not asked.words[-1]:
        values = [one for one in values if not one[1].startswith("~")]  # which fish would not escape
    if shell == "powershell":
        values = [(goes_on, _in_powershell(value, goes_on), text) for goes_on, value, text in values]
    for goes_on, value, text in values:
        yield f"{'+' if goes_on else '='}\t{value}\t{text}\n"


def _in_bash(values: Sequence[tuple[bool, str, str]], asked: _Asked) -> list[tuple[bool, str, str]]:
    """Return words as bash has to see them on its line, which takes them as they are.

    In a quote that is open they are escaped; elsewhere they are quoted, in a quote that stays open where more follows.
    """
    if asked.quote:
        is_whole = len(values) == 1 and not values[0][0]
        return [(goes_on, _open(_in_quotes(value, asked.quote), asked.quote, is_whole), text)
                for goes_on, value, text in values]  # fmt: skip
    homes = [found[0] if asked.has_home and (found := _HOME.match(value)) else "" for _, value, _ in values]
    rests = [value[len(home) :] for home, (_, value, _) in zip(homes, values, strict=True)]
    if not any(map(_NOT_PLAIN.search, rests)):
        return list(values)
    quoted = []
    for home, rest, (goes_on, _, text) in zip(homes, rests, values, strict=True):
        closed = "" if goes_on or len(values) > 1 else "'"
        quoted.append((goes_on, home + "'" + _in_quotes(rest, "'") + closed, text))
    return quoted


def _in_quotes(text: str, quote: str) -> str:
    """Return text as bash has to see it inside a quote, so that it stands for itself."""
    if quote == "'":
        return text.replace("'", "'\\''")
    # What a ! recalls from the history cannot be escaped in there; bash keeps the backslash.
    return re.sub(r'[$`"\\]', r"\\\g<0>", text).replace("!", '"\\!"')


def _open(text: str, quote: str, is_whole: bool) -> str:
    """Return text so that readline leaves its quotes: one at the beginning it merges with the one that is open.

    Behind one at the end it writes no other, which closes what is whole.
    """
    return quote * text.startswith(quote) + text + quote * (is_whole and text.endswith(quote))


def _in_powershell(value: str, goes_on: bool) -> str:
    if not _NOT_PLAIN.search(value) and not value.startswith("@"):
        return value
    return "'" + _POWERSHELL_QUOTES.sub(r"\g<0>\g<0>", value) + ("" if goes_on else "'")


def _bash(arguments: Sequence[str]) -> _Asked | None:
    """Read the command up to the cursor, and the part of its last word that bash is about to replace.

    None is a line on which it is not known which quote is open.
    """
    line, replaced = arguments[0], arguments[-1]
    words, quote, has_home = split(line)
    typed = split(quote + replaced).words[-1]
    if not _FOLLOWED.fullmatch(line) or not line.endswith(replaced) or not words[-1].endswith(typed):
        return None
    return _Asked(words[1:] or [""], quote, len(words[-1]) - len(typed), has_home)


def _fish(arguments: Sequence[str]) -> _Asked:
    """Read the words before the cursor's, and that one as it is typed, quotes and all."""
    *before, typed = arguments
    words, quote, has_home = split(typed, FISH)
    return _Asked([*before, words[-1]], quote, has_home=has_home)


def _zsh(arguments: Sequence[str]) -> _Asked:
    """Read the words, unquoted by zsh."""
    return _Asked(list(arguments))


def _powershell(arguments: Sequence[str]) -> _Asked:
    """Read the words; before the last stands a sign, for Windows PowerShell drops a word that is empty."""
    *before, typed = arguments
    return _Asked([*before, typed[1:].removeprefix("'").removeprefix('"')])


_ASKED: dict[str, Callable[[Sequence[str]], _Asked | None]] = {
    "bash": _bash,
    "fish": _fish,
    "powershell": _powershell,
    "zsh": _zsh,
}
