"""Differences as colours around zero: orange where A gives more weight, blue where B does, signs without colour."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from rich.segment import Segment
from rich.style import Style

from attncli.analysis.alignment import NAMES
from attncli.render.block import Block, flowing
from attncli.render.heatmap import Picture, Scale
from attncli.render.palette import DIM, Palette

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

# The orange half of ColorBrewer's PuOr and the blue half of its RdBu (Brewer 2013): both sides are as dark as each
# other, and nobody who cannot tell red from green takes one for the other. (The darkest blue has a trace less green,
# 053061 there, so that the nearest of 256 colours is a blue too.)
_STOPS = ("7f3b08", "b35806", "e08214", "fdb863", "f7f7f7", "92c5de", "4393c3", "2166ac", "052e61")
_STEPS = {"truecolor": 255, "256": 9}  # odd: the one in the middle is zero's
# Without colour a sign and a shade, or where there is room for one character alone, two signs for the larger half.
_RAMPS = {
    ("blocks", 1): ("=", "-", " ", "+", "#"),
    ("blocks", 2): ("-█", "-▓", "-▒", "-░", "  ", "+░", "+▒", "+▓", "+█"),
    ("ascii", 1): ("=", "-", " ", "+", "#"),
    ("ascii", 2): ("-@", "-#", "-=", "-:", "  ", "+:", "+=", "+#", "+@"),
}


class SignedPalette(Palette):
    """How differences look: `high` is the largest of either sign."""

    @classmethod
    def of(cls, palette: Palette) -> SignedPalette:
        """Return the palette for differences on the same output."""
        return cls(palette.tier, palette.encoding, palette.colormap)

    def ramp(self, width: int) -> list[tuple[str, Style | None]]:
        """Return the cells of this width from the most negative to the most positive difference."""
        return self._ramp(width, _RAMPS, _STOPS, _STEPS)

    def cells(
        self,
        values: Float[np.ndarray, "Q K"],
        allowed: Bool[np.ndarray, "Q K"],
        low: float,
        high: float,
        width: int,
        is_log: bool = False,
    ) -> list[list[tuple[str, Style | None]]]:
        """Return a glyph and a style for every cell, on a scale from −high to high."""
        assert not is_log, "numbers of both signs have no logarithm"
        reach = high or 1.0
        return super().cells(values, allowed, -reach, reach, width)


def strongest(picture: Picture, rows: int, columns: int) -> Picture:
    """Return a picture in blocks of rows × columns cells, each its value farthest from zero."""
    if rows == columns == 1:
        return picture
    highest = picture.pooled(rows, columns)
    lowest = Picture(picture.title, -picture.values, picture.allowed, picture.scale).pooled(rows, columns)
    values = np.where(highest.values >= lowest.values, highest.values, -lowest.values)
    return Picture(picture.title, values, highest.allowed, picture.scale)


def signed_legend(
    scale: Scale, explained: frozenset[str], palette: SignedPalette, cell_width: int, width: int
) -> Block:
    """Return the scale of differences, which sign means what, and the marks that nothing has explained yet."""
    ramp = palette.ramp(2 if palette.has_color else cell_width)
    steps = min(len(ramp), 9)
    shown = [ramp[round(step * (len(ramp) - 1) / (steps - 1))] for step in range(steps)]
    line = [Segment(palette.fit(f"−{scale.highest:.4g} "), DIM)]
    line += [Segment(glyph, style) for glyph, style in shown]
    line.append(Segment(f" +{scale.highest:.4g}", DIM))
    said = [f"− more in {NAMES[0]}", f"+ more in {NAMES[1]}", *sorted(scale.marks - explained)]
    return flowing([line, *([Segment(palette.fit(part), DIM)] for part in said)], width)
