"""Choice of the engine of a checkpoint: the native one where it gives the same numbers sooner, else transformers."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from attncli.checkpoints.options import EngineOptions, checked_options
from attncli.checkpoints.snapshot import Snapshot, resolve
from attncli.engines.numpy import NativeCheckpoint, UnsupportedError
from attncli.engines.source import ON_REQUEST, ModelRequest, OpenModel
from attncli.errors import NotExposedError, UsageError, require
from attncli.text import as_list, visible
from attncli.trace.layer import LayerTrace, Proof
from attncli.trace.selection import Indices
from attncli.trace.trace import Trace

if TYPE_CHECKING:
    from attncli.engines.predictor import Predictor
    from attncli.engines.torch.engine import Checkpoint
    from attncli.masks.expressions import Expression

_log = logging.getLogger(__name__)

_PICTURE_TOKEN = frozenset(("image_token_id", "image_token_index"))  # of a configuration, for a token in prompts


def open_checkpoint(model: str, request: ModelRequest, **options: Any) -> OpenModel:
    """Return a checkpoint, ready for sentences; see `attncli.open_source` for the arguments and errors."""
    chosen, snapshot = _resolved(model, options)
    if snapshot.onnx:
        return _open_onnx(snapshot, request, chosen)
    if chosen.engine == "transformers" or _reads_pictures(snapshot, chosen):
        return _open_in_torch(snapshot, request, chosen)
    try:
        if request.generate:
            raise UnsupportedError("it writes no tokens")
        if chosen.engine == "verify" and chosen.dtype == "auto":  # the type in which transformers would compute
            raise UnsupportedError("it computes in float32 only")
        if chosen.engine != "verify":
            return NativeCheckpoint(snapshot, request, chosen)
        verified = VerifiedCheckpoint(snapshot, request, chosen)
    except UnsupportedError as error:
        _check_fallback(snapshot, error, chosen.engine)
        return _open_in_torch(snapshot, request, chosen)
    verified.reference = _open_in_torch(snapshot, request, chosen)
    return verified


def _open_onnx(snapshot: Snapshot, request: ModelRequest, options: EngineOptions) -> OpenModel:
    """Return a model in ONNX files, which onnxruntime runs; NotExposedError for options of a checkpoint."""
    shown = visible(snapshot.name)
    of_checkpoint = {
        "engine": options.engine != "auto",
        "dtype": options.dtype not in (None, "auto"),
        "device": options.device != "cpu",
        "device-map": options.device_map is not None,
        "generate": request.generate > 0,
    }
    if option := next((name for name, is_chosen in of_checkpoint.items() if is_chosen), None):
        raise NotExposedError(f"--{option} does not apply to {shown}, whose graph runs as it is; drop --{option}")
    require(f"the ONNX model {shown}", "onnx", "onnxruntime")
    from attncli.engines.onnx.engine import OnnxModel

    return OnnxModel(snapshot, request, options)


def open_predictor(model: str, *, special: bool, **options: Any) -> Predictor:
    """Return a checkpoint that predicts next tokens; NotExposedError if it predicts none. See `open_checkpoint`."""
    chosen, snapshot = _resolved(model, options)
    if chosen.engine == "verify":
        raise UsageError("--engine verify compares attention, not predictions; give native or transformers")
    if snapshot.onnx:
        raise NotExposedError(
            f"attn reads no next token of {visible(snapshot.name)}, an ONNX model; give its checkpoint"
        )
    request = ModelRequest(Indices("layer", None), Indices("head", None), special=special)
    if chosen.engine != "transformers" and not _reads_pictures(snapshot, chosen):
        try:
            return NativeCheckpoint(snapshot, request, chosen).predictor()
        except UnsupportedError as error:
            _check_fallback(snapshot, error, chosen.engine)
    return _open_in_torch(snapshot, replace(request, generate=1), chosen).predictor()


def _resolved(model: str, options: Mapping[str, Any]) -> tuple[EngineOptions, Snapshot]:
    """Return the checked options of a checkpoint, and its files."""
    chosen = checked_options(options, EngineOptions, "--model; it belongs to the toy layer")
    snapshot = resolve(model, chosen)
    if snapshot.gguf is not None and chosen.engine in ("transformers", "verify"):
        shown = f"{visible(snapshot.name)} is a GGUF file, which only the native engine reads"
        raise NotExposedError(f"--engine {chosen.engine}: {shown}; drop the option")
    return chosen, snapshot


class VerifiedCheckpoint(NativeCheckpoint):
    """A checkpoint of the native engine, whose layers are compared with those of a reference."""

    parallel_from = ON_REQUEST
    reference: OpenModel

    def with_mask(self, mask: Expression | None) -> Self:
        """Return the same models under another mask; see `OpenModel.with_mask`."""
        other = super().with_mask(mask)
        other.reference = self.reference.with_mask(mask)
        return other

    def traces(self, texts: Sequence[str], pair: str | None = None, target: str | None = None) -> Iterator[Trace]:
        """Yield the attention of each sentence, in order; see `Source.traces`."""
        sentences = list(as_list(texts))
        for text, trace in zip(sentences, super().traces(sentences, pair, target), strict=True):
            layers = zip(trace.layers, self.reference.trace(text, pair).layers, strict=True)
            yield replace(trace, layers=tuple(_compared(*both, trace.source.dtype) for both in layers))


def _compared(layer: LayerTrace, reference: LayerTrace, dtype: str) -> LayerTrace:
    """Return a layer whose proof is its largest difference from a reference that is proven itself."""
    if not reference.is_proven(dtype):
        return replace(layer, proof=reference.proof)
    apart = [np.abs(getattr(layer, name) - getattr(reference, name)).max() for name in "qkv"]
    for head in range(layer.num_heads):
        for block, other in zip(layer.head(head).blocks(), reference.head(head).blocks(), strict=True):
            apart.append(np.abs(block.weights - other.weights).max())
    worst = float(np.max(apart))  # NaN where one of them is
    largest = max(float(np.abs(getattr(reference, name)).max()) for name in "qkv")
    return replace(layer, proof=Proof(worst, "those of transformers", "Q, K, V, weights", max(largest, 1.0)))


def _reads_pictures(snapshot: Snapshot, options: EngineOptions) -> bool:
    """Return whether a checkpoint is to read pictures: by its options, or by a text that may name its own."""
    may_name = options.image is not None and snapshot.gguf is None and not _PICTURE_TOKEN.isdisjoint(snapshot.config)
    return bool(options.image) or options.tower == "vision" or may_name


def _open_in_torch(snapshot: Snapshot, request: ModelRequest, options: EngineOptions) -> Checkpoint:
    """Return a checkpoint that transformers runs; with pictures, that reads them with each text or alone."""
    from attncli.engines.torch import announce_import

    if not _reads_pictures(snapshot, options):
        announce_import("the transformers engine", snapshot)
        from attncli.engines.torch.engine import Checkpoint

        return Checkpoint(snapshot, request, options)
    if options.engine in ("native", "verify") or snapshot.gguf is not None:
        raise NotExposedError("--image needs the transformers engine, and a checkpoint in a folder; drop --engine")
    from attncli.encoding.pictures import picture_files

    image = picture_files(options.image or ())
    announce_import("--image", snapshot)
    from attncli.engines.torch.pictures import PicturedCheckpoint, VisionCheckpoint

    if options.tower == "vision":
        if request.generate:
            raise UsageError("--generate needs a text beside --image; a vision tower writes none")
        return VisionCheckpoint(snapshot, request, options)
    return PicturedCheckpoint(snapshot, request, options, image)


def _check_fallback(snapshot: Snapshot, reason: UnsupportedError, engine: str) -> None:
    """Raise an error unless transformers may compute what the native engine declines, and is installed."""
    shown, why = visible(snapshot.name), visible(str(reason))
    if snapshot.gguf is not None:
        raise NotExposedError(f"{shown} is a GGUF file, and the native engine does not compute it: {why}")
    if engine in ("native", "verify"):
        raise NotExposedError(f"--engine {engine}: the native engine does not compute {shown}: {why}; drop the option")
    require(f"the native engine does not compute {shown}: {why}. The transformers engine", "torch", "transformers")
    _log.info("left to transformers: %s", reason)
