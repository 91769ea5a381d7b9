"""One graph run by onnxruntime: the inputs that it declares, and the layers made of its tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from attncli.checkpoints.onnx_graph import translated
from attncli.encoding.graph_inputs import HIDDEN, IDS, graph_inputs
from attncli.engines.onnx.fused import fused_attention
from attncli.engines.onnx.graph import Graph
from attncli.engines.onnx.patterns import GraphAttention, written_attention
from attncli.errors import InputError, LoadError, NotExposedError
from attncli.masks.expressions import smallest
from attncli.trace.layer import LayerTrace, proof_of, without_copies
from attncli.trace.selection import Indices


class GraphRunner:
    """A graph whose attention is among its outputs; see `Graph` for the errors."""

    def __init__(self, path: Path, kind: str | None, shown: str, is_cached: bool = False) -> None:
        self._shown, self.dtype = shown, "float32"  # that of its attention
        self._graph: Graph | None = (graph := translated(LoadError, f"{shown} is damaged", Graph, path, is_cached))
        self.inputs, self.states = graph.inputs, graph.outputs[0]  # the first one of an encoder
        self.cache, self.weight_form = graph.cache, graph.weight_form
        self.sublayers = translated(NotExposedError, f"attn cannot read {shown}", _sublayers, graph, kind)  # in order
        if not self.sublayers:
            expected = "a Softmax between two MatMul nodes; export it without an optimizer of its graph"
            raise NotExposedError(f"{shown} has no attention that attn reads, as {expected}")

    def open(self, layers: Sequence[int], kind: str | None) -> None:
        """Open the runtime for some layers."""
        self._chosen = [item for item in self.sublayers if item.layer in layers and kind in (None, item.kind)]
        self._session = translated(LoadError, f"onnxruntime cannot load {self._shown}", self._opened)

    def _opened(self) -> Any:
        assert self._graph is not None
        self._outputs = sorted({name for item in self._chosen for name in item.tensors.values()})
        data = self._graph.with_outputs(self._outputs, [node for item in self._chosen for node in item.nodes])
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # its errors are raised
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL  # the nodes as they are
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", self._graph.folder)
        self._graph = None  # it leaves the memory
        return onnxruntime.InferenceSession(data, options, ["CPUExecutionProvider"], enable_fallback=0)

    def run(
        self, arrays: Mapping[str, Any], heads: Indices, others: Sequence[str] = ()
    ) -> tuple[list[LayerTrace], list[np.ndarray[Any, Any]]]:
        """Return the layers of one sentence, and other outputs of the graph; InputError if it does not run."""
        feeds = translated(NotExposedError, f"attn cannot run {self._shown}", graph_inputs, self.inputs, arrays)
        failure = f"{self._shown} does not run on this input"
        tensors = translated(InputError, failure, self._session.run, [*self._outputs, *others], feeds)
        outputs = dict(zip(self._outputs, tensors, strict=False))
        if self._chosen:
            self.dtype = str(outputs[self._chosen[0].tensors["output"]].dtype)
        failure = f"attn cannot read the attention of {self._shown}"
        layers = [translated(NotExposedError, failure, _layer, item, outputs, heads) for item in self._chosen]
        return layers, tensors[len(self._outputs) :]


def _sublayers(graph: Graph, kind: str | None) -> list[GraphAttention]:
    """Return all attention of a graph, in order; what their keys depend on shows the kinds of a decoder."""
    sublayers, counts = list[GraphAttention](), Counter[str]()
    for node in graph.nodes:
        if attention := (fused_attention(graph, node) or written_attention(graph, node)):
            of_decoder = "decoder" if IDS in graph.origins.get(attention.tensors.get("key", ""), {IDS}) else "cross"
            which = kind or (of_decoder if HIDDEN in graph.inputs else "self")
            sublayers.append(attention._replace(layer=counts[which], kind=which))
            counts[which] += 1
    return sublayers


def _layer(attention: GraphAttention, outputs: Mapping[str, Any], heads: Indices) -> LayerTrace:
    """Return a layer of the tensors of a graph, with weights·V held against the graph's own output."""
    read = attention.read({role: outputs[name] for role, name in attention.tensors.items()})
    (k, v), count = without_copies(read.k, read.v), len(read.output)
    layer = LayerTrace(
        attention.layer, attention.kind, read.q, k, v, read.scale, smallest(read.allowed, count),
        heads.resolve(count, f"layer {attention.layer}"), bias=read.bias, softcap=read.softcap, sinks=read.sinks,
        recorded_scores=read.scores, recorded_weights=read.weights,
    )  # fmt: skip
    # The weights are the graph's; those of q, k and the mask are compared, where these are known for every query.
    is_derived = read.scores is None and read.allowed.any(axis=-1).all()
    compared = replace(layer, recorded_weights=None) if is_derived else layer
    layer = replace(layer, proof=proof_of(compared, read.output, "the output of the graph's own attention"))
    if is_derived and not layer.is_proven(outputs[attention.tensors["output"]].dtype.name):
        raise NotExposedError(f"layer {layer.layer} attends otherwise than attn reads it; export it without optimizers")
    return layer
