"""The picture under the weights of heads: colours stand where the weights are, and nothing is shown elsewhere."""

from collections.abc import Sequence

import numpy as np
from rich.segment import Segment

from attncli.render.block import Bounds
from attncli.render.palette import Palette, Scale
from attncli.render.picture import Canvas, HeadLook, PictureView
from attncli.trace.layout import ImageGrid, Picture, SideLayout

GRAY = np.full((40, 60, 3), 100, np.uint8)


def look(name: str, count: int, *heavy: int) -> HeadLook:
    weights = np.full(count, 0.001)
    weights[list(heavy)] = 0.3
    return HeadLook(name, weights, np.ones(count, bool))


def view(
    heads: Sequence[HeadLook],
    *grids: ImageGrid,
    palette: Palette,
    picture: Picture | None = None,
    marks: dict[int, str] | None = None,
) -> PictureView:
    layout = SideLayout((picture,) if picture else (), grids, "key")
    return PictureView(("0 [CLS]", "attends to"), heads, layout, marks or {}, palette, Scale.up_to(0.3))


def colors_of(line: Sequence[Segment]) -> list[str]:
    """The colour of the upper half of each character."""
    return [str(s.style.color.name) for s in line for _ in s.text if s.style is not None and s.style.color is not None]


def test_the_heaviest_cell_has_the_colour_of_the_highest_weight() -> None:
    palette = Palette("truecolor")
    one = view([look("H0", 7, 6)], ImageGrid(1, 2, 3), palette=palette, picture=Picture("x.png", 60, 40, GRAY))
    block, count = one.drawn(Bounds(20, 100))
    assert count == 1
    titles = next(line for line in block.lines if "x.png" in "".join(segment.text for segment in line))
    assert "H0 r1c2 0.30 30%" in "".join(segment.text for segment in titles)
    first = block.lines.index(titles) + 1
    rows = [[segment for segment in line if segment.text == "▀"] for line in block.lines[first:]]
    half = len(rows[0]) // 2
    shades = {(row // max(len(rows) // 2, 1), column * 3 // half): colors_of(rows[row])[half + column]
              for row in (0, len(rows) - 1) for column in (0, half // 2, half - 1)}  # fmt: skip
    assert len(set(shades.values())) == 2
    heavy = shades.pop(max(shades))
    red, green, blue = (int(heavy[place : place + 2], 16) for place in (1, 3, 5))
    assert red > 180
    assert green > 180
    assert blue < 60


def test_without_colours_a_map_has_axes() -> None:
    block, _ = view([look("H0", 7, 6)], ImageGrid(1, 2, 3), palette=Palette()).drawn(Bounds(20, 80))
    lines = ["".join(segment.text for segment in line).rstrip() for line in block.lines]
    assert [line.strip() for line in lines[-4:-2]] == ["H0 r1c2 0.30 30%", "0 1 2"]
    assert (lines[-2][0], lines[-1][0]) == ("0", "1")
    assert lines[-1].endswith("██")
    assert "██" not in lines[-2]


def test_a_cropped_picture_has_no_cells_beside_the_crop() -> None:
    canvas = Canvas(None, [ImageGrid(0, 2, 2, box=(20.0, 0.0, 60.0, 40.0))], 0)._replace(
        picture=Picture("x", 80, 40, GRAY)
    )
    assert canvas.cells == (2, 4)
    head = HeadLook("H0", np.arange(4.0), np.array([True, True, True, False]))
    values, is_inside = head.sampled(canvas.placed(2, 4))
    np.testing.assert_array_equal(is_inside, [[0, 1, 1, 0], [0, 1, 0, 0]])
    np.testing.assert_array_equal(values, [[0, 0, 1, 0], [0, 2, 0, 0]])
