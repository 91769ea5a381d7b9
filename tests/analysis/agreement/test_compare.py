"""What is rounding and what is not: two runs that compute the same, and runs with something wrong in them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from architectures import tiny_model
from conformance import save_for_auto
from gguf_files import Kind, write_gguf
from native_variants import save_whole
from safetensors.numpy import load_file, save_file

from attncli.analysis.agreement.compare import Agreement, compare
from attncli.analysis.runs import Side, side_of, traced_side
from attncli.engines import open_source

IDS = "5 9 3 17 22 8 31 4 12 6 40"
TEXTS = "w5 w9 w3 w17 w2", "w4 w1 w8"
SIZES = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_hidden_layers": 3}


def run_of(folder: Path, **options: Any) -> Side:
    return side_of(open_source(str(folder), layer="all", ids=True, **options), str(folder), IDS, None)


def causes(result: Agreement) -> list[str]:
    every = [(parting, parting.cause) for parting in result.partings]
    return [f"{parting.stage}: {cause and f'{cause.name} {cause.b}/{cause.a}'}" for parting, cause in every]


def edited(
    folder: Path, target: Path, config: dict[str, Any], change: Callable[[str, np.ndarray], np.ndarray] | None = None
) -> Path:
    shutil.copytree(folder, target)
    values = json.loads((folder / "config.json").read_text()) | config
    (target / "config.json").write_text(json.dumps(values))
    if change is not None:
        tensors = load_file(folder / "model.safetensors")
        save_file({name: change(name, array) for name, array in tensors.items()}, target / "model.safetensors")
    return target


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    torch.manual_seed(0)
    save_whole("llama", folder, **SIZES)
    return folder


# --- only rounding ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("family", ["bert", "gpt2", "gpt_neox", "llama", "mistral", "qwen3", "gemma2", "gemma3_text"])
def test_transformers_agrees_with_the_native_engine(family: str, dtype: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    save_whole(family, tmp_path)
    result = compare(run_of(tmp_path), run_of(tmp_path, engine="transformers", dtype=dtype))
    assert (causes(result), result.dtype) == ([], dtype)
    largest = max(cell.difference for row in result.rows.values() for cell in row.values())
    assert 0 < largest < {"float32": 5e-6, "bfloat16": 0.05, "float16": 0.01}[dtype]


@pytest.mark.parametrize(
    "family", ["opt", "bloom", "t5", "gpt_oss", "falcon", "phi", "mpt", "gptj", "stablelm", "olmo2", "albert", "glm"]
)
def test_architectures_of_transformers_agree_with_themselves(family: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    save_for_auto(tiny_model(family), tmp_path)
    whole, half = (
        open_source(str(tmp_path), layer="all", engine="transformers", dtype=dtype)  # type: ignore[arg-type]
        for dtype in ("float32", "bfloat16")
    )
    alone, batched, rounded = whole.trace(TEXTS[0]), next(iter(whole.traces(TEXTS))), half.trace(TEXTS[0])
    assert causes(compare(traced_side(alone, "alone"), traced_side(batched, "in a batch"))) == []
    assert causes(compare(traced_side(alone, "float32"), traced_side(rounded, "bfloat16"))) == []


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0"])
def test_weights_that_are_rounded_agree_with_the_originals(kind: str, llama: Path, tmp_path: Path) -> None:
    fields = {
        "context_length": 40, "embedding_length": 64, "block_count": 3, "feed_forward_length": 64,
        "attention.head_count": 4, "attention.head_count_kv": 2, "attention.layer_norm_rms_epsilon": 1e-2,
        "attention.key_length": 16, "attention.value_length": 16,
    }  # fmt: skip
    folder, path = tmp_path / "folder", tmp_path / "model.gguf"
    torch.manual_seed(0)
    save_whole("llama", folder, **SIZES, intermediate_size=64, rms_norm_eps=1e-2, hidden_act="silu")
    stored = load_file(folder / "model.safetensors")
    tensors = {name if name.startswith("model.") else f"model.{name}": array for name, array in stored.items()}
    write_gguf(path, "llama", tensors, fields, lambda writer: None, Kind[kind])
    result = compare(run_of(folder), run_of(path))
    assert result.agrees
    assert {parting.cause and parting.cause.name.split()[0] for parting in result.partings} <= {
        "embedding",
        "projection",
        "output",
    }
    assert max(parting.cell.difference for parting in result.partings) > {"F16": 1e-5, "BF16": 1e-4}.get(kind, 1e-3)
