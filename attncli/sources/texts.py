"""What every source asks of the texts before they are tokenized."""

from __future__ import annotations

import sys

from attncli.errors import InputError


def check_texts(text: str | None, pair: str | None = None, target: str | None = None) -> None:
    """Refuse texts that cannot be tokenized; None is one that was not given.

    Raises:
        InputError: one is blank, or holds half of a character (bytes that were not UTF-8).
    """
    for given, role in ((text, "the sentence"), (pair, "the pair"), (target, "the target")):
        if given is None:
            continue
        if not isinstance(given, str):
            raise InputError(f"{role} is {type(given).__name__}; expected text")
        if not given.strip():
            raise InputError(f"{role} is empty; expected at least one word")
        try:
            given.encode("utf-8")
        except UnicodeEncodeError as error:
            encoding = sys.getfilesystemencoding()
            if encoding == "utf-8":
                why = f"is not valid UTF-8 at character {error.start + 1}; convert it to UTF-8 first"
            else:  # of the locale, in which Python reads arguments
                why = f"is not {encoding}, which the locale says arguments are; set PYTHONUTF8=1"
            raise InputError(f"{role} {why}") from None
