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
from attncli.engines.source import PARALLEL_FROM, PARALLEL_FROM_LATE, OpenModel
from attncli.errors import NotExposedError, require
from attncli.text import as_list, visible
from attncli.trace.layer import LayerTrace, Proof

if TYPE_CHECKING:
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
        native = NativeCheckpoint(snapshot, layers, heads, **how)
    except UnsupportedError as error:
        if engine in ("native", "verify") or is_gguf:
            raise _refusal(name, error, engine, is_gguf) from None
        _log_fallback(name, error)
        return in_torch()
    if engine == "verify":
        in_torch()  # what it refuses is said before a sentence is read
    return _Native(native, None if engine == "native" or is_gguf else in_torch, engine == "verify")


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


class _Native(OpenModel):
    """The native engine, with transformers for the sentences that it declines, or for a comparison of all of them.

    Which engine computes a sentence does not depend on the sentences beside it, so that a resumed run gives the same
    answers as one that was never interrupted.

    Args:
        native: the engine.
        other: opens the other; None where it reads no such checkpoint, or was not asked for.
        verifies: whether each layer's proof is how far it is from that of the other.
    """

    can_batch = True
    is_incremental = True

    def __init__(self, native: NativeCheckpoint, other: Callable[[], Checkpoint] | None, verifies: bool) -> None:
        self._native = native
        self._other = other
        self._verifies = verifies
        self.name = native.name
        self.attention_layers = native.attention_layers
        self.parallel_from = PARALLEL_FROM_LATE if verifies else PARALLEL_FROM

    def tokens(self, text: str, pair: str | None = None, target: str | None = None) -> tuple[Tokens, Tokens]:
        """Return the tokens of a sentence; see `OpenModel.tokens`."""
        return self._native.tokens(text, pair, target)

    def recording(self, layers: Indices, mask: str | None) -> _Native:
        """Return the source of other layers under another mask; see `OpenModel.recording`."""
        other = self._other
        again = None if other is None else cache(lambda: other().recording(layers, mask))
        return _Native(self._native.recording(layers, mask), again, self._verifies)

    def traces(self, texts: Sequence[str], pair: str | None = None, target: str | None = None) -> Iterator[Trace]:
        """Yield the attention of each sentence, in order; see `Source.traces`."""
        texts = list(as_list(texts))
        for place, answer in enumerate(self._native.answers(texts, pair, target)):
            if isinstance(answer, UnsupportedError):
                if self._other is None or self._verifies:
                    engine = "verify" if self._verifies else "native"
                    raise _refusal(visible(self.name), answer, engine, self.name.lower().endswith(".gguf"))
                _log_fallback(visible(self.name), answer)
                yield self._other().trace(texts[place], pair, target)
            elif self._verifies and self._other is not None:
                layers = zip(answer.layers, self._other().trace(texts[place], pair, target).layers, strict=True)
                yield replace(answer, layers=tuple(_compared(*both, answer.source.dtype) for both in layers))
            else:
                yield answer


def _compared(layer: LayerTrace, reference: LayerTrace, dtype: str) -> LayerTrace:
    """Return a layer with a proof: the largest difference of its Q, K, V and weights from those of a known layer.

    Where the known layer is not what the unmodified model computes, its own proof is returned, which says so.
    """
    if not reference.is_proven(dtype):
        return replace(layer, proof=reference.proof)
    apart = [np.abs(getattr(layer, name) - getattr(reference, name)).max() for name in "qkv"]
    for head in range(layer.num_heads):
        for block, other in zip(layer.head(head).blocks(), reference.head(head).blocks(), strict=True):
            apart.append(np.abs(block.weights - other.weights).max())
    worst = float(np.max(apart))  # NaN where one of them is
    largest = max(float(np.abs(getattr(reference, name)).max()) for name in "qkv")
    return replace(layer, proof=Proof(worst, "those of transformers", "Q, K, V, weights", max(largest, 1.0)))
