"""Small random models, and their exports to ONNX by both exporters of torch, laid out as users have them."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from PIL import Image
from transformers import DynamicCache
from transformers.modeling_outputs import BaseModelOutput

Exporter = Literal["torchscript", "dynamo"]
IDS = [5, 9, 3, 17, 22, 40, 7, 31, 12]
TARGET = [0, 8, 25, 14]
PIXELS = torch.randint(256, (3, 32, 32), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
PICTURE, PROCESSOR = "picture.png", "preprocessor_config.json"  # with these pixels, from 0 to 1
_WIDTHS = {"hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 32, "vocab_size": 64}
_GROUPED = {**_WIDTHS, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
_T5 = {"vocab_size": 64, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
_VIT = {"hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 32, "num_attention_heads": 2}
CONFIGS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("BertModel", "BertConfig", {**_WIDTHS, "num_attention_heads": 2, "max_position_embeddings": 64}),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", {"vocab_size": 64, "n_embd": 16, "n_layer": 2, "n_head": 2}),
    "llama": ("LlamaForCausalLM", "LlamaConfig", _GROUPED),
    "mistral": ("MistralForCausalLM", "MistralConfig", {**_GROUPED, "sliding_window": 4}),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", {**_GROUPED, "sliding_window": 4, "head_dim": 8}),
    "t5": ("T5ForConditionalGeneration", "T5Config", {**_T5, "decoder_start_token_id": 0}),
    "bloom": ("BloomForCausalLM", "BloomConfig", {"vocab_size": 64, "hidden_size": 16, "n_layer": 2, "n_head": 2}),
    "vit": ("ViTModel", "ViTConfig", {**_VIT, "image_size": 32, "patch_size": 8}),
}


def model_of(name: str, attention: str = "eager", **changed: Any) -> Any:
    """Return a model with weights far from uniform attention, the same for each way of attending."""
    torch.manual_seed(0)
    model_class, config_class, fields = CONFIGS[name]
    config = getattr(transformers, config_class)(**fields | changed, initializer_range=0.5)
    config._attn_implementation = attention
    return getattr(transformers, model_class)(config).eval()


class ExportedForward(torch.nn.Module):
    """A model whose forward takes the inputs of its graph by position."""

    def __init__(self, model: Any, names: list[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs: torch.Tensor) -> Any:
        arguments: dict[str, Any] = dict(zip(self.names, inputs, strict=True))
        if past := [name for name in arguments if name.startswith("past_")]:
            pairs = [arguments.pop(name) for name in past]
            arguments["past_key_values"] = DynamicCache(list(zip(pairs[::2], pairs[1::2], strict=True)))
        if "encoder_hidden_states" in arguments:
            arguments["decoder_input_ids"] = arguments.pop("input_ids")
            arguments["attention_mask"] = arguments.pop("encoder_attention_mask")
            arguments["encoder_outputs"] = BaseModelOutput(arguments.pop("encoder_hidden_states"))
        if self.names != ["pixel_values"]:
            arguments["use_cache"] = bool(past)
        outputs = self.model(**arguments)
        if not past:
            return outputs[0]
        return outputs[0], *(part for layer in outputs.past_key_values for part in layer[:2])


def write(
    path: Path, model: Any, inputs: dict[str, torch.Tensor], exporter: Exporter = "torchscript", **how: Any
) -> Path:
    """Export a model; axes of one size in all inputs are dynamic, but for those of a cache's heads."""
    path.parent.mkdir(parents=True, exist_ok=True)
    names, arguments = list(inputs), tuple(inputs.values())
    axes: dict[str, dict[int, str]] = {name: {0: "batch", 1: "sequence"} for name in names}
    axes |= {name: {0: "batch", 2: "past"} for name in names if name.startswith("past_")}
    axes |= {name: {0: "batch"} for name in names if name == "pixel_values"}
    axes |= {name: {0: "batch", 1: "encoder_sequence"} for name in names if name.startswith("encoder_")}
    if any(name.startswith("past_") for name in names):
        axes["attention_mask"] = {0: "batch", 1: "total"}
    if exporter == "torchscript":
        how |= {"dynamic_axes": axes, "opset_version": 17}
    else:
        how |= {"dynamic_shapes": {"inputs": tuple(axes.values())}, "external_data": False, "verbose": False}
    plain, is_dynamo = ExportedForward(model, names), exporter == "dynamo"
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(plain, arguments, path, input_names=names, dynamo=is_dynamo, **how)
    return path


def exported(folder: Path, name: str, attention: str = "eager", exporter: Exporter = "torchscript", **how: Any) -> Path:
    """Export a model into a folder, with its configuration; return the graph, or the folder of two."""
    model = model_of(name, attention)
    folder.mkdir(parents=True, exist_ok=True)
    model.config.save_pretrained(folder)
    ids = torch.tensor([IDS, IDS[::-1]])
    both = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if name == "vit":
        settings = {"image_processor_type": "ViTImageProcessor", "size": {"height": 32, "width": 32}}
        settings |= {"do_normalize": False}
        (folder / PROCESSOR).write_text(json.dumps(settings))
        Image.fromarray(PIXELS.permute(1, 2, 0).numpy()).save(folder / PICTURE)
        return write(folder / "model.onnx", model, {"pixel_values": PIXELS[None] / 255}, exporter, **how)
    if name == "t5":
        write(folder / "encoder_model.onnx", model.encoder, both, exporter, **how)
        states = torch.randn(2, len(IDS), 16)
        of_decoder = {"input_ids": ids[:, :4], "encoder_hidden_states": states}
        of_decoder["encoder_attention_mask"] = torch.ones_like(ids)
        write(folder / "decoder_model.onnx", model, of_decoder, exporter, **how)
        return folder
    return write(folder / "model.onnx", model, both, exporter, **how)


def with_past(folder: Path, name: str, attention: str = "eager", exporter: Exporter = "torchscript") -> Path:
    """Export a decoder that reads a cache."""
    model = model_of(name, attention)
    folder.mkdir(parents=True, exist_ok=True)
    model.config.save_pretrained(folder)
    ids = torch.tensor([IDS, IDS[::-1]])
    heads = model.config.num_key_value_heads
    width = model.config.hidden_size // model.config.num_attention_heads
    inputs = {"input_ids": ids, "attention_mask": torch.ones(2, len(IDS) + 3, dtype=torch.int64)}
    inputs["position_ids"] = torch.arange(3, 3 + len(IDS)).expand(2, -1).clone()
    for layer in range(model.config.num_hidden_layers):
        for part in ("key", "value"):
            inputs[f"past_key_values.{layer}.{part}"] = torch.randn(2, heads, 3, width)
    return write(folder / "model.onnx", model, inputs, exporter)


def weights_of(name: str) -> dict[str, list[Any]]:
    """Return the weights that transformers' eager attention gives for `IDS`, by kinds and layers, `[H, Q, K]` each."""
    model = model_of(name)
    ids, how = torch.tensor([IDS]), {"output_attentions": True}
    with torch.no_grad():
        if name == "vit":
            outputs = model(pixel_values=PIXELS[None] / 255, **how)
        elif name == "t5":
            outputs = model(input_ids=ids, decoder_input_ids=torch.tensor([TARGET]), **how)
            names = {"encoder": "encoder_attentions", "decoder": "decoder_attentions", "cross": "cross_attentions"}
            return {kind: [array[0].numpy() for array in outputs[field]] for kind, field in names.items()}
        else:
            outputs = model(input_ids=ids, **how)
    return {"self": [array[0].numpy() for array in outputs.attentions]}


def merged(path: Path) -> Path:
    """Make of a decoder with a cache one that chooses between two graphs, as optimum merges decoders."""
    import onnx
    from onnx import compose, helper

    graph = onnx.load(path).graph
    branches = []
    for prefix in ("then_", "else_"):
        named = compose.add_prefix_graph(graph, prefix, rename_inputs=False, rename_initializers=False)
        branches.append(helper.make_graph(list(named.node), prefix + "branch", [], list(named.output)))
    chosen = helper.make_tensor_value_info("use_cache_branch", onnx.TensorProto.BOOL, [1])
    outputs = [value.name for value in graph.output]
    node = helper.make_node("If", ["use_cache_branch"], outputs, then_branch=branches[0], else_branch=branches[1])
    whole = helper.make_graph([node], "merged", [*graph.input, chosen], graph.output, list(graph.initializer))
    merged_path = path.with_name("decoder_model_merged.onnx")
    onnx.save(helper.make_model(whole, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), merged_path)
    path.unlink()
    return merged_path.parent


def optimized(path: Path, kind: str, heads: int, **options: bool) -> Path:
    """Fuse the operators of a graph as onnxruntime does for models of a kind."""
    from onnxruntime.transformers.fusion_options import FusionOptions
    from onnxruntime.transformers.optimizer import optimize_model

    fusion = FusionOptions(kind)
    for name, value in options.items():
        setattr(fusion, name, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = optimize_model(str(path), kind, num_heads=heads, hidden_size=16, optimization_options=fusion)
        model.save_model_to_file(str(path))
    return path


def smaller(model: Any, form: str, path: Path) -> None:
    """Write a graph with weights of 4 or 8 bits, or with numbers of 16, as transformers.js has them."""
    import onnx
    from onnxruntime.quantization import quantize_dynamic
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
    from onnxruntime.transformers.float16 import convert_float_to_float16

    if form == "int8":
        quantize_dynamic(model, path, extra_options={"MatMulConstBOnly": True})
    elif form == "int4":
        of_blocks = MatMulNBitsQuantizer(model, block_size=16, is_symmetric=False)
        of_blocks.process()
        onnx.save(of_blocks.model.model, path)
    else:
        onnx.save(convert_float_to_float16(model, keep_io_types=True), path)


def static(path: Path, target: Path) -> None:
    """Quantize all numbers of a graph between nodes, by ranges of texts without padding."""
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

    class Texts(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            ids = torch.randint(1, 64, (4, 1, len(IDS)), generator=torch.Generator().manual_seed(0)).numpy()
            self.inputs = iter({"input_ids": row, "attention_mask": row * 0 + 1} for row in ids)

        def get_next(self) -> Any:
            return next(self.inputs, None)

    quantize_static(path, target, Texts(), activation_type=QuantType.QUInt8)
