"""What a legend says of colours: each number stands where its colour is."""

import re

import numpy as np
import pytest
from views import TIERS

from attncli.render.legend import ramp_line
from attncli.render.palette import Palette, Scale
from attncli.trace.view import Ramp

RAMPS: tuple[Ramp, ...] = ("sqrt", "linear", "log")


def text_of(scale: Scale, palette: Palette, width: int | None = None, cell_width: int = 2) -> str:
    return "".join(segment.text for segment in ramp_line(scale, palette, width, cell_width))


def number(text: str) -> float:
    return float(text.replace("−", "-").removeprefix("≤"))


@pytest.mark.parametrize(("ramp", "high"), [("sqrt", 0.3518), ("linear", 812.0), ("log", 3e-7), ("log", 1.0)])
def test_numbers_stand_on_the_colours_that_cells_of_theirs_have(ramp: Ramp, high: float) -> None:
    palette, scale = Palette("truecolor"), Scale.up_to(high, ramp)
    bar = ramp_line(scale, palette)
    found = list(re.finditer(r"\S+", "".join(segment.text for segment in bar)))
    assert len(found) >= 3
    assert number(found[0][0]) == pytest.approx(scale.low, rel=1e-3)
    assert number(found[-1][0]) == pytest.approx(high, rel=1e-3)
    values = [number(each[0]) for each in found]
    assert values == sorted(values)
    steps = [style for _, style in palette.ramp(1)]
    for each in found[1:-1]:
        ((_, style),) = palette.cells(np.array([[number(each[0])]]), np.ones((1, 1), bool), scale, 1)[0]
        under = [steps.index(bar[place].style) for place in range(each.start(), each.end())]
        assert min(under) - 8 <= steps.index(style) <= max(under) + 8  # of 256; a place of the bar is seven of them


@pytest.mark.parametrize(
    ("palette", "ramp", "width"), [(TIERS[2], "log", 2), (TIERS[2], "sqrt", 1), (TIERS[2], "linear", 2)], ids=str
)
def test_a_shade_begins_at_the_number_before_it(palette: Palette, ramp: Ramp, width: int) -> None:
    """A number a little above a bound has the shade behind it, a little below it the one before."""
    scale = Scale.up_to(1.0, ramp)
    parts = re.findall(r"[-−<=≤]*[\d.]+|[^\d.]+", text_of(scale, palette, cell_width=width).replace("<=", "≤"))
    glyphs = [glyph for glyph, _ in palette.ramp(width)]
    bounds = [(place, float(part)) for place, part in enumerate(parts[:-1]) if place and re.fullmatch(r"[\d.]+", part)]
    assert bounds
    for place, bound in bounds:
        near = np.array([[bound * 0.96, bound * 1.04]])  # written in two digits
        before, after = (glyph for glyph, _ in palette.cells(near, np.ones((1, 2), bool), scale, width)[0])
        assert glyphs.index(after) == glyphs.index(before) + 1
        assert parts[place - 1][1:-1].endswith(before)
        assert parts[place + 1][1:-1].startswith(after)
