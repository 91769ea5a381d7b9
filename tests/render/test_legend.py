"""What a legend says of colours: each number stands where its colour is."""

import re

import numpy as np
import pytest

from attncli.render.heatmap import ramp_line
from attncli.render.palette import Palette, Scale
from attncli.trace.view import Ramp


def number(text: str) -> float:
    return float(re.findall(r"^≤?([+-]?\d.*)", text)[0])  # 0.5 and -0.5, as in maps and lists


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
