"""The interactive page in a real browser: Debian's Chromium, headless, with the network off."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from pages import ODD, QK, odd_trace, page_of, pictured_trace, random_trace, to_three_decimals, written

from attncli.render.heatmap import scale_of_layer
from attncli.render.palette import COLORMAPS, Palette, Scale
from attncli.render.picture import COVER, DARK, DIMMED
from attncli.trace.view import Ramp, View

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.system

Run = Callable[..., Any]
Inspected = Callable[..., tuple[Any, Any]]  # a page and the document of the same run
SENTENCE, PAIR = "time flies like an arrow", "fruit flies like a banana"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium")
    assert path, "apt-get install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path)
        yield browser
        browser.close()


@pytest.fixture
def opened(chromium: Browser) -> Iterator[Callable[..., Page]]:
    """Open a page; nothing that it does may end in an error, a message or a request."""
    messages: list[str] = []
    contexts = []

    def open_page(path: Path, fragment: str = "", **options: Any) -> Page:
        context = chromium.new_context(offline=True, viewport={"width": 1400, "height": 1000}, **options)
        contexts.append(context)
        context.set_default_timeout(120_000)
        page, before = context.new_page(), len(messages)
        page.on("console", lambda message: messages.append(message.text))
        page.on("pageerror", lambda error: messages.append(str(error)))
        page.on("dialog", lambda dialog: messages.append(dialog.message))
        page.on("request", lambda request: messages.append(request.url))
        page.goto(path.as_uri() + fragment)
        page.wait_for_selector("#cell-value")
        page.wait_for_selector("#heads[data-drawn]", state="attached")
        assert [url.partition("#")[0] for url in messages[before:]] == [path.as_uri()]
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert all(text.startswith(("file:", "blob:file:")) for text in messages), messages


@pytest.fixture
def inspected(attn: Run, tmp_path: Path, opened: Callable[..., Page]) -> Inspected:
    """Open the page of `attn inspect`, and return it with the JSON document of the same run."""

    def inspect(*arguments: str, rounded: bool = True, fragment: str = "") -> tuple[Page, Any]:
        page_of(attn, tmp_path / "page.html", *arguments)
        document = attn("inspect", *arguments, "-F", "json", *["--precision", "3"] * rounded).json
        return opened(tmp_path / "page.html", fragment), document

    return inspect


def point_at(page: Page, row: int, column: int) -> str:
    """Move the pointer to the middle of a cell and return the number that the page shows."""
    size, left, top = page.evaluate("""() => {
        const box = document.getElementById("map").getBoundingClientRect();
        const style = (id) => getComputedStyle(document.getElementById(id));
        const size = parseFloat(style("map-cursor").width);
        return [size, box.left + parseFloat(style("map-row").left), box.top + parseFloat(style("map-column").top)];
    }""")
    page.mouse.move(left + (column + 0.5) * size, top + (row + 0.5) * size)
    return page.inner_text("#cell-value")


def until(is_so: Callable[[], Any]) -> None:
    """Wait for the page to draw what was chosen. Playwright's own waiting needs `eval`, which the page forbids."""
    for _ in range(1200):
        if is_so():
            return
        time.sleep(0.05)
    raise AssertionError("that did not come")


def spoken(page: Page) -> str:
    return page.inner_text("#spoken")


def settled(page: Page) -> None:
    until(lambda: page.get_attribute("#map", "aria-busy") == "false")


# --- the numbers -------------------------------------------------------------------------------------------


def test_the_number_under_the_pointer_is_the_documents(inspected: Inspected, minilm: str) -> None:
    page, document = inspected(SENTENCE, "-m", minilm, "--layer", "0,3", rounded=False)
    for layer in document["layers"]:
        page.get_by_label("layer", exact=True).select_option(label=str(layer["layer"]))
        for head in (layer["heads"][2], layer["heads"][8]):
            page.get_by_label("head", exact=True).select_option(label=str(head["head"]))
            settled(page)
            name = page.get_by_role("application").get_attribute("aria-label")
            assert name is not None
            assert name.startswith(f"heat map of layer {layer['layer']}, head {head['head']};")
            for row, weights in enumerate(head["weights"]):
                for column, weight in enumerate(weights):
                    assert point_at(page, row, column) == f"{to_three_decimals(float(np.float32(weight))):.3f}"
            assert page.inner_text("#cell").startswith("query 6 [SEP] → key 6 [SEP]: ")


def test_each_kind_of_cell_has_its_own_word_and_its_own_colour(tmp_path: Path, opened: Callable[..., Page]) -> None:
    page = opened(written(odd_trace(), tmp_path / "odd.html"))
    shown = [[point_at(page, row, column) for column in range(4)] for row in range(4)]
    assert shown == [
        ["0.000", "0.250", "0.750", "masked"],
        ["NaN", "inf", "-inf", "masked"],
        ["> 32.764", "< -32.764", "0.000", "masked"],
        ["masked, 0.500", "masked, 0.062", "masked, 0.002", "masked, 0.125"],
    ]
    for name in ("masked", "NaN", "inf", "-inf", "> 32.764", "< -32.764", "! fully masked: 1 of 4 queries"):
        assert name in page.inner_text("#legend")
    colors = colors_of(page, 4)
    odd = [*colors[0], *colors[1][:3], *colors[2][:2]]
    assert len(set(odd)) == len(odd)
    assert {*colors[3], colors[0][3]} == {colors[0][3]}
    assert colors[2][2] == colors[0][0]
    assert ODD[2, 2] > 0


def colors_of(page: Page, size: int) -> list[list[str]]:
    """The colours of the cells of a map, as red, green and blue with commas."""
    found: list[list[str]] = page.evaluate(
        """(count) => {
        const canvas = document.getElementById("map-cells");
        const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
        copy.drawImage(canvas, 0, 0);
        const style = (id) => getComputedStyle(document.getElementById(id));
        const size = parseFloat(style("map-cursor").width);
        const left = parseFloat(style("map-row").left), top = parseFloat(style("map-column").top);
        const at = (row, column) => [...copy.getImageData(
            left + column * size + 4, top + row * size + 4, 1, 1).data].slice(0, 3).join();
        return Array.from({length: count}, (_, row) => Array.from({length: count}, (_, column) => at(row, column)));
    }""",
        size,
    )
    return found


def test_a_cell_has_the_colour_that_the_terminal_gives_it(tmp_path: Path, opened: Callable[..., Page]) -> None:
    """The page opens with a ramp, and has others chosen later; it knows weights to three decimals."""
    trace = random_trace(1, 2, 6)
    page = opened(written(trace, tmp_path / "page.html", View(ramp="linear")))
    layer, palette, allowed = trace.layers[0], Palette("truecolor"), np.ones((6, 6), bool)
    rounded = np.rint(layer.head(0).weights * 1000) / 1000
    ramps: tuple[Ramp, ...] = ("linear", "sqrt", "log")
    for ramp in ramps:
        if ramp != "linear":
            page.get_by_label("ramp", exact=True).select_option(ramp)
            settled(page)
        seen = colors_of(page, 6)
        scale = scale_of_layer(trace, View(ramp=ramp), layer)
        for row, cells in enumerate(palette.cells(rounded, allowed, scale, 1)):
            for column, (_, style) in enumerate(cells):
                assert style is not None
                assert style.bgcolor is not None
                near = np.subtract(style.bgcolor.get_truecolor(), [int(part) for part in seen[row][column].split(",")])
                assert np.abs(near).max() <= 3, (row, column)  # a step of 256; logarithms are rounded differently


def test_the_bars_add_up_to_q_times_k(inspected: Inspected, tiny_llama: str) -> None:
    page, document = inspected(SENTENCE, "-m", tiny_llama, "-H", "4", "--show", "q,k", rounded=False)
    (layer,) = document["layers"]
    q, k = (np.array(layer["heads"][0][name], np.float16).astype(float) for name in "qk")
    for row, column in ((0, 0), (4, 2), (3, 1)):
        point_at(page, row, column)
        products = [a * b for a, b in zip(q[row].tolist(), k[column].tolist(), strict=True)]
        first = max(range(len(products)), key=lambda d: abs(products[d]))
        total = f"q·k = {sum(products):+.3f} from float16"
        until(lambda: total in page.inner_text("#products-text"))  # noqa: B023
        text = page.inner_text("#products-text")
        assert f"= {sum(products) * layer['scale']:+.3f}" in text
        assert f"Largest dimensions: {first}: {products[first]:+.3f}," in text


# --- keys and screen readers -------------------------------------------------------------------------------


def test_the_arrow_keys_move_the_cell_and_the_page_says_it(inspected: Inspected) -> None:
    page, document = inspected(SENTENCE, fragment="#layer=0&head=0&query=0&key=0")
    heads = document["layers"][0]["heads"]
    heat_map = page.get_by_role("application", name="heat map of layer 0, head 0; query 0 time, key 0 time: 1.000")
    heat_map.focus()
    for key, row, column in (
        ("ArrowDown", 1, 0), ("ArrowRight", 1, 1), ("ArrowUp", 0, 1), ("ArrowLeft", 0, 0), ("ArrowLeft", 0, 0),
        ("Control+End", 4, 0), ("End", 4, 4), ("Home", 4, 0), ("Control+Home", 0, 0), ("ArrowDown", 1, 0),
    ):  # fmt: skip
        page.keyboard.press(key)
        weight = f"{heads[0]['weights'][row][column]:.3f}" if heads[0]["mask"][row][column] else "masked"
        names = SENTENCE.split()
        assert spoken(page) == f"query {row} {names[row]}, key {column} {names[column]}: {weight}"
    page.keyboard.press("PageDown")
    settled(page)
    assert page.input_value("#head") == "1"
    assert spoken(page) == f"layer 0, head 1; query 1 flies, key 0 time: {heads[1]['weights'][1][0]:.3f}"
    rows = page.get_by_role("table").get_by_role("row").all_inner_texts()
    assert rows[0].split() == ["key", "token", "weight"]
    ranked = sorted(range(2), key=lambda key: -heads[1]["weights"][1][key])
    assert rows[1].split() == [str(ranked[0]), names[ranked[0]], f"{heads[1]['weights'][1][ranked[0]]:.3f}"]
    assert rows[5].split() == ["4", "arrow", "masked"]


def test_everything_is_reached_with_the_tabulator_and_has_a_name(tmp_path: Path, opened: Callable[..., Page]) -> None:
    page = opened(written(random_trace(2, 2, 30), tmp_path / "page.html", QK))
    reached = []
    for _ in range(14):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.name || 'option'"))
    expected = "layer head ramp colormap option shown part size map row-scroll".split()
    assert [name for name in reached if name in expected][: len(expected)] == expected
    for role, name in (("img", "q × k, dimension by dimension"), ("listbox", "keys")):
        assert page.get_by_role(role, name=name, exact=True).count() == 1  # type: ignore[arg-type]


# --- pictures ----------------------------------------------------------------------------------------------


def place_in(page: Page, panel: int, x: float, y: float) -> tuple[float, float]:
    """Where a pixel of the picture of 60 × 40 is on the screen, in a panel."""
    box = page.locator(f"[data-panel='{panel}'] canvas").bounding_box()
    assert box is not None
    return box["x"] + x / 60 * box["width"], box["y"] + y / 40 * box["height"]


def color_in(page: Page, panel: int, x: float, y: float) -> list[int]:
    """The colour of a pixel of the picture, in a panel."""
    return page.evaluate(
        """([panel, x, y]) => {
        const canvas = document.querySelector(`[data-panel='${panel}'] canvas`);
        const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
        copy.drawImage(canvas, 0, 0);
        return [...copy.getImageData(x / 60 * canvas.width, y / 40 * canvas.height, 1, 1).data].slice(0, 3);
    }""",
        [panel, x, y],
    )


def test_a_click_on_a_word_shows_where_it_looks(tmp_path: Path, opened: Callable[..., Page]) -> None:
    trace = pictured_trace()
    page = opened(written(trace, tmp_path / "page.html"), "#layer=0&head=1&query=14&key=1")
    gray = trace.pictures[0].pixels.astype(float) @ [0.2126, 0.7152, 0.0722]
    middles = {1: (6, 10), 2: (18, 10), 3: (6, 30), 4: (18, 30), 5: (30, 10), 6: (42, 10), 7: (30, 30), 8: (42, 30)}
    for word, query in (("dot", 13), ("<s>", 0), ("[NL]", 9)):
        page.get_by_role("listbox", name="keys", exact=True).get_by_role("option", name=word).click()
        weights = np.rint(trace.layer(0).head(1).weights[query] * 1e4)
        scale = Scale.up_to(max(float(weights[[*middles, 10, 11]][: 8 if query < 10 else 10].max()), 1))
        shares = scale.placed(weights)
        for key, (x, y) in middles.items():
            light = gray[y, x]
            if key > query:
                expected = np.full(3, DARK * light)
            else:
                stops = np.array([[int(stop[at : at + 2], 16) for at in (0, 2, 4)] for stop in COLORMAPS["viridis"]])
                color = np.array([np.interp(shares[key] * 8, range(9), stops[:, at]) for at in range(3)])
                cover = COVER * shares[key]
                expected = DIMMED * light * (1 - cover) + color * cover
            assert np.abs(expected - color_in(page, 0, x + 0.5, y + 0.5)).max() <= 4, (word, key)
        outside = color_in(page, 0, 54.5, 20.5)
        assert np.abs(np.array(outside) - DARK * gray[20, 54]).max() <= 2
        share = weights[1:9].sum() / 1e4
        assert page.inner_text("[data-panel='0'] figcaption") == f"{share * 100:.0f} % of the query's weight"
        until(lambda: page.get_attribute("#heads", "data-drawn") == str(query))  # noqa: B023


def test_a_click_on_a_cell_makes_it_the_query_and_shows_the_words_that_look_at_it(
    tmp_path: Path, opened: Callable[..., Page]
) -> None:
    trace = pictured_trace()
    page = opened(written(trace, tmp_path / "page.html"), "#layer=0&head=2&query=14&key=1")
    assert page.locator("#keys [role=option]").all_inner_texts() == ["<s>", "[NL]", "red", "dot", "?"]
    weights = trace.layer(0).head(2).weights
    page.mouse.move(*place_in(page, 0, 42.5, 30.5))
    number = f"{to_three_decimals(float(weights[14, 8]), 10_000):.4f}"
    assert page.inner_text("#picture-text") == f"query 14 ? → key 8 42,30: {number}"
    page.mouse.click(*place_in(page, 0, 18.5, 30.5))
    number = f"{to_three_decimals(float(weights[4, 4]), 10_000):.4f}"
    assert page.inner_text("#picture-text") == f"query 4 r1c1 → key 4 r1c1: {number}"
    assert page.inner_text("#attended") == "4 r1c1"
    assert color_in(page, 0, 12.2, 30) == [255, 45, 149]  # the frame of the query's own cell
    words = page.get_by_role("listbox", name="queries of the key").get_by_role("option")
    titles = [words.nth(place).get_attribute("title") for place in range(5)]
    assert titles == [
        "masked", *(f"weight {to_three_decimals(float(weights[query, 4]), 10_000):.4f}" for query in (9, 12, 13, 14))
    ]  # fmt: skip
    words.nth(3).click()
    assert page.inner_text("#picture-text").startswith("query 13 dot → key 4 r1c1: ")
    page.mouse.click(*place_in(page, 1, 15, 20))
    assert page.inner_text("#picture-text").startswith("query 11 overview r0c0 → key 11 overview r0c0: ")
    page.mouse.click(*place_in(page, 0, 55, 20))  # where no cell is
    assert page.inner_text("#picture-text").startswith("query 11 overview r0c0 → ")


# --- links and pictures ------------------------------------------------------------------------------------


def test_a_link_opens_at_its_head_and_cell(tmp_path: Path, opened: Callable[..., Page]) -> None:
    path = written(random_trace(3, 4, 9), tmp_path / "page.html", View(queries=(2, 5, 7)))
    page = opened(path)
    page.get_by_label("layer", exact=True).select_option(label="2")
    page.get_by_label("head", exact=True).select_option(label="3")
    settled(page)
    number = point_at(page, 1, 6)
    fragment = "#layer=2&head=3&query=5&key=6"
    until(lambda: page.evaluate("location.hash") == fragment)
    other = opened(path, fragment)
    assert (other.input_value("#layer"), other.input_value("#head")) == ("2", "3")
    assert other.inner_text("#cell") == f"query 5 w5 → key 6 w6: {number}"
    other.evaluate("location.hash = '#layer=0&head=1&query=7&key=0'")
    until(lambda: other.inner_text("#cell").startswith("query 7 w7 → key 0 w0"))
    assert (other.input_value("#layer"), other.input_value("#head")) == ("0", "1")
