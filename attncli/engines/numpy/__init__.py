"""Checkpoints of the common families, computed in NumPy: neither torch nor transformers is imported.

Exactness is a contract: what this engine cannot compute exactly as transformers does, it declines, and says why.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from functools import cache, partial
from pathlib import Path
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
from attncli.engines.numpy.weights import ModelWeights
from attncli.errors import AttnError, InputError, UsageError
from attncli.text import as_list, visible
from attncli.trace.layer import LayerTrace
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


class NativeCheckpoint:
    """A model and its tokenizer, opened once.

    Raises:
        UnsupportedError: this engine does not compute it.
        LoadError: its files are damaged, or do not belong together.
        UsageError: there is no such layer, head or kind.
    """

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
    ) -> None:
        check_options(options)
        self.mask = _parse_mask(mask)
        files = _open(snapshot, options.offline)
        model, config = snapshot.name, files.config
        spec = model_spec(ConfigReader(config))
        if kind not in (None, "self"):
            raise UsageError(f"--kind {visible(str(kind))}: {visible(model)} has self attention")
        self.name = model
        self.family: str = config["model_type"]
        self.tower = spec.tower
        self.layers = layers.resolve(len(spec.layers), visible(model))
        self.heads = heads.resolve(spec.heads.count, f"each layer of {visible(model)}")
        last = max(self.layers)
        _log.info("%s: %s of %d layers; layer %d is the last to run", model, self.family, len(spec.layers), last)
        store = files.store()
        self._form = store.form
        weights = ModelWeights(model, store, spec.prefixes, spec.embedding.tokens.name + ".weight")
        self.model = Model(spec, weights)
        expected = set(spec.tensors(min(last + 1, len(weights))))  # a file may claim layers without end
        modules = {name[:dot] for name in expected for dot, each in enumerate(name) if each == "."}
        head = weights.prefix or spec.prefix
        self.notes = check_unread(model, weights.unread(expected), modules, head, is_undone=bool(store.form))
        check_types(model, store, expected, head)
        tokenizer = files.tokenizer()
        self.encoder = InputEncoder(
            name=model,
            tokenizer=tokenizer,
            special=special,
            limit=spec.positions,
            truncate=options.truncate,
            rows=spec.embedding.tokens.rows,
        ).with_chat(options)
        weights.prepare(spec.read_whole(last))
        self._prefix_cache: PrefixCache | None = None
        self._source = Provenance(
            "pretrained",
            model=model,
            architecture=self.family,
            layers=len(spec.layers),
            details={
                "engine": "native",
                **snapshot.details,
                **({"weights": self._form} if self._form else {}),
                **({} if self.tower is None else {"tower": self.tower}),
            },
            notes=self.notes,
        )
        _log.info("native engine: float32 on cpu")

    @property
    def attention_layers(self) -> Sequence[int]:
        """All layers of the model."""
        return range(len(self.model.spec.layers))

    def recording(self, layers: Indices, mask: str | None) -> NativeCheckpoint:
        """Return the source of other layers, which goes on from what this one and others of it have computed.

        See `attncli.engines.source.OpenModel.recording`.
        """
        from attncli.engines.numpy.prefix_cache import PrefixCache

        self._prefix_cache = self._prefix_cache or PrefixCache()
        other = copy(self)
        other.layers = layers.resolve(len(self.attention_layers), visible(self.name))
        other.mask = _parse_mask(mask)
        return other

    def tokens(self, text: str, pair: str | None = None, target: str | None = None) -> tuple[Tokens, Tokens]:
        """Return the tokens of a sentence; see `attncli.engines.source.OpenModel.tokens`."""
        _check_target(target)
        tokens = self.encoder.encode(text, pair, None).tokens
        return tokens, tokens

    def answers(
        self, texts: Sequence[str], pair: str | None = None, target: str | None = None
    ) -> Iterator[Trace | UnsupportedError]:
        """Yield the attention of each sentence, in order, or why it is declined, whatever stands beside it.

        Sentences that follow each other are packed (`ragged_batch`), and nothing but the texts and the
        model's widths says which of them together.
        """
        _check_target(target)
        pack: list[EncodedInput] = []
        tokens = 0
        for text in as_list(texts):
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
        """Yield the attention of each sentence of a pack, or why it is declined."""
        if not pack:
            return
        begun = perf_counter()
        inputs = [TokenIds(each.inputs["input_ids"], each.inputs.get("token_type_ids")) for each in pack]
        found = None
        try:
            what = self.layers, self.heads, self.mask
            if self._prefix_cache is not None and len(pack) == 1:
                found = [self._prefix_cache.record(self.model, inputs[0], *what)]
            else:
                found = self.model.record(inputs, *what)
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
        if found is None:  # which of them it is shows when they are alone, and what was made of all is let go
            for each in pack:
                yield from self._answered([each])
            return
        tokens = sum(len(each.tokens) for each in pack)
        of_many = f" of {len(pack)} sentences" if len(pack) > 1 else ""
        _log.info("ran %d tokens%s in %.3f s", tokens, of_many, perf_counter() - begun)
        for sentence, layers in zip(pack, found, strict=True):
            yield self._traced(sentence, layers)

    def _traced(self, sentence: EncodedInput, layers: Sequence[LayerTrace]) -> Trace | UnsupportedError:
        arrays = (array for each in layers for array in (each.q, each.k, each.v) if array is not None)
        if not all(map(_is_finite, arrays)):
            return UnsupportedError("some of its numbers are not finite")
        found = {each.layer: each for each in layers}
        recorded = tuple(found[index] for index in self.layers)
        tokens = sentence.tokens
        return Trace(self._source, tokens, tokens, recorded, sentence.text, sentence.pair, notes=sentence.notes)


# What most runs have no use for is imported where it is used: they start sooner.


def _parse_mask(mask: str | None) -> Expression | None:
    if mask is None:
        return None
    from attncli.masks.parser import parse

    return parse(mask)


def _check_target(target: str | None) -> None:
    """Raise UsageError for a target, as no model here has a decoder beside an encoder."""
    if target is not None:
        raise UsageError("--target needs an encoder-decoder model or the toy layer; here use --pair for a second text")


def _is_finite(array: np.ndarray[Any, Any]) -> bool:
    # The sum of squares is sooner made, and may be infinite though no number is.
    return math.isfinite(np.vdot(array, array)) or bool(np.isfinite(array).all())


class _OpenFiles(NamedTuple):
    """A checkpoint's configuration, and what opens its tensors and its tokenizer."""

    config: dict[str, Any]
    store: Callable[[], Store]
    tokenizer: Callable[[], NativeTokenizer]


def _open(snapshot: Snapshot, offline: bool) -> _OpenFiles:
    """Return what a checkpoint is made of, of which nothing but the configuration is read yet."""
    if snapshot.gguf is not None:
        return _open_gguf(snapshot.gguf)
    if snapshot.is_pickled:
        raise UnsupportedError(f"the weights of {'its base' if snapshot.adapter else 'it'} are in a pickle")
    config = without_quantization(snapshot.config)  # which the store undoes
    store = cache(partial(open_store, snapshot, offline))
    return _OpenFiles(config, store, partial(load_tokenizer, snapshot.model_name, snapshot.tokenizer, config))


def _open_gguf(path: Path) -> _OpenFiles:
    # Which other checkpoints need not wait for.
    from attncli.checkpoints.tensors.gguf import Gguf, GgufFile
    from attncli.encoding.gguf_tokenizer import tokenizer_of
    from attncli.engines.numpy.gguf_config import config_of

    file = GgufFile(path)
    return _OpenFiles(config_of(file), partial(Gguf, file), partial(tokenizer_of, file))


def load_alone(snapshot: Snapshot, options: LoadOptions) -> tuple[NativeTokenizer, int]:
    """Load a checkpoint's tokenizer alone; return it and how many tokens its model reads at most.

    Raises:
        UnsupportedError: this engine does not compute the checkpoint.
        LoadError: a file is damaged.
    """
    check_options(options)
    if snapshot.gguf is not None:
        opened = _open_gguf(snapshot.gguf)
        return opened.tokenizer(), model_spec(ConfigReader(opened.config)).positions
    config = snapshot.config
    limit = model_spec(ConfigReader(without_quantization(config))).positions
    return load_tokenizer(snapshot.model_name, snapshot.tokenizer, config), limit


def check_options(options: LoadOptions) -> None:
    """Raise UnsupportedError for options that only transformers can fulfil."""
    if options.device != "cpu" or options.device_map is not None:
        raise UnsupportedError("it runs on the CPU alone")
    if options.dtype not in (None, "float32"):
        raise UnsupportedError("it computes in float32 alone")
    if options.trust_remote_code:
        raise UnsupportedError("it runs no code that a checkpoint brings")
