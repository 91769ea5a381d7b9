"""An ONNX file as a protobuf within bounds, and of a merged decoder one of its two graphs."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from onnx import ModelProto, NodeProto, TensorProto, helper

from attncli.checkpoints.onnx_files import CACHED
from attncli.errors import AttnError, LoadError, NotExposedError
from attncli.files import read_file
from attncli.text import visible

_BYTES = 2**31  # a protobuf is no larger
_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")  # of the operators that onnxruntime brings
# Operators on quantized weights, and the bits of these where no attribute has them.
_QUANTIZED = dict.fromkeys(("DequantizeLinear", "DynamicQuantizeMatMul", "MatMulInteger", "QLinearMatMul"), 8)
_QUANTIZED |= {"MatMulBnb4": 4, "MatMulNBits": 4}

_SOURCE = re.compile(r"\S+\.(?:cc|h):\d+ \w+ ")  # where in the runtime an error arose


def read_graph(path: Path, is_cached: bool = False) -> tuple[ModelProto, bytes, str]:
    """Return the model in a file, the file's bytes, or those of the model if it was changed, and its data's folder.

    Of a merged decoder it is the graph that reads a cache, or the other one.

    Raises:
        LoadError: the file is damaged.
        NotExposedError: it has functions, or needs operators that onnxruntime does not bring.
    """
    shown = visible(str(path))
    try:
        data = read_file(path, _BYTES)
        model = ModelProto.FromString(data)
        if not model.graph.output or not model.graph.node:
            raise ValueError
    except OSError as error:
        raise LoadError(f"{shown} {error.strerror or error}; expected an ONNX file") from None
    except (DecodeError, ValueError):
        raise LoadError(f"{shown} is no ONNX file, or is cut; export or download it again") from None
    if model.functions:
        inline = "onnx.inliner.inline_local_functions"
        raise NotExposedError(f"{shown} has functions of its own, which hide attention; inline them with {inline}")
    if _inline_branch(model, is_cached) | ((folder := _data_folder(model, path.parent)) != path.parent):
        data = model.SerializeToString()
    _check_nodes(model, shown)
    return model, data, str(folder)


def _data_folder(model: ModelProto, folder: Path) -> Path:
    """Return the folder of a model's external data; of links in a cache of the hub their target, which they name then.

    onnxruntime follows no link out of a folder.
    """
    stored = (tensor for tensor in model.graph.initializer if tensor.data_location == TensorProto.EXTERNAL)
    entries = [entry for tensor in stored for entry in tensor.external_data if entry.key == "location"]
    targets = [(folder / entry.value).resolve() for entry in entries]
    above = folder.resolve().parents
    blobs = next((parent.with_name("blobs") for parent in above if parent.name == "snapshots"), None)
    if blobs is None or not targets or any(target.parent != blobs for target in targets):
        return folder
    for entry, target in zip(entries, targets, strict=True):
        entry.value = target.name
    return blobs


def _check_nodes(model: ModelProto, shown: str) -> None:
    """Raise for an operator that the runtime does not bring, and for a tensor that no node before makes."""
    made = {"", *(value.name for value in model.graph.input), *(value.name for value in model.graph.initializer)}
    for node in model.graph.node:
        operator = visible(f"{node.domain}.{node.op_type}".lstrip("."))
        if node.domain not in _DOMAINS:
            raise NotExposedError(f"{shown} needs {operator}; attn loads no library of operators")
        if missing := next((name for name in node.input if name not in made), None):
            raise LoadError(f"{shown} is damaged: {operator} reads {visible(missing)[:60]} of no node before it")
        made.update(node.output)


def attributes(node: NodeProto) -> dict[str, Any]:
    """Return the attributes of a node by their names."""
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


def inputs_of(model: ModelProto) -> dict[str, tuple[np.dtype[Any], list[int]]]:
    """Return the type and the sizes of each input that is no stored tensor, 0 where any size is read."""
    constants = {tensor.name for tensor in model.graph.initializer}
    types = {value.name: value.type.tensor_type for value in model.graph.input if value.name not in constants}
    if odd := next((name for name, kind in types.items() if kind.elem_type not in TensorProto.DataType.values()), None):
        raise LoadError(f"the input {visible(odd)} has a type that ONNX does not know")
    sizes = {name: [size.dim_value for size in kind.shape.dim] for name, kind in types.items()}
    return {name: (helper.tensor_dtype_to_np_dtype(types[name].elem_type), sizes[name]) for name in types}


def weight_form(model: ModelProto) -> str | None:
    """Return the type of quantized weights, `static` where all numbers have it; None where none are quantized."""
    nodes = [node for node in model.graph.node if node.op_type in _QUANTIZED]
    bits = [attributes(node).get("bits", _QUANTIZED[node.op_type]) for node in nodes]
    is_static = any(node.op_type in ("QuantizeLinear", "QLinearMatMul") for node in model.graph.node)
    return f"int{min(bits)}{' static' * is_static}" if bits else None


def _inline_branch(model: ModelProto, is_cached: bool) -> bool:
    """Replace the choice of a merged decoder by one of its graphs; return whether there is one."""
    graph, nodes = model.graph, list[NodeProto]()
    for node in graph.node:
        if node.op_type == "If" and node.input[0] == CACHED:
            branch = attributes(node)["then_branch" if is_cached else "else_branch"]
            graph.initializer.extend(branch.initializer)
            ends = zip(branch.output, node.output, strict=True)
            nodes += [*branch.node, *(helper.make_node("Identity", [end.name], [name]) for end, name in ends)]
        else:
            nodes.append(node)
    if is_merged := len(nodes) != len(graph.node):
        nodes = [NodeProto.FromString(node.SerializeToString()) for node in nodes]  # the list below owns them
        del graph.node[:]
        graph.node.extend(nodes)
    return is_merged


def translated(kind: type[AttnError], failure: str, call: Callable[..., Any], *arguments: Any) -> Any:
    """Call the runtime, or what reads a graph; errors become one of a kind, with the reason alone."""
    try:
        return call(*arguments)
    except AttnError:
        raise
    except Exception as error:  # the runtime raises its own, and a graph may be of any form
        reason = _SOURCE.sub("", " ".join(str(error).split()).rpartition(" : ")[2]).replace(". ", ", ")
        raise kind(f"{failure}: {visible(reason[:300]).rstrip('.') or type(error).__name__}") from None
