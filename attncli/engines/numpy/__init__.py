"""Checkpoints of the common families, computed in NumPy: neither torch nor transformers is imported.

Exactness is a contract: what this engine cannot compute exactly as transformers does, it declines, and says why.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from functools import cache, partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attncli.checkpoints.config_reader import DeclinedError, Fields
from attncli.checkpoints.folder import TEMPLATE, check_folder, is_gguf, is_known, read_json
from attncli.checkpoints.locating import Place, locate
from attncli.checkpoints.nested import has_adapter_weights
from attncli.checkpoints.tensors.open_store import open_store, rows_of_vocabulary
from attncli.checkpoints.tensors.quantization import without_quantization
from attncli.checkpoints.tensors.safetensors_store import has_shards
from attncli.checkpoints.weight_checks import check_types, check_unread
from attncli.checkpoints.weight_formats import check_form
from attncli.encoding.chat import open_chat
from attncli.encoding.encode import EncodedInput, InputEncoder
from attncli.encoding.fast_tokenizer import NativeTokenizer, load_tokenizer
from attncli.engines.numpy.families import model_spec
from attncli.engines.numpy.forward import Model
from attncli.engines.numpy.prefix_cache import PrefixCache
from attncli.engines.numpy.ragged_batch import TokenIds
from attncli.engines.numpy.weights import Weights
from attncli.errors import AttnError, InputError, UsageError, not_installed
from attncli.masks.parser import parse
from attncli.text import as_list, visible
from attncli.trace.layer import LayerTrace
from attncli.trace.selection import Indices
from attncli.trace.trace import Provenance, Trace

if TYPE_CHECKING:
    from attncli.checkpoints.options import EngineOptions, LoadOptions
    from attncli.checkpoints.tensors import Store
    from attncli.trace.tokens import Tokens

__all__ = ["DeclinedError", "NativeCheckpoint", "NotCachedError", "load_alone"]

_log = logging.getLogger(__name__)


_NOT_CACHED = "there is no such folder, and it is not, or not whole, in the local cache"


class NotCachedError(DeclinedError):
    """Some files of the checkpoint are not in the local cache; transformers can download them."""


class NativeCheckpoint:
    """A model and its tokenizer, opened once; see `attncli.engines.source.Source`.

    Raises:
        DeclinedError: this engine does not compute it, or, from `trace`, does not compute a sentence.
        NotCachedError: it is not on the disk.
        LoadError: its files are damaged, or do not belong together.
        UsageError: there is no such layer, head or kind.
    """

    can_batch = True
    is_incremental = True

    def __init__(
        self,
        model: str,
        layers: Indices,
        heads: Indices,
        *,
        kind: str | None,
        mask: str | None,
        special: bool,
        values: bool,
        options: EngineOptions,
    ) -> None:
        _check_options(options)
        self.mask = None if mask is None else parse(mask, states_true=False)
        files = _files(model, options)
        model, config = files.name, files.config
        spec = model_spec(Fields(config))
        if kind not in (None, "self"):
            raise UsageError(f"--kind {visible(str(kind))}: {visible(model)} has self attention")
        self.name = model
        self.details = files.details
        self.family: str = config["model_type"]
        self.tower = spec.tower
        self.layers = layers.resolve(len(spec.layers), visible(model))
        self.heads = heads.resolve(spec.heads.count, f"each layer of {visible(model)}")
        last = max(self.layers)
        _log.info("%s: %s of %d layers; layer %d is the last to run", model, self.family, len(spec.layers), last)
        store = files.store()
        self._form = store.form
        weights = Weights(model, store, spec.prefixes, spec.embedding.tokens.name + ".weight")
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
            chat=open_chat(model, tokenizer, options, special=special, asks=False),
        )
        weights.prepare(spec.read_whole(last, values))
        self._values = values
        self._prefix_cache: PrefixCache | None = None
        self._source = Provenance(
            "pretrained",
            model=model,
            architecture=self.family,
            layers=len(spec.layers),
            details={
                "engine": "native",
                **self.details,
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
        self._prefix_cache = self._prefix_cache or PrefixCache()
        other = copy(self)
        other.layers = layers.resolve(len(self.attention_layers), visible(self.name))
        other.mask = None if mask is None else parse(mask, states_true=False)
        return other

    def tokens(self, text: str, pair: str | None = None, target: str | None = None) -> tuple[Tokens, Tokens]:
        """Return the tokens of a sentence; see `attncli.engines.source.OpenModel.tokens`."""
        _check_target(target)
        tokens = self.encoder.encode(text, pair, None).tokens
        return tokens, tokens

    def trace(self, text: str, pair: str | None = None, target: str | None = None) -> Trace:
        """Return the attention of one sentence; see `Source.trace`."""
        return next(self.traces([text], pair, target))

    def traces(self, texts: Sequence[str], pair: str | None = None, target: str | None = None) -> Iterator[Trace]:
        """Yield the attention of each sentence, in order; see `Source.traces`."""
        for answer in self.answers(texts, pair, target):
            if isinstance(answer, DeclinedError):
                raise answer
            yield answer

    def answers(
        self, texts: Sequence[str], pair: str | None = None, target: str | None = None
    ) -> Iterator[Trace | DeclinedError]:
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

    def _answered(self, pack: Sequence[EncodedInput]) -> Iterator[Trace | DeclinedError]:
        """Yield the attention of each sentence of a pack, or why it is declined."""
        if not pack:
            return
        begun = perf_counter()
        inputs = [TokenIds(each.inputs["input_ids"], each.inputs.get("token_type_ids")) for each in pack]
        found = None
        try:
            what = self.layers, self.heads, self.mask, self._values
            if self._prefix_cache is not None and len(pack) == 1:
                found = [self._prefix_cache.record(self.model, inputs[0], *what)]
            else:
                found = self.model.record(inputs, *what)
        except DeclinedError as error:
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

    def _traced(self, sentence: EncodedInput, layers: Sequence[LayerTrace]) -> Trace | DeclinedError:
        arrays = (array for each in layers for array in (each.q, each.k, each.v) if isinstance(array, np.ndarray))
        if not all(map(_is_finite, arrays)):
            return DeclinedError("some of its numbers are not finite")
        found = {each.layer: each for each in layers}
        recorded = tuple(found[index] for index in self.layers)
        tokens = sentence.tokens
        return Trace(self._source, tokens, tokens, recorded, sentence.text, sentence.pair, notes=sentence.notes)


def _check_target(target: str | None) -> None:
    """Raise UsageError for a target, as no model here has a decoder beside an encoder."""
    if target is not None:
        raise UsageError("--target needs an encoder-decoder model or the toy layer; here use --pair for a second text")


def _is_finite(array: np.ndarray[Any, Any]) -> bool:
    # The sum of squares is sooner made, and may be infinite though no number is.
    return math.isfinite(np.vdot(array, array)) or bool(np.isfinite(array).all())


class _Files(NamedTuple):
    """A checkpoint: how it is called, its configuration, and what opens its tensors and its tokenizer."""

    name: str
    config: dict[str, Any]
    store: Callable[[], Store]
    tokenizer: Callable[[], NativeTokenizer]
    details: dict[str, str]


def _files(model: str, options: EngineOptions) -> _Files:
    """Return what a checkpoint is made of."""
    if is_gguf(model):
        if options.base is not None:
            raise UsageError(f"--base names the model under an adapter, and {visible(model)} is none; drop it")
        return _of_gguf(model)
    place = locate(model, options)
    is_cut = place.adapter is not None and not os.path.isdir(model) and not has_adapter_weights(place.adapter)
    if is_cut or place.lacks(options.base):
        raise NotCachedError("its adapter is not, or not whole, in the local cache")
    found = _folder(place, options, has_shards if place.tokenizer else _is_whole)
    own = place.options(options)
    with place.reading():
        folder = found or _checked_out(place.model, own)
    fetching = None if found is not None and not place.is_partial else own
    if place.adapter is not None and fetching is None and not has_shards(folder):
        check_form(place.model, folder)
        raise DeclinedError("the weights of its base are not in safetensors files")
    config = without_quantization(read_json(folder / "config.json"))  # which the store undoes

    @cache
    def store() -> Store:
        if fetching is None:
            check_form(place.name, folder)
        adapter = place.read_adapter(options.allow_pickle)
        return open_store(place.name, folder, adapter, fetching)

    if place.adapter is not None and "vocab_size" in config:
        config["vocab_size"] = rows_of_vocabulary(store(), config["vocab_size"])
    tokenizer = partial(load_tokenizer, place.model, place.tokenizer or folder, config)
    return _Files(place.name, config, store, tokenizer, place.details)


def _of_gguf(name: str) -> _Files:
    # Which other checkpoints need not wait for.
    from attncli.checkpoints.tensors.gguf import Gguf
    from attncli.checkpoints.tensors.gguf_file import GgufFile
    from attncli.encoding.gguf_tokenizer import tokenizer_of
    from attncli.engines.numpy.gguf_config import config_of

    file = GgufFile(Path(name))
    return _Files(name, config_of(file), partial(Gguf, file), partial(tokenizer_of, file), {})


def load_alone(name: str, options: LoadOptions) -> tuple[NativeTokenizer, int]:
    """Load a checkpoint's tokenizer alone; return it and how many tokens its model reads at most.

    Raises:
        DeclinedError: this engine does not compute the checkpoint.
        LoadError: a file is damaged.
    """
    _check_options(options)
    if is_gguf(name):
        files = _of_gguf(name)
        return files.tokenizer(), model_spec(Fields(files.config)).positions
    place = locate(name, options, for_tokenizer=True)
    if place.lacks(options.base):
        raise NotCachedError("its adapter is not in the local cache")
    folder = _folder(place, options, _has_config if place.tokenizer else _has_whole_tokenizer)
    if folder is None:
        raise NotCachedError(_NOT_CACHED)
    config = read_json(folder / "config.json")
    limit = model_spec(Fields(without_quantization(config))).positions
    return load_tokenizer(place.model, place.tokenizer or folder, config), limit


def _check_options(options: LoadOptions) -> None:
    """Raise DeclinedError for options that only transformers can fulfil."""
    if options.device != "cpu" or options.device_map is not None:
        raise DeclinedError("it runs on the CPU alone")
    if options.dtype not in (None, "float32"):
        raise DeclinedError("it computes in float32 alone")
    if options.trust_remote_code:
        raise DeclinedError("it runs no code that a checkpoint brings")


def _folder(place: Place, options: LoadOptions, is_whole: Callable[[Path], bool]) -> Path | None:
    """Return the folder that holds a checkpoint: its own, or that of the hub's local cache, if it is whole there."""
    is_local = os.path.isdir(place.model)
    if not is_local and not (is_whole(place.folder) and (not options.chat or _has_chat_template(place.folder))):
        return None
    check_folder(place.folder)
    return place.folder


def _has_config(folder: Path) -> bool:
    return (folder / "config.json").is_file()


def _checked_out(name: str, options: LoadOptions) -> Path:
    """Return the folder of the small files of a checkpoint, whose weights are fetched as they are read."""
    folder = None
    if not options.whole_files and not not_installed("huggingface_hub"):
        from attncli.checkpoints.hub_snapshot import checkout  # which imports the hub's client

        folder = checkout(name, options)
    if folder is None:
        raise NotCachedError(_NOT_CACHED)
    return folder


def _is_whole(folder: Path) -> bool:
    """Return whether a folder of the cache has all files of a checkpoint."""
    return _has_whole_tokenizer(folder) and has_shards(folder)


def _has_whole_tokenizer(folder: Path) -> bool:
    """Return whether a folder of the cache has all files of a tokenizer, its download having come to the end.

    Of the files that are read here, transformers downloads special_tokens_map.json last, and weights after that.
    """
    has_all = all(os.path.isfile(folder / name) for name in ("tokenizer.json", "tokenizer_config.json"))
    return has_all and (is_known(folder, "special_tokens_map.json") or has_shards(folder))


def _has_chat_template(folder: Path) -> bool:
    """Return whether the cache has a checkpoint's chat template, or knows that it has none in a file of its own."""
    return is_known(folder, TEMPLATE) or "chat_template" in read_json(folder / "tokenizer_config.json")
