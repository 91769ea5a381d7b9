"""Saved traces, and dumps of somebody else's tensors: safetensors in, safetensors out.

Tensors are named `layers.<index>.<kind>.<q|k|v|mask|bias|sinks|inputs|out_projection|out_bias|scores|weights>`; the
metadata key `attncli` holds everything else as JSON. A mask that is a rule stays one, in the JSON.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from attncli.errors import InputError, UsageError
from attncli.files import check_file, written_aside
from attncli.layer import LayerTrace, Proof
from attncli.masks.algebra import ArrayMask, Mask, RuleMask, reads_files
from attncli.masks.parser import parse
from attncli.selection import Indices
from attncli.sources.dump import read_dump
from attncli.sources.saved import SavedTensors, checked_cells
from attncli.spelling import spelled
from attncli.tokens import Token, Tokens, visible
from attncli.trace import SCHEMA, Source, Trace

_ARRAYS = ("q", "k", "v", "bias", "sinks", "inputs", "out_projection", "out_bias", "scores", "weights")
_NUMBERS = ("layer", "kind", "scale", "softcap")
_KINDS = {"source": ("toy", "pretrained", "module", "file"), "layer": ("self", "encoder", "decoder", "cross")}

# What the JSON of a trace file must hold: a file is not trusted, however it was made.
_TEXT_OR_NONE, _NUMBER_OR_NONE = str | None, int | float | None
_HEADER = {
    "schema": str,
    "source": dict,
    "text": str,
    "pair": _TEXT_OR_NONE,
    "target": _TEXT_OR_NONE,
    "query_tokens": list,
    "key_tokens": list,
    "layers": list,
    "notes": list,
}
_SOURCE = {
    "kind": str,
    "model": _TEXT_OR_NONE,
    "architecture": _TEXT_OR_NONE,
    "dtype": str,
    "device": str,
    "seed": int | None,
    "layers": int,
}
_TOKEN = {
    "index": int,
    "id": int,
    "text": str,
    "start": int | None,
    "end": int | None,
    "special": bool,
    "segment": int,
    "word": int | None,
}
_LAYER = {
    "layer": int,
    "kind": str,
    "scale": _NUMBER_OR_NONE,
    "softcap": _NUMBER_OR_NONE,
    "fill": str,
    "proof": dict | None,
}
_TOY_DETAILS = {
    "parameters": int,
    "rng": str,
    "init": str,
    "project": str,
    "positions": str,
    "d_model": int,
    "vocab_size": int,
}
_PROOF = {"max_abs_error": str, "against": str, "of": str}


def save(trace: Trace, path: str | Path) -> None:
    """Write a trace to a safetensors file; see `Trace.save`.

    Raises:
        InputError: the file cannot be written.
    """
    from safetensors.numpy import save as serialize

    tensors: dict[str, np.ndarray[Any, Any]] = {}
    layers = []
    for layer in trace.layers:
        prefix = f"layers.{layer.layer}.{layer.kind}."
        arrays = {name: getattr(layer, name) for name in _ARRAYS}
        entry: dict[str, Any] = {name: getattr(layer, name) for name in _NUMBERS}
        entry["fill"] = str(layer.fill)  # −inf and NaN are no JSON numbers
        entry["proof"] = layer.proof and {**layer.proof._asdict(), "max_abs_error": str(layer.proof.max_abs_error)}
        if isinstance(layer.mask, RuleMask) and not reads_files(layer.mask.expression):
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
        "query_tokens": [{**token.as_dict(), "word": token.word} for token in trace.query_tokens],
        "key_tokens": [{**token.as_dict(), "word": token.word} for token in trace.key_tokens],
        "layers": layers,
        "notes": [*trace.source.notes, *trace.notes],
        "generated": trace.generated,
    }
    with written_aside(path) as aside:
        # Through bytes: the library's own errors about a file do not say what the system said.
        aside.write_bytes(serialize(tensors, metadata={"attncli": json.dumps(header)}))


def load(
    path: str | Path,
    layers: str | int | Iterable[int] | None = None,
    heads: str | int | Iterable[int] | None = None,
    kind: str | None = None,
) -> Trace:
    """Read a saved trace, or a plain dump of `q`, `k` and perhaps `v`, `mask`, `bias`.

    Only the tensors of the chosen layers are read.

    Args:
        path: a safetensors file. In a dump q is `[T, D]`, `[H, T, D]` or `[1, H, T, D]`, likewise k and v;
            metadata may hold `tokens` (a JSON list of strings) and `scale`.
        layers: which of the recorded layers; None is all of them.
        heads: which heads to show and derive; None is all of them.
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
        raise InputError(f"{name} {error.strerror or error}, not a trace file") from None
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            read = _read_trace if "attncli" in metadata else read_dump
            trace = read(
                SavedTensors(Path(path), file), metadata, Indices.of("layer", layers), Indices.of("head", heads)
            )
        kept = tuple(layer for layer in trace.layers if kind in (None, layer.kind))
        if not kept:
            found = ", ".join(dict.fromkeys(layer.kind for layer in trace.layers))
            raise UsageError(f"--kind {visible(str(kind))}: {name} has {found} attention there")
        return replace(trace, layers=kept)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    except (SafetensorError, OSError) as error:
        raise InputError(f"{name} is no whole safetensors file: {visible(str(error))}") from None
    except RecursionError:
        raise InputError(f"{name} holds no trace that can be read: its JSON is nested too deeply") from None
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{name} holds no trace that can be read: {visible(str(error))}") from None


def _read_trace(tensors: SavedTensors, metadata: Mapping[str, str], layers: Indices, heads: Indices) -> Trace:
    header = _record(_loads(metadata["attncli"]), _HEADER, "header")
    if header["schema"] != SCHEMA:
        raise InputError(f"the trace file has schema {visible(header['schema'])}; this version reads {SCHEMA}")
    source = _source(_kept(_shown(header["source"]), _SOURCE, "source"))
    entries = [_kept(_shown(entry), _LAYER, "layer") for entry in header["layers"]]
    names = [(entry["layer"], entry["kind"]) for entry in entries]
    if len(set(names)) < len(names) or any(not 0 <= index < source.layers for index, _ in names):
        raise ValueError("a layer stands there twice, or beyond the last layer of its source")
    recorded = list(dict.fromkeys(entry["layer"] for entry in entries))
    chosen = recorded if layers.parts is None else layers.among(source.layers, "the saved model")
    missing = [str(layer) for layer in chosen if layer not in recorded]
    if missing:
        kept = ", ".join(map(str, recorded))
        raise UsageError(f"the trace file does not hold layer {', '.join(missing)}; it holds {kept}")
    text, pair, target = header["text"], header["pair"], header["target"]
    of_queries = (text, pair) if target is None else (target, None)
    return Trace(
        source=source,
        query_tokens=spelled(_tokens(header["query_tokens"]), *of_queries),
        key_tokens=spelled(_tokens(header["key_tokens"]), text, pair),
        layers=tuple(_layer(tensors, e, heads) for index in chosen for e in entries if e["layer"] == index),
        text=text,
        pair=pair,
        target=target,
        notes=tuple(map(str, _shown(header["notes"]))),
        generated=_generated(header.get("generated", 0)),
    )


def _loads(text: str) -> Any:
    """Read JSON whose numbers a trace can hold: finite ones of a sensible size."""

    def number(digits: str) -> float:
        if not math.isfinite(value := float(digits)):
            raise ValueError(f"it holds the number {visible(digits[:20])}")
        return value

    def integer(digits: str) -> int:
        if len(digits) > 18:
            raise ValueError(f"it holds the number {digits[:20]}…")
        return int(digits)

    return json.loads(text, parse_float=number, parse_int=integer, parse_constant=number)


def _record(found: Any, types: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return a JSON object whose fields have the types they should."""
    if not isinstance(found, dict):
        raise TypeError(f"its {what} is no object")
    for name, type_ in types.items():
        is_bool = isinstance(found.get(name), bool)
        if name not in found or not isinstance(found[name], type_) or (is_bool and type_ is not bool):
            raise TypeError(f"'{name}' of its {what} is missing or of the wrong type")
    return found


def _shown(found: Any) -> Any:
    """Return JSON whose texts a terminal may be sent, all but those of sentences and tokens, whose letters count."""
    if isinstance(found, str):
        return visible(found)
    if isinstance(found, dict):
        return {visible(name): _shown(value) for name, value in found.items()}
    return [_shown(value) for value in found] if isinstance(found, list) else found


def _kept(found: Any, types: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return a record of one of the kinds that there are."""
    record = _record(found, types, what)
    if record["kind"] not in _KINDS[what]:
        raise ValueError(f"the kind of its {what} is '{record['kind']}'; expected one of {', '.join(_KINDS[what])}")
    return record


def _source(recorded: dict[str, Any]) -> Source:
    if recorded["kind"] == "toy":
        _record(recorded, _TOY_DETAILS, "source")
    details = {name: value for name, value in recorded.items() if name not in _SOURCE}
    return Source(**{name: recorded[name] for name in _SOURCE}, details=details)


def _generated(recorded: Any) -> int:
    """Return how many tokens the model wrote; files of before it could do not say."""
    if type(recorded) is not int:
        raise TypeError("'generated' of its header is no number")
    return recorded


def _tokens(recorded: list[Any]) -> Tokens:
    whole = ({"word": None, **token} if isinstance(token, dict) else token for token in recorded)  # older files
    checked = (_record(token, _TOKEN, "token") for token in whole)
    tokens = Tokens(Token(**{name: token[name] for name in _TOKEN}) for token in checked)
    if [token.index for token in tokens] != list(range(len(tokens))) or {token.segment for token in tokens} - {0, 1}:
        raise ValueError("its tokens are not in order, or of more than two texts")
    return tokens


def _layer(tensors: SavedTensors, entry: dict[str, Any], heads: Indices) -> LayerTrace:
    prefix = f"layers.{entry['layer']}.{entry['kind']}."
    arrays = {name: tensors.read(prefix + name) for name in _ARRAYS if prefix + name in tensors.names}
    integers = [name for name, array in arrays.items() if array.dtype.kind != "f"]
    if integers:
        raise TypeError(f"'{integers[0]}' holds no floats")
    cells = _cells(arrays)
    mask: Mask
    if prefix + "mask" in tensors.names:
        mask = ArrayMask(checked_cells("mask", tensors.read(prefix + "mask"), cells))
    else:
        mask = _saved_mask(entry.get("mask"), cells)
    fields: dict[str, Any] = dict.fromkeys("qkv") | {name: entry[name] for name in _NUMBERS} | arrays
    return LayerTrace(
        **fields,
        mask=mask,
        heads=heads.among(cells[0], f"layer {entry['layer']}"),
        fill=float(entry["fill"]),
        proof=entry["proof"] and _saved_proof(entry["proof"]),
    )


def _cells(arrays: Mapping[str, np.ndarray[Any, Any]]) -> tuple[int, int, int]:
    """Return H, Q and K of a saved layer."""
    if "weights" in arrays:
        heads, queries, keys = arrays["weights"].shape
        return heads, queries, keys
    q, k = arrays["q"], arrays["k"]
    if q.ndim != 3 or k.ndim != 3:
        raise ValueError(f"q has shape {list(q.shape)} and k {list(k.shape)}; expected [heads, positions, width]")
    return len(q), q.shape[1], k.shape[1]


def _saved_proof(recorded: Any) -> Proof:
    recorded = {"of": Proof.of, **recorded} if isinstance(recorded, dict) else recorded  # earlier files do not say
    _record(recorded, _PROOF, "proof")
    return Proof(float(recorded["max_abs_error"]), recorded["against"], recorded["of"])


def _saved_mask(rule: Any, cells: tuple[int, int, int]) -> RuleMask:
    _record(rule, {"expression": str, "past": int}, "mask")
    try:
        expression = parse(rule["expression"], allow_files=False)
    except UsageError as error:
        raise ValueError(str(error)) from None
    heads, queries, keys = cells
    if not 0 <= rule["past"] < 2**31:
        raise ValueError(f"its mask has past {rule['past']}")
    mask = RuleMask(expression, queries, keys, heads, rule["past"])
    mask.rows([0], np.arange(0))  # one that does not fit these tokens is refused here
    return mask
