"""What the masks of a program should be: an expression for every place, or for the places that a pattern names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from attncli.errors import UsageError
from attncli.masks.expressions import Expression, Pad, leaves
from attncli.masks.mask_grid import bind_lengths
from attncli.masks.parser import parse
from attncli.recording.call import CallSite
from attncli.text import visible

EVERYWHERE = "*"  # the pattern of an expression that has none
Expected = str | Sequence[str] | Mapping[str, str]


def matches(place: CallSite, pattern: str) -> bool:
    """Return whether a pattern, as of file names, is that of a place: of its file and line, function or module."""
    names = str(place), place.file, place.function, place.module or ""
    return any(fnmatchcase(name, pattern) for name in names)


def split_pattern(text: str) -> tuple[str | None, str]:
    """Split `PATTERN=EXPR` at the first `=` outside of parentheses and quotes, as `pad(left=2)` has one of its own."""
    depth, quote = 0, ""
    for index, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character in "()":
            depth += 1 if character == "(" else -1
        elif character == "=" and depth == 0:
            return text[:index].strip(), text[index + 1 :]
    return None, text


@dataclass(frozen=True, eq=False)
class Expectation:
    """What the masks of some places should be.

    Attributes:
        pattern: of the places, as of file names.
        text: the expression as it was written.
        expression: the mask.
    """

    pattern: str
    text: str
    expression: Expression

    def __str__(self) -> str:
        return self.text if self.pattern == EVERYWHERE else f"{self.pattern}={self.text}"


class Expectations(NamedTuple):
    """What the masks of a program should be; of several that match a place, the last one decides."""

    all: tuple[Expectation, ...]

    @classmethod
    def parse(cls, expected: Expected) -> Expectations:
        """Parse what is expected.

        Args:
            expected: an expression, which may have the pattern of its places before it (`decoder.*=causal & pad`),
                several of these, or the expressions by their patterns. `pad` may stand without numbers.

        Raises:
            UsageError: one is no expression, or has nothing before its `=`.
            InputError: a file that one names cannot be read.
        """
        if isinstance(expected, Mapping):
            pairs: Iterable[tuple[str | None, str]] = expected.items()
        else:
            pairs = map(split_pattern, [expected] if isinstance(expected, str) else expected)
        return cls(tuple(_expectation(*pair) for pair in pairs))

    def at(self, place: CallSite) -> Expectation | None:
        """Return what is expected of the attention at a place; None is nothing."""
        return next((one for one in reversed(self.all) if matches(place, one.pattern)), None)

    def idle(self, places: Iterable[CallSite]) -> list[Expectation]:
        """Return the patterns that decide at none of the places, as one that is misspelt."""
        deciding = {self.at(place) for place in places}
        return [one for one in self.all if one.pattern != EVERYWHERE and one not in deciding]

    def with_lengths(self, lengths: Any) -> Expectations:
        """Return the expectations whose `pad` knows how many tokens each batch row has.

        Raises:
            UsageError: none of them has a `pad` that needs it.
            InputError: the lengths are none.
        """
        padded = [one for one in self.all if any(isinstance(leaf, Pad) for leaf in leaves(one.expression))] or self.all
        bound = {id(one): replace(one, expression=bind_lengths(one.expression, lengths)) for one in padded}
        return Expectations(tuple(bound.get(id(one), one) for one in self.all))

    def __str__(self) -> str:
        return ", ".join(map(str, self.all))


def _expectation(pattern: str | None, text: str) -> Expectation:
    if pattern == "":
        raise UsageError(f"'={visible(text)}' has no pattern before the '='")
    expression = parse(text, allow_bias=True, allow_rows=True)
    return Expectation(EVERYWHERE if pattern is None else pattern, text.strip(), expression)
