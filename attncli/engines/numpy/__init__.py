"""Checkpoints of the common families, computed in NumPy: neither torch nor transformers is imported.

Exactness is a contract: this engine declines, with the reason, any model that it cannot compute exactly.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from functools import cache, partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attncli.checkpoints.config_reader import ConfigReader, UnsupportedError
from attncli.checkpoints.tensors.open_store import open_store
from attncli.checkpoints.weight_checks import check_types, check_unread, without_quantization
from attncli.encoding.encode import EncodedInput, InputEncoder
from attncli.encoding.fast_tokenizer import NativeTokenizer, load_tokenizer
from attncli.engines.numpy.families import model_spec
from attncli.engines.numpy.forward import Model
from attncli.engines.numpy.ragged_batch import TokenIds
from attncli.engines.numpy.residual_stream import NativeForward
from attncli.engines.numpy.weights import ModelWeights
from attncli.engines.source import PARALLEL_FROM, PARALLEL_FROM_LATE, OpenModel
from attncli.errors import AttnError, InputError, NotExposedError, UsageError, require
from attncli.text import as_list, visible
from attncli.trace.layer import LayerTrace, Proof
from attncli.trace.selection import Indices
from attncli.trace.trace import Provenance, Trace

if TYPE_CHECKING:
    from attncli.checkpoints.options import EngineOptions, LoadOptions
    from attncli.checkpoints.snapshot import Snapshot
    from attncli.checkpoints.tensors import Store
    from attncli.engines.numpy.prefix_cache import PrefixCache
    from attncli.masks.expressions import Expression
    from attncli.trace.tokens import Tokens

__all__ = ["NativeCheckpoint", "UnsupportedError", "load_alone"]

_log = logging.getLogger(__name__)


class NativeCheckpoint(OpenModel):
    """A model and its tokenizer, opened once, with transformers for the sentences that this engine declines.

    The engine of a sentence does not depend on its neighbours, so that a resumed run gives the same answers as one that
    was never interrupted.

    Args:
        snapshot: the checkpoint's files.
        layers: which layers to record.
        heads: which heads to show.
        kind: the only kind of attention to record; None is every kind.
        mask: replaces the model's own.
        special: whether the tokenizer adds its special tokens.
        options: how to load.
        other: opens the checkpoint in transformers; None if it cannot, or was not chosen.

    Raises:
        UnsupportedError: this engine does not compute it.
        LoadError: its files are damaged, or do not belong together.
        UsageError: there is no such layer, head or kind.
    """

    can_batch = True
    is_incremental = True

    def __init__(
        self,
        snapshot: Snapshot,
        layers: Indices,
        heads: Indices,
        *,
        kind: str | None,
        mask: str | None,
        special: bool,
        options: EngineOptions,
        other: Callable[[], OpenModel] | None = None,
    ) -> None:
        check_options(options)
        if options.engine == "verify" and options.dtype == "auto":  # the type in which transformers would compute
            raise UnsupportedError("it computes in float32 only")
        self.mask = _parse_mask(mask)
        files = _open(snapshot)
        model, config = snapshot.name, files.config
        spec = model_spec(ConfigReader(config))
        if kind not in (None, "self"):
            raise UsageError(f"--kind {visible(str(kind))}: {visible(model)} has self attention")
        self.name = model
        self._is_gguf = snapshot.gguf is not None
        self._other = other
        self._verifies = options.engine == "verify"  # each layer's proof is its difference from the other engine's
        self.parallel_from = PARALLEL_FROM_LATE if self._verifies else PARALLEL_FROM
        self.attention_layers = range(len(spec.layers))
        self.layers = layers.resolve(len(spec.layers), visible(model))
        self.heads = heads.resolve(spec.heads.count, f"each layer of {visible(model)}")
        family, last = config["model_type"], max(self.layers)
        _log.info("%s: %s of %d layers; layer %d is the last to run", model, family, len(spec.layers), last)
        store = files.store()
        weights = ModelWeights(model, store, spec.prefix, spec.embedding.tokens.name + ".weight")
        self.model = Model(spec, weights)
        expected = set(spec.tensors(min(last + 1, len(weights))))  # a file may claim any number of layers
        modules = {name[:dot] for name in expected for dot, character in enumerate(name) if character == "."}
        head = weights.prefix or spec.prefix
        notes = check_unread(model, weights.unread(expected), modules, head, is_undone=bool(store.form))
        types = check_types(model, store, expected, head)
        halved = sorted(types - {"float32"}) if options.dtype == "auto" else ()
        form = store.form or " and ".join(halved)
        tokenizer, rows = files.tokenizer(), spec.embedding.tokens.rows
        encoder = InputEncoder(model, tokenizer, special, spec.positions, options.truncate, rows)
        self.encoder = encoder.with_chat(options)
        weights.prepare(spec.read_whole(last))
        self._prefix_cache: PrefixCache | None = None
        self.source = Provenance(
            "pretrained",
            model=model,
            architecture=family,
            layers=len(spec.layers),
            details={
                "engine": "native",
                **snapshot.details,
                **({"weights": form} if form else {}),
            },
            notes=notes,
        )
        _log.info("native engine: float32 on cpu")

    def recording(self, layers: Indices, mask: str | None) -> NativeCheckpoint:
        """Return the source of other layers, which reuses the results of this one and of others of it.

        See `OpenModel.recording`.
        """
        from attncli.engines.numpy.prefix_cache import PrefixCache

        self._prefix_cache = self._prefix_cache or PrefixCache()
        again = copy(self)
        again.layers = layers.resolve(len(self.attention_layers), visible(self.name))
        again.mask = _parse_mask(mask)
        other = self._other
        again._other = None if other is None else cache(lambda: other().recording(layers, mask))
        return again

    def tokens(self, text: str, pair: str | None = None, target: str | None = None) -> tuple[Tokens, Tokens]:
        """Return the tokens of a sentence; see `OpenModel.tokens`."""
        _check_target(target)
        tokens = self.encoder.encode(text, pair, None).tokens
        return tokens, tokens

    def traces(self, texts: Sequence[str], pair: str | None = None, target: str | None = None) -> Iterator[Trace]:
        """Yield the attention of each sentence, in order; see `Source.traces`."""
        _check_target(target)
        texts = list(as_list(texts))
        for index, answer in enumerate(self._answers(texts, pair)):
            other = self._other
            if isinstance(answer, UnsupportedError):
                if other is None or self._verifies:
                    engine = "verify" if self._verifies else "native"
                    raise refusal(self.name, answer, engine, self._is_gguf)
                log_fallback(self.name, answer)
                yield other().trace(texts[index], pair)
            elif self._verifies and other is not None:
                layers = zip(answer.layers, other().trace(texts[index], pair).layers, strict=True)
                yield replace(answer, layers=tuple(compared(*both, answer.source.dtype) for both in layers))
            else:
                yield answer

    def _answers(self, texts: Sequence[str], pair: str | None) -> Iterator[Trace | UnsupportedError]:
        """Yield the attention of each sentence, in order, or the reason to decline it, independently of its neighbours.

        Consecutive sentences are packed (`ragged_batch`), by their lengths and the model's widths alone.
        """
        pack: list[EncodedInput] = []
        tokens = 0
        for text in texts:
            try:
                sentence = self.encoder.encode(text, pair, None)
            except AttnError:
                yield from self._answered(pack)
                raise
            length = len(sentence.tokens)
            if pack and tokens + length > self.model.batch_tokens:
                yield from self._answered(pack)
                pack, tokens = [], 0
            pack.append(sentence)
            tokens += length
        yield from self._answered(pack)

    def _answered(self, pack: Sequence[EncodedInput]) -> Iterator[Trace | UnsupportedError]:
        if not pack:
            return
        begun = perf_counter()
        inputs = [TokenIds(item.inputs["input_ids"], item.inputs.get("token_type_ids")) for item in pack]
        recorded_layers = None
        try:
            what = self.layers, self.heads, self.mask
            if self._prefix_cache is not None and len(pack) == 1:
                recorded_layers = [self._prefix_cache.record(self.model, inputs[0], *what)]
            else:
                recorded_layers = self.model.record(inputs, *what)
        except UnsupportedError as error:
            if len(pack) == 1:
                yield error
                return
        except InputError:
            if len(pack) == 1:
                raise
        except MemoryError:
            if len(pack) == 1:
                count = len(pack[0].tokens)
                raise InputError(f"{count} tokens do not fit into memory; give fewer tokens or layers") from None
        if recorded_layers is None:  # which of them it is shows when they are alone, and what was made of all is let go
            for item in pack:
                yield from self._answered([item])
            return
        tokens = sum(len(item.tokens) for item in pack)
        of_many = f" of {len(pack)} sentences" if len(pack) > 1 else ""
        _log.info("ran %d tokens%s in %.3f s", tokens, of_many, perf_counter() - begun)
        for sentence, ids, layers in zip(pack, inputs, recorded_layers, strict=True):
            arrays = (array for item in layers for array in (item.q, item.k, item.v) if array is not None)
            if not all(map(_is_finite, arrays)):
                yield UnsupportedError("some of its numbers are not finite")
                continue
            by_index = {item.layer: item for item in layers}
            recorded, own = tuple(by_index[index] for index in self.layers), sentence.tokens
            yield Trace(
                self.source, own, own, recorded, sentence.text, sentence.pair, notes=sentence.notes,
                forward=NativeForward(self.model, ids, self.mask),
            )  # fmt: skip


# Imports that most runs do not need are made on use: the program starts sooner.


def _parse_mask(mask: str | None) -> Expression | None:
    if mask is None:
        return None
    from attncli.masks.parser import parse

    return parse(mask)


def _check_target(target: str | None) -> None:
    """Raise UsageError for a target, as no model here has both an encoder and a decoder."""
    if target is not None:
        raise UsageError("--target needs an encoder-decoder model or the toy layer; use --pair for a second text")


def _is_finite(array: np.ndarray[Any, Any]) -> bool:
    # The sum of squares is faster, but may be infinite for finite numbers.
    return math.isfinite(np.vdot(array, array)) or bool(np.isfinite(array).all())


def compared(layer: LayerTrace, reference: LayerTrace, dtype: str) -> LayerTrace:
    """Return a layer with a proof: the largest difference of its Q, K, V and weights from those of a reference.

    Where the reference is not proven to be the unmodified model's, its own proof is returned.
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


def log_fallback(name: str, reason: UnsupportedError) -> None:
    """Log the reason for falling back to transformers; LoadError if it is not installed."""
    why = f"the native engine does not compute {visible(name)}: {visible(str(reason))}"
    require(f"{why}. The transformers engine", "torch", "transformers")
    _log.info("left to transformers: %s", reason)


def refusal(name: str, reason: UnsupportedError, engine: str, is_gguf: bool) -> NotExposedError:
    """Return the error for a checkpoint or a sentence that only this engine may compute, and declines."""
    shown, why = visible(name), visible(str(reason))
    if is_gguf:
        return NotExposedError(f"{shown} is a GGUF file, and the native engine does not compute it: {why}")
    return NotExposedError(f"--engine {engine}: the native engine does not compute {shown}: {why}; drop the option")


class _OpenFiles(NamedTuple):
    """A checkpoint's configuration, and functions that open its tensors and its tokenizer."""

    config: dict[str, Any]
    store: Callable[[], Store]
    tokenizer: Callable[[], NativeTokenizer]


def _open(snapshot: Snapshot) -> _OpenFiles:
    """Open a checkpoint, and read only its configuration."""
    if snapshot.gguf is not None:
        # Imported here, as other checkpoints need not wait for it.
        from attncli.checkpoints.tensors.gguf import Gguf, GgufFile
        from attncli.encoding.gguf_tokenizer import tokenizer_of
        from attncli.engines.numpy.gguf_config import config_of

        file = GgufFile(snapshot.gguf)
        return _OpenFiles(config_of(file), partial(Gguf, file), partial(tokenizer_of, file))
    config = without_quantization(snapshot.config)  # the store dequantizes

    def store() -> Store:
        if snapshot.is_pickled:
            raise UnsupportedError(f"the weights of {'its base' if snapshot.adapter else 'it'} are in a pickle")
        return open_store(snapshot)

    return _OpenFiles(config, store, partial(load_tokenizer, snapshot.model_name, snapshot.tokenizer, config))


def load_alone(snapshot: Snapshot, options: LoadOptions) -> tuple[NativeTokenizer, int]:
    """Load a checkpoint's tokenizer alone; return it and how many tokens its model reads at most.

    Raises:
        UnsupportedError: this engine does not compute the checkpoint.
        LoadError: a file is damaged.
    """
    check_options(options)
    files = _open(snapshot)
    limit = model_spec(ConfigReader(files.config)).positions
    return files.tokenizer(), limit


def check_options(options: LoadOptions) -> None:
    """Raise UnsupportedError for options that only transformers can fulfil."""
    if options.device != "cpu" or options.device_map is not None:
        raise UnsupportedError("it runs on the CPU only")
    if options.dtype not in (None, "auto", "float32"):
        raise UnsupportedError("it computes in float32 only")
    if options.trust_remote_code:
        raise UnsupportedError("it runs no code of a checkpoint")
