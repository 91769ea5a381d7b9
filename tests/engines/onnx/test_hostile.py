"""Graphs that are damaged, or that reach for what is not theirs: one sentence each, and nothing is read."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import FunctionProto, ModelProto, TensorProto, helper, numpy_helper

import attncli
from attncli.errors import AttnError, InputError, LoadError, NotExposedError

T = 4  # tokens, and the width of the only head


def graph_of(*before: Any, query: str = "x", tensor: Any = None, **how: Any) -> ModelProto:
    """Make a graph with one attention, in which a node reads `w`."""
    nodes = [
        helper.make_node("Cast", ["input_ids"], ["ids"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["ids", "axis"], ["column"]),
        helper.make_node("Mul", ["column", "w"], ["x"]),
        *before,
        helper.make_node("Transpose", ["x"], ["k"], perm=[0, 2, 1]),
        helper.make_node("MatMul", [query, "k"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "x"], ["y"]),
    ]
    tensor = tensor or numpy_helper.from_array(np.linspace(0, 1, T, dtype=np.float32), "w")
    axis = numpy_helper.from_array(np.array([2]), "axis")
    sides = (
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, [1, None])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, None, T])],
    )
    versions = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1), helper.make_opsetid("evil", 1)]
    return helper.make_model(
        helper.make_graph(nodes, "g", *sides, [tensor, axis]), opset_imports=versions, ir_version=8
    )


def external(location: str, dims: tuple[int, ...] = (T,), **how: str) -> TensorProto:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=dims, data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, **how}.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def inline(dims: tuple[int, ...], data: bytes = b"") -> TensorProto:
    return TensorProto(name="w", data_type=TensorProto.FLOAT, dims=dims, raw_data=data)


def trace(folder: Path, model: ModelProto | bytes) -> Any:
    (folder / "model.onnx").write_bytes(model if isinstance(model, bytes) else model.SerializeToString())
    return attncli.inspect("1 2 3", str(folder / "model.onnx"), ids=True)


def test_the_graph_itself_is_read(tmp_path: Path) -> None:
    x = np.arange(1, 4)[:, None] * np.linspace(0, 1, T)
    exponentials = np.exp(x @ x.T)
    expected = exponentials / exponentials.sum(-1, keepdims=True)
    (tmp_path / "w.bin").write_bytes(np.linspace(0, 1, T, dtype=np.float32).tobytes())
    for tensor in (None, external("w.bin")):
        np.testing.assert_allclose(trace(tmp_path, graph_of(tensor=tensor)).weights[0], expected, rtol=1e-5)


ADD = helper.make_node("Add", ["x", "later"], ["a"]), helper.make_node("Add", ["a", "x"], ["later"])
SIZED = (
    helper.make_node("ConstantOfShape", ["huge"], ["zeros"]),
    helper.make_node("ReduceSum", ["zeros"], ["sum"], keepdims=0),
    helper.make_node("Add", ["x", "sum"], ["q"]),
)
HUGE = helper.make_node("Constant", [], ["huge"], value=numpy_helper.from_array(np.array([2**40])))
INT = helper.make_value_info("huge", helper.make_tensor_type_proto(TensorProto.INT64, None))


def fanned() -> ModelProto:
    """Make a graph whose weights are multiplied with themselves, time after time."""
    model = graph_of()
    nodes, (softmax, product) = model.graph.node, model.graph.node[-2:]
    softmax.output[0], product.input[0] = "m0", "m60"
    muls = [helper.make_node("Mul", [f"m{number}"] * 2, [f"m{number + 1}"]) for number in range(60)]
    for mul in muls:
        nodes.insert(len(nodes) - 1, mul)
    return model


def with_input(dims: tuple[int, ...] | None, kind: int = TensorProto.FLOAT) -> ModelProto:
    model = graph_of(helper.make_node("Identity", ["past_x"], ["z"]))
    model.graph.input.append(helper.make_tensor_value_info("past_x", kind, dims))
    return model


DAMAGED: dict[str, tuple[Callable[[], ModelProto | bytes], type[AttnError], str]] = {
    "empty": (lambda: b"", LoadError, "is no ONNX file, or is cut"),
    "text": (lambda: b"{}" * 50, LoadError, "is no ONNX file, or is cut"),
    "cut": (lambda: graph_of().SerializeToString()[:-60], LoadError, "is no ONNX file, or is cut"),
    "circle": (lambda: graph_of(*ADD, query="a"), LoadError, "Add reads later of no node before it"),
    "missing": (lambda: graph_of(query="nowhere"), LoadError, "MatMul reads nowhere of no node before it"),
    "library": (
        lambda: graph_of(helper.make_node("Steal", ["x"], ["z"], domain="evil")),
        NotExposedError, "needs evil.Steal; attn loads no library of operators",
    ),
    "operator": (lambda: graph_of(helper.make_node("Steal", ["x"], ["q"]), query="q"), LoadError, "No Op registered"),
    "hidden": (
        lambda: graph_of(helper.make_node("SparseAttention", ["x"], ["z"], domain="com.microsoft")),
        NotExposedError, "the operator SparseAttention at z hides its attention; export again with",
    ),
    "function": (
        lambda: ModelProto(graph=graph_of().graph, functions=[FunctionProto(name="f")]),
        NotExposedError, "has functions of its own, which hide attention; inline them with",
    ),
    "fan": (fanned, NotExposedError, "has no attention that attn reads"),
    "negative input": (lambda: with_input((1, -3)), NotExposedError, "reads a past_x of a fixed size"),
    "huge input": (lambda: with_input((2**40, 4)), NotExposedError, "reads a past_x of a fixed size"),
    "no sizes": (lambda: with_input(None), NotExposedError, "reads a past_x of no stated size"),
    "type": (lambda: with_input((1, 0), 77), LoadError, "the input past_x has a type that ONNX does not know"),
    "none": (
        lambda: helper.make_model(helper.make_graph([HUGE], "g", [], [INT])),
        NotExposedError, "has no attention",
    ),
    "no outputs": (
        lambda: helper.make_model(helper.make_graph([HUGE], "g", [], [])), LoadError, "is no ONNX file, or is cut"
    ),
    "odd": (
        lambda: graph_of(
            helper.make_node("MultiHeadAttention", ["x", "x", "x"], ["z"], domain="com.microsoft", num_heads=3)
        ),
        InputError, "does not run",
    ),
    "huge": (lambda: graph_of(tensor=inline((2**40,))), LoadError, "cannot load"),
    "overflow": (lambda: graph_of(tensor=inline((2**40, 2**40))), LoadError, "cannot load"),
    "negative": (lambda: graph_of(tensor=inline((-T,), bytes(4 * T))), LoadError, "cannot load"),
    "short": (lambda: graph_of(tensor=inline((T,), bytes(4))), LoadError, "cannot load"),
    "computed": (lambda: graph_of(HUGE, *SIZED, query="q"), InputError, "does not run on this input"),
    "absolute": (lambda: graph_of(tensor=external("/etc/hostname")), LoadError, "Absolute path not allowed"),
    "above": (lambda: graph_of(tensor=external("../secret")), LoadError, "escapes model directory"),
    "link": (lambda: graph_of(tensor=external("link")), LoadError, "escapes model directory"),
    "gone": (lambda: graph_of(tensor=external("gone.bin")), LoadError, "does not exist"),
    "beyond": (lambda: graph_of(tensor=external("w.bin", offset="8", length="16")), LoadError, "out of bounds"),
    "larger": (lambda: graph_of(tensor=external("w.bin", (2**40,))), LoadError, "out of bounds"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
def test_one_sentence(name: str, tmp_path: Path) -> None:
    make, kind, expected = DAMAGED[name]
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(bytes(4 * T))
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "w.bin").write_bytes(bytes(4 * T))
    with pytest.raises(AttnError) as raised:
        trace(folder, make())
    message = str(raised.value)
    assert isinstance(raised.value, kind), message
    assert expected in message
    assert "\n" not in message
    assert len(message) < 500
