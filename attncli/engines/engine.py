"""Which engine computes a checkpoint: the native one where it gives the same numbers sooner, else transformers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.checkpoints.options import EngineOptions, checked_options
from attncli.checkpoints.snapshot import Snapshot, resolve
from attncli.engines.numpy import NativeCheckpoint, UnsupportedError
from attncli.engines.source import PARALLEL_FROM, PARALLEL_FROM_LATE
from attncli.errors import NotExposedError, require
from attncli.text import as_list, visible
from attncli.trace.layer import LayerTrace, Proof

if TYPE_CHECKING:
    from attncli.engines.source import OpenModel
    from attncli.engines.torch.engine import Checkpoint
    from attncli.trace.selection import Indices
    from attncli.trace.tokens import Tokens
    from attncli.trace.trace import Trace


_log = logging.getLogger(__name__)


def open_checkpoint(
    model: str,
    layers: Indices,
    heads: Indices,
    *,
    kind: str | None,
    mask: str | None,
    special: bool,
    generate: int,
    values: bool,
    **options: Any,
) -> OpenModel:
    """Return a checkpoint, ready for sentences.

    Args:
        model: folder or hub name.
        layers: which layers to record.
        heads: which heads to show.
        kind: the only kind of attention to record; None is every kind.
        mask: in place of the model's own.
        special: whether the tokenizer adds its special tokens.
        generate: how many tokens the model writes after each sentence.
        values: whether those of the last layer are going to be read; see `open_source`.
        options: fields of `EngineOptions`.

    Raises:
        NotExposedError: `--engine native` or `verify`, and that engine does not compute this checkpoint.
        AttnError: see `Checkpoint`.
    """
    chosen = checked_options(model, options, EngineOptions, "--model; it belongs to the toy layer")

    if mask is not None:  # a mistake in it is said before anything is looked for
        from attncli.masks.parser import parse

        parse(mask)
    snapshot = resolve(model, chosen, for_writing=generate > 0)
    engine, name = chosen.engine, visible(snapshot.name)
    is_gguf = snapshot.gguf is not None
    if is_gguf and engine in ("transformers", "verify"):
        raise NotExposedError(
            f"--engine {engine}: {name} is a GGUF file, which the native engine alone reads; leave the option out"
        )
    how: dict[str, Any] = {"kind": kind, "mask": mask, "special": special, "options": chosen}
    in_torch = cache(partial(_open_torch, snapshot, layers, heads, generate=generate, **how))
    if engine == "transformers":
        return in_torch()
    try:
        if generate:
            raise UnsupportedError("it writes no tokens")
        native = NativeCheckpoint(snapshot, layers, heads, values=values, **how)
    except UnsupportedError as error:
        if engine in ("native", "verify") or is_gguf:
            raise _refusal(name, error, engine, is_gguf) from None
        _log_fallback(name, error)
        return in_torch()
    if engine == "verify":
        return _Verified(native, in_torch())
    return _Native(native, in_torch if engine == "auto" and not is_gguf else None)


def _open_torch(snapshot: Snapshot, layers: Indices, heads: Indices, **how: Any) -> Checkpoint:
    from attncli.engines.torch import announce_import

    announce_import("the transformers engine", snapshot)
    from attncli.engines.torch.engine import Checkpoint

    return Checkpoint(snapshot, layers, heads, **how)


def _log_fallback(name: str, reason: UnsupportedError) -> None:
    """Log why transformers computes a checkpoint or a sentence.

    Raises:
        LoadError: it is not installed.
    """
    why = visible(str(reason))
    require(f"the native engine does not compute {name}: {why}. The transformers engine", "torch", "transformers")
    _log.info("left to transformers: %s", reason)


def _refusal(name: str, reason: UnsupportedError, engine: str, is_gguf: bool = False) -> NotExposedError:
    why = f"compute {'it' if is_gguf else name}: {visible(str(reason))}"
    if is_gguf:
        return NotExposedError(f"{name} is a GGUF file, and the native engine does not {why}")
    return NotExposedError(f"--engine {engine}: the native engine does not {why}; leave the option out")


class _OfNative:
    """What both engines know of a checkpoint that the native one computes."""

    can_batch = True
    parallel_from = PARALLEL_FROM
    is_incremental = True

    def __init__(self, native: NativeCheckpoint) -> None:
        self._native = native
        self.name = native.name

    @property
    def attention_layers(self) -> Sequence[int]:
        """All layers of the model."""
        return self._native.attention_layers

    def tokens(self, text: str, pair: str | None = None, target: str | None = None) -> tuple[Tokens, Tokens]:
        """Return the tokens of a sentence; see `OpenModel.tokens`."""
        return self._native.tokens(text, pair, target)


class _Native(_OfNative):
    """The native engine, with transformers for the sentences that it declines.

    Which engine computes a sentence does not depend on the sentences beside it, so that a resumed run gives the same
    answers as one that was never interrupted.
    """

    def __init__(self, native: NativeCheckpoint, other: Callable[[], Checkpoint] | None) -> None:
        super().__init__(native)
        self._other = other

    def recording(self, layers: Indices, mask: str | None) -> _Native:
        """Return the source of other layers under another mask; see `OpenModel.recording`."""
        other = self._other
        return _Native(
            self._native.recording(layers, mask),
            None if other is None else lambda: other().recording(layers, mask),
        )

    def trace(self, text: str, pair: str | None = None, target: str | None = None) -> Trace:
        """Return the attention of one sentence; see `Source.trace`."""
        return next(self.traces([text], pair, target))

    def traces(self, texts: Sequence[str], pair: str | None = None, target: str | None = None) -> Iterator[Trace]:
        """Yield the attention of each sentence, in order; see `Source.traces`."""
        texts = list(as_list(texts))
        for place, answer in enumerate(self._native.answers(texts, pair, target)):
            if not isinstance(answer, UnsupportedError):
                yield answer
            elif self._other is None:
                raise _refusal(visible(self.name), answer, "native", self.name.lower().endswith(".gguf"))
            else:
                _log_fallback(visible(self.name), answer)
                yield self._other().trace(texts[place], pair, target)


class _Verified(_OfNative):
    """Both engines: the traces of the native one, whose proof is how far they are from those of transformers."""

    parallel_from = PARALLEL_FROM_LATE

    def __init__(self, native: NativeCheckpoint, other: Checkpoint) -> None:
        super().__init__(native)
        self._other = other

    def recording(self, layers: Indices, mask: str | None) -> _Verified:
        """Return the source of other layers under another mask; see `OpenModel.recording`."""
        return _Verified(self._native.recording(layers, mask), self._other.recording(layers, mask))

    def trace(self, text: str, pair: str | None = None, target: str | None = None) -> Trace:
        """Return the attention of one sentence; see `Source.trace`."""
        return next(self.traces([text], pair, target))

    def traces(self, texts: Sequence[str], pair: str | None = None, target: str | None = None) -> Iterator[Trace]:
        """Yield the attention of each sentence, in order; see `Source.traces`."""
        both = zip(self._native.traces(texts, pair, target), self._other.traces(texts, pair, target), strict=True)
        try:
            for trace, other in both:
                layers = zip(trace.layers, other.layers, strict=True)
                compared = tuple(_compared(layer, known, trace.source.dtype) for layer, known in layers)
                yield replace(trace, layers=compared)
        except UnsupportedError as error:
            raise _refusal(visible(self.name), error, "verify") from None


def _compared(layer: LayerTrace, known: LayerTrace, dtype: str) -> LayerTrace:
    """Return a layer with a proof: the largest difference of its Q, K, V and weights from those of a known layer.

    Where the known layer is not what the unmodified model computes, its own proof is returned, which says so.
    """
    if not known.is_proven(dtype):
        return replace(layer, proof=known.proof)
    apart = [np.abs(getattr(layer, name) - getattr(known, name)).max() for name in "qkv"]
    for head in range(layer.num_heads):
        for block, other in zip(layer.head(head).blocks(), known.head(head).blocks(), strict=True):
            apart.append(np.abs(block.weights - other.weights).max())
    worst = float(np.max(apart))  # NaN where one of them is
    largest = max(float(np.abs(getattr(known, name)).max()) for name in "qkv")
    return replace(layer, proof=Proof(worst, "those of transformers", "Q, K, V, weights", max(largest, 1.0)))
