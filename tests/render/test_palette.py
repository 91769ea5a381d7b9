"""Colours and glyphs: what is odd has a mark, what is larger looks larger, and differences have two sides."""

from itertools import pairwise

import numpy as np
import pytest
from rich.color import Color
from rich.style import Style
from views import TIERS

from attncli.render.palette import COLORMAPS, Palette, Scale


def luminance(color: Color | None) -> float:
    """The relative luminance of a colour (WCAG 2.2)."""
    assert color is not None
    channels = [each / 255 for each in color.get_truecolor()]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def styles_of(palette: Palette, is_signed: bool) -> list[Style]:
    return [style for _, style in palette.ramp(2, is_signed) if style is not None]


def test_every_odd_cell_has_a_mark_of_its_own() -> None:
    values = np.array([[0.5, 0.0, np.nan, np.inf, -np.inf, 2.0, -1.0, 0.7]])
    allowed = np.array([[True] * 7 + [False]])
    for palette in TIERS:
        for width in (1, 2):
            glyphs = [glyph.strip() for glyph, _ in palette.cells(values, allowed, Scale(0, 1), width)[0]]
            assert glyphs[1:] == ["0", "X", "I", "-I"[-width:], "+", "-", "·"]
            assert glyphs[0] not in glyphs[1:]


@pytest.mark.parametrize("name", COLORMAPS)
def test_a_colormap_grows_lighter_and_its_text_stays_readable(name: str) -> None:
    styles = styles_of(Palette("truecolor", colormap=name), is_signed=False)
    shades = [luminance(style.bgcolor) for style in styles]
    assert all(later >= earlier - 1e-9 for earlier, later in pairwise(shades))
    for style, background in zip(styles, shades, strict=True):
        text = luminance(style.color)
        assert (max(background, text) + 0.05) / (min(background, text) + 0.05) >= 4.5  # WCAG 2.2, AA


# --- the scale around zero ---


@pytest.mark.parametrize("tier", ["truecolor", "256"])
def test_as_large_a_difference_is_about_as_dark_on_either_side(tier: str) -> None:
    """So that a reader who sees no hue at all takes neither side for the larger change."""
    shades = [luminance(style.bgcolor) for style in styles_of(Palette(tier), is_signed=True)]
    for one, other in zip(shades, reversed(shades), strict=True):
        assert abs(one - other) < 0.08
    middle = len(shades) // 2
    assert shades[: middle + 1] == sorted(shades[: middle + 1])
    assert shades[middle:] == sorted(shades[middle:], reverse=True)
