"""The interactive page: one HTML file with its data, style and script in it, without any network access.

The script and the style are files of this package; a page is these files, one JSON block that lists its tokens, layers
and heads, and a block of packed numbers for every head (`attncli.formats.page.packing`).
Weights are kept to three decimals, and over pictures, whose many cells share them, to four. Blocks are written one
after the other, so no head but one is ever expanded.
"""

from __future__ import annotations

import hashlib
import html
import json
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from attncli.analysis.metrics import HeadKey, Label, labels_of_heads, most_telling
from attncli.errors import InputError, UsageError
from attncli.formats.page.packing import odd_codes, pack_halves, pack_mask, pack_pixels, pack_weights
from attncli.render.heatmap import ticks
from attncli.render.palette import COLORMAPS, DEFAULT_RAMP, ODD_COLORS, WIDEST, Palette, Scale
from attncli.render.picture import canvases, facts_of, resized
from attncli.render.sections import headline, proof_line
from attncli.text import visible
from attncli.trace.tokens import Tokens
from attncli.trace.view import Cells, Ramp, View

if TYPE_CHECKING:
    from jaxtyping import UInt8

    from attncli.trace.layer import LayerTrace
    from attncli.trace.trace import Trace

SCHEMA = "attncli.page/1"

# One script: each file uses what the ones before it define.
_SCRIPTS = ["data", "colors", "heatmap", "sentence", "picture", "thumbnails", "cell", "link", "main"]
_ALWAYS = frozenset({"tokens", "shapes", "mask", "weights", "heatmap", "proof"})
_LETTERS = 38  # that stand beside each other below the colours
_LONGEST_SIDE = 512  # pixels of a picture: at most a megabyte of the page each
_MOST_CELLS = 4096 * 4096  # of one head: a browser's canvas ends at 16384 pixels, and each of them is held as a number


def check_page(show: frozenset[str] | None) -> None:
    """Make sure that a page has the parts of `--show`.

    Raises:
        UsageError: it does not.
    """
    parts = (show or frozenset()) - _ALWAYS
    if rest := parts - {"q", "k"}:
        raise UsageError(
            f"--show {','.join(sorted(rest))} does not apply to html; its page shows weights and mask, and q and "
            "k with --show q,k"
        )
    if len(parts) == 1:
        raise UsageError("q×k needs both; give --show q,k")


def write_page(trace: Trace, view: View, colormap: str) -> Iterator[str]:
    """Write the page of a trace.

    Queries and keys are in it only if they are to be shown.

    Raises:
        InputError: a head has more cells than a browser can draw.
    """
    layers = [(layer, view.cells(trace, layer)) for layer in trace.layers]
    for layer, cells in layers:
        if len(cells.rows) * len(cells.columns) > _MOST_CELLS:
            raise InputError(
                f"layer {layer.layer} has {len(cells.rows)} × {len(cells.columns)} cells a head; a browser draws at "
                "most 4096 × 4096. Choose with --query and --key"
            )
    style, script = _asset("style.css"), "\n".join(_asset(f"{name}.js") for name in _SCRIPTS)
    opening, closing = _asset("template.html").split("<!-- data -->")
    title = visible(f"{trace.text or trace.target or 'attention'} · attn")
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; base-uri 'none'; form-action 'none'"
    )
    parts = {"policy": policy, "title": html.escape(title), "style": style}
    # At once: a title may hold such a name.
    yield re.sub(r"\{(policy|title|style)\}", lambda part: parts[part[1]], opening)
    document = _document(trace, view, layers, colormap)
    yield f'<script type="application/json" id="document">{_json(document)}</script>\n'
    for number, picture in enumerate(trace.pictures):
        yield from _block(f"picture-{number}", pack_pixels(_pixels(picture.pixels)))
    masks: dict[tuple[str, ...], str] = {}
    has_products = view.show is not None and {"q", "k"} <= view.show
    for place, (layer, cells) in enumerate(layers):
        has_both = has_products and not {"q", "k"} & layer.missing
        yield from _layer(place, layer, cells, masks, has_both, document["decimals"])
    yield closing.replace("{script}", script)


def _asset(name: str) -> str:
    return (files(__name__) / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """Return the hash that allows this one inline element, and no other, in a content security policy."""
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _json(value: Any) -> str:
    """Return JSON that cannot end its HTML element; everything beyond ASCII is escaped already."""
    text = json.dumps(value, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _document(trace: Trace, view: View, layers: list[tuple[LayerTrace, Cells]], colormap: str) -> dict[str, Any]:
    """Return the JSON block of a page; it has the tokens once, and layers name the list of their rows and columns."""
    sequences: list[list[dict[str, Any]]] = []

    def place(layer: LayerTrace, role: Literal["query", "key"], tokens: Tokens, chosen: list[int]) -> int:
        names = trace.layout(role).cells if layer.kind in ("self", "cross") else {}
        predicted = trace.predicted if layer.kind == "self" and role == "query" else {}
        arrows = {index: f" → {predicted[index].label}" for index in chosen if index in predicted}
        listed = [
            {
                "index": token.index,
                "label": names.get(token.index, token.label) + arrows.get(token.index, ""),
                "segment": token.segment,
            }
            for token in map(tokens.__getitem__, chosen)
        ]
        if listed not in sequences:
            sequences.append(listed)
        return sequences.index(listed)

    labels, decimals = labels_of_heads(trace), 4 if trace.has_image_keys else 3
    texts = {"text": trace.text, "pair": trace.pair, "target": trace.target}
    return {
        "schema": SCHEMA,
        "title": headline(trace).plain.replace("\n", " · "),
        **{name: None if text is None else visible(text) for name, text in texts.items()},
        "start": _start(trace, layers, labels),
        "decimals": decimals,
        **_pictures(trace),
        "ramp": view.ramp or DEFAULT_RAMP,
        "widest": WIDEST,
        "colormap": colormap,
        "colormaps": {name: Palette("truecolor", name).rgb().tolist() for name in COLORMAPS},
        "ticks": {ramp: ticks(Scale.up_to(1.0, ramp), _LETTERS) for ramp in get_args(Ramp)},
        "odd": [
            {"code": code, "glyph": glyph, "name": name, "color": list(bytes.fromhex(ODD_COLORS[mark]))}
            for code, mark, glyph, name in odd_codes(decimals)
        ],
        "layers": [
            {
                "layer": layer.layer,
                "kind": layer.kind,
                "heads": list(layer.heads),
                "rows": place(layer, "query", cells.row_tokens, cells.rows),
                "columns": place(layer, "key", cells.column_tokens, cells.columns),
                "mask": visible(str(layer.mask)),
                "scale": layer.scale,
                "has_bias": layer.bias is not None,
                "softcap": layer.softcap,
                "proof": proof_line(layer).plain if layer.proof else "proof: not run",
                "labels": {head: named[0].name for head in layer.heads if (named := labels.get(_key(layer, head)))},
            }
            for layer, cells in layers
        ],
        "sequences": sequences,
    }


def _pictures(trace: Trace) -> dict[str, Any]:
    """Return the pictures, and the places of the keys that are cells of them."""
    layout = trace.layout("key")
    drawn = [
        {
            "picture": None if canvas.picture is None else canvas.number,
            "size": canvas.size,
            "overview": canvas.is_overview,
            "grids": [
                {
                    "box": grid.box_in(*canvas.size), "rows": grid.rows, "columns": grid.columns,
                    "positions": grid.positions.ravel().tolist(), "queries": grid.side == "both",
                }
                for grid in canvas.grids
            ],
        }
        for canvas in canvases(layout, has_overview=True)
    ]  # fmt: skip
    pictures = [{"name": visible(each.name), "pixels": _pixels(each.pixels).shape[1::-1]} for each in trace.pictures]
    return {"pictures": pictures, "canvases": drawn, "facts": [visible(fact) for fact in facts_of(layout.grids)]}


def _pixels(pixels: UInt8[np.ndarray, "h w 3"]) -> UInt8[np.ndarray, "h w 3"]:
    """Return a picture of at most `_LONGEST_SIDE` pixels a side."""
    share = min(_LONGEST_SIDE / max(pixels.shape[:2]), 1)
    rows, columns = (max(round(size * share), 1) for size in pixels.shape[:2])
    return np.rint(resized(pixels, rows, columns)).astype(np.uint8)


def _start(
    trace: Trace, layers: list[tuple[LayerTrace, Cells]], labels: dict[HeadKey, tuple[Label, ...]]
) -> dict[str, int]:
    """Return the head with the strongest label, and the last word among its queries, or the first one."""
    heads = {_key(layer, head): (place, head) for place, (layer, _) in enumerate(layers) for head in layer.heads}
    ((place, head),) = (heads[head] for head in most_telling([*heads], labels, 1))
    layer, cells = layers[place]
    patches, tokens = trace.layout("query").cells, trace.sides(layer)[0]
    words = [row for row, index in enumerate(cells.rows) if not tokens[index].special and index not in patches]
    return {"place": place, "head": head, "row": words[-1] if words else 0}


def _key(layer: LayerTrace, head: int) -> HeadKey:
    return layer.layer, layer.kind, head


def _layer(
    place: int,
    layer: LayerTrace,
    cells: Cells,
    masks: dict[tuple[str, ...], str],
    has_products: bool,
    decimals: int,
) -> Iterator[str]:
    """Yield the blocks of a layer; a mask or a key that heads share is written once, before the first of them."""
    keys: set[int] = set()
    for index, blind in zip(layer.heads, layer.fully_masked(cells.rows), strict=True):
        head = layer.head(index, cells.rows)
        mask = tuple(pack_mask(block.mask[:, cells.of_columns] for block in head.blocks()))
        if mask not in masks:
            masks[mask] = f"mask-{len(masks)}"
            yield from _block(masks[mask], mask)
        if has_products:
            yield from _block(f"query-{place}-{index}", pack_halves(head.q))
            if head.key_head not in keys:
                keys.add(head.key_head)
                yield from _block(f"key-{place}-{head.key_head}", pack_halves(head.k[cells.of_columns]))
        weights = pack_weights((block.weights[:, cells.of_columns] for block in head.blocks()), decimals)
        links = f' data-mask="{masks[mask]}" data-key="key-{place}-{head.key_head}"'
        links += f' data-blind="{" ".join(map(str, blind.nonzero()[0]))}"'
        yield from _block(f"weights-{place}-{index}", weights, links)


def _block(name: str, packed: Iterable[str], links: str = "") -> Iterator[str]:
    """Yield an element that the browser keeps and neither draws nor runs."""
    yield f'<script type="text/plain" id="{name}"{links}>'
    yield from packed
    yield "</script>\n"
