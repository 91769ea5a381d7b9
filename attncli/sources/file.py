"""Saved traces, and dumps of somebody else's tensors: safetensors in, safetensors out.

Tensors are named `layers.<index>.<kind>.<q|k|v|mask|bias|sinks|inputs|out_projection|out_bias>`; the metadata key
`attncli` holds everything else as JSON. A mask that is a rule stays one, in the JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from attncli.errors import InputError
from attncli.files import written_aside
from attncli.masks.algebra import ArrayMask, Atom, Mask, RuleMask, parse
from attncli.masks.files import as_allowed
from attncli.selection import Indices
from attncli.tokens import Token, Tokens, visible
from attncli.trace import SCHEMA, LayerTrace, Proof, Source, Trace

_ARRAYS = ("q", "k", "v", "bias", "sinks", "inputs", "out_projection", "out_bias")
_NUMBERS = ("layer", "kind", "scale", "softcap", "capture")


def save(trace: Trace, path: str | Path) -> None:
    """Write a trace to a safetensors file; see `Trace.save`.

    Raises:
        InputError: the file cannot be written.
    """
    from safetensors.numpy import save_file

    tensors: dict[str, np.ndarray[Any, Any]] = {}
    layers = []
    for layer in trace.layers:
        prefix = f"layers.{layer.layer}.{layer.kind}."
        arrays = {name: getattr(layer, name) for name in _ARRAYS}
        entry: dict[str, Any] = {name: getattr(layer, name) for name in _NUMBERS}
        entry["fill"] = str(layer.fill)  # −inf is no JSON number
        entry["proof"] = layer.proof and asdict(layer.proof)
        if isinstance(layer.mask, RuleMask) and not layer.mask.expression.reads_files:
            entry["mask"] = {"expression": str(layer.mask.expression), "past": layer.mask.past}
        else:
            everything = layer.mask.rows(list(range(layer.num_heads)), np.arange(layer.num_queries))
            arrays["mask"] = everything
        tensors |= {prefix + name: np.ascontiguousarray(a) for name, a in arrays.items() if a is not None}
        layers.append(entry)
    header = {
        "schema": SCHEMA,
        "source": trace.source.as_dict(),
        "text": trace.text,
        "pair": trace.pair,
        "target": trace.target,
        "query_tokens": [asdict(token) for token in trace.query_tokens],
        "key_tokens": [asdict(token) for token in trace.key_tokens],
        "layers": layers,
    }
    with written_aside(path) as aside:
        save_file(tensors, aside, metadata={"attncli": json.dumps(header)})


def load(
    path: str | Path,
    layers: str | int | Iterable[int] | None = None,
    heads: str | int | Iterable[int] | None = None,
) -> Trace:
    """Read a saved trace, or a plain dump of `q`, `k` and perhaps `v`, `mask`, `bias`.

    Only the tensors of the chosen layers are read.

    Args:
        path: a safetensors file. In a dump q is `[T, D]`, `[H, T, D]` or `[1, H, T, D]`, likewise k and v;
            metadata may hold `tokens` (a JSON list of strings) and `scale`.
        layers: which of the recorded layers; None is all of them.
        heads: which heads to show and derive; None is all of them.

    Raises:
        InputError: there is no such file, it is damaged, or it holds neither.
        UsageError: it lacks that layer or head.
    """
    name = visible(str(path))
    if not Path(path).is_file():
        raise InputError(
            f"trace file {name} does not exist" if not Path(path).exists() else f"{name} is a folder, not a trace file"
        )
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            read = _read_trace if "attncli" in metadata else _read_dump
            return read(file, metadata, Indices.of("layer", layers), Indices.of("head", heads))
    except SafetensorError as error:
        raise InputError(f"{name} is no whole safetensors file: {visible(str(error))}") from None
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise InputError(f"{name} holds no trace that can be read: {visible(repr(error))}") from None


# --- traces ------------------------------------------------------------------------------------------------


def _read_trace(file: Any, metadata: Mapping[str, str], layers: Indices, heads: Indices) -> Trace:
    header = json.loads(metadata["attncli"])
    if header["schema"] != SCHEMA:
        raise InputError(f"the trace file has schema {visible(str(header['schema']))}; this version reads {SCHEMA}")
    recorded = list(dict.fromkeys(entry["layer"] for entry in header["layers"]))
    source = _source(header["source"])
    chosen = recorded if layers.parts is None else layers.among(source.layers, "the saved model")
    missing = [str(layer) for layer in chosen if layer not in recorded]
    if missing:
        kept = ", ".join(map(str, recorded))
        raise InputError(f"the trace file does not hold layer {', '.join(missing)}; it holds {kept}")
    entries = [entry for index in chosen for entry in header["layers"] if entry["layer"] == index]
    return Trace(
        source=source,
        query_tokens=Tokens(Token(**token) for token in header["query_tokens"]),
        key_tokens=Tokens(Token(**token) for token in header["key_tokens"]),
        layers=tuple(_layer(file, entry, heads) for entry in entries),
        text=header["text"],
        pair=header["pair"],
        target=header["target"],
    )


def _source(recorded: dict[str, Any]) -> Source:
    named = {field.name for field in fields(Source)} - {"details"}
    details = {name: value for name, value in recorded.items() if name not in named}
    return Source(**{name: recorded[name] for name in named}, details=details)


def _layer(file: Any, entry: dict[str, Any], heads: Indices) -> LayerTrace:
    prefix = f"layers.{entry['layer']}.{entry['kind']}."
    present = set(file.keys())
    arrays: dict[str, Any] = {
        name: file.get_tensor(prefix + name) for name in (*_ARRAYS, "mask") if prefix + name in present
    }
    _check_shapes(arrays)
    num_heads, num_queries, num_keys = len(arrays["q"]), arrays["q"].shape[1], arrays["k"].shape[1]
    mask: Mask
    if "mask" in arrays:
        mask = ArrayMask(arrays.pop("mask"))
    else:
        rule = entry["mask"]
        mask = RuleMask(parse(rule["expression"]), num_queries, num_keys, num_heads, rule["past"])
    return LayerTrace(
        **{name: entry[name] for name in _NUMBERS},
        **arrays,
        mask=mask,
        heads=heads.among(num_heads, f"layer {entry['layer']}"),
        fill=float(entry["fill"]),
        proof=entry["proof"] and Proof(**entry["proof"]),
    )


# --- dumps of somebody else's tensors ----------------------------------------------------------------------


def _read_dump(file: Any, metadata: Mapping[str, str], layers: Indices, heads: Indices) -> Trace:
    names = set(file.keys())
    if not {"q", "k"} <= names:
        raise InputError(
            f"it holds {', '.join(sorted(map(visible, names))[:8]) or 'no tensors'}; "
            "expected a saved trace, or tensors q and k"
        )
    arrays: dict[str, Any] = {
        name: _heads_first(name, file.get_tensor(name)) for name in ("q", "k", "v", "bias") if name in names
    }
    # Without values there are no outputs; a width of zero says so in every shape.
    arrays.setdefault("v", np.zeros((*arrays["k"].shape[:2], 0), np.float32))
    _check_shapes(arrays)
    num_heads, num_queries, width = arrays["q"].shape
    num_keys = arrays["k"].shape[1]
    layers.among(1, "a dump of q and k")
    mask: Mask = RuleMask(Atom("full"), num_queries, num_keys, num_heads)
    if "mask" in names:
        allowed = as_allowed(file.get_tensor("mask"), "of the dump")
        allowed = allowed.reshape((-1, *allowed.shape[-2:]))
        _check_cells("mask", allowed, num_heads, num_queries, num_keys)
        mask = ArrayMask(allowed)
    layer = LayerTrace(
        layer=0,
        kind="self" if num_queries == num_keys else "cross",
        **arrays,
        scale=float(metadata.get("scale", width**-0.5)),
        mask=mask,
        heads=heads.among(num_heads, "the dump"),
    )
    labels = json.loads(metadata["tokens"]) if "tokens" in metadata else [str(i) for i in range(num_keys)]
    tokens = Tokens(Token(index, 0, str(label), None, None) for index, label in enumerate(labels))
    if len(tokens) != num_keys:
        raise InputError(f"metadata tokens lists {len(tokens)} tokens, k has {num_keys} positions")
    # A cache of keys is longer than its queries, which are its last positions.
    queries = (
        tokens[num_keys - num_queries :]
        if num_queries <= num_keys
        else (Token(index, 0, str(index), None, None) for index in range(num_queries))
    )
    query_tokens = Tokens(replace(token, index=index) for index, token in enumerate(queries))
    odd = [name for name, array in arrays.items() if not np.isfinite(array).all()]
    notes = tuple(f"{name} holds NaN or infinite numbers; what follows from them carries their mark" for name in odd)
    return Trace(Source("file"), query_tokens, tokens, (layer,), notes=notes)


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


def _check_shapes(arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
    q, k, v = arrays["q"], arrays["k"], arrays["v"]
    shown = ", ".join(f"{name} {list(arrays[name].shape)}" for name in "qkv")
    if any(array.ndim != 3 for array in (q, k, v)) or 0 in (*q.shape, *k.shape):
        raise InputError(f"the shapes {shown} are not [heads, positions, width]")
    if q.shape[-1] != k.shape[-1] or k.shape[:2] != v.shape[:2] or len(q) % len(k):
        raise InputError(
            f"the shapes {shown} do not fit: q and k need one width, k and v one length, and the heads of q a "
            "multiple of those of k"
        )
    for name in ("bias", "mask"):
        if name in arrays:
            _check_cells(name, arrays[name], len(q), q.shape[1], k.shape[1])


def _check_cells(name: str, cells: np.ndarray[Any, Any], heads: int, queries: int, keys: int) -> None:
    if cells.ndim != 3 or len(cells) not in (1, heads) or cells.shape[1:] != (queries, keys):
        raise InputError(f"{name} has shape {list(cells.shape)}; expected [1 or {heads}, {queries}, {keys}]")
