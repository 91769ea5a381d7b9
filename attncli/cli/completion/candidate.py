"""What a TAB may put in place of what is typed."""

from __future__ import annotations

from typing import NamedTuple


class Candidate(NamedTuple):
    """One thing that could stand there.

    Attributes:
        value: the whole value, what is typed already included.
        help: a few words on it.
        goes_on: whether more has to follow, so that no space is wanted.
        form: how the whole is written, where it goes on in a way that can be shown.
    """

    value: str
    help: str = ""
    goes_on: bool = False
    form: str = ""
