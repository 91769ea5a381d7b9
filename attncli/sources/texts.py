"""What every source asks of a text before it is tokenized."""

from __future__ import annotations

from attncli.errors import InputError


def checked(text: str, role: str = "the sentence") -> str:
    """Return `text` if it can be tokenized.

    Raises:
        InputError: it is blank, or holds half of a character (bytes that were not UTF-8).
    """
    if not text.strip():
        raise InputError(f"{role} is empty; expected at least one word")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(f"{role} is not valid UTF-8 at character {error.start}; convert it to UTF-8 first") from None
    return text
