"""Captures with the model that made them: its tokens, mask and scale, and what their q, k and v lack."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.checkpoints.options import EngineOptions, checked_options
from attncli.checkpoints.snapshot import resolve
from attncli.engines.numpy import NativeCheckpoint, UnsupportedError
from attncli.engines.numpy.forward import Layer, Model, computing
from attncli.engines.numpy.model_spec import ModelSpec
from attncli.engines.source import ModelRequest
from attncli.errors import InputError, NotExposedError
from attncli.text import plural, visible
from attncli.trace.capture import Capture, LayerCapture, load_capture
from attncli.trace.selection import Indices, layer_and_heads
from attncli.trace.store import captured_attention, captured_trace

if TYPE_CHECKING:
    from attncli.trace.trace import Trace


def load_completed(path: str | Path, model: str, layer: Any, head: Any, kind: str | None, **options: Any) -> Trace:
    """Read a capture of a checkpoint's run; see `load_saved`."""
    layer, head = layer_and_heads(layer, head)
    heads = Indices.of("head", head)
    capture = load_capture(path, Indices.of("layer", layer))
    snapshot = resolve(model, chosen := checked_options(options, EngineOptions, "--model"))
    if chosen.engine not in ("auto", "native"):
        raise NotExposedError(f"--engine {chosen.engine}: a capture is completed by the native engine; drop the option")
    try:
        native = NativeCheckpoint(snapshot, ModelRequest(Indices("layer", None), heads, kind), chosen)
        capture = complete(capture, native.model)
        tokens = capture.tokens
        if capture.token_ids is not None:  # as the checkpoint's vocabulary spells them
            tokens = native.encoder.tokens_of_ids(capture.token_ids.tolist())
    except UnsupportedError as error:
        reason = f"the native engine does not compute {visible(model)}: {visible(str(error))}"
        raise NotExposedError(f"{reason}; write q, k and v after rotation, and drop -m") from None
    except InputError as error:
        raise InputError(f"{visible(str(path))}: {error}") from None
    spec, layers = native.model.spec, []
    for index, arrays in capture.layers.items():
        how = spec.layers[index]
        layers.append(captured_attention(index, arrays, heads, how.mask, how.scale, spec.softcap))
    source = native.source._replace(kind="file", dtype=capture.dtype, details={})
    return captured_trace(source, tokens, layers, ())


def complete(capture: Capture, model: Model) -> Capture:
    """Return a capture with rotated q and k, and v, computed of its hidden states where it lacks them.

    The input of the layer after the last is that one's output, and is left out.

    Raises:
        InputError: it is of another model.
    """
    check_model(capture, model.spec)
    count = len(model.spec.layers)
    with computing(len(capture.tokens)):
        layers = {
            index: _completed(Layer(model, index, None), arrays, capture)
            for index, arrays in capture.layers.items()
            if index < count
        }
    if not layers:
        raise InputError(f"it holds the output of the last layer alone; the model has layers 0 to {count - 1}")
    return replace(capture, layers=layers, rotated="after")


def check_model(capture: Capture, spec: ModelSpec) -> None:
    """Raise InputError for a capture of another model."""
    count, heads = len(spec.layers), spec.heads
    if capture.unnamed and capture.unnamed not in (count, count + 1):
        has = f"it has the hidden states of {plural(capture.unnamed, 'layer')}, and the model has {count}"
        raise InputError(f"{has}; extract those of layers 0 to {count - 1}")
    if beyond := [index for index in capture.layers if index > count]:
        raise InputError(f"it holds layer {beyond[0]}, and the model has layers 0 to {count - 1}")
    if capture.token_ids is not None and (largest := capture.token_ids.max()) >= spec.embedding.tokens.rows:
        raise InputError(f"it has the token id {largest}, and the model has ids 0 to {spec.embedding.tokens.rows - 1}")
    for index, arrays in capture.layers.items():
        x, q, mask = arrays.input, arrays.q, arrays.mask
        if x is not None and x.shape[1] != spec.width:
            raise InputError(f"layers.{index}.input has width {x.shape[1]}; the model has {spec.width}")
        if q is not None and (len(q), q.shape[2]) != (heads.count, heads.width):
            expected = f"{heads.count} heads of width {heads.width}"
            raise InputError(f"layers.{index}.q has {len(q)} heads of width {q.shape[2]}; the model has {expected}")
        if mask is not None and mask.ndim == 3 and len(mask) not in (1, heads.count):
            raise InputError(f"layers.{index}.mask has {len(mask)} heads; the model has {heads.count}")


def check_comparable(name: str, capture: ModelSpec | Capture | None, other: ModelSpec | Capture | None) -> None:
    """Raise an error for a capture that attn cannot compare with a model, another capture, or a trace, which is None.

    Raises:
        InputError: it is of another model, or has queries and keys of another stage.
        NotExposedError: it needs a model of the native engine.
    """
    if not isinstance(capture, Capture):
        return
    if isinstance(other, ModelSpec):
        try:
            check_model(capture, other)
        except InputError as error:
            raise InputError(f"{name}: {error}") from None
    elif other is None and capture.queries is None:
        raise NotExposedError(f"{name} holds hidden states, and the other run none; write q, k and v too")
    elif other is not None and capture.unnamed and not 0 <= capture.unnamed - len(other.layers) <= 1:
        has = f"{name} has the hidden states of {plural(capture.unnamed, 'layer')}"
        raise InputError(f"{has}, and the other file of {len(other.layers)}; give files of all layers")
    elif capture.queries == "before" and (other is None or other.queries == "after"):
        both = f"{name} has q and k before their rotation, and the other run after it"
        raise InputError(f"{both}; write both alike, or compare with a model of the native engine")


def _completed(layer: Layer, arrays: LayerCapture, capture: Capture) -> LayerCapture:
    spec, index = layer.model.spec, layer.index
    q, k, v, is_rotated = arrays.q, arrays.k, arrays.v, capture.rotated == "after"
    if q is None and k is None and arrays.input is not None:
        query, key, value = layer.project(layer.enter(np.ascontiguousarray(arrays.input, np.float32)))
        q, k, v = (np.ascontiguousarray(heads.swapaxes(0, 1)) for heads in (*layer.norm_heads(query, key), value))
        is_rotated = False
    if q is None or k is None:
        raise InputError(f"layer {index} holds neither q and k nor the input that they are made of")
    rope = spec.layers[index].rope
    if rope is not None and not is_rotated:
        positions = np.arange(k.shape[1]) if capture.positions is None else capture.positions
        q, k = rope.rotate(q, positions[len(positions) - q.shape[1] :]), rope.rotate(k, positions)
    return replace(arrays, q=q, k=k, v=v)
