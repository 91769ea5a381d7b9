"""How a number becomes a cell: colours where the terminal has them, glyphs where not, and the marks of odd cells.

Four tiers: `truecolor`, `256` colours, `blocks` (no colour), `plain` (for a screen reader).
Masked, NaN, ±inf, clipped and zero are different marks in each of them, after treescope's array views.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from rich.style import Style

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Bool, Float, Int, UInt8

    from attncli.trace.view import Ramp

    Cells = list[list[tuple[str, Style | None]]]  # a glyph, as wide as a cell, and its style

# Nine evenly spaced stops each. 256-colour terminals tell no more apart (their cube has 14 of viridis' colours).
# viridis: van der Walt and Smith 2015; cividis: Nuñez, Anderton and Renslow 2018, made for colour-blind readers.
COLORMAPS = {
    "viridis": ("440154", "472d7b", "3b528b", "2c728e", "21918c", "28ae80", "5ec962", "addc30", "fde725"),
    "cividis": ("00224e", "1b3a6d", "434e6c", "616069", "7d7c78", "9a9377", "bcae6c", "dcc95b", "fee838"),
    "gray": ("202020", "3a3a3a", "545454", "6e6e6e", "888888", "a2a2a2", "bcbcbc", "d6d6d6", "f0f0f0"),
}
# Differences around zero: the orange half of ColorBrewer's PuOr and the blue half of its RdBu (Brewer 2013), both sides
# equally dark. (The darkest blue has a trace less green, so that the nearest of 256 colours is a blue too.)
_AROUND_ZERO = ("7f3b08", "b35806", "e08214", "fdb863", "f7f7f7", "92c5de", "4393c3", "2166ac", "052e61")
# What heads do, each label on a hue of Okabe and Ito's, which readers who are colour-blind tell apart: grey is for the
# labels that most heads have, and the loudest one for the rarest.
_HUES = {
    "previous": "56b4e9", "next": "0072b2", "self": "f0e442", "sink": "8c8c8c", "duplicate": "cc79a7",
    "induction": "d55e00", "separator": "b8a88a", "local": "009e73", "broad": "8070d0",
    "localization": "e6007e", "visual sink": "5a7a7a",
}  # fmt: skip
_BACKDROP = "202020"  # that pale hues come near to
# Odd cells, where there is no room for a letter: colours that no map has, and that no background looks like.
ODD_COLORS = {"0": "6b4226", "+": "ff7f0e", "-": "f7a8c4", "I": "d100d1", "-I": "7d3cff", "X": "e3000f"}
# Of a number in a list, its sign: from the middle of those colours, which any background can have below it.
SIGNS = (Style(color=f"#{_AROUND_ZERO[2]}"), Style(color=f"#{_AROUND_ZERO[6]}"))
_NO_CHANGE = "808080"  # a difference of zero, for brown would be one
_ROUNDING = 1e-5  # by which a weight in float32 may exceed 1
_LEAST_REACH = 1e-5  # of differences; weights in float32 are rounded to a hundredth of it
_STEPS = {"truecolor": 256, "256": 9}
_SHADES = {"blocks": "░▒▓█", "plain": ":=*#@"}

DEFAULT_RAMP: Ramp = "sqrt"  # with it the eye finds the largest weight
WIDEST = 1000  # ratio of the ends of a logarithmic scale; a softmax has hundreds of powers of ten

DIM = Style(dim=True)
HINT = Style(dim=True, meta={"is_hint": True})  # of the command line, which a figure is without
BOLD = Style(bold=True)


class Scale(NamedTuple):
    """Numbers at the ends of a map's colours, the ramp between them, and whether they are differences, with a sign."""

    low: float  # of a logarithmic ramp above 0
    high: float
    ramp: Ramp = "linear"
    is_signed: bool = False

    @classmethod
    def up_to(cls, highest: float, ramp: Ramp | None = None) -> Scale:
        """Return a scale from 0 to the highest number, or where it is logarithmic, over three powers of ten."""
        ramp = ramp or DEFAULT_RAMP
        return cls(highest / WIDEST if ramp == "log" else 0.0, highest, ramp)

    @classmethod
    def around_zero(cls, reach: float, ramp: Ramp | None = None) -> Scale:
        """Return a scale of differences that reaches as far below zero as above; a logarithmic one is by the root."""
        reach = max(reach, _LEAST_REACH) if reach else 1.0
        return cls(-reach, reach, "linear" if (ramp or DEFAULT_RAMP) == "linear" else "sqrt", is_signed=True)

    def placed(self, values: Float[np.ndarray, "*N"]) -> Float[np.ndarray, "*N"]:
        """Return how far along the colours finite numbers are, from 0 to 1; those beyond an end are at it.

        A difference of 0 is in the middle, and the ramp goes from there to either side.
        """
        import numpy as np  # which words alone do not need

        if self.is_signed:
            size = Scale.up_to(self.high, self.ramp).placed(np.abs(values))
            return (1 + np.sign(values) * size) / 2
        inside = np.clip(values.astype(np.float64), self.low, self.high)
        if self.low >= self.high:
            return np.zeros_like(inside)
        if self.ramp == "log":
            return np.log(inside / self.low) / np.log(self.high / self.low)
        share = (inside - self.low) / (self.high - self.low)
        return np.sqrt(share) if self.ramp == "sqrt" else share

    def steps(self, values: Float[np.ndarray, "*N"], count: int) -> Int[np.ndarray, "*N"]:
        """Return the index of each value's colour, of `count` colours; any of them for a value that is not finite."""
        import numpy as np

        return (self.placed(np.where(np.isfinite(values), values, 0)) * count).astype(int).clip(0, count - 1)

    def at(self, share: float) -> float:
        """Return the number at a place along the colours, from 0 to 1, of a scale that is not signed."""
        if self.ramp == "log" and self.low > 0:
            return self.low * (self.high / self.low) ** share
        return self.low + (self.high - self.low) * (share**2 if self.ramp == "sqrt" else share)

    def odd(self, values: Float[np.ndarray, "*N"]) -> dict[str, Bool[np.ndarray, "*N"]]:
        """Return masks of zeros (`0`), values beyond the ends (`+`, `-`), infinities (`I`, `-I`) and NaN (`X`)."""
        import numpy as np

        finite = np.isfinite(values)
        return {
            "0": values == 0,
            "+": finite & (values > self.high * (1 + _ROUNDING)),
            "-": finite & (values < self.low) & (values != 0) & (self.ramp != "log"),
            "I": np.isposinf(values),
            "-I": np.isneginf(values),
            "X": np.isnan(values),
        }


class Palette(NamedTuple):
    """Look of cells and words on one output: its tier, and one of `COLORMAPS`."""

    tier: str = "blocks"
    colormap: str = "viridis"

    @property
    def has_color(self) -> bool:
        """Whether cells are coloured."""
        return self.tier in _STEPS

    def rgb(self, is_signed: bool = False) -> UInt8[np.ndarray, "N 3"]:
        """Return the colours from the lowest to the highest number; of differences the one in the middle is zero's."""
        steps = _STEPS[self.tier]
        return colors(_AROUND_ZERO, steps - 1 + steps % 2) if is_signed else colors(COLORMAPS[self.colormap], steps)

    def ramp(self, width: int, is_signed: bool = False) -> list[tuple[str, Style | None]]:
        """Return the cells of this width from the lowest to the highest number: a glyph and its style.

        Without colour two characters to a cell tell twice as many shades apart; of differences one has the sign.
        """
        if self.has_color:
            return [(" " * width, _background(*color)) for color in self.rgb(is_signed).tolist()]
        shades = _SHADES[self.tier]
        if is_signed:
            few, many = "=- +#", [*(f"-{each}" for each in reversed(shades)), "  ", *(f"+{each}" for each in shades)]
        else:
            few, many = shades, [pair for low, high in pairwise(f" {shades}") for pair in (low + high, high + high)]
        return [(glyph, None) for glyph in (few if width == 1 else many)]

    @property
    def is_read_aloud(self) -> bool:
        """Whether sentences replace tables and drawings."""
        return self.tier == "plain"

    def ink(self, value: float, scale: Scale) -> Style | None:
        """Return the colour of a number, for a bar or a letter; None without colours."""
        import numpy as np

        ramp = self.ramp(1, scale.is_signed)
        style = ramp[int(scale.steps(np.array([value]), len(ramp))[0])][1]
        return None if style is None else Style(color=style.bgcolor)

    def of_label(self, label: str, gain: float = 1.0) -> Style | None:
        """Return the colour of a head's label, the paler the less it gains; None without colours."""
        if not self.has_color or label not in _HUES:
            return None
        return _background(*colors((_BACKDROP, _HUES[label]), 101)[round(100 * (0.3 + 0.7 * gain))].tolist())

    def swatch(self, mark: str, is_signed: bool = False) -> Style | None:
        """Return the colour of a mark where half a character is a cell; None for any other text."""
        tone = _NO_CHANGE if mark == "0" and is_signed else ODD_COLORS.get(mark)
        return None if tone is None else Style(color="#ffffff", bgcolor=f"#{tone}")

    def cells(
        self, values: Float[np.ndarray, "Q K"], allowed: Bool[np.ndarray, "Q K"], scale: Scale, width: int
    ) -> Cells:
        """Return a glyph, as wide as a cell, and a style for every cell."""
        import numpy as np

        ramp = self.ramp(width, scale.is_signed)
        drawn = [[ramp[step] for step in row] for row in scale.steps(values, len(ramp)).tolist()]
        for mark, where in scale.odd(values).items():
            for row, column in np.argwhere(where & allowed).tolist():
                style = drawn[row][column][1] if mark in {"0", "+", "-"} else None
                drawn[row][column] = mark[-width:].rjust(width), DIM if mark == "0" and scale.is_signed else style
        masked = ("·".rjust(width), DIM)
        for row, column in np.argwhere(~allowed).tolist():
            drawn[row][column] = masked
        return drawn

    def halves(self, values: Float[np.ndarray, "Q K"], allowed: Bool[np.ndarray, "Q K"], scale: Scale) -> Cells:
        """Return a character for every two cells, one above the other; odd ones have colours of their own.

        Masked cells are left as the terminal is. A letter is added where both halves are odd alike.
        """
        import numpy as np

        ramp = self.ramp(1, scale.is_signed)
        letters, styles = [*(" " for _ in ramp), *(mark[-1] for mark in ODD_COLORS)], [style for _, style in ramp]
        styles += [self.swatch(mark, scale.is_signed) for mark in ODD_COLORS]
        tones = [None if style is None else style.bgcolor for style in styles]
        places = scale.steps(values, len(ramp))
        for number, where in enumerate(scale.odd(values).values(), len(ramp)):
            places[where] = number
        places[~allowed] = -1
        places = np.pad(places, ((0, len(places) % 2), (0, 0)), constant_values=-1)

        @cache
        def drawn(top: int, bottom: int) -> tuple[str, Style | None]:
            if top == bottom:
                return (" ", None) if top < 0 else (letters[top], Style(color="#ffffff", bgcolor=tones[top]))
            if top < 0:
                return "▄", Style(color=tones[bottom])
            return "▀", Style(color=tones[top], bgcolor=None if bottom < 0 else tones[bottom])

        pairs = zip(places[::2].tolist(), places[1::2].tolist(), strict=True)
        return [[drawn(*pair) for pair in zip(*rows, strict=True)] for rows in pairs]


@cache
def colors(stops: tuple[str, ...], steps: int) -> UInt8[np.ndarray, "N 3"]:
    """Return the colours of a map, red, green and blue, interpolated between its stops."""
    import numpy as np

    ends = np.array([list(bytes.fromhex(stop)) for stop in stops])
    at = np.linspace(0, len(ends) - 1, steps)
    return np.stack([np.interp(at, range(len(ends)), channel).round() for channel in ends.T], axis=-1).astype(np.uint8)


@cache
def _background(red: int, green: int, blue: int) -> Style:
    # Relative luminance (WCAG 2.2); black text wins where the cell is lighter than 18 % grey.
    linear = [(c / 255 / 12.92 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4) for c in (red, green, blue)]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    text = "#000000" if luminance > 0.18 else "#ffffff"
    return Style(color=text, bgcolor=f"#{red:02x}{green:02x}{blue:02x}")
