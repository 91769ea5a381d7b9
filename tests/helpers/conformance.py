"""Tiny checkpoints in folders, and which architectures of transformers are refused, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from attncli.checkpoints.snapshot import Snapshot
from attncli.engines import open_source
from attncli.engines.torch.engine import Checkpoint
from attncli.trace.layer import LayerTrace

# Text architectures that are refused, and why.
_NOT_WATCHED, _NO_TOKENS = "could be watched", "positions without a token"
NOT_REACHED = {
    "blt": "counts no layers or no heads", **dict.fromkeys(("diffllama", "lilt", "prophetnet"), "several softmaxes"),
    **dict.fromkeys(("led", "longformer", "mra", "reformer", "yoso"), _NOT_WATCHED),
    **dict.fromkeys(("canine", "cpmant", "deepseek_v4", "funnel", "longt5", "pegasus_x"), _NO_TOKENS),
}  # fmt: skip

# Of the models that read pictures beside text: those that do not run on a text alone, and what they read besides.
NEED_MORE_THAN_TEXT = {
    "diffusion_gemma": "a canvas of noise", "evolla": "a protein", "idefics": "a picture",
    "pi0": "a picture and a robot's state", "pix2struct": "a picture", "pp_formulanet": "a picture",
    "t5gemma2": "both of its texts", "udop": "a picture", "vision-encoder-decoder": "a picture",
}  # fmt: skip

# They cannot be built without timm; their language models can.
WITH_TIMM = ("fast_vlm", "gemma3n", "perception_lm")

# The whole runs with pictures alone; what it does with a text its part does, which stands there.
RUN_ALONE = {
    "blip": "text_decoder", "blip-2": "language_model", "instructblip": "language_model",
    "instructblipvideo": "language_model", "kosmos-2": "text_model", "shieldgemma2": "model",
}  # fmt: skip


def calmed(model: PreTrainedModel) -> PreTrainedModel:
    """Return a model with scores of a usual size: the float32 next to a large one is further away than EXACT."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter *= 0.5
    return model


def opened(folder: Path, layers: str, **more: Any) -> Checkpoint:
    """Open a checkpoint that `save` wrote."""
    # Tokenizers are not the subject here, and some classes rebuild theirs from other files.
    with patch("attncli.encoding.auto_tokenizer.load_tokenizer", tokenizer_in):
        return open_source(model=str(folder), layer=layers, special=False, engine="transformers", **more)


def stacked(layer: LayerTrace) -> Any:
    return np.stack([layer.head(head).weights for head in range(layer.num_heads)])


def words(ids: torch.Tensor | None) -> str | None:
    return None if ids is None else " ".join(f"w{id_}" for id_ in ids[0].tolist())


def save_inside(tower: PreTrainedModel, config: PreTrainedConfig, folder: Path) -> None:
    """Save a language model under the names that it has inside of a model that cannot be built without timm."""
    config.save_pretrained(folder)
    tensors = {f"model.language_model.{name}": tensor for name, tensor in tower.state_dict().items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    save_tokenizer(folder)


def save(model: Any, folder: Path) -> None:
    """Save a model with a tokenizer that reads `w7` as 7."""
    model.save_pretrained(folder)
    save_tokenizer(folder)


def save_for_auto(model: Any, folder: Path, **tokens: str | None) -> Path:
    """Save a model with a tokenizer that AutoTokenizer reads, and return the folder."""
    save(model, folder)
    names = {"unk_token": "<unk>", "pad_token": "<pad>"} | tokens
    PreTrainedTokenizerFast(tokenizer_file=f"{folder}/tokenizer.json", **names).save_pretrained(folder)
    return folder


def save_tokenizer(folder: Path) -> None:
    """Save the tokenizer alone."""
    vocabulary = {"<unk>": 0, "<pad>": 1} | {f"w{id_}": id_ for id_ in range(2, 128)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))


def tokenizer_in(folder: str | Snapshot, *_: Any, **tokens: str | None) -> PreTrainedTokenizerFast:
    folder = folder if isinstance(folder, str | Path) else folder.folder
    names = {"unk_token": "<unk>", "pad_token": "<pad>"} | tokens
    inputs = ["input_ids", "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_file=f"{folder}/tokenizer.json", model_input_names=inputs, **names)
