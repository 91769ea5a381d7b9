"""Reads saved traces, captures, and dumps of tensors from other programs, which are safetensors files.

Tensors are named `layers.<index>.<kind>.<q|k|v|mask|bias|sinks|inputs|out_projection|out_bias|scores|weights>`; the
metadata key `attncli` holds everything else as JSON. A mask that is a rule stays one, in the JSON.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from attncli.errors import InputError, UsageError
from attncli.files import FLOATS, Tensors, opened_tensors
from attncli.masks.conventions import read_convention
from attncli.masks.expressions import ArrayMask, Atom, Expression, Mask, RuleMask, smallest
from attncli.masks.parser import parse
from attncli.text import layers_named, visible
from attncli.trace.capture import Capture, LayerCapture, is_capture, read_capture
from attncli.trace.layer import ARRAYS, LayerTrace, Proof
from attncli.trace.layout import MOST_SIDE, ImageGrid, Picture, parse_grids
from attncli.trace.selection import Indices, layer_and_heads
from attncli.trace.tokens import Token, Tokens, decode_pieces
from attncli.trace.trace import PIXELS, SCHEMA, Provenance, Trace, tensor_name, texts_of

_SPELLED = ("fill", "max_abs_error", "magnitude")  # as texts, as JSON has neither infinity nor NaN
_LONGEST_NAME = 4096
_KINDS = {"source": ("toy", "pretrained", "module", "file"), "layer": ("self", "encoder", "decoder", "cross")}
# JSON types of a class's annotations; a field of another type has a reader of its own.
_TYPES = {"str": str, "int": int, "float": float, "bool": bool, "None": type(None)}
_RULE = {"expression": "str", "past": "int"}  # a mask that is a rule
# Details of a toy layer's source, besides the fields of `Provenance`.
_TOY = dict.fromkeys(("rng", "init", "project", "positions"), "str")
_TOY |= dict.fromkeys(("parameters", "d_model", "vocab_size"), "int")


def load(
    path: str | Path,
    layer: str | int | Iterable[int] | Indices | None = None,
    head: str | int | Iterable[int] | None = None,
    kind: str | None = None,
) -> Trace:
    """Read a saved trace, a capture of an engine, or a plain dump of `q`, `k` and perhaps `v`, `mask`, `bias`.

    Only the tensors of the chosen layers are read.

    Args:
        path: a safetensors file. In a dump q is `[T, D]`, `[H, T, D]` or `[1, H, T, D]`, likewise k and v;
            metadata may hold `tokens` (a JSON list of strings) and `scale`.
        layer: the recorded layers to read; None is all of them.
        head: which heads to show and derive; None is all of them.
        kind: the only kind of attention to read; None is every kind.

    Raises:
        InputError: there is no such file, it is damaged, or it holds neither.
        UsageError: it lacks that layer or head.
    """
    name = visible(str(path))
    layer, head = layer_and_heads(layer, head)
    layers, heads = Indices.of("layer", layer), Indices.of("head", head)
    with opened_tensors(path) as tensors:
        if is_capture(tensors):
            trace = _trace_of_capture(read_capture(tensors, layers), heads)
        else:
            trace = (_read_trace if "attncli" in tensors.metadata else _read_dump)(tensors, layers, heads)
    selected = tuple(layer for layer in trace.layers if kind in (None, layer.kind))
    if not selected:
        kinds = ", ".join(dict.fromkeys(layer.kind for layer in trace.layers))
        raise UsageError(f"--kind {visible(str(kind))}: {name} has {kinds} attention there")
    return replace(trace, layers=selected)


def _read_trace(tensors: Tensors, layers: Indices, heads: Indices) -> Trace:
    header = {"pictures": [], "grids": []} | _object(_loads(tensors.metadata["attncli"]), "header")
    if header.get("schema") != SCHEMA:
        schema = f"schema {visible(str(header.get('schema')))}"
        raise InputError(f"the trace file has {schema}; this version of attn reads {SCHEMA}")
    source = _source(_escaped(header.get("source")))
    entries = [_object(_escaped(entry), "layer") for entry in _list(header, "layers")]
    fields = [_plain(LayerTrace, entry, "layer") for entry in entries]
    names = [(layer["layer"], layer["kind"]) for layer in fields]
    if len(set(names)) < len(names) or any(not 0 <= index < source.layers for index, _ in names):
        raise ValueError("a layer is stored twice, or lies beyond the last layer")
    recorded = list(dict.fromkeys(index for index, _ in names))
    chosen = recorded if layers.parts is None else layers.resolve(source.layers, "the saved model")
    if missing := [str(layer) for layer in chosen if layer not in recorded]:
        there = ", ".join(map(str, recorded))
        raise UsageError(f"the trace file does not hold layer {', '.join(missing)}; it holds {there}")
    of_trace = _plain(Trace, header, "header")
    of_queries, of_keys = texts_of(of_trace["text"], of_trace["pair"], of_trace["target"])
    queries, keys = _list(header, "query_tokens"), _list(header, "key_tokens")
    query_tokens = decode_pieces(_tokens(queries), *of_queries)
    is_one = (queries, of_queries) == (keys, of_keys)
    notes = _escaped(_list(header, "notes"))
    if not all(isinstance(note, str) for note in notes):
        raise TypeError("'notes' of its header are not text")
    pictures = tuple(_picture(tensors, *entry) for entry in enumerate(_list(header, "pictures")))
    grids = tuple(map(_grid, _list(header, "grids")))
    if any(grid.box is not None and grid.image >= len(pictures) for grid in grids):
        raise ValueError("a grid lies in a picture that is not there")
    both = list(zip(entries, fields, strict=True))
    stored = tuple(_layer(tensors, *layer, heads) for index in chosen for layer in both if layer[1]["layer"] == index)
    key_tokens = query_tokens if is_one else decode_pieces(_tokens(keys), *of_keys)
    more: dict[str, Any] = {"notes": tuple(notes), "pictures": pictures, "grids": grids}
    return Trace(source, query_tokens, key_tokens, stored, **more, **of_trace)


def _source(recorded: Any) -> Provenance:
    fields = _plain(Provenance, recorded, "source")
    _plain(_TOY if fields["kind"] == "toy" else {}, recorded, "source")
    return Provenance(**fields, details={name: value for name, value in recorded.items() if name not in fields})


def _tokens(recorded: list[Any]) -> Tokens:
    # The shown form of a piece follows from the text.
    tokens = Tokens(Token(**_plain(Token, {**_object(token, "token"), "shown": None}, "token")) for token in recorded)
    if [token.index for token in tokens] != list(range(len(tokens))) or {token.segment for token in tokens} - {0, 1}:
        raise ValueError("its tokens are not in order, or of more than two texts")
    return tokens


def _picture(tensors: Tensors, number: int, entry: Any) -> Picture:
    fields, pixels = _plain(Picture, _escaped(entry), "picture"), tensors.read(PIXELS.format(number))
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or not 0 < pixels.size <= MOST_SIDE**2 * 3:
        raise ValueError(f"picture {number} is {pixels.dtype} of shape {list(pixels.shape)}")
    if not Picture.is_sensible_size(fields["width"], fields["height"]):
        raise ValueError(f"picture {number} has {fields['width']} × {fields['height']} pixels")
    return Picture(fields["name"][-_LONGEST_NAME:], fields["width"], fields["height"], pixels)


def _grid(entry: Any) -> ImageGrid:
    fields, box = _plain(ImageGrid, _escaped(entry), "grid"), entry.get("box")
    return ImageGrid(**fields, box=box and tuple(box), side=entry.get("side"), order=tuple(entry.get("order", ())))


def _layer(tensors: Tensors, entry: dict[str, Any], fields: dict[str, Any], heads: Indices) -> LayerTrace:
    prefix = f"layers.{fields['layer']}.{fields['kind']}."
    stored = {name: prefix + tensor_name(name) for name in ARRAYS}
    arrays = {name: tensors.read(tensor) for name, tensor in stored.items() if tensor in tensors.types}
    if integers := [tensor_name(name) for name, array in arrays.items() if array.dtype.kind != "f"]:
        raise TypeError(f"'{integers[0]}' holds no floats")
    weights = arrays.get("recorded_weights")
    q, k = (arrays["q"], arrays["k"]) if weights is None else (weights, weights.swapaxes(1, 2))
    if q.ndim != 3 or k.ndim != 3:
        raise ValueError(f"q has shape {list(q.shape)} and k {list(k.shape)}; expected [heads, positions, width]")
    cells = (len(q), q.shape[1], k.shape[1])
    mask: Mask
    if prefix + "mask" in tensors.types:
        mask = ArrayMask(_checked_cells("mask", tensors.read(prefix + "mask"), cells))
    else:
        mask = _rule_mask(_plain(_RULE, entry.get("mask"), "mask"), cells)
    proof = entry.get("proof", entry)
    recorded: dict[str, Any] = dict.fromkeys("qkv") | fields | arrays
    recorded["proof"] = None if proof is None else Proof(**_plain(Proof, proof, "proof"))
    return LayerTrace(**recorded, mask=mask, heads=heads.resolve(cells[0], f"layer {fields['layer']}"))


def _rule_mask(rule: dict[str, Any], cells: tuple[int, int, int]) -> RuleMask:
    try:
        expression = parse(rule["expression"], allow_files=False)
    except UsageError as error:
        raise ValueError(str(error)) from None
    heads, queries, keys = cells
    if not 0 <= rule["past"] < 2**31:
        raise ValueError(f"its mask has past {rule['past']}")
    mask = RuleMask(expression, queries, keys, heads, rule["past"])
    mask.rows([0], np.arange(0))  # refuses a mask that does not fit these tokens
    return mask


def _checked_cells(name: str, array: np.ndarray[Any, Any], cells: tuple[int, int, int]) -> np.ndarray[Any, Any]:
    """Return booleans over all cells, `[1 or H, Q, K]`."""
    heads, queries, keys = cells
    if array.dtype != bool or array.shape not in ((1, queries, keys), (heads, queries, keys)):
        raise InputError(
            f"{name} is {array.dtype} of shape {list(array.shape)}; expected booleans [1 or {heads}, {queries}, {keys}]"
        )
    return array


def _trace_of_capture(capture: Capture, heads: Indices) -> Trace:
    if capture.rotated == "before":
        raise InputError("its q and k are not rotated yet; give the model that rotates them: -m MODEL")
    layers = [captured_attention(index, layer, heads) for index, layer in capture.layers.items()]
    source = Provenance("file", dtype=capture.dtype, layers=max(capture.layers) + 1)
    is_masked = all(layer.mask is not None for layer in capture.layers.values())
    notes = [] if is_masked else ["the capture holds no mask; attention here is causal"]
    return captured_trace(source, capture.tokens, layers, notes)


def captured_trace(source: Provenance, tokens: Tokens, layers: Sequence[LayerTrace], notes: Sequence[str]) -> Trace:
    """Return the trace of captured layers; their queries are the last of the tokens."""
    queries = tokens[len(tokens) - layers[0].num_queries :]
    query_tokens = Tokens(replace(token, index=index) for index, token in enumerate(queries))
    odd = [layer.layer for layer in layers if not all(np.isfinite(getattr(layer, name)).all() for name in "qkv")]
    marked = f"{layers_named(odd)} of the capture: NaN or infinite numbers; what follows from them carries their mark"
    return Trace(source, query_tokens, tokens, tuple(layers), notes=(*notes, *[marked] * bool(odd)))


def captured_attention(
    index: int,
    layer: LayerCapture,
    heads: Indices,
    rule: Expression = Atom("causal"),  # noqa: B008  it is immutable
    scale: float | None = None,
    softcap: float | None = None,
) -> LayerTrace:
    """Return the attention of q and k; the rule of the mask and the scale are for a capture that lacks its own."""
    if layer.q is None or layer.k is None:
        raise InputError(f"layer {index} holds no q and k; give the model that makes them of its input: -m MODEL")
    (count, queries, width), keys = layer.q.shape, layer.k.shape[1]
    if queries > keys:
        raise InputError(f"layer {index} has {queries} queries and {keys} keys; expected a key for each query")
    mask: Mask = RuleMask(rule, queries, keys, count, keys - queries)
    if layer.mask is not None:
        planes = layer.mask if layer.mask.ndim == 3 else layer.mask[None]
        mask = smallest(_checked_cells(f"layers.{index}.mask", planes, (count, queries, keys)), count)
    v = np.zeros((*layer.k.shape[:2], 0), np.float32) if layer.v is None else layer.v
    scale = layer.scale if layer.scale is not None else width**-0.5 if scale is None else scale
    kind, chosen = "self" if queries == keys else "cross", heads.resolve(count, f"layer {index}")
    return LayerTrace(index, kind, layer.q, layer.k, v, scale, mask, chosen, softcap=softcap)


def _read_dump(tensors: Tensors, layers: Indices, heads: Indices) -> Trace:
    """Return the trace of a dump."""
    names, metadata = tensors.types.keys(), tensors.metadata
    if not {"q", "k"} <= names:
        held = ", ".join(sorted(map(visible, names))[:8]) or "no tensors"
        raise InputError(f"it holds {held}; expected a saved trace, or tensors q and k")
    arrays: dict[str, Any] = {
        name: _heads_first(name, tensors.read(name)) for name in ("q", "k", "v", "bias") if name in names
    }
    notes = [
        f"{name} holds NaN or infinite numbers; what follows from them carries their mark"
        for name, array in arrays.items()
        if not np.isfinite(array).all()
    ]
    if unread := sorted(map(visible, names - {"q", "k", "v", "mask", "bias"})):
        notes.append(f"of its tensors {', '.join(unread[:5])} are not read; a dump is q, k, v, mask and bias")
    # Without values there are no outputs; a width of zero says so in every shape.
    arrays.setdefault("v", np.zeros((*arrays["k"].shape[:2], 0), np.float32))
    num_heads, num_queries, width = arrays["q"].shape
    num_keys = arrays["k"].shape[1]
    layers.resolve(1, "a dump of q and k")
    cells = (num_heads, num_queries, num_keys)
    mask: Mask = RuleMask(Atom("full"), num_queries, num_keys, num_heads)
    if "mask" in names:
        values = tensors.read("mask")
        allowed = read_convention(values.reshape((-1, *values.shape[-2:])), "the mask of the dump", "sdpa").allowed
        mask = smallest(_checked_cells("mask", allowed, cells), num_heads)
    if "bias" in arrays and (forbidden := np.isneginf(arrays["bias"])).any():  # a mask by another name
        allowed = mask.rows(list(range(num_heads)), np.arange(num_queries)) & ~forbidden
        mask = ArrayMask(_checked_cells("mask", allowed, cells))
        arrays["bias"] = np.where(forbidden, 0, arrays["bias"])
    try:
        scale = float(metadata.get("scale", width**-0.5))
    except ValueError:
        raise InputError(f"its metadata has scale '{visible(metadata['scale'])}'; expected a number") from None
    kind, chosen = "self" if num_queries == num_keys else "cross", heads.resolve(num_heads, "the dump")
    layer = LayerTrace(0, kind, **arrays, scale=scale, mask=mask, heads=chosen)
    tokens = _labelled_tokens(metadata.get("tokens"), num_keys)
    # A cache of keys is longer than its queries, which are its last positions.
    queries = tokens[num_keys - num_queries :] if num_queries <= num_keys else _labelled_tokens(None, num_queries)
    query_tokens = Tokens(replace(token, index=index) for index, token in enumerate(queries))
    grids: tuple[ImageGrid, ...] = ()
    if "grid" in metadata:
        prefix = metadata.get("prefix", "0")
        if not (prefix.isascii() and prefix.isdecimal() and len(prefix) < 9):
            raise InputError(f"its metadata has prefix '{visible(prefix)}'; expected a number of positions")
        grids = parse_grids(metadata["grid"], int(prefix), 1, num_queries, num_keys, "grid")
    source = Provenance("file", dtype=FLOATS.get(tensors.types["q"], tensors.types["q"]))
    return Trace(source, query_tokens, tokens, (layer,), notes=tuple(notes), grids=grids)


def _labelled_tokens(text: str | None, count: int) -> Tokens:
    try:
        labels = [str(index) for index in range(count)] if text is None else json.loads(text)
    except ValueError:
        labels = None
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels) or len(labels) != count:
        raise InputError(f"its metadata 'tokens' is not a JSON list of {count} strings, one for each position of k")
    # The same text is the same token; its id is the place where it first stands.
    first = {label: count - 1 - index for index, label in enumerate(reversed(labels))}
    return Tokens(Token(index, first[label], label, None, None) for index, label in enumerate(labels))


def _heads_first(name: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if array.ndim == 4 and len(array) == 1:
        array = array[0]
    if array.ndim == 2:
        array = array[None]
    if array.ndim != 3 or array.dtype.kind != "f":
        raise InputError(
            f"{name} is {array.dtype} of shape {list(array.shape)}; expected floats [T, D], [H, T, D] or [1, H, T, D]"
        )
    return array if array.dtype == np.float64 else array.astype(np.float32)


# --- JSON that is not trusted, however it was made -------------------------------------------------------------------


def _loads(text: str) -> Any:
    """Read JSON whose numbers are finite and of a sensible size."""

    def number(digits: str) -> float:
        is_whole = digits.lstrip("-").isdigit()
        if len(digits) > 18 if is_whole else not math.isfinite(float(digits)):
            raise ValueError(f"it holds the number {visible(digits[:20])}")
        return int(digits) if is_whole else float(digits)

    return json.loads(text, parse_float=number, parse_int=number, parse_constant=number)


def _plain(of: type | Mapping[str, str], entry: Any, what: str) -> dict[str, Any]:
    """Return the plain fields of a class from a JSON object, each there and of the type that the class gives it."""
    document, fields = _object(entry, what), {}
    for name, annotation in (of if isinstance(of, Mapping) else of.__annotations__).items():
        # A NamedTuple wraps its annotations.
        types = [_TYPES.get(kind) for kind in str(getattr(annotation, "__forward_arg__", annotation)).split(" | ")]
        if None in types:
            continue
        value = document.get(name, document)
        if (type(value) is int and float in types) or (type(value) is str and name in _SPELLED):
            value = float(value)
        if type(value) not in types:  # a bool is not an int here
            raise TypeError(f"'{name}' of its {what} is missing or of the wrong type")
        fields[name] = value
    if "kind" in fields and fields["kind"] not in _KINDS[what]:
        raise ValueError(f"the kind of its {what} is '{fields['kind']}'; expected one of {', '.join(_KINDS[what])}")
    return fields


def _object(entry: Any, what: str) -> dict[str, Any]:
    if not isinstance(entry, dict):
        raise TypeError(f"its {what} is no object")
    return entry


def _escaped(value: Any) -> Any:
    """Escape terminal control characters in all texts of a JSON value (not used for sentences and tokens)."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, dict):
        return {visible(name): _escaped(item) for name, item in value.items()}
    return [_escaped(item) for item in value] if isinstance(value, list) else value


def _list(header: Mapping[str, Any], name: str) -> list[Any]:
    if not isinstance(values := header.get(name), list):
        raise TypeError(f"'{name}' of its header is missing or no list")
    return values
