"""What goes between the program and a shell at a TAB: how it asks, and how it is answered.

The scripts of `attn completion` call `attn __complete SHELL -- WORD...`. An answer is a line for each candidate: `=`
(or `+`, if more has to follow and no space is wanted), a tab, the word as the shell has to see it, a tab, a few words
on it. Typer's own protocol lets zsh evaluate the words, in which the name of a folder may be a program, and does not
say which quote is open.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from typing import Any, NamedTuple

from attncli.cli.candidates import Candidate, candidates
from attncli.errors import UsageError
from attncli.text import visible

_SCRIPTS = {"bash": "attn.bash", "zsh": "_attn", "fish": "attn.fish", "powershell": "attn.ps1"}
_NOT_PLAIN = re.compile(r"[^\w@%+=:,./-]")
_HOME = re.compile(r"~[^/]*/")
# PowerShell takes typographic quotes for what they look like.
_POWERSHELL_QUOTES = re.compile("['\u2018-\u201b]")
# What a backslash escapes inside quotes.
_POSIX = {'"': '$`"\\\n', "'": ""}
_FISH = {'"': '$"\\\n', "'": "\\'"}

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


class Line(NamedTuple):
    """A line up to the cursor.

    Attributes:
        words: without their quotes; the last one is the one that is being typed, after a space it is empty.
        quote: the one that is open.
        has_home: whether a ~ that the last word begins with is somebody's home folder.
        kept: how much of the last word the shell keeps in front of an answer.
    """

    words: list[str]
    quote: str = ""
    has_home: bool = True
    kept: int = 0


def script(shell: str) -> str:
    """Return the completion script of a shell."""
    return files("attncli.cli").joinpath("scripts", _SCRIPTS[shell]).read_text(encoding="utf-8")


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
    line = _ASKED[shell](arguments)
    if line is None:
        return ""
    found = [
        one._replace(value=one.value[line.kept :])
        for one in candidates(root, line.words, line.has_home)
        if one.value.isprintable()
    ]
    if shell == "fish" and not line.quote and not line.words[-1]:
        found = [one for one in found if not one.value.startswith("~")]  # which fish would not escape
    if len(found) == 1 and found[0].goes_on and (shell == "fish" or (shell == "bash" and line.quote)):
        # The only match gets its quote closed, and a space in fish; beside another it does not.
        found.append(found[0]._replace(value=found[0].value + "…"))
    if shell == "bash":
        found = _in_bash(found, line)
    elif shell == "powershell":
        found = [one._replace(value=_in_powershell(one)) for one in found]
    return "".join(f"{'+' if one.goes_on else '='}\t{one.value}\t{one.help}\n" for one in found)


def split(line: str, escaped: Mapping[str, str] = _POSIX) -> Line:
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


def _bash(arguments: Sequence[str]) -> Line | None:
    """Read the command up to the cursor, and the part of its last word that bash is about to replace.

    None is a line on which it is not known which quote is open.
    """
    typed, replaced = arguments[0], arguments[-1]
    line = split(typed)
    last, changed = line.words[-1], split(line.quote + replaced).words[-1]
    if not _FOLLOWED.fullmatch(typed) or not typed.endswith(replaced) or not last.endswith(changed):
        return None
    return line._replace(words=line.words[1:] or [""], kept=len(last) - len(changed))


def _fish(arguments: Sequence[str]) -> Line:
    """Read the words before the cursor's, and that one as it is typed, quotes and all."""
    *before, typed = arguments
    line = split(typed, _FISH)
    return line._replace(words=[*before, line.words[-1]])


def _zsh(arguments: Sequence[str]) -> Line:
    """Read the words, unquoted by zsh."""
    return Line(list(arguments))


def _powershell(arguments: Sequence[str]) -> Line:
    """Read the words; before the last stands a sign, for Windows PowerShell drops a word that is empty."""
    *before, typed = arguments
    return Line([*before, typed[1:].removeprefix("'").removeprefix('"')])


_ASKED: dict[str, Callable[[Sequence[str]], Line | None]] = {
    "bash": _bash,
    "fish": _fish,
    "powershell": _powershell,
    "zsh": _zsh,
}


def _in_bash(found: Sequence[Candidate], line: Line) -> list[Candidate]:
    """Return candidates as bash has to see them on its line, which takes them as they are.

    In a quote that is open they are escaped; elsewhere they are quoted, in a quote that stays open where more follows.
    """
    is_whole = len(found) == 1 and not found[0].goes_on
    if line.quote:
        return [one._replace(value=_open(_in_quotes(one.value, line.quote), line.quote, is_whole)) for one in found]
    homes = [match[0] if line.has_home and (match := _HOME.match(one.value)) else "" for one in found]
    rests = [one.value.removeprefix(home) for home, one in zip(homes, found, strict=True)]
    if not any(map(_NOT_PLAIN.search, rests)):
        return list(found)
    words = [home + "'" + _in_quotes(rest, "'") + "'" * is_whole for home, rest in zip(homes, rests, strict=True)]
    return [one._replace(value=word) for one, word in zip(found, words, strict=True)]


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


def _in_powershell(one: Candidate) -> str:
    if not _NOT_PLAIN.search(one.value) and not one.value.startswith("@"):
        return one.value
    return "'" + _POWERSHELL_QUOTES.sub(r"\g<0>\g<0>", one.value) + ("" if one.goes_on else "'")
