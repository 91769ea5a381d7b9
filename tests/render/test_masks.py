"""Masks as pictures that fit a screen."""

import pytest
from running import plain, printed

from attncli.masks.comparison import compare
from attncli.masks.mask_grid import GridOptions, MaskSize, open_masks
from attncli.render.masks import MaskView, compared
from attncli.render.palette import Palette


@pytest.mark.parametrize("palette", [Palette("truecolor"), Palette()], ids=["colours", "shades"])
@pytest.mark.parametrize("size", [8, 18, 40, 100])
@pytest.mark.parametrize(("width", "height"), [(80, 23), (120, 39)])
def test_a_mask_and_a_comparison_fit_a_screen(palette: Palette, size: int, width: int, height: int) -> None:
    first, second = open_masks(["causal & window(4)", "causal"], GridOptions(MaskSize(size, size, None)))
    view = MaskView(palette, width, height)
    for parts in ([*view.shown(first)], [*compared(compare(first, second), palette, width, view.lines)]):
        lines = plain(printed(parts, palette, width)).splitlines()
        assert len(lines) + len(parts) - 1 < height


def test_the_halves_of_lines_are_the_rows_of_the_mask() -> None:
    (mask,) = open_masks(["causal"], GridOptions(MaskSize(20, 20, None)))
    view = MaskView(Palette("truecolor"), 80, 23)
    lines = plain(printed(view.drawn(mask), view.palette, 80)).splitlines()[1:11]
    assert [line[:2] for line in lines] == [f"{row:>2}" for row in range(0, 20, 2)]
    ends = [line.rstrip() for line in lines]  # the lower row of each line sees one key more
    assert [(len(line) - len("00 "), line[-1]) for line in ends] == [(row + 2, "▄") for row in range(0, 20, 2)]
