"""Reads saved traces, and dumps of tensors from other programs, which are safetensors files.

Tensors are named `layers.<index>.<kind>.<q|k|v|mask|bias|sinks|inputs|out_projection|out_bias|scores|weights>`; the
metadata key `attncli` holds everything else as JSON. A mask that is a rule stays one, in the JSON.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError

from attncli.errors import InputError, UsageError
from attncli.files import Tensors, check_file
from attncli.masks.expressions import ArrayMask, Mask, RuleMask
from attncli.masks.parser import parse
from attncli.text import visible
from attncli.trace.byte_pieces import decode_pieces
from attncli.trace.dump import checked_cells, read_dump
from attncli.trace.layer import ARRAYS, LayerTrace, Proof
from attncli.trace.layout import MOST_SIDE, ImageGrid, Picture
from attncli.trace.save import PIXELS, tensor_name
from attncli.trace.selection import Indices, layer_and_heads
from attncli.trace.tokens import Token, Tokens
from attncli.trace.trace import SCHEMA, Provenance, Trace, texts_of

_SPELLED = ("fill", "max_abs_error", "magnitude")  # as texts, as JSON has neither infinity nor NaN

# Defaults for files of earlier versions.
_LONGEST_NAME = 4096
_SINCE = {"generated": 0, "word": None, **Proof._field_defaults}
_KINDS = {"source": ("toy", "pretrained", "module", "file"), "layer": ("self", "encoder", "decoder", "cross")}


class _Rule(NamedTuple):
    """A mask that is a rule, in the JSON."""

    expression: str
    past: int


class _Drawn(NamedTuple):
    """Details of a toy layer's source, besides the fields of `Provenance`."""

    parameters: int
    rng: str
    init: str
    project: str
    positions: str
    d_model: int
    vocab_size: int


def load(
    path: str | Path,
    layer: str | int | Iterable[int] | Indices | None = None,
    head: str | int | Iterable[int] | None = None,
    kind: str | None = None,
) -> Trace:
    """Read a saved trace, or a plain dump of `q`, `k` and perhaps `v`, `mask`, `bias`.

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
    try:
        check_file(path)
    except FileNotFoundError:
        raise InputError(f"trace file {name} does not exist") from None
    except OSError as error:
        raise InputError(f"{name} {error.strerror or error} and not a trace file") from None
    try:
        tensors = Tensors(Path(path))
        read = _read_trace if "attncli" in tensors.metadata else read_dump
        layer, head = layer_and_heads(layer, head)
        trace = read(tensors, Indices.of("layer", layer), Indices.of("head", head))
        selected = tuple(layer for layer in trace.layers if kind in (None, layer.kind))
        if not selected:
            kinds = ", ".join(dict.fromkeys(layer.kind for layer in trace.layers))
            raise UsageError(f"--kind {visible(str(kind))}: {name} has {kinds} attention there")
        return replace(trace, layers=selected)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    except (SafetensorError, OSError) as error:
        raise InputError(f"{name} is not a complete safetensors file: {visible(str(error))}") from None
    except RecursionError:
        raise InputError(f"{name} holds no readable trace: its JSON is nested too deeply") from None
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{name} holds no readable trace: {visible(str(error))}") from None


def _read_trace(tensors: Tensors, layers: Indices, heads: Indices) -> Trace:
    header = {"pictures": [], "grids": []} | _object(_loads(tensors.metadata["attncli"]), "header")
    if header.get("schema") != SCHEMA:
        raise InputError(
            f"the trace file has schema {visible(str(header.get('schema')))}; this version of attn reads {SCHEMA}"
        )
    source = _source(_shown(header.get("source")))
    entries = [_object(_shown(entry), "layer") for entry in _list(header, "layers")]
    fields = [_plain(LayerTrace, entry, "layer") for entry in entries]
    names = [(each["layer"], each["kind"]) for each in fields]
    if len(set(names)) < len(names) or any(not 0 <= index < source.layers for index, _ in names):
        raise ValueError("a layer is stored twice, or lies beyond the last layer")
    recorded = list(dict.fromkeys(index for index, _ in names))
    chosen = recorded if layers.parts is None else layers.resolve(source.layers, "the saved model")
    missing = [str(layer) for layer in chosen if layer not in recorded]
    if missing:
        there = ", ".join(map(str, recorded))
        raise UsageError(f"the trace file does not hold layer {', '.join(missing)}; it holds {there}")
    of_trace = _plain(Trace, header, "header")
    of_queries, of_keys = texts_of(of_trace["text"], of_trace["pair"], of_trace["target"])
    queries, keys = _list(header, "query_tokens"), _list(header, "key_tokens")
    query_tokens = decode_pieces(_tokens(queries), *of_queries)
    is_one = (queries, of_queries) == (keys, of_keys)
    key_tokens = query_tokens if is_one else decode_pieces(_tokens(keys), *of_keys)
    both = list(zip(entries, fields, strict=True))
    notes = _shown(_list(header, "notes"))
    if not all(isinstance(each, str) for each in notes):
        raise TypeError("'notes' of its header are not text")
    pictures = tuple(_picture(tensors, *each) for each in enumerate(_list(header, "pictures")))
    grids = tuple(map(_grid, _list(header, "grids")))
    if any(grid.box is not None and grid.image >= len(pictures) for grid in grids):
        raise ValueError("a grid lies in a picture that is not there")
    return Trace(
        source=source,
        query_tokens=query_tokens,
        key_tokens=key_tokens,
        layers=tuple(_layer(tensors, *each, heads) for index in chosen for each in both if each[1]["layer"] == index),
        notes=tuple(notes),
        pictures=pictures,
        grids=grids,
        **of_trace,
    )


def _picture(tensors: Tensors, number: int, found: Any) -> Picture:
    fields = _plain(Picture, _shown(found), "picture")
    pixels = tensors.read(PIXELS.format(number))
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or not 0 < pixels.size <= MOST_SIDE**2 * 3:
        raise ValueError(f"picture {number} is {pixels.dtype} of shape {list(pixels.shape)}")
    picture = Picture(fields["name"][-_LONGEST_NAME:], fields["width"], fields["height"], pixels)
    if not Picture.is_sensible_size(fields["width"], fields["height"]):
        raise ValueError(f"picture {number} has {picture.width} × {picture.height} pixels")
    return picture


def _grid(found: Any) -> ImageGrid:
    fields, box = _plain(ImageGrid, _shown(found), "grid"), found.get("box")
    return ImageGrid(**fields, box=box and tuple(box), side=found.get("side"), order=tuple(found.get("order", ())))


def _loads(text: str) -> Any:
    """Read JSON whose numbers are finite and of a sensible size."""

    def number(digits: str) -> float:
        is_whole = digits.lstrip("-").isdigit()
        if len(digits) > 18 if is_whole else not math.isfinite(float(digits)):
            raise ValueError(f"it holds the number {visible(digits[:20])}")
        return int(digits) if is_whole else float(digits)

    return json.loads(text, parse_float=number, parse_int=number, parse_constant=number)


# JSON types of a class's annotations; a field of another type has a reader of its own.
_TYPES = {"str": str, "int": int, "float": float, "bool": bool, "None": type(None)}


def _plain(of: type, found: Any, what: str) -> dict[str, Any]:
    """Return the plain fields of a class from a JSON object, and check their types.

    A file is not trusted, however it was made: each field has to be there, of the type of the class, and the kind of a
    source or a layer has to exist.
    """
    document = _object(found, what)
    read = {}
    for name, types in _plain_types(of):
        value = document.get(name, _SINCE.get(name, document))
        if (type(value) is int and float in types) or (type(value) is str and name in _SPELLED):
            value = float(value)
        if type(value) not in types:  # a bool is not an int here
            raise TypeError(f"'{name}' of its {what} is missing or of the wrong type")
        read[name] = value
    if "kind" in read and read["kind"] not in _KINDS[what]:
        raise ValueError(f"the kind of its {what} is '{read['kind']}'; expected one of {', '.join(_KINDS[what])}")
    return read


@cache
def _plain_types(of: type) -> list[tuple[str, list[type]]]:
    """Return the plain fields of a class, and the types of each."""
    types_by_name = []
    for name, annotation in of.__annotations__.items():
        spelling = str(getattr(annotation, "__forward_arg__", annotation))  # a NamedTuple wraps it
        types = [_TYPES.get(each) for each in spelling.split(" | ")]
        if None not in types:
            types_by_name.append((name, [each for each in types if each is not None]))
    return types_by_name


def _object(found: Any, what: str) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise TypeError(f"its {what} is no object")
    return found


def _shown(found: Any) -> Any:
    """Escape terminal control characters in all texts of a JSON value (not used for sentences and tokens)."""
    if isinstance(found, str):
        return visible(found)
    if isinstance(found, dict):
        return {visible(name): _shown(value) for name, value in found.items()}
    return [_shown(value) for value in found] if isinstance(found, list) else found


def _list(header: Mapping[str, Any], name: str) -> list[Any]:
    if not isinstance(values := header.get(name), list):
        raise TypeError(f"'{name}' of its header is missing or no list")
    return values


def _source(recorded: Any) -> Provenance:
    fields = _plain(Provenance, recorded, "source")
    if fields["kind"] == "toy":
        _plain(_Drawn, recorded, "source")
    return Provenance(**fields, details={name: value for name, value in recorded.items() if name not in fields})


def _tokens(recorded: list[Any]) -> Tokens:
    # The shown form of a piece follows from the text.
    tokens = Tokens(Token(**_plain(Token, {**_object(token, "token"), "shown": None}, "token")) for token in recorded)
    if [token.index for token in tokens] != list(range(len(tokens))) or {token.segment for token in tokens} - {0, 1}:
        raise ValueError("its tokens are not in order, or of more than two texts")
    return tokens


def _layer(tensors: Tensors, entry: dict[str, Any], fields: dict[str, Any], heads: Indices) -> LayerTrace:
    prefix = f"layers.{fields['layer']}.{fields['kind']}."
    stored = {name: prefix + tensor_name(name) for name in ARRAYS}
    arrays = {name: tensors.read(tensor) for name, tensor in stored.items() if tensor in tensors.types}
    integers = [tensor_name(name) for name, array in arrays.items() if array.dtype.kind != "f"]
    if integers:
        raise TypeError(f"'{integers[0]}' holds no floats")
    cells = _cells(arrays)
    mask: Mask
    if prefix + "mask" in tensors.types:
        mask = ArrayMask(checked_cells("mask", tensors.read(prefix + "mask"), cells))
    else:
        mask = _saved_mask(entry.get("mask"), cells)
    chosen = heads.resolve(cells[0], f"layer {fields['layer']}")
    fields_of_layer: dict[str, Any] = dict.fromkeys("qkv") | fields | arrays
    is_proven = entry.get("proof", entry) is not None
    proof = Proof(**_plain(Proof, entry.get("proof"), "proof")) if is_proven else None
    return LayerTrace(**fields_of_layer, mask=mask, heads=chosen, proof=proof)


def _cells(arrays: Mapping[str, np.ndarray[Any, Any]]) -> tuple[int, int, int]:
    """Return H, Q and K of a saved layer."""
    if "recorded_weights" in arrays:
        heads, queries, keys = arrays["recorded_weights"].shape
        return heads, queries, keys
    q, k = arrays["q"], arrays["k"]
    if q.ndim != 3 or k.ndim != 3:
        raise ValueError(f"q has shape {list(q.shape)} and k {list(k.shape)}; expected [heads, positions, width]")
    return len(q), q.shape[1], k.shape[1]


def _saved_mask(recorded: Any, cells: tuple[int, int, int]) -> RuleMask:
    rule = _plain(_Rule, recorded, "mask")
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
