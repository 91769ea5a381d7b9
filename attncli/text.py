"""Words for people: text made safe to print, names that were probably meant, counts and ranges."""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from pathlib import PurePath
from typing import TypeVar

from attncli.errors import UsageError

# Controls, format characters (bidirectional and zero-width ones), halves of characters, line and paragraph separators.
# The joiners stay: emoji and several scripts are written with them.
_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
JOINERS = frozenset("\u200c\u200d")
ADDRESS = re.compile(" at 0x[0-9a-f]{6,}(?=>)")  # where in memory an object is: nothing to people, another every time


def visible(text: str) -> str:
    """Return `text` with every control, bidirectional and zero-width character written as an escape.

    Nothing that came from a user, a file or a vocabulary reaches a terminal except through here.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_visible_character(character) for character in text)


def _visible_character(character: str) -> str:
    # Of the code points that no character has or will have, U+FFFE and U+FFFF may not stand in XML either.
    is_hidden = unicodedata.category(character) in _HIDDEN_CATEGORIES or ord(character) & 0xFFFE == 0xFFFE
    if not is_hidden or character in JOINERS:
        return character
    return character.encode("unicode_escape").decode()


def brief(message: str, most: int = 2000) -> str:
    """Return a message, without its middle if it is long: it may quote a file or a user at any length."""
    return message if len(message) <= most else f"{message[: most - 500]} … {message[-500:]}"


def quoted(text: str, most: int = 24) -> str:
    """Return a text of any origin in quotes, safe to print and short."""
    shown = visible(text)
    return f"'{shown if len(shown) <= most else shown[: most - 1].rstrip() + '…'}'"


def short_name(model: str) -> str:
    """Return a short name of a model for one line: its name on the hub, or the last name of its path."""
    is_path = model.startswith((".", "~", "/")) or model.count("/") > 1 or "\\" in model
    return (PurePath(model).name if is_path else "") or model


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` where one of the names is close to a word, and nothing where none is."""
    import difflib  # needed for an error alone

    bare = {name.lstrip("-").lower(): name for name in names}  # the common prefix of options would count as likeness
    near = difflib.get_close_matches(word.lstrip("-").lower(), bare, n=1)
    return f"; did you mean '{bare[near[0]]}'?" if near else ""


_One = TypeVar("_One", str, str | int)


def as_list(value: _One | Iterable[_One]) -> Iterable[_One]:
    """Return several values; a single one is wrapped, also a text, which is iterable itself."""
    return value if isinstance(value, Iterable) and not isinstance(value, str) else (value,)


def names_in(option: str, value: str, choices: Collection[str]) -> frozenset[str]:
    """Parse names separated by commas, the value of an option. Raises UsageError: one of them does not exist."""
    names = [name.strip() for name in value.split(",")]
    for name in names:
        if name not in choices:
            expected = f"expected some of {','.join(choices)}{did_you_mean(name, choices)}"
            raise UsageError(f"{option} '{visible(name)}': {expected}")
    return frozenset(names)


def as_ranges(indices: Iterable[int]) -> str:
    """Return indices as `--layer` takes them: 0-2,5."""
    runs = _runs(sorted(indices))
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _runs(indices: Iterable[int]) -> list[tuple[int, int]]:
    """Return the first and the last of every run of consecutive indices."""
    runs: list[tuple[int, int]] = []
    for index in indices:
        first = runs.pop()[0] if runs and index == runs[-1][1] + 1 else index
        runs.append((first, index))
    return runs


def layers_named(layers: Iterable[int], kind: str | None = None) -> str:
    """Return layers in words: layers 0-2,5 (cross)."""
    indices = list(layers)
    return f"layer{'s' * (len(indices) > 1)} {as_ranges(indices)}" + f" ({kind})" * bool(kind)


def plural(count: int, noun: str) -> str:
    """Return a number of things: 1 head, 12 heads."""
    return f"{count:,} {noun}{'s' if count != 1 else ''}"


def span(low: int, high: int) -> str:
    """Return a range in words, both ends included."""
    return str(low) if low == high else f"{low}..{high}"


def short_number(value: float | None) -> str:
    """Return a number in few digits, without an exponent where it is whole; None is `none`."""
    if value is None:
        return "none"
    return str(round(value)) if value >= 100 and abs(value - round(value)) < 1e-6 * value else f"{value:.4g}"


def join_ranges(indices: Sequence[int], most: int = 12) -> str:
    """Return indices in words, consecutive ones as a range, and an ellipsis where there are too many."""
    runs = _runs(indices)
    return ", ".join(span(first, last) for first, last in runs[:most]) + ", …" * (len(runs) > most)


def bytes_shown(count: float) -> str:
    """Return a number of bytes in words."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def print_note(message: str) -> None:
    """Print a note on standard error, also without a handler of the log, unless that is to be quiet."""
    import logging  # which most runs spare

    log = logging.getLogger("attncli")
    if log.hasHandlers():
        log.warning("%s", message)
    elif log.isEnabledFor(logging.WARNING):
        sys.stderr.write(f"attn: {message}\n")
