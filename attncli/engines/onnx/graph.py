"""An ONNX file as a graph: checked before the runtime sees it, and changed in memory only."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, inliner

from attncli.errors import LoadError, NotExposedError
from attncli.files import read_file
from attncli.text import visible

_MOST_BYTES = 2**31  # a protobuf is no larger
# Operators that onnxruntime itself brings; any other domain needs a library of its own.
_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")
_CACHED = "use_cache_branch"  # the input by which a merged decoder chooses between its two graphs
# Operators that make one number of one number, or of the sizes of a tensor.
_OF_SIZES = frozenset(
    ("Shape", "Slice", "Gather", "Cast", "Sqrt", "Div", "Mul", "Pow", "Reciprocal", "Squeeze", "Unsqueeze", "Identity")
)


class Graph:
    """The graph of an ONNX file, with the branch of a merged decoder that reads no cache.

    Attributes:
        path: the file.
        producers: the node that makes each tensor.
        inputs: the tensors that have to be given, by their names.

    Raises:
        LoadError: the file is damaged, or reads what is not its own.
        NotExposedError: it needs operators that onnxruntime does not bring.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._shown = path, visible(str(path))
        try:
            self._data = read_file(path, _MOST_BYTES)
        except OSError as error:
            raise LoadError(f"{self._shown} {error.strerror or error}; expected an ONNX file") from None
        self._model, self._is_changed = ModelProto(), False
        try:
            self._model.ParseFromString(self._data)
            if self._model.functions:
                self._model, self._is_changed = inliner.inline_local_functions(self._model), True
        except (DecodeError, RuntimeError, ValueError):
            raise LoadError(f"{self._shown} is no ONNX file, or is cut; export or download it again") from None
        if not self._model.graph.node:
            raise LoadError(f"{self._shown} has no graph; export or download it again")
        self._check_domains()
        self._inline_uncached()
        for tensor in _tensors(self._model.graph):
            self._check_tensor(tensor)
        graph = self._model.graph
        self._constants = {tensor.name: tensor for tensor in graph.initializer}
        self.inputs: dict[str, ValueInfoProto] = {
            value.name: value for value in graph.input if value.name not in self._constants
        }
        self._check_order(graph)
        self.producers: dict[str, NodeProto] = {name: node for node in graph.node for name in node.output if name}

    @property
    def nodes(self) -> Iterable[NodeProto]:
        """The nodes, each after those that make its inputs."""
        return self._model.graph.node

    @property
    def outputs(self) -> list[str]:
        """Names of the tensors that the graph gives out itself."""
        return [value.name for value in self._model.graph.output]

    @property
    def details(self) -> dict[str, Any]:
        """Facts about the file for a trace."""
        versions = {entry.domain: entry.version for entry in self._model.opset_import}
        return {"engine": "onnx", "opset": versions.get("", versions.get("ai.onnx", 0))}

    @cached_property
    def consumers(self) -> dict[str, list[NodeProto]]:
        """The nodes that read each tensor."""
        readers: dict[str, list[NodeProto]] = {}
        for node in self.nodes:
            for name in node.input:
                readers.setdefault(name, []).append(node)
        return readers

    @cached_property
    def origins(self) -> dict[str, frozenset[str]]:
        """The inputs of the graph that the numbers of each tensor depend on; its sizes do not count."""
        origins = {name: frozenset((name,)) for name in self.inputs}
        for node in self.nodes:
            of_node = frozenset().union(*(origins.get(name, frozenset()) for name in _reads(node)))
            origins |= dict.fromkeys(node.output, frozenset() if node.op_type == "Shape" else of_node)
        return origins

    def is_constant(self, name: str) -> bool:
        """Return whether a tensor is stored in the file."""
        return name in self._constants or (name in self.producers and self.producers[name].op_type == "Constant")

    def is_number(self, name: str) -> bool:
        """Return whether a tensor is surely one number: a constant, or made of constants and sizes."""
        if name in self._constants:
            return prod(self._constants[name].dims) == 1
        node = self.producers.get(name)
        if node is None:
            return False
        if node.op_type == "Constant":
            value = attributes(node).get("value")
            return not isinstance(value, TensorProto) or prod(value.dims) == 1
        is_sized = node.op_type in _OF_SIZES
        return node.op_type == "Shape" or (is_sized and all(map(self.is_number, node.input[:1])))

    def with_outputs(self, names: Iterable[str], nodes: Iterable[NodeProto] = ()) -> bytes:
        """Return the file's bytes with more nodes, and with more tensors as outputs; their types are inferred."""
        more = ModelProto()
        present = {value.name for value in self._model.graph.output}
        more.graph.node.extend(nodes)
        more.graph.output.extend(ValueInfoProto(name=name) for name in sorted({*names} - present))
        # Of two messages one after the other, a protobuf's lists are joined: no weight is written again.
        data = self._model.SerializeToString() if self._is_changed else self._data
        return data + more.SerializeToString()

    def show(self, node: NodeProto, outputs: int, **chosen: Any) -> str:
        """Give a node that many outputs, the last one with a name, which is returned, and set its attributes."""
        node.output.extend([""] * (outputs - len(node.output)))
        node.output[-1] = node.output[-1] or f"{node.output[0]}.shown"
        others = [attribute for attribute in node.attribute if attribute.name not in chosen]
        del node.attribute[:]
        node.attribute.extend([*others, *(helper.make_attribute(name, value) for name, value in chosen.items())])
        self._is_changed = True
        return node.output[-1]

    def _check_domains(self) -> None:
        for node in _nodes(self._model.graph):
            if node.domain not in _DOMAINS:
                named = f"{visible(node.domain)}.{visible(node.op_type)}"
                why = "an operator that onnxruntime does not bring; attn loads no library for it"
                raise NotExposedError(f"{self._shown} needs {named}, {why}")

    def _inline_uncached(self) -> None:
        """Replace the choice of a merged decoder by its graph without a cache."""
        graph = self._model.graph
        if not any(node.op_type == "If" and node.input[0] == _CACHED for node in graph.node):
            return
        nodes: list[NodeProto] = []
        for node in graph.node:
            if node.op_type != "If" or node.input[0] != _CACHED:
                nodes.append(node)
                continue
            branch = attributes(node)["else_branch"]
            nodes += branch.node
            graph.initializer.extend(branch.initializer)
            pairs = zip(branch.output, node.output, strict=True)
            nodes += [helper.make_node("Identity", [value.name], [name]) for value, name in pairs]
        nodes = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del graph.node[:]
        graph.node.extend(nodes)
        self._is_changed = True

    def _check_tensor(self, tensor: TensorProto) -> None:
        """Raise LoadError for a stored tensor without its numbers, or with those of a file elsewhere."""
        name = visible(tensor.name)[:60]
        size = prod(tensor.dims) if all(size >= 0 for size in tensor.dims) else -1
        if tensor.data_location == TensorProto.EXTERNAL:
            entries = {entry.key: entry.value for entry in tensor.external_data}
            stored = self._bytes_in(name, entries)
        else:
            typed = (tensor.float_data, tensor.int32_data, tensor.int64_data, tensor.double_data, tensor.uint64_data)
            stored = len(tensor.raw_data) or 8 * sum(map(len, (*typed, tensor.string_data)))
        if not 0 <= size <= 2 * stored:  # of four bits each, two are in a byte
            shape = "×".join(map(str, tensor.dims))
            raise LoadError(f"{self._shown} has {stored} bytes for its tensor {name} of {shape} numbers; it is damaged")

    def _bytes_in(self, tensor: str, entries: dict[str, str]) -> int:
        """Return how many bytes of a file beside the graph belong to a tensor."""
        location = entries.get("location", "")
        real = os.path.realpath(self.path.parent / location)
        # The hub's cache has links to files that are side by side, too.
        folders = {os.path.realpath(self.path.parent), os.path.dirname(os.path.realpath(self.path))}
        is_outside = os.path.isabs(location) or ".." in Path(location).parts
        shown = f"the tensor {tensor} of {self._shown}"
        if is_outside or not any(os.path.commonpath((real, folder)) == folder for folder in folders):
            where = f"is in {visible(location)}, outside of its folder"
            raise LoadError(f"{shown} {where}; check where the model comes from")
        if not os.path.isfile(real):
            raise LoadError(f"{shown} is in {visible(location)}, which is not there; download it to the same folder")
        try:
            offset = int(entries.get("offset", 0))
            length = int(entries.get("length", os.path.getsize(real) - offset))
        except ValueError:
            offset = length = -1
        if not 0 <= offset <= offset + length <= os.path.getsize(real):
            raise LoadError(f"{shown} reaches beyond the end of {visible(location)}; download both again")
        return length

    def _check_order(self, graph: GraphProto) -> None:
        """Raise LoadError unless each node comes after those that make its inputs, which excludes circles."""
        made = Counter(name for node in graph.node for name in node.output if name)
        there = {"", *self.inputs, *self._constants}
        for node in graph.node:
            missing = next((name for name in _reads(node) if name not in there), None)
            if missing is not None:
                why = "before it is made: the graph goes in a circle" if missing in made else "that nothing makes"
                raise LoadError(
                    f"{self._shown} is damaged: {visible(node.op_type)} reads {visible(missing)[:60]} {why}"
                )
            there.update(node.output)
        if twice := next((name for name, times in made.items() if times > 1), None):
            raise LoadError(f"{self._shown} is damaged: {visible(twice)[:60]} is made twice")


def attributes(node: NodeProto) -> dict[str, Any]:
    """Return the attributes of a node by their names."""
    return {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}


def _graphs(node: NodeProto) -> Iterator[GraphProto]:
    """Yield the graphs inside a node, such as the branches of an If."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def _nodes(graph: GraphProto) -> Iterator[NodeProto]:
    for node in graph.node:
        yield node
        for inner in _graphs(node):
            yield from _nodes(inner)


def _tensors(graph: GraphProto) -> Iterator[TensorProto]:
    """Yield the stored tensors of a graph and of those inside it."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.TENSOR:
                yield attribute.t
            yield from attribute.tensors
        for inner in _graphs(node):
            yield from _tensors(inner)


def _reads(node: NodeProto) -> Iterator[str]:
    """Yield the tensors that a node reads, also by the graphs inside it."""
    yield from node.input
    for graph in _graphs(node):
        inside = {"", *(value.name for value in graph.input), *(tensor.name for tensor in graph.initializer)}
        inside.update(name for inner in graph.node for name in inner.output)
        yield from (name for inner in graph.node for name in _reads(inner) if name not in inside)
        yield from (value.name for value in graph.output if value.name not in inside)
