"""A model in ONNX files, which computes the attention of one sentence after another."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import onnxruntime

from attncli.attention import FORBIDDEN_BELOW
from attncli.checkpoints.config_reader import ConfigReader, UnsupportedError
from attncli.checkpoints.options import LoadOptions
from attncli.checkpoints.snapshot import Snapshot
from attncli.encoding.encode import EncodedInput, IdTokenizer, InputEncoder
from attncli.encoding.fast_tokenizer import load_as_written, load_tokenizer
from attncli.engines.numpy.families import model_spec
from attncli.engines.onnx.fused import FusedAttention, fused_attention
from attncli.engines.onnx.graph import Graph
from attncli.engines.onnx.inputs import HIDDEN, IDS, Feeds, check_inputs, feeds_of
from attncli.engines.onnx.patterns import Arrays, WrittenAttention, written_attention
from attncli.engines.source import PARALLEL_FROM_LATE, OpenModel
from attncli.errors import InputError, LoadError, NotExposedError, UsageError
from attncli.masks.expressions import smallest
from attncli.text import as_list, visible
from attncli.trace.layer import LayerTrace, Proof, max_abs_diff, stages_of
from attncli.trace.selection import Indices
from attncli.trace.tokens import Tokens
from attncli.trace.trace import Provenance, Trace

if TYPE_CHECKING:
    from attncli.engines.predictor import Predictor

_log = logging.getLogger(__name__)
_EXTERNAL = "session.model_external_initializers_file_folder_path"


class Sublayer(NamedTuple):
    """One attention of a graph."""

    index: int  # of its layer
    kind: str  # `self`, or `encoder`, `decoder`, `cross`
    attention: WrittenAttention | FusedAttention


class GraphRunner:
    """A graph whose attention is among its outputs; see `Graph` for the errors."""

    def __init__(self, path: Path, shown: str, is_encoder: bool = False) -> None:
        self.shown, self.graph, self.dtype = shown, Graph(path), "float32"
        check_inputs(self.graph, shown)
        counts: dict[str, int] = {}
        self.sublayers: list[Sublayer] = []
        for node in self.graph.nodes:
            attention = fused_attention(self.graph, node) or written_attention(self.graph, node)
            if attention is not None:
                kind = "encoder" if is_encoder else self._kind(attention)
                counts[kind] = counts.get(kind, -1) + 1
                self.sublayers.append(Sublayer(counts[kind], kind, attention))
        if not self.sublayers:
            softmax = "no Softmax between two MatMul nodes, and no Attention operator"
            raise NotExposedError(f"attn finds no attention in the graph of {shown}: {softmax}")
        self.count = max(counts.values()) + 1

    def _kind(self, attention: WrittenAttention | FusedAttention) -> str:
        if HIDDEN not in self.graph.inputs:
            return "self"
        return "decoder" if IDS in self.graph.origins.get(attention.k, ()) else "cross"

    def open(self, layers: Sequence[int], kind: str | None, others: Sequence[str] = ()) -> None:
        """Open the runtime for some layers, and for other outputs."""
        self._chosen = [item for item in self.sublayers if item.index in layers and kind in (None, item.kind)]
        names = {name for item in self._chosen for name in item.attention.tensors} | {*others}
        nodes = [node for item in self._chosen for node in item.attention.nodes]
        self._outputs = sorted(names)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # errors are raised
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL  # the file's own nodes
        options.add_session_config_entry(_EXTERNAL, str(self.graph.path.parent))
        data = self.graph.with_outputs(self._outputs, nodes)
        try:
            self._session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # the runtime raises its own
            raise LoadError(f"onnxruntime cannot load {self.shown}: {_first_sentence(error)}") from None

    def run(self, arrays: Mapping[str, Any], heads: Indices) -> tuple[list[LayerTrace], Feeds]:
        """Return the layers for one sentence, and all outputs by their names; InputError where it does not run."""
        feeds = feeds_of(self.graph, arrays)
        try:
            outputs = dict(zip(self._outputs, self._session.run(self._outputs, feeds), strict=True))
        except Exception as error:
            tokens = np.shape(arrays[IDS])[-1]
            raise InputError(f"{self.shown} does not run on {tokens} tokens: {_first_sentence(error)}") from None
        if self._chosen:
            self.dtype = str(outputs[self._chosen[0].attention.q].dtype)
        return [_layer(item, outputs, heads) for item in self._chosen], outputs


class OnnxModel(OpenModel):
    """A model in ONNX files and its tokenizer, opened once; see `open_source` for the options.

    Raises:
        UsageError: there is no such layer, head or kind.
        LoadError: its files are damaged, or the tokenizer is missing.
        NotExposedError: its graph hides the attention, or an option needs the checkpoint.
    """

    can_batch = False
    parallel_from = PARALLEL_FROM_LATE  # the runtime computes on all cores already

    def __init__(
        self,
        snapshot: Snapshot,
        layers: Indices,
        heads: Indices,
        *,
        kind: str | None,
        mask: str | None,
        special: bool,
        options: LoadOptions,
    ) -> None:
        self.name, self._shown, self._heads, self._kind = snapshot.name, visible(snapshot.name), heads, kind
        _check_options(self._shown, options)
        self.with_mask(mask)
        is_pair = snapshot.config.get("is_encoder_decoder") is True or len(snapshot.onnx) > 1
        self._runners = [
            GraphRunner(path, self._shown, is_encoder=is_pair and index == 0)
            for index, path in enumerate(snapshot.onnx)
        ]
        self.is_encoder_decoder = len(self._runners) > 1
        kinds = {item.kind for runner in self._runners for item in runner.sublayers}
        self._kinds = [name for name in ("self", "encoder", "decoder", "cross") if name in kinds]
        if kind not in (None, *self._kinds):
            has = f"{self._shown} has {', '.join(self._kinds)} attention"
            raise UsageError(f"--kind {visible(str(kind))}: {has}")
        count = max(runner.count for runner in self._runners)
        self.attention_layers = range(count)
        self._layers = layers.resolve(count, self._shown)
        self.encoder = _input_encoder(snapshot, special, options)
        architecture, details = snapshot.config.get("model_type"), self._runners[-1].graph.details
        how: dict[str, Any] = {"architecture": architecture, "layers": count, "details": details}
        self._source = Provenance("pretrained", model=self.name, **how)
        for runner in self._runners:
            states = list(runner.graph.outputs[:1]) if self.is_encoder_decoder and runner is self._runners[0] else []
            runner.open(self._layers, kind, states)
        _log.info("onnxruntime %s: %d layers, %s attention", onnxruntime.__version__, count, ", ".join(self._kinds))

    def with_mask(self, mask: str | None) -> OnnxModel:
        """Return the same model; NotExposedError for a mask, which a graph has no input for."""
        if mask is not None:
            raise NotExposedError(f"--mask does not apply to {self._shown}: its graph makes the mask; drop --mask")
        return self

    def predictor(self) -> Predictor:
        """Raise NotExposedError; see `OpenModel.predictor`."""
        raise NotExposedError(f"attn reads no next token of {self._shown}, an ONNX model; give its checkpoint")

    def tokens(self, text: str, pair: str | None = None, target: str | None = None) -> tuple[Tokens, Tokens]:
        """Return the tokens of a sentence's queries and keys; see `OpenModel.tokens`."""
        sentence = self._encode(text, pair, target)
        return sentence.query_tokens, sentence.tokens

    def _encode(self, text: str, pair: str | None, target: str | None) -> EncodedInput:
        self.check_target(target)
        if self.is_encoder_decoder and target is None and self._kind in ("decoder", "cross"):
            raise UsageError(f"--kind {self._kind} needs --target, the text of the decoder")
        return self.encoder.encode(text, pair, target)

    def traces(self, texts: Sequence[str], pair: str | None = None, target: str | None = None) -> Iterator[Trace]:
        """Yield the attention of each sentence, in order; see `Source.traces`."""
        for text in as_list(texts):
            yield self._trace(self._encode(text, pair, target))

    def _trace(self, sentence: EncodedInput) -> Trace:
        begun = perf_counter()
        arrays: dict[str, Any] = {name: [ids] for name, ids in sentence.inputs.items()}
        first, *decoder = self._runners
        layers, outputs = first.run(arrays, self._heads)
        if sentence.target is not None:
            arrays |= {IDS: arrays["decoder_input_ids"], HIDDEN: outputs[first.graph.outputs[0]]}
            arrays["encoder_attention_mask"] = arrays.pop("attention_mask", None)
            layers += decoder[0].run(arrays, self._heads)[0]
        order = {name: place for place, name in enumerate(self._kinds)}
        places = {index: place for place, index in enumerate(self._layers)}
        layers.sort(key=lambda layer: (places[layer.layer], order[layer.kind]))
        _log.info("ran %d tokens in %.3f s", len(sentence.tokens), perf_counter() - begun)
        sides = (sentence.query_tokens, sentence.tokens, tuple(layers))
        source = self._source._replace(dtype=first.dtype)
        return Trace(source, *sides, sentence.text, sentence.pair, sentence.target, sentence.notes)


def _check_options(shown: str, options: LoadOptions) -> None:
    """Raise NotExposedError for an option that chooses how a checkpoint is computed."""
    for name, is_default in (
        ("engine", getattr(options, "engine", "auto") == "auto"),
        ("dtype", options.dtype in (None, "auto")),
        ("device", options.device == "cpu"),
        ("device-map", options.device_map is None),
    ):
        if not is_default:
            raise NotExposedError(f"--{name} does not apply to {shown}: onnxruntime runs the graph as it is; drop it")


def _input_encoder(snapshot: Snapshot, special: bool, options: LoadOptions) -> InputEncoder:
    """Return the encoder of texts: by the tokenizer that AutoTokenizer would make, else by tokenizer.json as it is."""
    name, files, config = snapshot.name, snapshot.tokenizer, snapshot.config
    limit, tokenizer = None, None
    with suppress(UnsupportedError):
        limit = model_spec(ConfigReader(config)).positions
    if options.ids:
        tokenizer = IdTokenizer()
    else:
        try:
            tokenizer = load_tokenizer(name, files, config)
        except UnsupportedError:
            tokenizer = load_as_written(name, files)
    start = config.get("decoder_start_token_id")
    start = start if type(start) is int else None
    return InputEncoder(name, tokenizer, special, limit, options.truncate, start_id=start).with_chat(options)


def _layer(sublayer: Sublayer, outputs: Arrays, heads: Indices) -> LayerTrace:
    """Return a layer of the arrays of a graph, with weights·V held against its own output."""
    index, kind, attention = sublayer
    read = attention.read(outputs)
    count, queries = read.output.shape[:2]
    q, k, v = read.q, _without_copies(read.k, read.v)[0], _without_copies(read.k, read.v)[1]
    allowed = read.allowed[:1] if (read.allowed == read.allowed[:1]).all() else read.allowed
    layer = LayerTrace(
        index, kind, q, k, v, read.scale, smallest(np.array(allowed), count), heads.resolve(count, f"layer {index}"),
        bias=read.bias, softcap=read.softcap, sinks=read.sinks, fill=read.fill if read.fill <= FORBIDDEN_BELOW else -np.inf,
        recorded_scores=read.scores if read.scale is None else None, recorded_weights=read.weights,
    )  # fmt: skip
    made = stages_of(layer, range(count), np.arange(queries))
    worst = max(max_abs_diff(each.output, read.output[list(each.heads)][:, each.queries]) for each in made)
    largest = max(float(np.nanmax(np.abs(v), initial=1.0)), 1.0)
    return replace(layer, proof=Proof(worst, "the output in the graph itself", magnitude=largest))


def _without_copies(k: Any, v: Any) -> tuple[Any, Any]:
    """Return keys and values once for consecutive heads that share them, as a graph repeats them for their queries."""
    for groups in range(1, len(v)):
        if len(v) % groups == 0:
            size = len(v) // groups
            if all(array is None or (array[::size].repeat(size, axis=0) == array).all() for array in (k, v)):
                return k if k is None else k[::size], v[::size]
    return k, v


def _first_sentence(error: Exception) -> str:
    """Return the reason in an error of the runtime, without the number and the name of its kind."""
    reason = " ".join(str(error).split()).rpartition(" : ")[2]
    return visible(reason.partition(". ")[0][:300]).rstrip(".") or type(error).__name__
