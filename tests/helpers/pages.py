"""Pages to test: traces with cells of every sort, pages written of them, and a reader of pages that is not ours."""

import base64
import json
import re
import zlib
from collections.abc import Callable
from fractions import Fraction
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
from traces import layer_of, tokens_of, trace_of, watched

from attncli.formats.page import write_page
from attncli.trace.layout import ImageGrid, Picture
from attncli.trace.trace import Provenance, Trace
from attncli.trace.view import View

QK = View(show=frozenset({"q", "k"}))
# A row for each thing that a cell can be; the last column of every row is masked.
ODD = np.array(
    [
        [0.0, 0.25, 0.75, 0.0],
        [np.nan, np.inf, -np.inf, 0.0],
        [99.0, -99.0, 0.0004, 0.0],
        [0.5, 0.0625, 0.0025, 0.125],  # masked and not 0, as in a row that may attend to nothing
    ],
    np.float32,
)


class Elements(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None], str]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs), ""))

    def handle_data(self, data: str) -> None:
        if self.found:
            tag, attributes, text = self.found[-1]
            self.found[-1] = (tag, attributes, text + data)

    def by_id(self) -> dict[str, tuple[dict[str, str | None], str]]:
        return {str(a["id"]): (a, text) for _, a, text in self.found if "id" in a}


def unpacked(text: str) -> bytes:
    return zlib.decompress(base64.b64decode(text))


def weights_in(page: str) -> dict[tuple[int, int], list[list[float | None]]]:
    blocks = Elements(page).by_id()
    document = json.loads(blocks["document"][1])
    found, unit = {}, 10 ** document["decimals"]
    for name, (_, text) in blocks.items():
        if not (match := re.fullmatch(r"weights-(\d+)-(\d+)", name)):
            continue
        layer = document["layers"][int(match[1])]
        width = len(document["sequences"][layer["columns"]])
        read = unpacked(text)
        rows = []
        for start in range(0, len(read), 2 * width):
            low, high = read[start : start + width], read[start + width : start + 2 * width]
            codes = [int.from_bytes(bytes(pair), "little", signed=True) for pair in zip(low, high, strict=True)]
            rows.append([code / unit if abs(code) <= 32764 else None for code in codes])
        assert len(rows) == len(document["sequences"][layer["rows"]])
        found[layer["layer"], int(match[2])] = rows
    return found


def to_three_decimals(value: float, unit: int = 1000) -> float:
    """The exact value of a binary number, rounded once: a tie to the even thousandth, or other unit."""
    return round(Fraction(value) * unit) / unit


def odd_trace() -> Trace:
    """One head whose recorded weights are everything that a cell can be; the third row may attend to nothing."""
    allowed = np.ones((4, 4), bool)
    allowed[:, 3] = False
    allowed[3] = False
    words = tokens_of("zero", "odd", "beyond", "blind")
    return trace_of(watched(np.log(np.abs(ODD) + 1), ODD, allowed), queries=words, keys=words, text="odd")


def random_trace(layers: int, heads: int, length: int, kind: str = "self") -> Trace:
    """Attention of all temperatures, from diffuse to sharp, as a trained model has it."""
    generator = np.random.default_rng(0)
    made = []
    for layer in range(layers):
        q, k, v = generator.standard_normal((3, heads, length, 16), np.float32)
        made.append(layer_of(q * (1 + layer % 6), k, v, scale=0.25, layer=layer, kind=kind))
    words = tokens_of(*(f"w{index}" for index in range(length)))
    return Trace(Provenance("file", layers=layers), words, words, tuple(made), text="random")


def pictured_trace(mask: str = "causal", has_picture: bool = True) -> Trace:
    """Two tiles side by side that leave the right edge out, an overview in another order, and text on both sides."""
    generator = np.random.default_rng(3)
    q, k, v = generator.standard_normal((3, 3, 15, 8), np.float32)
    words = tokens_of("<s>", *["<image>"] * 8, "[NL]", *["<image>"] * 2, "red", "dot", "?")
    left, right = ImageGrid(1, 2, 2, box=(0, 0, 24, 40)), ImageGrid(5, 2, 2, box=(24, 0, 48, 40), note="merged")
    overview = ImageGrid(10, 1, 2, order=(1, 0), is_overview=True)
    pixels = generator.integers(0, 256, (40, 60, 3), np.uint8)
    pictures = (Picture("dot.png", 60, 40, pixels),) if has_picture else ()
    layer = layer_of(q * 3, k, v, mask=mask, scale=0.5)
    return Trace(
        Provenance("file"), words, words, (layer,), text="red dot", pictures=pictures, grids=(left, right, overview)
    )


def written(trace: Trace, path: Path, view: View | None = None) -> Path:
    path.write_text("".join(write_page(trace, view or View(), "viridis")), encoding="utf-8")
    return path


def page_of(attn: Callable[..., Any], path: Path, *arguments: str | Path) -> str:
    ran = attn("inspect", *arguments, "-o", path)
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    return path.read_text(encoding="utf-8")


def document_of(page: str) -> Any:
    return json.loads(Elements(page).by_id()["document"][1])
