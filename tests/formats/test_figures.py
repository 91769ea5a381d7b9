"""Figures for a paper: cells in the colours of their weights, tokens at both axes, the size asked for, fonts inside."""

import io
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread
from pages import ODD, odd_trace, pictured_trace, random_trace
from traces import layer_of, tokens_of, trace_of

import attncli
from attncli.formats.figures import figure_of, parse_size, written
from attncli.render.picture import COVER, DIMMED
from attncli.trace.view import View

Run = Callable[..., Any]

SENTENCE = "Life is short, eat dessert first"
VIRIDIS = ["440154", "472d7b", "3b528b", "2c728e", "21918c", "28ae80", "5ec962", "addc30", "fde725"]


def color_at(share: float) -> list[float]:
    """The colour so far along viridis, by hand: nine stops, straight lines between them."""
    at = min(share, 1.0) * 8
    low = min(int(at), 7)
    stops = [[int(stop[place : place + 2], 16) for place in (0, 2, 4)] for stop in VIRIDIS[low : low + 2]]
    return [one + (other - one) * (at - low) for one, other in zip(*stops, strict=True)]


def pixels(figure: Figure) -> Any:
    return imread(io.BytesIO(written(figure, "png", "x")))[..., :3] * 255


def maps_in(figure: Figure) -> list[Any]:
    """The axes of the maps, without the bar of colours, which is the last one."""
    return figure.axes[:-1]


def cell_color(drawn: Any, axes: Any, row: float, column: float) -> Any:
    """The colour of a place of a map, in cells from its upper left corner."""
    x, y = axes.transData.transform((column, row)) / axes.figure.bbox.size
    return drawn[int((1 - y) * drawn.shape[0]), int(x * drawn.shape[1])]


def labels(axis: Any) -> list[str]:
    return [label.get_text() for label in axis.get_ticklabels()]


def words_of(figure: Figure) -> str:
    legend = figure.legends[0]
    return " | ".join(text.get_text().replace("\n", " ") for text in (legend.get_title(), *legend.get_texts()))


# --- the numbers -------------------------------------------------------------------------------------------


def test_each_cell_of_several_layers_has_the_colour_of_its_weight_on_one_scale() -> None:
    trace = random_trace(2, 2, 7)
    figure = figure_of(trace, View(ramp="log"))
    drawn, words = pixels(figure), [f"w{index}" for index in range(7)]
    heads = [trace.layer(layer).head(head).weights for layer in range(2) for head in range(2)]
    assert [axes.get_title("left") for axes in maps_in(figure)] == ["L0 H0", "L0 H1", "L1 H0", "L1 H1"]
    for axes, weights in zip(maps_in(figure), heads, strict=True):
        for row, column in np.ndindex(7, 7):
            placed = max(0, 1 + np.log10(float(weights[row, column])) / 3)
            assert cell_color(drawn, axes, row + 0.5, column + 0.5) == pytest.approx(color_at(placed), abs=3)
        assert labels(axes.yaxis) in ([], words)
        assert labels(axes.xaxis) in ([], words)
    assert labels(maps_in(figure)[0].yaxis) == labels(maps_in(figure)[-1].xaxis) == words


def test_each_odd_cell_has_a_mark_and_the_key_explains_it() -> None:
    figure = figure_of(odd_trace(), View(ramp="linear"))
    (axes,) = maps_in(figure)
    marks = {tuple(place) for points in axes.collections for place in points.get_offsets().tolist()}
    assert marks == {
        (column + 0.5, row + 0.5)
        for row, column in np.argwhere(~np.isfinite(ODD) | (ODD == 0) | (ODD < 0) | (ODD > 1)).tolist()
        if column < 3 or ODD[row, column] != 0
    }
    for word in ("exactly zero", "below the range", "beyond the range", "NaN", "inf", "-inf", "masked"):
        assert word in words_of(figure)
    assert "! may attend to no key" in words_of(figure)
    assert labels(axes.yaxis)[-1] == "blind !"


# --- tokens along the axes ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "count"), [("3.3inx2in", 40), ("1.5in", 300)])
def test_labels_are_letters_of_6_to_8_points_that_do_not_touch(size: str, count: int) -> None:
    figure = figure_of(random_trace(1, 4, count), size=parse_size(size))
    assert figure.get_figwidth() == pytest.approx(parse_size(size)[0])
    figure.draw_without_rendering()
    edge = figure.bbox.padded(1)
    for text in (figure.legends[0].get_title(), *figure.legends[0].get_texts(), *figure.axes[-1].get_xticklabels()):
        box = text.get_window_extent()
        assert all(edge.contains(*corner) for corner in (box.min, box.max)), text.get_text()
    for axes in maps_in(figure):
        for axis, side in ((axes.yaxis, 1), (axes.xaxis, 0)):
            boxes = [label.get_window_extent() for label in axis.get_ticklabels()]
            assert all(6 <= label.get_fontsize() <= 8 for label in axis.get_ticklabels())
            assert all(edge.contains(*corner) for box in boxes for corner in (box.min, box.max))
            middles = [(box.min[side] + box.max[side]) / 2 for box in boxes]
            assert all(gap * 72 / figure.dpi >= 6 for gap in np.abs(np.diff(middles)).tolist())


def test_no_token_is_taken_for_a_formula_and_what_the_font_lacks_is_escaped(
    recwarn: pytest.WarningsRecorder,
) -> None:
    words = tokens_of("$x_1^2$", "\\frac", "_under", "שלום", "日本", "\U000e0041", "a\nb")
    layer = layer_of(*np.zeros((3, 1, 7, 2), np.float32))
    figure = figure_of(trace_of(layer, queries=words, keys=words))
    (axes,) = maps_in(figure)
    shown = labels(axes.yaxis)
    assert shown[:5] == ["$x_1^2$", "\\frac", "_under", "שלום", "\\u65e5\\u672c"]
    assert not any(label.get_parse_math() for label in axes.get_yticklabels())
    assert all(text.isprintable() for text in shown)
    assert all(written(figure, form, "x") for form in ("pdf", "png", "svg"))
    assert not recwarn.list


# --- sizes and files ---------------------------------------------------------------------------------------


def test_a_file_has_its_size_its_fonts_and_the_same_bytes_whatever_the_user_has_set() -> None:
    def made(form: str) -> bytes:
        return written(figure_of(attncli.inspect(SENTENCE), size=parse_size("3.3inx2in")), form, "time (flies)")

    files = {form: made(form) for form in ("pdf", "png", "svg")}
    assert re.search(rb"/MediaBox \[ ?0 0 237\.6 144 ?\]", files["pdf"])
    assert set(re.findall(rb"/FontFile(\d?) ", files["pdf"])) == {b"2"}  # TrueType, embedded
    assert b"/Type3" not in files["pdf"]
    assert b"CreationDate" not in files["pdf"]
    before = dict(matplotlib.rcParams)
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "figure.dpi": 20, "text.color": "blue"}):
        assert {form: made(form) for form in files} == files
    assert dict(matplotlib.rcParams) == before


# --- pictures ----------------------------------------------------------------------------------------------

TILED = {1: (0, 0), 2: (0, 12), 3: (20, 0), 4: (20, 12), 5: (0, 24), 6: (0, 36), 7: (20, 24), 8: (20, 36)}
"""The upper left corner of each cell of the two tiles, in pixels: y and x."""


def test_the_picture_is_covered_as_far_as_the_weight_of_each_cell() -> None:
    trace = pictured_trace()
    figure = figure_of(trace)
    panels = maps_in(figure)
    weights = [trace.layer(0).head(head).weights[14] for head in range(3)]
    highest = max(float(own[[*TILED, 10, 11]].max()) for own in weights)
    assert [axes.get_title("left") for axes in panels] == [
        "dot.png", *(f"L0 H{head} {sum(own[1:9]):.0%}" for head, own in enumerate(weights))
    ]  # fmt: skip
    gray = trace.pictures[0].pixels @ [0.2126, 0.7152, 0.0722]
    for axes, own in zip(panels[1:], weights, strict=True):
        (image,) = (np.asarray(each.get_array()) * 255 for each in axes.images)
        for key, (top, left) in TILED.items():
            share = np.sqrt(own[key] / highest)
            light = DIMMED * gray[top + 5, left + 5] * (1 - COVER * share)
            row, column = int((top + 5.5) * image.shape[0] / 40), int((left + 5.5) * image.shape[1] / 60)
            expected = light + COVER * share * np.array(color_at(float(share)))
            assert image[row, column] == pytest.approx(expected, abs=3)
    assert figure.axes[-1].get_xlabel() == "weights of 14 ?, sqrt scale"
    facts = "dark: masked, no number, or outside the grid; the overview is drawn for a single head; merged"
    assert facts in words_of(figure)
    named = replace(trace, pictures=(trace.pictures[0]._replace(name="x/" + 60 * "long" + "$a_b$.png"),))
    title = maps_in(figure_of(named))[0].get_title("left")
    assert re.fullmatch(r"….*longlong\$a_b\$.png", title)
    assert len(title) < 40


# --- the command -------------------------------------------------------------------------------------------


def test_inspect_draws_a_figure_and_without_a_size_an_svg_is_the_terminals(attn: Run, tmp_path: Path) -> None:
    path = tmp_path / "figure.svg"
    ran = attn("inspect", SENTENCE, "--size", "3.3in", "-H", "1", "-o", path)
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    expected = figure_of(attncli.inspect(SENTENCE, head=1), size=parse_size("3.3in"))
    assert path.read_bytes() == written(expected, "svg", f"attn inspect: {SENTENCE}")
    assert attn("inspect", SENTENCE, "-o", path).code == 0
    assert path.read_text(encoding="utf-8").count("<text") > 20  # a figure has outlines of letters
