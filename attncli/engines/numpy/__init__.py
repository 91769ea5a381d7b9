"""Checkpoints of the common families, computed in NumPy: neither torch nor transformers is imported.

Exactness is a contract: this engine declines, with the reason, any model that it cannot compute exactly.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.checkpoints.checkpoint_folder import ConfigReader, UnsupportedError
from attncli.checkpoints.tensors import check_types, check_unread, without_quantization
from attncli.checkpoints.tensors.open_store import open_store
from attncli.encoding.encode import EncodedInput, IdTokenizer, InputEncoder
from attncli.encoding.fast_tokenizer import NativeTokenizer, load_tokenizer
from attncli.engines.numpy.families import model_spec
from attncli.engines.numpy.forward import Model, TokenIds
from attncli.engines.numpy.model_spec import ModelWeights
from attncli.engines.source import PARALLEL_FROM, ModelRequest, OpenCheckpoint
from attncli.errors import AttnError, InputError, NotExposedError, UsageError
from attncli.text import as_list, visible
from attncli.trace.trace import Provenance, Trace

if TYPE_CHECKING:
    from attncli.checkpoints.options import LoadOptions
    from attncli.checkpoints.snapshot import Snapshot
    from attncli.checkpoints.tensors import Store
    from attncli.engines.numpy.residual_stream import ScoreTerms
    from attncli.engines.predictor import Predictor
    from attncli.masks.expressions import Expression
    from attncli.trace.layer import LayerTrace

__all__ = ["NativeCheckpoint", "UnsupportedError", "load_alone"]

_log = logging.getLogger(__name__)


class NativeCheckpoint(OpenCheckpoint):
    """A model and its tokenizer, opened once; see `open_source` for the arguments and `Source` for the methods.

    Raises:
        UnsupportedError: this engine does not compute it.
        LoadError: its files are damaged, or do not belong together.
        UsageError: there is no such layer, head or kind.
    """

    can_batch = True
    parallel_from = PARALLEL_FROM

    def __init__(self, snapshot: Snapshot, request: ModelRequest, options: LoadOptions) -> None:
        _check_options(options)
        config, open_tensors, open_tokenizer = _open(snapshot, options)
        self.name = model = snapshot.name
        spec = model_spec(ConfigReader(config))
        if (kind := request.kind) not in (None, "self"):
            raise UsageError(f"--kind {visible(str(kind))}: {visible(model)} has self attention")
        self.kind, self.mask, self.attention_layers = kind, request.mask, range(len(spec.layers))
        self.layers = request.layers.resolve(len(spec.layers), visible(model))
        self._heads = request.heads.resolve(spec.heads.count, f"each layer of {visible(model)}")
        family, last = config["model_type"], max(self.layers)
        _log.info("%s: %s of %d layers; layer %d is the last to run", model, family, len(spec.layers), last)
        store = open_tensors()
        weights = ModelWeights(model, store, spec.prefix, spec.embedding.tokens.name + ".weight")
        self.model = Model(spec, weights)
        expected = set(spec.tensors(min(last + 1, len(store.names))))  # a file may claim any number of layers
        modules = {name[:dot] for name in expected for dot, character in enumerate(name) if character == "."}
        head = weights.prefix or spec.prefix
        notes = check_unread(model, weights.unread(expected), modules, head, is_undone=bool(store.form))
        types = check_types(model, store, expected, head)
        weights.check_readable(expected)
        form = store.form or (" and ".join(sorted(types - {"float32"})) if options.dtype == "auto" else "")
        tokenizer, rows = open_tokenizer(), spec.embedding.tokens.rows
        encoder = InputEncoder(model, tokenizer, request.special, spec.positions, options.truncate, rows)
        self.encoder = encoder.with_chat(options)
        weights.prepare(spec.read_whole(last))
        details = {"engine": "native", **snapshot.details, **({"weights": form} if form else {})}
        how: dict[str, Any] = {"architecture": family, "layers": len(spec.layers), "details": details, "notes": notes}
        self.source = Provenance("pretrained", model=model, **how)
        _log.info("native engine: float32 on cpu")

    def predictor(self) -> Predictor:
        """Return the predictor of next tokens; see `OpenModel.predictor`."""
        from attncli.engines.numpy.ablation import cut_logits
        from attncli.engines.predictor import Predictor

        spec = self.model.spec
        if spec.unembedding is None:
            shown = f"{visible(self.name)} ({self.source.architecture})"
            raise NotExposedError(f"{shown} is an encoder, which predicts no next token; give a causal model: -m demo")
        try:
            _ = self.model.unembedding_name  # refused before a sentence is read
        except UnsupportedError as error:
            raise NotExposedError(f"{error}; give a causal language model, such as -m demo") from None
        layers, masks = len(spec.layers), [layer.mask for layer in spec.layers]
        return Predictor(self.source, self.encoder, layers, spec.heads.count, partial(cut_logits, self.model), masks)

    def forward(self, text: str, pair: str | None = None) -> NativeForward:
        """Return the forward pass of a sentence, without computing it."""
        return NativeForward(self.model, TokenIds.of(self.encode(text, pair)), self.mask)

    def traces(self, texts: Sequence[str], pair: str | None = None, target: str | None = None) -> Iterator[Trace]:
        """Yield the attention of each sentence, in order; see `Source.traces`.

        Consecutive sentences are packed (`forward.RaggedBatch`), by their lengths and the model's widths alone.
        """
        pack: list[EncodedInput] = []
        tokens = 0
        for text in as_list(texts):
            try:
                sentence = self.encode(text, pair, target)
            except AttnError:
                yield from self._recorded(pack)
                raise
            length = len(sentence.tokens)
            if pack and tokens + length > self.model.batch_tokens:
                yield from self._recorded(pack)
                pack, tokens = [], 0
            pack.append(sentence)
            tokens += length
        yield from self._recorded(pack)

    def _recorded(self, pack: Sequence[EncodedInput]) -> Iterator[Trace]:
        if not pack:
            return
        begun, tokens, failure = perf_counter(), sum(len(item.tokens) for item in pack), None
        try:
            recorded = self.model.record([*map(TokenIds.of, pack)], self.layers, self._heads, self.mask)
        except (UnsupportedError, InputError, MemoryError) as error:
            failure = error.with_traceback(None)  # which holds arrays
        if failure is None:
            of_many = f" of {len(pack)} sentences" if len(pack) > 1 else ""
            _log.info("ran %d tokens%s in %.3f s", tokens, of_many, perf_counter() - begun)
            yield from map(self._trace, pack, recorded)
        elif len(pack) > 1:  # the sentence that fails shows when each is alone
            for item in pack:
                yield from self._recorded([item])
        elif isinstance(failure, MemoryError):
            raise InputError(f"{tokens} tokens do not fit into memory; give fewer tokens or layers") from None
        elif isinstance(failure, UnsupportedError):
            raise self._declined(failure)
        else:
            raise failure

    def _declined(self, why: object) -> InputError:
        return InputError(f"the native engine does not compute this text: {why}; give --engine transformers")

    def _trace(self, sentence: EncodedInput, layers: list[LayerTrace]) -> Trace:
        arrays = (array for item in layers for array in (item.q, item.k, item.v) if array is not None)
        if not all(map(_is_finite, arrays)):
            raise self._declined("some of its numbers are not finite")
        by_index = {item.layer: item for item in layers}
        tokens, recorded = sentence.tokens, tuple(by_index[index] for index in self.layers)
        forward = NativeForward(self.model, TokenIds.of(sentence), self.mask)
        text, pair, notes = sentence.text, sentence.pair, sentence.notes
        return Trace(self.source, tokens, tokens, recorded, text, pair, notes=notes, forward=forward)


@dataclass(frozen=True)
class NativeForward:
    """Computation of a trace, which can compute more of it."""

    model: Model  # the model
    sentence: TokenIds  # the text
    mask: Expression | None  # in place of the model's own

    def __reduce__(self) -> Any:
        """Stay in this process: a trace that is sent to another one is sent without its model."""
        return type(None), ()

    def score_terms(self, layer: int, head: int, query: int, keys: Sequence[int]) -> ScoreTerms:
        """Return what each writer adds to the scaled q·k of one query at some keys, by what wrote the key or the query.

        The terms of either side add up to q·k · scale.
        """
        from attncli.engines.numpy.residual_stream import score_terms

        return score_terms(self.model, self.sentence, self.mask, (layer, head), query, keys)


def _is_finite(array: np.ndarray[Any, Any]) -> bool:
    # The sum of squares is faster, but may be infinite for finite numbers.
    return math.isfinite(np.vdot(array, array)) or bool(np.isfinite(array).all())


def _open(
    snapshot: Snapshot, options: LoadOptions
) -> tuple[dict[str, Any], Callable[[], Store], Callable[[], NativeTokenizer | IdTokenizer]]:
    """Return a checkpoint's configuration, and functions that open its tensors and its tokenizer."""
    if snapshot.gguf is not None:
        # Imported here, as other checkpoints need not wait for it.
        from attncli.checkpoints.tensors.gguf import Gguf, GgufFile
        from attncli.encoding.gguf_tokenizer import tokenizer_of
        from attncli.engines.numpy.gguf_config import config_of

        file = GgufFile(snapshot.gguf)
        return config_of(file), partial(Gguf, file), IdTokenizer if options.ids else partial(tokenizer_of, file)
    config = without_quantization(snapshot.config)  # the store dequantizes

    def store() -> Store:
        if snapshot.is_pickled:
            raise UnsupportedError(f"the weights of {'its base' if snapshot.adapter else 'it'} are in a pickle")
        return open_store(snapshot)

    loading = partial(load_tokenizer, snapshot.model_name, snapshot.tokenizer, config)
    return config, store, IdTokenizer if options.ids else loading


def load_alone(snapshot: Snapshot, options: LoadOptions) -> tuple[NativeTokenizer | IdTokenizer, int]:
    """Load a checkpoint's tokenizer alone; return it and how many tokens its model reads at most."""
    _check_options(options)
    config, _, tokenizer = _open(snapshot, options)
    limit = model_spec(ConfigReader(config)).positions
    return tokenizer(), limit


def _check_options(options: LoadOptions) -> None:
    if options.device != "cpu" or options.device_map is not None:
        raise UnsupportedError("it runs on the CPU only")
    if options.dtype not in (None, "auto", "float32"):
        raise UnsupportedError("it computes in float32 only")
    if options.trust_remote_code:
        raise UnsupportedError("it runs no code of a checkpoint")
