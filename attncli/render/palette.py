"""How a number becomes a cell: colours where the terminal has them, glyphs where not, and the marks of odd cells.

Four tiers: `truecolor`, `256` colours, `blocks` (no colour), `ascii` (an encoding without block characters).
Masked, NaN, ±inf, clipped and zero are different marks in each of them, after treescope's array views.
"""

from __future__ import annotations

import math
import unicodedata
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.style import Style

from attncli.text import visible

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Bool, Float

# Nine evenly spaced stops each. 256-colour terminals tell no more apart (their cube has 14 of viridis' colours).
# viridis: van der Walt and Smith 2015; cividis: Nuñez, Anderton and Renslow 2018, made for colour-blind readers.
COLORMAPS = {
    "viridis": ("440154", "472d7b", "3b528b", "2c728e", "21918c", "28ae80", "5ec962", "addc30", "fde725"),
    "cividis": ("00224e", "1b3a6d", "434e6c", "616069", "7d7c78", "9a9377", "bcae6c", "dcc95b", "fee838"),
    "gray": ("202020", "3a3a3a", "545454", "6e6e6e", "888888", "a2a2a2", "bcbcbc", "d6d6d6", "f0f0f0"),
}
# Differences around zero: the orange half of ColorBrewer's PuOr and the blue half of its RdBu (Brewer 2013). Both sides
# are as dark as each other, and nobody who cannot tell red from green takes one for the other. (The darkest blue has a
# trace less green, 053061 there, so that the nearest of 256 colours is a blue too.)
_AROUND_ZERO = ("7f3b08", "b35806", "e08214", "fdb863", "f7f7f7", "92c5de", "4393c3", "2166ac", "052e61")
_STEPS = {"truecolor": 256, "256": 9}
# Without colour two characters to a cell tell eight shades apart, one character four.
_RAMPS = {
    ("blocks", 1): ("░", "▒", "▓", "█"),
    ("blocks", 2): (" ░", "░░", "░▒", "▒▒", "▒▓", "▓▓", "▓█", "██"),
    ("ascii", 1): (":", "=", "*", "#", "%", "@"),
    ("ascii", 2): (" :", "::", ":=", "==", "=*", "**", "*#", "##", "#@", "@@"),
}
# Differences have a sign and a shade, or where there is room for one character alone, two signs for the larger half.
_SIGNED_RAMPS = {
    ("blocks", 1): ("=", "-", " ", "+", "#"),
    ("blocks", 2): ("-█", "-▓", "-▒", "-░", "  ", "+░", "+▒", "+▓", "+█"),
    ("ascii", 1): ("=", "-", " ", "+", "#"),
    ("ascii", 2): ("-@", "-#", "-=", "-:", "  ", "+:", "+=", "+#", "+@"),
}

# What our own words and glyphs become where the encoding lacks them.
_PLAIN = str.maketrans({
    "·": ".", "×": "x", "−": "-", "–": "-", "→": "->", "⋯": "..", "…": "..", "■": "#", "ᵀ": "^T", "√": "sqrt",
    "│": "|", "─": "-", "┼": "+", "░": ":", "▒": "=", "▓": "#", "█": "@", "␣": "_", "◌": "", "‖": "||", "÷": "/",
})  # fmt: skip
# Of those, what stands in a token's label; anything else there is the token's own, and no other token may look like it.
_PLAIN_MARKS = str.maketrans({"␣": "_", "◌": ""})

_RIGHT_TO_LEFT = frozenset({"R", "AL", "AN"})  # Unicode's bidirectional classes
LEFT_TO_RIGHT = "\u200e"

DIM = Style(dim=True)
BOLD = Style(bold=True)


class Scale(NamedTuple):
    """Which number each colour of a picture stands for.

    Attributes:
        low: the number of the lowest one.
        high: the number of the highest one.
        is_log: whether equal steps are equal ratios; `low` has to be above 0.
        is_cut: whether there are numbers below the lowest one.
        is_signed: whether they are differences, and those above and below zero have colours of their own.
    """

    low: float
    high: float
    is_log: bool = False
    is_cut: bool = False
    is_signed: bool = False


class Palette(NamedTuple):
    """How cells and words look on one output.

    Attributes:
        tier: `truecolor`, `256`, `blocks` or `ascii`.
        encoding: of the output; what it cannot write is escaped.
        colormap: one of `COLORMAPS`.
    """

    tier: str = "blocks"
    encoding: str = "utf-8"
    colormap: str = "viridis"

    @property
    def has_color(self) -> bool:
        """Whether cells are coloured."""
        return self.tier in _STEPS

    def ramp(self, width: int, is_signed: bool = False) -> list[tuple[str, Style | None]]:
        """Return the cells of this width from the lowest to the highest number: a glyph and its style."""
        if not self.has_color:
            return [(glyph, None) for glyph in (_SIGNED_RAMPS if is_signed else _RAMPS)[self.tier, width]]
        stops, steps = COLORMAPS[self.colormap], _STEPS[self.tier]
        if is_signed:  # an odd number of steps: the one in the middle is zero's
            stops, steps = _AROUND_ZERO, steps - 1 + steps % 2
        return [(" " * width, style) for style in colors(stops, steps)]

    def fit(self, text: str) -> str:
        """Return text that the output's encoding can write: our own glyphs replaced, everything else escaped."""
        return self._written(text, _PLAIN)

    def _written(self, text: str, plain: dict[int, str]) -> str:
        try:
            text.encode(self.encoding)
        except UnicodeEncodeError:
            return text.translate(plain).encode(self.encoding, "backslashreplace").decode(self.encoding)
        return text

    def label(self, text: str) -> str:
        """Return text of a user, a file or a vocabulary as it may stand among our words: harmless and writable."""
        return self._labelled(text, _PLAIN)

    def shortened(self, text: str, width: int, keeps_end: bool = False) -> str:
        """Return such a text in at most `width` cells, or its beginning or end; an ellipsis says that it was longer."""
        text = self._labelled(text, _PLAIN_MARKS)
        if cell_len(text) <= width:
            return text
        ellipsis = self.fit("…")
        if keeps_end:
            while cell_len(text) > width - len(ellipsis):
                text = text[1:]
            return ellipsis + text.lstrip()
        mark = LEFT_TO_RIGHT if text.endswith(LEFT_TO_RIGHT) else ""
        return set_cell_size(text, width - len(ellipsis)).rstrip() + ellipsis + mark

    def _labelled(self, text: str, plain: dict[int, str]) -> str:
        text = self._written(visible(text.removesuffix(LEFT_TO_RIGHT)), plain)  # a label of a label stays as it is
        # Right-to-left letters would draw the numbers and labels that follow to their left; a mark ends their run.
        return text + LEFT_TO_RIGHT if is_right_to_left(text) else text

    def cells(
        self,
        values: Float[np.ndarray, "Q K"],
        allowed: Bool[np.ndarray, "Q K"],
        scale: Scale,
        width: int,
    ) -> list[list[tuple[str, Style | None]]]:
        """Return a glyph, as wide as a cell, and a style for every cell.

        Args:
            values: what the colours say.
            allowed: the cells that count; the others are masked.
            scale: which colour says what.
            width: characters to a cell.
        """
        import numpy as np  # which words alone do not need

        low, high = scale.low, scale.high
        ramp = self.ramp(width, scale.is_signed)
        finite = np.where(np.isfinite(values), values, 0)
        placed, start, end = finite, low, high
        if scale.is_log:
            placed, start, end = np.log(np.maximum(finite, low)), math.log(low), math.log(high)
        steps = ((placed - start) / ((end - start) or 1) * len(ramp)).astype(int).clip(0, len(ramp) - 1)
        drawn = [[ramp[step] for step in row] for row in steps.tolist()]
        marks = (  # later ones win
            ("0", values == 0),
            ("+", finite > high),
            ("-", (finite < low) & (values != 0)),
            ("I", np.isposinf(values)),
            ("-I"[-width:], np.isneginf(values)),
            ("X", np.isnan(values)),
        )
        for mark, where in marks:
            for row, column in np.argwhere(where & allowed).tolist():
                style = drawn[row][column][1] if mark in {"0", "+", "-"} else None
                drawn[row][column] = (mark.rjust(width), style)
        masked = (self.fit("·").rjust(width), DIM)
        for row, column in np.argwhere(~allowed).tolist():
            drawn[row][column] = masked
        return drawn


def is_right_to_left(text: str) -> bool:
    """Return whether a part of a text is read from the right."""
    return not text.isascii() and any(unicodedata.bidirectional(each) in _RIGHT_TO_LEFT for each in text)


@cache
def colors(stops: tuple[str, ...], steps: int) -> list[Style]:
    """Return the colours of a map, interpolated between its stops."""
    import numpy as np

    ends = np.array([[int(stop[i : i + 2], 16) for i in (0, 2, 4)] for stop in stops])
    at = np.linspace(0, len(ends) - 1, steps)
    channels = [np.interp(at, np.arange(len(ends)), ends[:, channel]) for channel in range(3)]
    return [_background(color) for color in np.stack(channels, axis=-1)]


def _background(color: np.ndarray[Any, Any]) -> Style:
    red, green, blue = (round(channel) for channel in color)
    # Relative luminance (WCAG 2.2); black text wins where the cell is lighter than 18 % grey.
    linear = [(c / 255 / 12.92 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4) for c in (red, green, blue)]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    text = "#000000" if luminance > 0.18 else "#ffffff"
    return Style(color=text, bgcolor=f"#{red:02x}{green:02x}{blue:02x}")
