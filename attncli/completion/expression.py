"""What could follow in a mask expression that is only half typed."""

from __future__ import annotations

import re
from collections.abc import Iterator

from attncli.completion.candidates import Candidate
from attncli.masks.algebra import ATOMS

_IN_ARGUMENTS = re.compile(r"(?P<before>.*?\b(?P<atom>[a-z_]\w*)\((?:[^()]*,)?\s*)(?P<typed>[^(),\s]*)", re.DOTALL)
_IN_FILE = re.compile(r"(?P<before>.*\bfile\(\s*(?P<quote>[\"']))(?P<typed>[^\"']*)", re.DOTALL)
_AFTER_A_MASK = re.compile(r"(.*[\w)])\s+", re.DOTALL)
_AT_A_MASK = re.compile(r"(?P<before>|.*[&|~(]\s*)(?P<typed>\w*)", re.DOTALL)


def mask_expressions(typed: str, allow_bias: bool) -> Iterator[Candidate]:
    """Yield the expressions that go on from what is typed by one name, sign or argument.

    Args:
        typed: the expression as far as it is typed.
        allow_bias: whether a bias may stand beside the mask.
    """
    inside = _IN_ARGUMENTS.fullmatch(typed)
    in_file = _IN_FILE.fullmatch(typed)
    if in_file:
        yield from _files(in_file)
    elif inside and inside["atom"] in ATOMS:
        yield from _arguments(inside["before"], inside["atom"])
    elif typed.endswith(")"):
        yield Candidate(typed)
    elif _AFTER_A_MASK.fullmatch(typed):
        yield Candidate(typed + "& ", "and", goes_on=True)
        yield Candidate(typed + "| ", "or", goes_on=True)
    elif at := _AT_A_MASK.fullmatch(typed):
        yield from _atoms(at["before"], allow_bias)


def _atoms(before: str, allow_bias: bool) -> Iterator[Candidate]:
    for name, kind in ATOMS.items():
        if kind.is_bias and not allow_bias:
            continue
        opened = "(" if "(" in kind.usage else ""
        form = before + kind.usage.partition(" or ")[0]
        yield Candidate(before + name + opened, kind.usage, goes_on=bool(opened), form=form)
    yield Candidate(f'{before}file("', 'file("mask.npy")', goes_on=True, form=f'{before}file("mask.npy")')


def _arguments(before: str, atom: str) -> Iterator[Candidate]:
    """Yield the keywords of a mask; its numbers are for the user to choose."""
    for keyword in sorted(ATOMS[atom].keywords):
        if f"{keyword}=" not in before.rpartition("(")[2]:
            yield Candidate(f"{before}{keyword}=", goes_on=True, form=f"{before}{keyword}=n")


def _files(opened: re.Match[str]) -> Iterator[Candidate]:
    from attncli.completion.paths import files
    from attncli.masks.files import ENDINGS

    for one in files(opened["typed"], ENDINGS):
        closed = "" if one.goes_on else opened["quote"] + ")"
        yield one._replace(value=opened["before"] + one.value + closed)
