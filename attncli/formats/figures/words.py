"""The words of a figure: fonts that have their characters, how wide they are, and escapes for what no font has."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, lru_cache
from typing import NamedTuple

from matplotlib.font_manager import FontProperties, fontManager, get_font
from matplotlib.textpath import TextToPath

from attncli.render.palette import LEFT_TO_RIGHT

# Both come with matplotlib, so that a figure is the same wherever it is made.
PROPORTIONAL, MONOSPACED = "DejaVu Sans", "DejaVu Sans Mono"


@cache
def _characters(family: str) -> frozenset[int]:
    """Return the characters that a family of fonts has."""
    path = fontManager.findfont(FontProperties(family=[family]), fallback_to_default=False)
    return frozenset(get_font(path).get_charmap())


@cache
def _others() -> tuple[str, ...]:
    """Return the families that are there for what the first one lacks."""
    found = {font.name for font in fontManager.ttflist if font.style == "normal" and font.weight in (400, "normal")}
    # The last resort has a box for every character there is.
    return tuple(sorted(name for name in found if not name.startswith("Last Resort")))


@lru_cache(100_000)
def _width(families: tuple[str, ...], text: str) -> float:
    """Return how wide a text is in letters of one point; widths grow with the size."""
    font = FontProperties(family=list(families), size=1)
    return float(TextToPath().get_text_width_height_descent(text, font, False)[0])


class Words(NamedTuple):
    """The fonts that the words of a figure need.

    Attributes:
        families: of fonts, in the order in which they are asked for a character.
        lacking: the characters that none of them has.
    """

    families: tuple[str, ...]
    lacking: frozenset[str]

    @classmethod
    def of(cls, texts: Iterable[str], first: str = PROPORTIONAL) -> Words:
        """Return the fonts for these texts; what the first one lacks comes from the fonts of the system."""
        families = [first]
        left = {ord(character) for text in texts for character in text} - _characters(first)
        for family in _others() if left else ():
            if found := left & _characters(family):
                families.append(family)
                left -= found
        return cls(tuple(families), frozenset(map(chr, left)))

    def font(self, size: float, weight: str = "normal") -> FontProperties:
        """Return the fonts in a size."""
        return FontProperties(family=list(self.families), size=size, weight=weight)

    def written(self, text: str) -> str:
        """Return a text with escapes for the characters that no font has; a mark of a terminal's direction goes."""
        return "".join(
            each.encode("ascii", "backslashreplace").decode() if each in self.lacking else each
            for each in text.replace(LEFT_TO_RIGHT, "")
        )

    def width(self, text: str, size: float) -> float:
        """Return how wide a text is, in points."""
        return size * _width(self.families, text) if text else 0.0

    def wrapped(self, text: str, size: float, room: float) -> list[str]:
        """Return a text in lines that have room, broken at blanks."""
        lines: list[str] = []
        for word in text.split(" "):
            if lines and self.width(f"{lines[-1]} {word}", size) <= room:
                lines[-1] += f" {word}"
            else:
                lines.append(word)
        return lines

    def clipped(self, text: str, size: float, room: float) -> str:
        """Return a text, or as much of its beginning as there is room for."""
        if self.width(text, size) <= room:
            return text
        while text and self.width(text + "…", size) > room:
            text = text[:-1]
        return text + "…"
