"""What could follow in a mask expression that is only half typed."""

from __future__ import annotations

import re
from collections.abc import Iterator

from attncli.cli.completion.candidate import Candidate
from attncli.errors import UsageError
from attncli.masks.expressions import ATOMS
from attncli.masks.notation import NOTATION
from attncli.masks.parser import parse

_IN_ARGUMENTS = re.compile(r"(?P<before>.*?\b(?P<atom>[a-z_]\w*)\((?:[^()]*,)?\s*)(?P<typed>[^(),\s]*)", re.DOTALL)
_IN_FILE = re.compile(r"(?P<before>.*\bfile\(\s*(?P<quote>[\"']))(?P<typed>[^\"']*)", re.DOTALL)
_A_FILE = re.compile(r"""\bfile\(\s*("[^"]*"|'[^']*')\s*\)""")
_LAST_NAME = re.compile(r"(?P<before>.*?)(?P<typed>\b[A-Za-z_]\w*)?", re.DOTALL)


def mask_expressions(typed: str, allow_bias: bool) -> Iterator[Candidate]:
    """Yield the expressions that go on from what is typed by one name, sign or argument.

    Args:
        typed: the expression as far as it is typed.
        allow_bias: whether a bias may stand beside the mask.
    """
    in_file = _IN_FILE.fullmatch(typed)
    inside = _IN_ARGUMENTS.fullmatch(typed)
    name = _LAST_NAME.fullmatch(typed)
    if in_file:
        yield from _files(in_file)
    elif inside and inside["atom"] in ATOMS:
        yield from _arguments(inside["before"], inside["atom"])
    elif typed.endswith((" ", ")")) and _is_mask(typed):
        if typed.endswith(")"):
            yield Candidate(typed, goes_on=_unclosed(typed) > 0)
        else:
            yield Candidate(typed + "& ", "and", goes_on=True)
            yield Candidate(typed + "| ", "or", goes_on=True)
    elif name and _is_mask(name["before"] + "full"):
        yield from _atoms(name["before"], allow_bias)


def _is_mask(text: str) -> bool:
    """Return whether an expression is right but for the parentheses that are still open; its files are not read."""
    without_files = _A_FILE.sub("full", text)
    try:
        parse(without_files + ")" * _unclosed(without_files), allow_files=False, allow_bias=True)
    except UsageError:
        return False
    return True


def _unclosed(text: str) -> int:
    return text.count("(") - text.count(")")


def _atoms(before: str, allow_bias: bool) -> Iterator[Candidate]:
    for name, kind in ATOMS.items():
        if kind.is_bias and not allow_bias:
            continue
        opened = "(" if "(" in kind.usage else ""
        form = before + kind.usage.partition(" or ")[0]
        goes_on = bool(opened) or _unclosed(before) > 0
        yield Candidate(before + name + opened, kind.usage, goes_on, form if opened else "")
    usage = NOTATION["file"].usage
    yield Candidate(f'{before}file("', usage, goes_on=True, form=before + usage)


def _arguments(before: str, atom: str) -> Iterator[Candidate]:
    """Yield the keywords of a mask; its numbers are for the user to choose."""
    for keyword in sorted(ATOMS[atom].keywords):
        if f"{keyword}=" not in before.rpartition("(")[2]:
            yield Candidate(f"{before}{keyword}=", goes_on=True, form=f"{before}{keyword}=n")


def _files(opened: re.Match[str]) -> Iterator[Candidate]:
    from attncli.cli.completion.paths import files
    from attncli.masks.notation import ENDINGS

    for one in files(opened["typed"], ENDINGS, has_home=False):
        if opened["quote"] in one.value:
            continue  # the language of masks has no way to write it
        closed = "" if one.goes_on else opened["quote"] + ")"
        yield one._replace(value=opened["before"] + one.value + closed)
