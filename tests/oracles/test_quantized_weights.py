"""Quantized checkpoints: what they show is what transformers computes with the numbers that their codes stand for.

The codes and scales are made by the library of the form where it installs, else by plain loops over its definition.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from bitsandbytes import functional
from conformance import stacked
from refusals import refused
from running import Run
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

import attncli
from attncli.checkpoints.tensors import Store, Stored
from attncli.checkpoints.tensors.quantization import dequantized
from attncli.errors import LoadError

Tensors = dict[str, torch.Tensor]
TEXT = "time flies like an arrow"
ENGINES = ("native", "transformers")
SMALL = torch.float8_e4m3fn


class Form(NamedTuple):
    """How one matrix is stored, and the numbers that it then stands for, all by what stands behind `q_proj`."""

    stored: Tensors
    numbers: torch.Tensor


Made = Callable[[torch.Tensor], Form]


@pytest.fixture(scope="module")
def llama(tiny_llama: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(shutil.copytree(tiny_llama, tmp_path_factory.mktemp("forms") / "llama"))
    torch.manual_seed(1)
    vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32, initializer_range=0.12,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def agrees(llama: Path, folder: Path, made: Made, scheme: Any, form: str, end: str = "_proj.weight") -> None:
    folder, numbers = quantized(llama, folder, made, scheme, end)
    expected = numbers_shown(llama, numbers)
    for engine in ENGINES:
        trace = attncli.inspect(TEXT, model=str(folder), layer="all", engine=engine)
        assert trace.source.details["weights"] == f"{form}, dequantized"
        for layer, weights in zip(trace.layers, expected, strict=True):
            np.testing.assert_allclose(stacked(layer), weights, atol=1e-6)


def quantized(llama: Path, folder: Path, made: Made, scheme: Any, end: str = "_proj.weight") -> tuple[Path, Tensors]:
    shutil.copytree(llama, folder)
    stored, numbers = {}, load_file(llama / "model.safetensors")
    for name, tensor in numbers.items():
        if not name.endswith(end):
            stored[name] = tensor
            continue
        form = made(tensor)
        numbers[name] = form.numbers
        stored |= {name.removesuffix("weight") + part: each.contiguous() for part, each in form.stored.items()}
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": scheme}))
    (folder / "quantize_config.json").write_text('{"bits": 4}')  # as AutoGPTQ has it, which says nothing new
    return folder, numbers


def numbers_shown(whole: Path, numbers: Tensors) -> list[np.ndarray]:
    model = AutoModelForCausalLM.from_pretrained(whole, attn_implementation="eager", dtype=torch.float32).eval()
    rest = model.load_state_dict({name: each.float() for name, each in numbers.items()}, strict=False)
    assert not rest.unexpected_keys
    words = json.loads((whole / "tokenizer.json").read_text())["model"]["vocab"]
    with torch.no_grad():
        found = model(torch.tensor([[words[word] for word in TEXT.split()]]), output_attentions=True)
    return [layer[0].numpy() for layer in found.attentions]


def in_blocks(height: int, width: int) -> Made:
    def made(tensor: torch.Tensor) -> Form:
        rows, columns = tensor.shape
        codes = torch.empty(tensor.shape, dtype=SMALL)
        numbers = torch.empty(tensor.shape)
        scales = torch.empty(-(-rows // height), -(-columns // width))
        for row in range(0, rows, height):
            for column in range(0, columns, width):
                part = (slice(row, row + height), slice(column, column + width))
                step = tensor[part].abs().max() / 200
                scales[row // height, column // width] = step
                codes[part] = (tensor[part] / step).to(SMALL)
                numbers[part] = codes[part].float() * step
        return Form({"weight": codes, "weight_scale_inv": scales}, numbers)

    return made


@pytest.mark.parametrize(("height", "width", "end"), [
    (32, 32, "_proj.weight"), (24, 40, "_proj.weight"), (1, 32, "embed_tokens.weight"),
])  # fmt: skip
def test_fp8_in_blocks(height: int, width: int, end: str, llama: Path, tmp_path: Path) -> None:
    scheme = {"quant_method": "fp8", "weight_block_size": [height, width], "activation_scheme": "dynamic"}
    agrees(llama, tmp_path / "fp8", in_blocks(height, width), scheme, "fp8", end)


def packed(codes: torch.Tensor, bits: int) -> torch.Tensor:
    rows, columns = codes.shape
    words = -(-columns * bits // 32)
    found = b""
    for row in codes.tolist():
        found += sum(code << bits * place for place, code in enumerate(row)).to_bytes(4 * words, "little")
    return torch.tensor(np.frombuffer(found, np.int32).reshape(rows, words))


def in_groups(tensor: torch.Tensor, bits: int, group_of: list[int]) -> tuple[torch.Tensor, ...]:
    """Return codes `[out, in]`, zeros and scales `[out, groups]`, and the numbers, of groups of inputs."""
    groups = max(group_of) + 1
    codes = torch.zeros(tensor.shape, dtype=torch.int64)
    zeros, scales = torch.zeros(len(tensor), groups, dtype=torch.int64), torch.zeros(len(tensor), groups)
    most = (1 << bits) - 1
    for group in range(groups):
        inside = [index for index, each in enumerate(group_of) if each == group]
        low, high = tensor[:, inside].amin(dim=1), tensor[:, inside].amax(dim=1)
        step = ((high - low) / most).half().float()
        scales[:, group] = step
        zeros[:, group] = (-low / step).round().clamp(1, most)
        codes[:, inside] = (tensor[:, inside] / step[:, None] + zeros[:, [group]]).round().clamp(0, most).long()
    numbers = (codes - zeros[:, group_of]).float() * scales[:, group_of]
    return codes, zeros, scales.half(), numbers


@pytest.mark.parametrize(
    ("bits", "layout", "index"), [(8, "gptq", "shuffled"), (4, "gptq_v2", "in order"), (4, "gptq", "one group")]
)
def test_gptq(bits: int, layout: str, index: str, llama: Path, tmp_path: Path) -> None:
    def made(tensor: torch.Tensor) -> Form:
        group_of = [0 if index == "one group" else place // 32 for place in range(tensor.shape[1])]
        if index == "shuffled":
            group_of = [group_of[place] for place in np.random.default_rng(0).permutation(len(group_of))]
        codes, zeros, scales, numbers = in_groups(tensor, bits, group_of)
        stored = {
            "qweight": packed(codes, bits).T,
            "qzeros": packed((zeros - int(layout == "gptq")).T, bits),
            "scales": scales.T,
        }
        stored["g_idx"] = torch.tensor(group_of, dtype=torch.int32)
        return Form(stored, numbers)

    size = -1 if index == "one group" else 32
    scheme = {"quant_method": "gptq", "bits": bits, "group_size": size, "checkpoint_format": layout}
    scheme["desc_act"] = index == "shuffled"
    agrees(llama, tmp_path / "gptq", made, scheme, "gptq")


@pytest.mark.parametrize("kind", ["nf4", "nf4 twice"])
def test_bitsandbytes(kind: str, llama: Path, tmp_path: Path) -> None:
    def made(tensor: torch.Tensor) -> Form:
        codes, state = functional.quantize_4bit(
            tensor, blocksize=64, compress_statistics="twice" in kind, quant_type="nf4", quant_storage=torch.uint8
        )
        stored = {f"weight.{name}": value for name, value in state.as_dict(packed=True).items()}
        # The library's kernel for processors is wrong where a block goes on into the next row.
        state.shape = torch.Size((tensor.numel() // 64, 64))
        return Form({"weight": codes, **stored}, functional.dequantize_4bit(codes, state).reshape(tensor.shape))

    scheme = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    agrees(llama, tmp_path / "bitsandbytes", made, scheme, "bitsandbytes")


class Tensors(Store):
    def __init__(self, tensors: dict[str, tuple[str, np.ndarray]]) -> None:
        self.names = tensors
        self.tensors = tensors

    def stored(self, name: str) -> Stored:
        return Stored(self.tensors[name][0], self.tensors[name][1].shape)

    def read(self, name: str) -> np.ndarray:
        return self.tensors[name][1]


GPTQ: dict[str, Any] = {"quant_method": "gptq", "bits": 4, "group_size": 32}
# What a configuration says, and what is said against it.
UNREAD = [
    ({"quant_method": "awq", "bits": 4, "version": "gemm"}, "'awq'; give the original checkpoint, or save it"),
    ({"quant_method": "compressed-tensors", "format": "int-quantized"}, "'compressed-tensors'; give the original"),
    (GPTQ | {"checkpoint_format": "marlin"}, "GPTQ as marlin"), (GPTQ | {"dynamic": {"a": {}}}, "dynamic"),
    (GPTQ | {"checkpoint_format": ["gptq"]}, "GPTQ as ['gptq']"), (GPTQ | {"bits": 10**30}, "with 1000"),
    ({"quant_method": "mxfp4"}, "'mxfp4'; give the original checkpoint, or save it dequantized"),
    ({"bits": 4}, "attn does not read 'MLX'"),
    ({"quant_method": "fp8", "weight_block_size": [0, 128]}, "weight_block_size [0, 128]"),
]  # fmt: skip
# The tensors, by their types and shapes, too.
MISFIT: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (GPTQ, {"q.qweight": ("I32", 8, 64), "q.scales": ("F32", 2, 64)}, "q.g_idx is missing"),
    ({"quant_method": "fp8", "weight_block_size": [128, 128]}, {"q": ("F8_E4M3", 9, 9), "q_scale_inv": ("F32", 3, 1)},
        "q_scale_inv is F32 [3, 1], expected F32 or F16 or BF16 [1, 1]"),
    ({"quant_method": "bitsandbytes"}, {"q.weight": ("I8", 3, 3), "q.SCB": ("F32", 3)}, "int8 of bitsandbytes"),
    ({"quant_method": "bitsandbytes"}, {"q.quant_state.bitsandbytes__fp4": ("U8", 3)}, "FP4 of bitsandbytes"),
    ({"quant_method": "bitsandbytes"}, {"q.quant_state.bitsandbytes__nf4": ("U8", 3)},
        "q.quant_state.bitsandbytes__nf4 cannot be read"),
]  # fmt: skip


def test_a_form_that_is_not_undone_and_parts_that_do_not_belong_together_are_named() -> None:
    kinds = {"I32": np.int32, "F32": np.float32}
    for config, tensors, reason in [*((config, {}, reason) for config, reason in UNREAD), *MISFIT]:
        made = {name: (kind, np.ones(shape, kinds.get(kind, np.uint8))) for name, (kind, *shape) in tensors.items()}
        field = "quantization_config" if "quant_method" in config else "quantization"
        snapshot: Any = SimpleNamespace(folder="it", config={field: config}, is_pickled=False)
        with pytest.raises(LoadError) as refusal:
            dequantized(Tensors(made), snapshot, config)
        assert str(refusal.value).startswith("the weights of it are")
        assert reason in str(refusal.value)


def test_the_headline_says_how_the_weights_are_stored(attn: Run, llama: Path, tmp_path: Path) -> None:
    scheme = {"quant_method": "fp8", "weight_block_size": [32, 32]}
    folder, _ = quantized(llama, tmp_path / "fp8", in_blocks(32, 32), scheme)
    for engine in ENGINES:
        shown = attn("inspect", TEXT, "-m", folder, "--engine", engine).out
        assert "weights: fp8, dequantized · float32" in " ".join(shown.split())


def test_quantized_weights_in_a_pickle_are_refused(attn: Run, llama: Path, tmp_path: Path) -> None:
    scheme = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    folder, numbers = quantized(llama, tmp_path / "gptq", lambda each: Form({"weight": each}, each), scheme)
    (folder / "model.safetensors").unlink()
    torch.save(numbers, folder / "pytorch_model.bin")
    refused(attn("inspect", TEXT, "-m", folder, "--engine", "transformers"), 3, "reads those from safetensors only")
