"""A model in ONNX files, which computes the attention of one sentence after another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Self

import numpy as np

from attncli.checkpoints.onnx_files import CACHED
from attncli.checkpoints.options import LoadOptions
from attncli.checkpoints.snapshot import Snapshot
from attncli.encoding.graph_inputs import HIDDEN, IDS, MASK, PIXELS, padded_inputs, step_inputs
from attncli.encoding.written_tokenizer import open_encoder
from attncli.engines.onnx.runner import GraphRunner
from attncli.engines.source import ON_REQUEST, ModelRequest, OpenCheckpoint
from attncli.errors import NotExposedError, UsageError
from attncli.masks.expressions import Expression
from attncli.text import as_list, visible
from attncli.trace.layer import LayerTrace
from attncli.trace.trace import Provenance, Trace


class OnnxModel(OpenCheckpoint):
    """A model in ONNX files and its tokenizer, opened once; see `open_source` for the options and errors."""

    can_batch = False
    parallel_from = ON_REQUEST

    def __init__(self, snapshot: Snapshot, request: ModelRequest, options: LoadOptions) -> None:
        self.name, self._shown, kind = snapshot.name, visible(snapshot.name), request.kind
        self._heads, self.kind = request.heads, kind
        self.with_mask(request.mask)
        self.is_encoder_decoder, self._graph = len(snapshot.onnx) > 1, snapshot.onnx[0]
        first = "encoder" if self.is_encoder_decoder or snapshot.config.get("is_encoder_decoder") is True else None
        self._runners = [GraphRunner(*both, self._shown) for both in zip(snapshot.onnx, (first, None), strict=False)]
        sublayers = [item for runner in self._runners for item in runner.sublayers]
        kinds = list(dict.fromkeys(item.kind for item in sublayers))
        if kind not in (None, *kinds):
            raise UsageError(f"--kind {visible(str(kind))}: {self._shown} has {', '.join(kinds)} attention")
        self.attention_layers = range(max(item.layer for item in sublayers) + 1)
        self._layers = request.layers.resolve(len(self.attention_layers), self._shown)
        self._order = [(layer, kind_of_layer) for layer in self._layers for kind_of_layer in kinds]
        self.reads_pictures = PIXELS in self._runners[0].inputs
        self.encoder = open_encoder(snapshot, request.special, options, self.reads_pictures)
        for runner in self._runners:
            runner.open(self._layers, kind)
        config, count = snapshot.config, len(self.attention_layers)
        names = (name for name in ("num_hidden_layers", "n_layer", "num_layers") if name in config)
        expected = config.get(next(names, ""), count)
        other = f"the graph has attention in {count} layers, and config.json has {expected}; they are counted in order"
        forms = [runner.weight_form for runner in self._runners if runner.weight_form]
        details = {"engine": "onnx"} | ({"weights": forms[0]} if forms else {})
        source = Provenance("pretrained", self.name, config.get("model_type"), layers=count, details=details)
        self._source = source._replace(notes=(other,) * (expected != count))

    def with_mask(self, mask: Expression | None) -> Self:
        """Return the same model; NotExposedError for a mask, for which a graph has no input."""
        if mask is not None:
            raise NotExposedError(f"--mask does not apply to {self._shown}: its graph makes the mask; drop --mask")
        return self

    def padded_layers(self, text: str, left: int, right: int) -> Sequence[LayerTrace]:
        """Return the layers of a text with tokens of padding; NotExposedError if the graph cannot mask them."""
        if MASK not in self._runners[0].inputs:
            raise NotExposedError("it reads no attention_mask")
        if left and any("lengths" in item.tensors for item in self._runners[0].sublayers):
            raise NotExposedError("GroupQueryAttention counts the keys before padding; pad on the right")
        around = padded_inputs(self.encode(text).inputs[IDS], self.encoder.padding_id, left, right)
        encoder, *decoders = self._runners
        layers, states = encoder.run(around, self._heads, [encoder.states] * len(decoders))
        for decoder in decoders:  # any text shows whether it attends to padding of the encoder's
            layers += [one for one in decoder.run(around | {HIDDEN: states[0]}, self._heads)[0] if one.kind == "cross"]
        return layers

    def in_steps(self, text: str) -> Iterator[Sequence[LayerTrace]]:
        """Yield the layers of half of a text, then of each of its last two tokens, run with the cache of those before.

        NotExposedError if no graph reads a cache.
        """
        first = runner = self._runners[0]
        if CACHED in first.inputs and not self.is_encoder_decoder:
            runner = GraphRunner(self._graph, None, self._shown, is_cached=True)
            runner.open(self._layers, self.kind)
        if not runner.cache:
            runs = "attn runs no cache of an encoder-decoder" if self.is_encoder_decoder else "its graph reads no cache"
            raise NotExposedError(runs)
        ids = self.encode(text).inputs[IDS]
        ends, past = {max(len(ids) // 2, 1), max(len(ids) - 2, 1), max(len(ids) - 1, 1), len(ids)}, dict[str, Any]()
        for start, end in pairwise([0, *sorted(ends)]):
            inputs, wanted = step_inputs(ids, start, end) | past, [*runner.cache.values()]
            layers, present = (runner if start else first).run(inputs, self._heads, wanted)
            past = dict(zip(runner.cache, present, strict=True))
            yield layers

    def own_output(self, text: str) -> np.ndarray[Any, Any]:
        """Return the first output of the first graph, such as logits, `[1, T, N]`."""
        ids, (runner, *_) = self.encode(text).inputs[IDS], self._runners
        return runner.run(step_inputs(ids, 0, len(ids)), self._heads, [runner.states])[1][0]

    def traces(self, texts: Sequence[str], pair: str | None = None, target: str | None = None) -> Iterator[Trace]:
        """Yield the attention of each sentence, in order; see `Source.traces`."""
        for text in as_list(texts):
            sentence = self.encode(text, pair, target)
            arrays: dict[str, Any] = {name: [ids] for name, ids in sentence.inputs.items()} | dict(sentence.tensors)
            encoder, *decoder = self._runners
            layers, states = encoder.run(arrays, self._heads, [encoder.states] * len(decoder))
            if sentence.target is not None:
                layers += decoder[0].run({IDS: arrays["decoder_input_ids"], HIDDEN: states[0]}, self._heads)[0]
            layers.sort(key=lambda layer: self._order.index((layer.layer, layer.kind)))
            source, sides = self._source._replace(dtype=encoder.dtype), (sentence.query_tokens, sentence.tokens)
            more: dict[str, Any] = {"notes": sentence.notes, "pictures": sentence.pictures, "grids": sentence.grids}
            yield Trace(source, *sides, tuple(layers), sentence.text, sentence.pair, sentence.target, **more)
