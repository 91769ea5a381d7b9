"""An ONNX file as a graph, changed in memory only; the runtime refuses damaged tensors and files outside the folder."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, inliner

from attncli.errors import LoadError, NotExposedError
from attncli.files import read_file
from attncli.text import visible

_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")  # of the operators that onnxruntime brings
_CACHED = "use_cache_branch"  # the input by which a merged decoder chooses between its two graphs
# Operators that make one number of one number, or of sizes.
_OF_SIZES = ("Cast", "Div", "Gather", "Identity", "Mul", "Pow", "Reciprocal", "Slice", "Sqrt", "Squeeze", "Unsqueeze")


class Graph:
    """The graph of an ONNX file; of a merged decoder the one that reads no cache.

    Raises:
        LoadError: the file is damaged.
        NotExposedError: it needs operators that onnxruntime does not bring.
    """

    def __init__(self, path: Path) -> None:
        shown = visible(str(path))
        try:
            self._data = read_file(path, 2**31)  # a protobuf is no larger
            self._model, self._is_changed = ModelProto.FromString(self._data), False
            if self._model.functions:
                self._model, self._is_changed = inliner.inline_local_functions(self._model), True
        except OSError as error:
            raise LoadError(f"{shown} {error.strerror or error}; expected an ONNX file") from None
        except (DecodeError, RuntimeError, ValueError):
            self._model = ModelProto()
        self.outputs = [value.name for value in self._model.graph.output]
        if not self.outputs or not self._model.graph.node:
            raise LoadError(f"{shown} is no ONNX file, or is cut; export or download it again")
        self._inline_uncached()
        self.nodes: Iterable[NodeProto] = self._model.graph.node
        self._constants = {tensor.name: prod(tensor.dims) for tensor in self._model.graph.initializer}
        self.producers: dict[str, NodeProto] = {}  # by what they make
        self.consumers: dict[str, list[NodeProto]] = {}  # by what they read
        for node in self.nodes:
            operator = visible(f"{node.domain}.{node.op_type}".lstrip("."))
            if node.domain not in _DOMAINS:
                raise NotExposedError(f"{shown} needs {operator}; attn loads no library of operators")
            for name in node.input:
                if name and name not in self.producers and name not in self._constants and name not in self.inputs:
                    raise LoadError(f"{shown} is damaged: {operator} reads {visible(name)[:60]} of no node before it")
                self.consumers.setdefault(name, []).append(node)
            self.producers |= dict.fromkeys(node.output, node)

    @cached_property
    def inputs(self) -> dict[str, tuple[np.dtype[Any], list[int]]]:
        """Type and sizes of each input, 0 where any size is read."""
        inputs = (value for value in self._model.graph.input if value.name not in self._constants)
        types = {value.name: value.type.tensor_type for value in inputs}
        sizes = {name: [size.dim_value for size in kind.shape.dim] for name, kind in types.items()}
        return {name: (helper.tensor_dtype_to_np_dtype(types[name].elem_type), sizes[name]) for name in types}

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
        if (node := self.producers.get(name)) is None:
            return self._constants.get(name) == 1
        if node.op_type == "Constant":
            value = attributes(node).get("value")
            return not isinstance(value, TensorProto) or prod(value.dims) == 1
        return node.op_type == "Shape" or (node.op_type in _OF_SIZES and self.is_number(node.input[0]))

    def with_outputs(self, names: Iterable[str], nodes: Iterable[NodeProto]) -> bytes:
        """Return the file's bytes with more nodes, and with more tensors as outputs; their types are inferred."""
        more = ModelProto()
        more.graph.node.extend(nodes)
        more.graph.output.extend(ValueInfoProto(name=name) for name in sorted({*names} - {*self.outputs}))
        data = self._model.SerializeToString() if self._is_changed else self._data
        # Of two messages one after the other, a protobuf's lists are joined: no weight is written again.
        return data + more.SerializeToString()

    def show_weights(self, node: NodeProto) -> str:
        """Let an operator Attention give its weights out, as `qk_matmul_output`; return their name."""
        outputs, how = [*node.output, "", ""][:3], {**attributes(node), "qk_matmul_output_mode": 3}
        outputs.append(f"{outputs[0]}.weights")
        node.CopyFrom(helper.make_node("Attention", node.input, outputs, node.name, **how))
        self._is_changed = True
        return outputs[3]

    def _inline_uncached(self) -> None:
        """Replace the choice of a merged decoder by its graph without a cache."""
        graph, nodes = self._model.graph, list[NodeProto]()
        for node in graph.node:
            if node.op_type == "If" and node.input[0] == _CACHED:
                branch, self._is_changed = attributes(node)["else_branch"], True
                graph.initializer.extend(branch.initializer)
                ends = zip(branch.output, node.output, strict=True)
                nodes += [*branch.node, *(helper.make_node("Identity", [end.name], [name]) for end, name in ends)]
            else:
                nodes.append(node)
        if self._is_changed:
            nodes = [NodeProto.FromString(node.SerializeToString()) for node in nodes]  # the list below owns them
            del graph.node[:]
            graph.node.extend(nodes)


def attributes(node: NodeProto) -> dict[str, Any]:
    """Return the attributes of a node by their names."""
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
