"""One graph run by onnxruntime, and the layers made of its tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime

from attncli.engines.onnx.fused import fused_attention
from attncli.engines.onnx.graph import Graph
from attncli.engines.onnx.inputs import HIDDEN, IDS, check_inputs, feeds_of
from attncli.engines.onnx.patterns import GraphAttention, written_attention
from attncli.errors import AttnError, InputError, LoadError, NotExposedError
from attncli.masks.expressions import smallest
from attncli.text import visible
from attncli.trace.layer import LayerTrace, Proof, max_abs_diff, stages_of
from attncli.trace.selection import Indices


class Sublayer(NamedTuple):
    """One attention of a model."""

    layer: int
    kind: str  # `self`, or `encoder`, `decoder`, `cross`
    attention: GraphAttention


class GraphRunner:
    """A graph whose attention is among its outputs; see `Graph` for the errors.

    Attributes:
        sublayers: all attention of the graph, in order.
        states: name of its first own output.
        opset: version of its standard operators.
        dtype: the type in which it computes.
    """

    def __init__(self, path: Path, kind: str | None, shown: str) -> None:
        self._shown, self._folder, self.dtype = shown, str(path.parent), "float32"
        self._graph: Graph | None = (graph := Graph(path))
        check_inputs(graph.inputs, shown)
        self.inputs, self.states, self.opset = graph.inputs, graph.outputs[0], graph.opset
        counts: dict[str, int] = {}
        self.sublayers: list[Sublayer] = []
        for node in graph.nodes:
            attention = fused_attention(graph, node) or written_attention(graph, node)
            if attention is not None:
                of_decoder = "decoder" if IDS in graph.origins.get(attention.tensors["key"], ()) else "cross"
                which = kind or (of_decoder if HIDDEN in graph.inputs else "self")
                self.sublayers.append(Sublayer(counts.setdefault(which, 0), which, attention))
                counts[which] += 1
        if not self.sublayers:
            softmax = "no Softmax between two MatMul nodes, and no operator for attention"
            raise NotExposedError(f"the graph of {shown} has no attention that attn reads: {softmax}")

    def open(self, layers: Sequence[int], kind: str | None, others: Sequence[str] = ()) -> None:
        """Open the runtime for some layers and some other outputs; the graph itself is no longer in memory."""
        assert self._graph is not None
        self._chosen = [item for item in self.sublayers if item.layer in layers and kind in (None, item.kind)]
        names = {name for item in self._chosen for name in item.attention.tensors.values()}
        self._outputs = sorted(names | {*others})
        data = self._graph.with_outputs(self._outputs, [node for item in self._chosen for node in item.attention.nodes])
        self._graph = None
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # its errors are raised
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL  # the nodes as they are
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", self._folder)
        runtime = onnxruntime.InferenceSession
        self._session = _translated(
            LoadError, f"onnxruntime cannot load {self._shown}", runtime, data, options, providers=["CPUExecutionProvider"]
        )

    def run(self, arrays: Mapping[str, Any], heads: Indices) -> tuple[list[LayerTrace], np.ndarray[Any, Any] | None]:
        """Return the layers of one sentence, and the first own output if it is open; InputError if it does not run."""
        feeds, failure = feeds_of(self.inputs, arrays), f"{self._shown} does not run on this text"
        tensors = _translated(InputError, failure, self._session.run, self._outputs, feeds)
        outputs = dict(zip(self._outputs, tensors, strict=True))
        if self._chosen:
            self.dtype = str(outputs[self._chosen[0].attention.tensors["query"]].dtype)
        return [_layer(item, outputs, heads) for item in self._chosen], outputs.get(self.states)


def _layer(sublayer: Sublayer, outputs: Mapping[str, Any], heads: Indices) -> LayerTrace:
    """Return a layer of the tensors of a graph, with weights·V held against the graph's own output."""
    layer, kind, attention = sublayer
    read = attention.read({role: outputs[name] for role, name in attention.tensors.items()})
    (k, v), allowed, output = _without_copies(read.k, read.v), read.allowed, read.output
    count, rows = len(output), np.arange(output.shape[1])
    mask = smallest(allowed[:1] if (allowed == allowed[:1]).all() else allowed, count)
    made = LayerTrace(
        layer, kind, read.q, k, v, read.scale, mask, heads.resolve(count, f"layer {layer}"), bias=read.bias,
        softcap=read.softcap, recorded_scores=read.scores, recorded_weights=read.weights,
    )  # fmt: skip
    stages = stages_of(made, range(count), rows)
    worst = max(max_abs_diff(each.output, output[list(each.heads)][:, each.queries]) for each in stages)
    largest = max(float(np.nanmax(np.abs(v), initial=1.0)), 1.0)
    return replace(made, proof=Proof(worst, "the graph's own output of the layer", magnitude=largest))


def _without_copies(k: Any, v: Any) -> tuple[Any, Any]:
    """Return keys and values once for consecutive heads that share them, as a graph repeats them for their queries."""
    for size in range(len(v), 1, -1):
        if len(v) % size == 0 and all((array[::size].repeat(size, axis=0) == array).all() for array in (k, v)):
            return k[::size], v[::size]
    return k, v


def _translated(kind: type[AttnError], failure: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Call the runtime; its errors become one of a kind, with the reason alone."""
    try:
        return call(*arguments, **options)
    except Exception as error:  # it raises its own
        reason = " ".join(str(error).split()).rpartition(" : ")[2].partition(". ")[0]
        raise kind(f"{failure}: {visible(reason[:300]).rstrip('.') or type(error).__name__}") from None
