"""An ONNX file as a graph, changed in memory only; the runtime refuses damaged tensors and files outside the folder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import zip_longest
from math import prod
from pathlib import Path

from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from attncli.checkpoints.onnx_graph import attributes, inputs_of, read_graph, weight_form
from attncli.encoding.graph_inputs import cache_outputs

# Operators that make one number of one number, or of sizes.
_OF_SIZES = ("Cast", "Div", "Gather", "Identity", "Mul", "Pow", "Reciprocal", "Slice", "Sqrt", "Squeeze", "Unsqueeze")


class Graph:
    """The graph of an ONNX file; of a merged decoder one of the two. See `read_graph` for the errors."""

    def __init__(self, path: Path, is_cached: bool) -> None:
        self._model, self._data, self.folder = read_graph(path, is_cached)
        self._is_changed = False
        self.nodes: Iterable[NodeProto] = self._model.graph.node
        self.inputs, self.outputs = inputs_of(self._model), [value.name for value in self._model.graph.output]
        self.weight_form = weight_form(self._model)
        self._constants = {tensor.name: prod(tensor.dims) for tensor in self._model.graph.initializer}
        self.producers: dict[str, NodeProto] = {}  # by what they make
        self.consumers: dict[str, list[NodeProto]] = {}  # by what they read
        for node in self.nodes:
            for name in node.input:
                self.consumers.setdefault(name, []).append(node)
            self.producers |= dict.fromkeys(node.output, node)
        self.cache = cache_outputs([name for name in self.inputs if name in self.consumers], self.outputs)

    @cached_property
    def origins(self) -> dict[str, frozenset[str]]:
        """The inputs that the numbers of each tensor depend on; its sizes do not count."""
        origins = {name: frozenset((name,)) for name in self.inputs}
        for node in self.nodes:
            read = node.input if node.op_type != "Shape" else ()
            origins |= dict.fromkeys(node.output, frozenset[str]().union(*(origins.get(name, ()) for name in read)))
        return origins

    def is_constant(self, name: str) -> bool:
        """Return whether a tensor is stored in the file."""
        return name in self._constants or (name in self.producers and self.producers[name].op_type == "Constant")

    def is_number(self, name: str) -> bool:
        """Return whether a tensor is surely one number: a constant, or made of constants and sizes."""
        while (node := self.producers.get(name)) is not None and node.op_type in _OF_SIZES:
            name = node.input[0]
        if node is None or node.op_type != "Constant":
            return node.op_type == "Shape" if node else self._constants.get(name) == 1
        value = attributes(node).get("value")
        return not isinstance(value, TensorProto) or prod(value.dims) == 1

    def with_outputs(self, names: Iterable[str], nodes: Iterable[NodeProto]) -> bytes:
        """Return the file's bytes with more nodes, and with more tensors as outputs; their types are inferred."""
        more = ModelProto()
        more.graph.node.extend(nodes)
        more.graph.output.extend(ValueInfoProto(name=name) for name in sorted({*names} - {*self.outputs}))
        data = self._model.SerializeToString() if self._is_changed else self._data
        # Of two messages one after the other, a protobuf's lists are joined: no weight is written again.
        return data + more.SerializeToString()

    def show(self, node: NodeProto, wanted: Sequence[bool], **how: int) -> list[str]:
        """Let an operator give more outputs out behind its first, by more attributes; return the names of all."""
        first, pairs = node.output[0], zip_longest(node.output, (True, *wanted), fillvalue="")
        outputs = [name or f"{first}.{number}" * bool(wants) for number, (name, wants) in enumerate(pairs)]
        more = attributes(node) | how
        node.CopyFrom(helper.make_node(node.op_type, node.input, outputs, node.name, domain=node.domain, **more))
        self._is_changed = True
        return outputs
