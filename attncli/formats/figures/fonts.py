"""Fonts that have the characters of a figure, and escapes for characters that no font has."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

from matplotlib.font_manager import FontProperties, fontManager, get_font

from attncli.render.palette import LEFT_TO_RIGHT

# Both come with matplotlib, so that a figure is the same wherever it is made.
PROPORTIONAL, MONOSPACED = "DejaVu Sans", "DejaVu Sans Mono"


@cache
def _characters(family: str) -> frozenset[int]:
    path = fontManager.findfont(FontProperties(family=[family]), fallback_to_default=False)
    return frozenset(get_font(path).get_charmap())


class Fonts(NamedTuple):
    """The fonts that the words of a figure need."""

    families: tuple[str, ...]
    lacking: frozenset[str]

    @classmethod
    def of(cls, texts: Iterable[str], first: str = PROPORTIONAL) -> Fonts:
        """Return the fonts for these texts; characters that the first one lacks come from fonts of the system."""
        families = [first]
        left = {ord(character) for text in texts for character in text} - _characters(first)
        names = {font.name for font in fontManager.ttflist if font.style == "normal" and font.weight in (400, "normal")}
        for family in sorted(names) if left else ():
            # The last resort has a box for every character there is.
            if not family.startswith("Last Resort") and not left.isdisjoint(_characters(family)):
                families.append(family)
                left -= _characters(family)
        return cls(tuple(families), frozenset(map(chr, left)))

    def of_size(self, size: float, weight: str = "normal") -> FontProperties:
        """Return the fonts in a size."""
        return FontProperties(family=list(self.families), size=size, weight=weight)

    def escaped(self, text: str) -> str:
        """Return a text with escapes for the characters that no font has; a mark of a terminal's direction goes."""
        return "".join(
            letter.encode("ascii", "backslashreplace").decode() if letter in self.lacking else letter
            for letter in text.replace(LEFT_TO_RIGHT, "")
        )
