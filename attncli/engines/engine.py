"""Choice of the engine of a checkpoint: the native one where it gives the same numbers sooner, else transformers."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from attncli.checkpoints.options import EngineOptions, checked_options
from attncli.checkpoints.snapshot import Snapshot, resolve
from attncli.engines.numpy import NativeCheckpoint, UnsupportedError, log_fallback, refusal
from attncli.errors import NotExposedError, UsageError
from attncli.text import visible
from attncli.trace.selection import Indices

_PICTURE_TOKEN = frozenset(("image_token_id", "image_token_index"))  # of a configuration, for a token in prompts

if TYPE_CHECKING:
    from attncli.engines.predictor import Predictor
    from attncli.engines.source import OpenModel
    from attncli.engines.torch.engine import Checkpoint


def open_checkpoint(
    model: str,
    layers: Indices,
    heads: Indices,
    *,
    kind: str | None,
    mask: str | None,
    special: bool,
    generate: int,
    **options: Any,
) -> OpenModel:
    """Return a checkpoint, ready for sentences.

    Args:
        model: folder or hub name.
        layers: which layers to record.
        heads: which heads to show.
        kind: the only kind of attention to record; None is every kind.
        mask: replaces the model's own.
        special: whether the tokenizer adds its special tokens.
        generate: how many tokens the model writes after each sentence.
        options: fields of `EngineOptions`.

    Raises:
        NotExposedError: `--engine native` or `verify`, and that engine does not compute this checkpoint.
        AttnError: see `Checkpoint`.
    """
    chosen = checked_options(options, EngineOptions, "--model; it belongs to the toy layer")
    if mask is not None:  # an error in it comes before any search for files
        from attncli.masks.parser import parse

        parse(mask)
    snapshot = resolve(model, chosen, for_writing=generate > 0)
    engine, is_gguf = chosen.engine, snapshot.gguf is not None
    if is_gguf and engine in ("transformers", "verify"):
        raise _only_native(snapshot.name, engine)
    how: dict[str, Any] = {"kind": kind, "mask": mask, "special": special, "options": chosen}

    if _reads_pictures(snapshot, chosen):
        return _with_pictures(snapshot, layers, heads, generate, how)

    @cache
    def in_torch() -> OpenModel:
        from attncli.engines.torch import announce_import

        announce_import("the transformers engine", snapshot)
        from attncli.engines.torch.engine import Checkpoint

        return Checkpoint(snapshot, layers, heads, generate=generate, **how)

    if engine == "transformers":
        return in_torch()
    try:
        if generate:
            raise UnsupportedError("it writes no tokens")
        native = NativeCheckpoint(
            snapshot, layers, heads, other=None if engine == "native" or is_gguf else in_torch, **how
        )
    except UnsupportedError as error:
        if engine in ("native", "verify") or is_gguf:
            raise refusal(snapshot.name, error, engine, is_gguf) from None
        log_fallback(snapshot.name, error)
        return in_torch()
    if engine == "verify":
        in_torch()  # raises its refusals before a sentence is read
    return native


def open_predictor(model: str, *, special: bool, **options: Any) -> Predictor:
    """Return a checkpoint that predicts next tokens, ready for sentences.

    Args:
        model: folder or hub name.
        special: whether the tokenizer adds its special tokens.
        options: fields of `EngineOptions`.

    Raises:
        NotExposedError: it predicts no next token, or the chosen engine does not compute it.
        AttnError: see `open_checkpoint`.
    """
    chosen = checked_options(options, EngineOptions, "--model; it belongs to the toy layer")
    engine, every = chosen.engine, Indices("layer", None)
    if engine == "verify":
        raise UsageError("--engine verify compares attention, not predictions; give native or transformers")
    snapshot = resolve(model, chosen, for_writing=engine == "transformers")
    is_gguf = snapshot.gguf is not None
    how: dict[str, Any] = {"kind": None, "mask": None, "special": special, "options": chosen}
    if is_gguf and engine == "transformers":
        raise _only_native(snapshot.name, engine)
    heads = every._replace(what="head")
    is_pictured = _reads_pictures(snapshot, chosen)
    if not is_pictured and engine != "transformers":
        from attncli.engines.numpy.predictor import NativePredictor

        try:
            return NativePredictor(NativeCheckpoint(snapshot, every, heads, **how))
        except UnsupportedError as error:
            if engine == "native" or is_gguf:
                raise refusal(snapshot.name, error, engine, is_gguf) from None
            log_fallback(snapshot.name, error)
            snapshot = resolve(model, chosen, for_writing=True)
    from attncli.engines.torch import announce_import

    announce_import("the transformers engine", snapshot)
    from attncli.engines.torch.engine import Checkpoint
    from attncli.engines.torch.predictor import TorchPredictor

    if is_pictured:
        return TorchPredictor(_with_pictures(snapshot, every, heads, 1, how))
    return TorchPredictor(Checkpoint(snapshot, every, heads, generate=1, **how))


def _reads_pictures(snapshot: Snapshot, options: EngineOptions) -> bool:
    """Return whether a checkpoint is to read pictures: by its options, or by a text that may name its own."""
    if options.image or options.tower == "vision":
        return True
    has_texts_of_pictures = options.image is not None and snapshot.gguf is None
    return has_texts_of_pictures and not _PICTURE_TOKEN.isdisjoint(snapshot.config)


def _with_pictures(
    snapshot: Snapshot, layers: Indices, heads: Indices, generate: int, how: dict[str, Any]
) -> Checkpoint:
    """Return a checkpoint that reads pictures, with each text or alone, which only transformers runs."""
    options: EngineOptions = how["options"]
    if options.engine in ("native", "verify") or snapshot.gguf is not None:
        raise NotExposedError("--image needs the transformers engine, and a checkpoint in a folder; drop --engine")
    from attncli.encoding.pictures import picture_files
    from attncli.engines.torch import announce_import

    image = picture_files(options.image or ())
    announce_import("--image", snapshot)
    from attncli.engines.torch.pictures import PicturedCheckpoint, VisionCheckpoint

    if options.tower == "vision":
        if generate:
            raise UsageError("--generate needs a text beside --image; a vision tower writes none")
        return VisionCheckpoint(snapshot, layers, heads, **how)
    return PicturedCheckpoint(snapshot, layers, heads, image=image, generate=generate, **how)


def _only_native(name: str, engine: str) -> NotExposedError:
    return NotExposedError(
        f"--engine {engine}: {visible(name)} is a GGUF file, which only the native engine reads; drop the option"
    )
