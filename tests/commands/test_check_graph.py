"""`attn check -m model.onnx`: padding and a cache change nothing, and faults planted in a graph are named."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx_exports import IDS, exported, merged, model_of, smaller, with_past
from running import Run

TEXT = " ".join(map(str, IDS))


def behind_new(part: str) -> Callable[[onnx.GraphProto], None]:
    """Put the keys or values of layer 1's cache behind the new ones."""

    def plant(graph: onnx.GraphProto) -> None:
        past = f"past_key_values.1.{part}"
        (node,) = (node for node in graph.node if node.op_type == "Concat" and past in node.input)
        node.input[:] = [*node.input][::-1]

    return plant


def from_zero(graph: onnx.GraphProto) -> None:
    """Count the positions of each step from 0."""
    for name, value in (("zero", 0), ("one", 1), ("axis", [0])):
        graph.initializer.append(numpy_helper.from_array(np.array(value), name))
    for node in graph.node:
        node.input[:] = ["counted" if name == "position_ids" else name for name in node.input]
    nodes = [
        helper.make_node("Shape", ["input_ids"], ["sizes"]),
        helper.make_node("Gather", ["sizes", "one"], ["tokens"]),
        helper.make_node("Range", ["zero", "tokens", "one"], ["row"]),
        helper.make_node("Unsqueeze", ["row", "axis"], ["counted"]),
    ]
    for number, node in enumerate(nodes):
        graph.node.insert(number, node)


PLANTED: dict[str, tuple[Callable[[onnx.GraphProto], None], str, str]] = {
    "keys": (behind_new("key"), "layer 1", "keys"),
    "values": (behind_new("value"), "layer 1", "values"),
    "positions": (from_zero, "layer 0", "queries"),
}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Export a decoder with a cache, and save its checkpoint."""
    folder = tmp_path_factory.mktemp("llama")
    model_of("llama").save_pretrained(folder / "checkpoint")
    with_past(folder / "graph", "llama")
    return folder


def test_a_right_graph_passes(llama: Path, attn: Run) -> None:
    shown = attn("check", "-m", llama / "graph", "--ids", TEXT)
    assert (shown.code, shown.err) == (0, "")
    assert "masks of the graph: causal in layers 0-1" in shown.out
    document = attn("check", "-m", llama / "graph", "--ids", TEXT, "-F", "json").json
    compared = {one["name"]: one["change"] for one in document["invariances"]}
    assert compared.keys() == {"batch", "padding-side", "cache"}
    assert 0 < compared["cache"] < 1e-5


@pytest.mark.parametrize("fault", PLANTED)
def test_a_wrong_cache_is_named(fault: str, llama: Path, attn: Run, tmp_path: Path) -> None:
    plant, place, array = PLANTED[fault]
    model = onnx.load(llama / "graph/model.onnx")
    plant(model.graph)
    onnx.save(model, tmp_path / "model.onnx")
    alone = attn("check", "-m", tmp_path / "model.onnx", "--ids", TEXT)
    assert alone.code == 1
    assert f"from {place} on; the {array} differ there first" in alone.out
    both = attn("check", "-m", tmp_path / "model.onnx", "--against", llama / "checkpoint", "--ids", TEXT)
    assert both.code == 1
    assert f"B, {place}: whole, in steps: weights·V change by" in both.out
    assert f"from {place} on; the {array} differ there first" in both.out


def test_the_cache_of_a_merged_decoder_is_read(llama: Path, attn: Run, tmp_path: Path) -> None:
    shutil.copy(llama / "graph/model.onnx", tmp_path)
    path = merged(tmp_path / "model.onnx") / "decoder_model_merged.onnx"
    assert attn("check", "-m", tmp_path, "--ids", TEXT).code == 0
    model = onnx.load(path)
    (branch,) = (item.g for item in model.graph.node[0].attribute if item.name == "then_branch")
    behind_new("key")(branch)
    onnx.save(model, path)
    shown = attn("check", "-m", tmp_path, "--ids", TEXT)
    assert (shown.code, "from layer 1 on; the keys differ there first" in shown.out) == (1, True)


def test_a_graph_that_cannot_be_padded_is_told(attn: Run, tmp_path: Path) -> None:
    """Give the mask no input, and then the ids a fixed number."""
    path = exported(tmp_path, "bert")
    model = onnx.load(path)
    ids, mask = model.graph.input
    model.graph.input.remove(mask)
    one = numpy_helper.from_array(np.array([1]))
    model.graph.node.insert(0, helper.make_node("ConstantOfShape", ["sizes"], ["attention_mask"], value=one))
    model.graph.node.insert(0, helper.make_node("Shape", ["input_ids"], ["sizes"]))
    onnx.save(model, path)
    shown = attn("check", "-m", path, "--ids", TEXT)
    assert (shown.code, "note  batch" in shown.out, "nothing found" in shown.out) == (0, True, False)
    ids.type.tensor_type.shape.dim[1].dim_value = 16
    onnx.save(model, path)
    fixed = attn("check", "-m", path, "--ids", TEXT)
    assert (fixed.code, "reads input_ids of any × 16, and this input has 1 × 9" in fixed.err) == (4, True), fixed.err


def test_positions_of_a_quantized_graph_are_told_from_rounding(attn: Run, tmp_path: Path) -> None:
    model = onnx.load(exported(tmp_path / "bert", "bert"))
    smaller(model, "int8", tmp_path / "bert/model.onnx")
    shown = attn("check", "-m", tmp_path / "bert", "--ids", TEXT)
    assert shown.code == 0
    assert "derive position ids from the attention mask, or pad on the right" in " ".join(shown.out.split())


def test_padding_without_a_mask_is_named(attn: Run, tmp_path: Path) -> None:
    """Drop the mask of layer 1, which then attends to padding."""
    path = exported(tmp_path, "bert")
    model = onnx.load(path)
    producers = {name: node for node in model.graph.node for name in node.output}
    softmax = [node for node in model.graph.node if node.op_type == "Softmax"][1]
    softmax.input[0] = producers[softmax.input[0]].input[0]
    onnx.save(model, path)
    shown = attn("check", "-m", path, "--ids", TEXT)
    assert shown.code == 1
    lost = "layer 1: the mask of padding is missing on the right and the left; a token gives it"
    assert lost in " ".join(shown.out.split())
    assert "not run: its graph reads no cache" in shown.out
    several = attn("check", "-m", path, "--ids", "1 2", "3 4")
    assert (several.code, "on one text" in several.err) == (2, True)
