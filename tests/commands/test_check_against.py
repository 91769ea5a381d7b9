"""`attn check --against`: faults planted in exported graphs are named with their layer."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx_exports import IDS, PROCESSOR, exported, model_of, smaller, static
from running import Run
from tokenizers import BertWordPieceTokenizer

Exports, Plant = Callable[[str], Path], Callable[[onnx.GraphProto], None]
TEXT = " ".join(map(str, IDS))


def softmax_inputs(graph: onnx.GraphProto) -> list[tuple[onnx.NodeProto, onnx.NodeProto]]:
    """Return each Softmax with the Add of its mask."""
    producers = {name: node for node in graph.node for name in node.output}
    return [(node, producers[node.input[0]]) for node in graph.node if node.op_type == "Softmax"]


def without_mask(graph: onnx.GraphProto) -> None:
    """Leave the mask of layer 1 out."""
    softmax, added = softmax_inputs(graph)[1]
    softmax.input[0] = added.input[0]


def without_window(graph: onnx.GraphProto) -> None:
    """Give layer 1 a causal mask without a window."""
    added = softmax_inputs(graph)[1][1]
    least = numpy_helper.from_array(np.array([np.finfo(np.float32).min]))
    graph.initializer.append(numpy_helper.from_array(np.array(1), "one"))
    nodes = [
        helper.make_node("Shape", [added.input[0]], ["sizes"]),
        helper.make_node("ConstantOfShape", ["sizes"], ["least"], value=least),
        helper.make_node("Trilu", ["least", "one"], ["planted"], upper=1),
    ]
    place = list(graph.node).index(added)
    for number, node in enumerate(nodes):
        graph.node.insert(place + number, node)
    softmax_inputs(graph)[1][1].input[1] = "planted"


def other_base(graph: onnx.GraphProto) -> None:
    """Rotate by the base 500,000 in place of 10,000, of heads of four dimensions."""
    constants = [node.attribute[0].t for node in graph.node if node.op_type == "Constant"]
    pairs = (tensor for tensor in constants if np.prod(tensor.dims) == 2)
    (tensor,) = (tensor for tensor in pairs if np.allclose(numpy_helper.to_array(tensor).ravel(), [1, 0.01]))
    tensor.CopyFrom(numpy_helper.from_array(np.float32([1, 500_000**-0.5]).reshape(tensor.dims)))


def other_head(graph: onnx.GraphProto) -> None:
    """Turn the signs of the logits."""
    (last,) = (node for node in graph.node if graph.output[0].name in node.output)
    last.output[0] = "right"
    graph.node.append(helper.make_node("Neg", ["right"], [graph.output[0].name]))


PLANTED: dict[str, tuple[str, Plant, list[str]]] = {
    "causal": ("llama", without_mask, ["Layer 1, mask", "mask full instead of causal"]),
    "window": ("mistral", without_window, ["Layer 1, mask", "mask causal instead of window(4)"]),
    "padding": ("bert", without_mask, ["B, layer 1: the mask of padding is missing on the right", "; a token gives"]),
    "left": ("llama", without_window, ["B, layer 1: the mask of padding is missing on the left; a token gives"]),
    "output": ("llama", other_head, ["Layer 1, last output: the attention agrees", "what follows it differs by 2."]),
    "base": ("llama", other_base, ["Layers 0-1, rotation", "rotary base 500000 instead of 10000"]),
}


UNSEEN = {  # what transformers computes
    "bloom": "",
    "t5": "The decoder was compared too, and not its cache.",
}


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Exports:
    """Export each model once, with its checkpoint."""
    folder, made = tmp_path_factory.mktemp("exports"), set[str]()

    def path(name: str) -> Path:
        if name not in made:
            model_of(name).save_pretrained(folder / name / "checkpoint")
            exported(folder / name / "graph", name)
            made.add(name)
        return folder / name

    return path


@pytest.mark.parametrize("name", ["bert", "llama", "mistral", "t5", "bloom"])
def test_an_export_agrees(name: str, exports: Exports, attn: Run) -> None:
    path = exports(name)
    result = attn("check", "-m", path / "graph", "--against", path / "checkpoint", "--ids", TEXT)
    assert (result.code, result.err) == (0, "")
    unseen = UNSEEN.get(name, "")
    output = "; the model's output was not compared" if name in UNSEEN else " and in the model's output"
    assert f"A and B agree in the attention of every layer{output}. Only rounding of float32: at most " in result.out
    assert result.out.rstrip().endswith(unseen)


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_named(fault: str, exports: Exports, attn: Run, tmp_path: Path) -> None:
    name, plant, expected = PLANTED[fault]
    model = onnx.load(exports(name) / "graph/model.onnx")
    plant(model.graph)
    onnx.save(model, tmp_path / "model.onnx")
    against = ["--against", exports(name) / "checkpoint", "--ids", TEXT]
    shown = attn("check", "-m", tmp_path / "model.onnx", *against)
    document = attn("check", "-m", tmp_path / "model.onnx", *against, "-F", "json")
    assert (shown.code, document.code) == (1, 1)
    for part in expected:
        assert part in shown.out
        assert any(part in sentence for sentence in document.json["sentences"])
    assert document.json["agrees"] is False
    if fault not in ("padding", "left", "output"):  # which the attention of one text does not show
        first = attn(
            "diff", "--first", "-m", exports(name) / "checkpoint", "-m", tmp_path / "model.onnx", "--ids", TEXT
        )
        assert (first.code, expected[1] in first.out) == (1, True)


def test_a_vision_transformer_reads_random_numbers(exports: Exports, attn: Run) -> None:
    path = exports("vit")
    shutil.copy(path / "graph" / PROCESSOR, path / "checkpoint")
    against = ["--against", path / "checkpoint"]
    right = attn("check", "-m", path / "graph", *against)
    assert (right.code, right.err) == (0, "")
    assert "A and B agree in the attention of every layer; the model's output was not compared. Only" in right.out
    model = onnx.load(path / "graph/model.onnx")
    place = [index for index, node in enumerate(model.graph.node) if node.op_type == "Softmax"][1]
    scores = model.graph.node[place].input[0]
    model.graph.node[place].input[0] = "doubled"
    model.graph.initializer.append(numpy_helper.from_array(np.float32(2), "two"))
    model.graph.node.insert(place, helper.make_node("Mul", [scores, "two"], ["doubled"]))
    onnx.save(model, path / "graph/planted.onnx")
    wrong = attn("check", "-m", path / "graph/planted.onnx", *against)
    assert (wrong.code, "Cause: scale 0.7071 instead of 0.3536 (undone: " in wrong.out) == (1, True), wrong.out


def negated(graph: onnx.GraphProto) -> None:
    """Turn the signs of the last MLP's matrix, behind the attention of all layers."""
    (name,) = (node.input[1] for node in graph.node if node.name.endswith("layers.1/mlp/down_proj/MatMul"))
    (tensor,) = (tensor for tensor in graph.initializer if tensor.name == name)
    tensor.CopyFrom(numpy_helper.from_array(-numpy_helper.to_array(tensor), name))


OTHER = "quantized matrices are no rounding of one of A: /model/model/layers.1/mlp"
ROUNDED = "16 of 16 quantized matrices are those of A, rounded. A smaller fault does not show."


@pytest.mark.parametrize(
    ("form", "plant", "code", "expected"),
    [
        ("int8", None, 0, ROUNDED),
        ("int4", None, 0, ROUNDED.replace("16", "15")),
        ("float16", None, 0, "Only rounding of float16"),
        ("int8", without_mask, 1, PLANTED["causal"][2][1]),
        ("float16", without_mask, 1, PLANTED["causal"][2][1]),
        ("int8", negated, 1, f"B, 1 of 16 {OTHER}"),
        ("int4", negated, 1, f"B, 1 of 15 {OTHER}"),
    ],
)
def test_fewer_bits_are_rounding_and_a_fault_is_named(
    form: str, plant: Plant | None, code: int, expected: str, exports: Exports, attn: Run, tmp_path: Path
) -> None:
    model = onnx.load(exports("llama") / "graph/model.onnx")
    if plant is not None:
        plant(model.graph)
    smaller(model, form, tmp_path / "model.onnx")
    shown = attn("check", "-m", tmp_path, "--against", exports("llama") / "checkpoint", "--ids", TEXT)
    assert (shown.code, expected in shown.out) == (code, True), shown.out
    assert form == "float16" or " agree " not in shown.out


def test_ranges_without_padding_lose_its_mask(exports: Exports, attn: Run, tmp_path: Path) -> None:
    static(exports("bert") / "graph/model.onnx", tmp_path / "model.onnx")
    shown = attn("check", "-m", tmp_path, "--against", exports("bert") / "checkpoint", "--ids", TEXT)
    assert (shown.code, "A and B differ" in shown.out) == (1, False)
    assert "B, layers 0-1, here 0: the mask of padding is missing on the right" in shown.out
    assert "weights: int8 static" in attn("inspect", "-m", tmp_path, "--ids", TEXT).out


def test_a_decoder_is_compared(exports: Exports, attn: Run, tmp_path: Path) -> None:
    folder = tmp_path / "graph"
    shutil.copytree(exports("t5") / "graph", folder)
    model = onnx.load(folder / "decoder_model.onnx")
    producers = {name: node for node in model.graph.node for name in node.output}
    (node,) = (node for node in model.graph.node if node.name.endswith("block.0/layer.0/SelfAttention/Softmax"))
    node.input[0] = producers[node.input[0]].input[0]  # without bias and mask
    onnx.save(model, folder / "decoder_model.onnx")
    shown = attn("check", "-m", folder, "--against", exports("t5") / "checkpoint", "--ids", TEXT)
    assert shown.code == 1
    assert "Layer 0 (decoder), " in shown.out
    assert "Layer 0 (cross), " not in shown.out


def test_a_mask_lost_in_cross_attention_is_named(exports: Exports, attn: Run, tmp_path: Path) -> None:
    folder = tmp_path / "graph"
    shutil.copytree(exports("t5") / "graph", folder)
    model = onnx.load(folder / "decoder_model.onnx")
    for node in model.graph.node:
        node.input[:] = ["ones" if name == "encoder_attention_mask" else name for name in node.input]
    one = numpy_helper.from_array(np.array([1]))
    model.graph.node.insert(0, helper.make_node("ConstantOfShape", ["sizes"], ["ones"], value=one))
    model.graph.node.insert(0, helper.make_node("Shape", ["encoder_attention_mask"], ["sizes"]))
    for name in ("encoder_model", "decoder_model"):  # as transformers.js names quantized graphs
        (folder / f"{name}.onnx").rename(folder / f"{name}_quantized.onnx")
    onnx.save(model, folder / "decoder_model_quantized.onnx")
    against = attn("check", "-m", folder, "--against", exports("t5") / "checkpoint", "--ids", TEXT)
    alone = attn("check", "-m", folder, "--ids", TEXT)
    assert (against.code, alone.code) == (1, 1)
    lost = "layers 0-1 (cross), here 0: the mask of padding is missing on the right and the left"
    assert all(lost in " ".join(shown.out.split()) for shown in (against, alone))


def test_a_text_shorter_than_the_window_does_not_show_it(exports: Exports, attn: Run) -> None:
    path = exports("mistral")
    shown = attn("check", "-m", path / "graph", "--against", path / "checkpoint", "--ids", "5 9 3")
    assert shown.code == 0
    assert "The text of 3 tokens does not show the window of 4 keys." in shown.out
    model = onnx.load(path / "graph/model.onnx")
    without_window(model.graph)
    onnx.save(model, path / "graph/planted.onnx")
    short = attn("check", "-m", path / "graph/planted.onnx", "--against", path / "checkpoint", "--ids", "5 9 3 17 22")
    assert (short.code, "mask causal instead of window(4)" in short.out) == (1, True)


def test_a_quantized_bias_of_positions_is_rounding(exports: Exports, attn: Run, tmp_path: Path) -> None:
    shutil.copy(exports("t5") / "graph/config.json", tmp_path)
    for name in ("encoder_model", "decoder_model"):
        smaller(onnx.load(exports("t5") / f"graph/{name}.onnx"), "int8", tmp_path / f"{name}.onnx")
    shown = attn("check", "-m", tmp_path, "--against", exports("t5") / "checkpoint", "--ids", TEXT)
    assert (shown.code, "score bias" in shown.out, " agree " in shown.out) == (0, False, False)


def test_a_tokenizer_that_was_exported_otherwise_is_named(exports: Exports, attn: Run, tmp_path: Path) -> None:
    words = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "time", "flies")
    pieces = {word: number for number, word in enumerate(words)}
    for part, lowercase in (("checkpoint", True), ("graph", False)):
        shutil.copytree(exports("bert") / part, tmp_path / part)
        BertWordPieceTokenizer(pieces, lowercase=lowercase).save(str(tmp_path / part / "tokenizer.json"))
        (tmp_path / part / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    shown = attn("check", "-m", tmp_path / "graph", "--against", tmp_path / "checkpoint", "Time flies")
    assert (shown.code, "Token ids: B has 1 at 1, and A has 5 at 1." in shown.out) == (1, True), shown.out


def test_data_that_the_cache_of_the_hub_links_to_is_read(exports: Exports, attn: Run, tmp_path: Path) -> None:
    folder, blobs = tmp_path / "snapshots/abc", tmp_path / "blobs"
    shutil.copytree(exports("llama") / "graph", folder)
    blobs.mkdir()
    model = onnx.load(folder / "model.onnx")
    onnx.save(model, folder / "model.onnx", save_as_external_data=True, location="model.onnx_data", size_threshold=0)
    (folder / "model.onnx_data").rename(blobs / "a1")
    (folder / "model.onnx_data").symlink_to("../../blobs/a1")
    against = ["check", "-m", folder, "--against", exports("llama") / "checkpoint", "--ids", TEXT]
    assert attn(*against).code == 0
    (blobs / "a1").rename(tmp_path / "a1")
    (folder / "model.onnx_data").unlink()
    (folder / "model.onnx_data").symlink_to(tmp_path / "a1")
    assert (attn(*against).code, "escapes" in attn(*against).err) == (3, True)


def test_refusals(exports: Exports, attn: Run) -> None:
    path = exports("bert") / "graph"
    many = attn("check", "-m", path, "--against", exports("bert") / "checkpoint", "--ids", "1 2", "3 4")
    assert (many.code, "--against compares on one text" in many.err) == (2, True)
    path = exports("llama")
    shutil.copytree(path / "checkpoint", path / "both", dirs_exist_ok=True)
    shutil.copytree(path / "graph", path / "both/onnx", dirs_exist_ok=True)
    same = attn("check", "-m", path / "both", "--against", path / "both", "--ids", TEXT)
    assert (same.code, f"give -m {path / 'both/onnx/model.onnx'}" in same.err) == (2, True)
    none = attn("check", "-m", path / "checkpoint", "--against", path / "graph", "--ids", TEXT)
    assert (none.code, "is no ONNX model" in none.err, "by attn diff --first" in none.err) == (2, True, True)
