"""The view of a comparison: what stands where, at every width and in every tier."""

import re

import numpy as np
import pytest
from rich.cells import cell_len
from rich.color import ColorSystem
from running import plain, printed

import attncli
from attncli.analysis.diff import Difference
from attncli.render.diff import Changes
from attncli.render.heatmap import Extent, Picture, ramp_line
from attncli.render.palette import Palette

TIERS = [Palette("truecolor"), Palette("256"), Palette("blocks"), Palette("ascii", "ascii"), Palette("blocks", "cp437")]
WIDE = [Palette("truecolor"), Palette("256"), Palette("blocks"), Palette("ascii", "ascii")]


def flies(**options: object) -> Difference:
    sentences = ("time flies like an arrow", "fruit flies like a banana")
    first, second = (attncli.inspect(text, d_model=8, num_heads=2, **options) for text in sentences)
    return attncli.diff(first, second)


def drawn(difference: Difference, palette: Palette = Palette(), width: int | None = None, **view: int) -> str:  # noqa: B008
    return printed(Changes(difference, palette, width, **view).renderables(), palette, width)


def test_the_view_of_a_small_comparison_is_exactly_this() -> None:
    first, second = (
        attncli.inspect(text, d_model=2, num_heads=1, init="zeros", mask="none") for text in ("a b", "b c d")
    )
    difference = attncli.diff(first, second)
    assert drawn(difference, width=80) == (
        "toy layer · 1 head · mask full · zeros weights, seed 0 (numpy) · 16 parameters\n"
        "tokens A  0 a  1 b\n"
        "tokens B       0 b  1 c  2 d\n"
        "shared         =\n"
        "heads that changed most, of 1 · Jensen-Shannon divergence, 0 to 1 bit · query \n"
        "row 1/0 b\n"
        "layer  head  divergence  elsewhere A  elsewhere B\n"
        "    0     0      0.0207       0.5000       0.6667\n"
        "elsewhere: weight on tokens that are not shared; to the divergence it is one\n"
        "more cell\n"
        "cells that changed most\n"
        "layer  head  query  key         A       B    B − A\n"
        "    0     0  1/0 b  1/0 b  0.5000  0.3333  −0.1667\n"
        "layer 0 head 0 · 0.0207 bits\n"
        "weights  0  ░░░░▒▒▒▒▓▓▓▓███ 0.5\n"
        "B − A    −0.1667 -█-▓-▒-░  +░+▒+▓+█ +0.1667   − more in A   + more in B\n"
        "    A          B            B − A\n"
        "    0 1        0 1 2        1\n"
        "1 b ████   0 b ▓▓▓▓▓▓   1 b -█\n"
    )


@pytest.mark.parametrize("palette", TIERS, ids=lambda palette: f"{palette.tier}-{palette.encoding}")
def test_every_line_fits_at_every_width(palette: Palette) -> None:
    long = " ".join(f"word{index}" for index in range(30))
    for difference in (
        flies(),
        attncli.diff(attncli.inspect(f"time {long}"), attncli.inspect(f"{long} 時間 🙂 flies")),
    ):
        for width in (40, 60, 77, 100, 200):
            text = plain(drawn(difference, palette, width, maps=2))
            assert max(cell_len(line) for line in text.splitlines()) <= width
            text.encode(palette.encoding)
            assert re.search(r"^ +A\b", text, re.MULTILINE)
            assert re.search(r"^ .* B . A$", text, re.MULTILINE)


def test_of_a_long_sentence_the_maps_are_pooled_and_say_so() -> None:
    long = " ".join(f"w{index}" for index in range(150))
    text = drawn(attncli.diff(attncli.inspect(long), attncli.inspect(f"{long} end")), width=100)
    assert "tokens: 150 shared" in text
    assert "B  151 tokens, only here: 150 end" in text
    assert "a cell is the strongest of " in text
    assert len(text.splitlines()) < 70


def test_equal_traces_have_neither_cells_nor_maps() -> None:
    trace = attncli.inspect("time flies")
    text = drawn(attncli.diff(trace, trace))
    assert "no cell that both have has changed" in text
    assert "tokens  0 time  1 flies\n" in text
    assert "B − A" not in text
    assert re.search(r"^ +0 +0 +0$", text, re.MULTILINE)


def test_two_layers_of_another_make_have_a_headline_each() -> None:
    first, second = (attncli.inspect("time flies", seed=seed) for seed in (0, 1))
    assert re.match(r"A  toy layer .*seed 0.*\nB  toy layer .*seed 1", drawn(attncli.diff(first, second)))


def test_a_row_without_a_key_carries_its_mark() -> None:
    first = attncli.inspect("time flies like", mask="keys(1,3) & causal")
    second = attncli.inspect("time flies like", mask="causal", seed=1)
    text = drawn(attncli.diff(first, second))
    assert "! fully masked" in text
    assert len(re.findall(r"0 time  !", text)) == 2  # in A and in the difference


# --- the scale around zero ---


@pytest.mark.parametrize("palette", WIDE, ids=lambda palette: palette.tier)
@pytest.mark.parametrize("width", [1, 2])
def test_every_step_looks_different_and_nothing_is_in_the_middle(palette: Palette, width: int) -> None:
    ramp = palette.ramp(width, is_signed=True)
    assert len(ramp) % 2 == 1
    assert len(set(ramp)) == len(ramp)
    if not palette.has_color:
        assert ramp[len(ramp) // 2][0].strip() == ""
        assert all("-" in glyph or "=" in glyph for glyph, _ in ramp[: len(ramp) // 2])
        assert all("+" in glyph or "#" in glyph for glyph, _ in ramp[len(ramp) // 2 + 1 :])


def test_256_colours_tell_the_nine_steps_apart_and_keep_their_sides() -> None:
    styles = [style for _, style in Palette("256").ramp(2, is_signed=True)]
    colors = [style.bgcolor.downgrade(ColorSystem.EIGHT_BIT) for style in styles if style and style.bgcolor]
    assert len({color.number for color in colors}) == len(colors) == 9
    triplets = [color.get_truecolor() for color in colors]
    assert all(red > blue for red, _, blue in triplets[:4])
    assert all(blue > red for red, _, blue in triplets[5:])
    assert triplets[4].red == triplets[4].green == triplets[4].blue


@pytest.mark.parametrize("tier", ["truecolor", "256"])
def test_as_large_a_difference_is_about_as_dark_on_either_side(tier: str) -> None:
    """So that a reader who sees no hue at all takes neither side for the larger change."""

    def luminance(style: object) -> float:
        channels = [each / 255 for each in style.bgcolor.get_truecolor()]  # type: ignore[attr-defined]
        linear = [each / 12.92 if each <= 0.03928 else ((each + 0.055) / 1.055) ** 2.4 for each in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    shades = [luminance(style) for _, style in Palette(tier).ramp(2, is_signed=True)]
    for one, other in zip(shades, reversed(shades), strict=True):
        assert abs(one - other) < 0.08
    middle = len(shades) // 2
    assert shades[: middle + 1] == sorted(shades[: middle + 1])
    assert shades[middle:] == sorted(shades[middle:], reverse=True)


def test_the_odd_cells_keep_their_marks() -> None:
    values = np.array([[-0.5, 0.0, 0.001, 0.5, np.nan, 0.3]])
    allowed = np.array([[True, True, True, True, True, False]])
    cells = Palette("blocks").cells(values, allowed, Extent(0.5).signed(), 2)[0]
    assert [glyph for glyph, _ in cells] == ["-█", " 0", "  ", "+█", " X", " ·"]
    assert Palette("blocks").cells(np.zeros((1, 1)), np.ones((1, 1), bool), Extent().signed(), 2)[0][0][0] == " 0"


def test_a_pooled_cell_is_the_one_farthest_from_zero() -> None:
    random = np.random.default_rng(0)
    values = random.uniform(-1, 1, (5, 7))
    allowed = random.uniform(size=(5, 7)) > 0.4
    pooled = Picture("", values, allowed).strongest(2, 3)
    for row in range(3):
        for column in range(3):
            block = np.s_[2 * row : 2 * row + 2, 3 * column : 3 * column + 3]
            found = values[block][allowed[block]].tolist()
            assert bool(pooled.allowed[row, column]) == bool(found)
            if found:
                assert pooled.values[row, column] == max(found, key=abs)


def test_the_legend_shows_the_cells_that_are_drawn() -> None:
    line = ramp_line(Extent(0.25).signed(), Palette("blocks"), 1)
    assert "".join(segment.text for segment in line) == "−0.25 =- +# +0.25"
