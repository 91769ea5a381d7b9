"""Every architecture of the installed transformers that reads text: what is shown against what it computed.

    pytest tests/oracles/test_conformance.py -k NAME        says of one whether it is exact

Those are the text architectures, those that read pictures beside text, of which the language model is inspected, and
those that hear, of which the decoder is inspected without a sound.
Each model is tiny and random. It is saved, read back by `attn` as any checkpoint, and the weights of every layer are
compared with those that the model itself returns under eager attention with `output_attentions=True`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from architectures import tiny_config, tiny_inputs, tiny_model, tiny_tower, tiny_whole
from odd_layouts import whole_map
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from attncli.checkpoints.snapshot import Snapshot
from attncli.engines import open_source
from attncli.engines.torch.engine import Checkpoint
from attncli.errors import AttnError
from attncli.recording.readers import transformers as interface
from attncli.trace.layer import LayerTrace
from attncli.trace.trace import Trace

EXACT = 1e-6  # the largest difference of two float32 weights that counts as the same

# What transformers 5.23 returns as `attentions` is not what these two multiply the values with.
RETURNS_SCORES = {"squeezebert"}
RETURNS_NO_SINKS = {"granite_swa", "granitemoe_swa"}

# What is refused with exit code 4, and why.
_NO_WEIGHTS, _NO_TOKENS = "no weight for each pair of tokens", "queries and keys that are no tokens"
NOT_REACHED = {
    "blt": "several models in one",
    **dict.fromkeys(("mra", "prophetnet", "reformer", "yoso"), _NO_WEIGHTS),
    **dict.fromkeys(("canine", "cpmant", "deepseek_v4", "funnel", "longt5", "pegasus_x"), _NO_TOKENS),
}


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


@dataclass(frozen=True)
class ConformanceRow:
    """What came of one architecture."""

    name: str  # its model type
    way: str  # `interface`, `softmax`, or `none` with the reason
    layers: int = 0  # how many layers were compared
    difference: float = np.nan  # the largest of any weight
    capture: str = ""  # whether queries, keys and values were had too
    reason: str = ""  # why it was refused
    in_blocks: float = np.nan  # the largest difference of any weight that comes of working in small blocks of rows
    checkpoint: Checkpoint | None = None  # what was asked, with all its layers
    trace: Trace | None = None  # what it showed

    @property
    def is_exact(self) -> bool:
        return self.difference <= EXACT


def conform(name: str, folder: Path) -> ConformanceRow:
    """Save one tiny text model, inspect it, and compare."""
    model = calmed(tiny_model(name))
    save(model, folder)
    # As in training: FSMT leaves its causal mask out while it fills a cache.
    model.config.use_cache = False
    if name in ("big_bird", "bigbird_pegasus"):  # they return the weights of their full attention alone
        (model if name == "big_bird" else model.encoder).set_attention_type("original_full")
    return compared(name, folder, model, tiny_inputs(model.config))


def conform_whole(name: str, folder: Path) -> ConformanceRow:
    """Save one tiny model that reads pictures beside text, inspect it, and compare."""
    if name in NEED_MORE_THAN_TEXT:
        tiny_config(name).save_pretrained(folder)
        save_tokenizer(folder)
        try:
            opened(folder, "all")
        except AttnError as error:
            return ConformanceRow(name, "none", reason=str(error).replace(str(folder), name))
        return ConformanceRow(name, "none", reason="was opened")
    if name in WITH_TIMM:
        model = calmed(tiny_tower(name))
        save_inside(model, tiny_config(name), folder)
    else:
        whole = calmed(tiny_whole(name))
        save(whole, folder)
        model = whole.get_submodule(RUN_ALONE[name]) if name in RUN_ALONE else whole
    model.config.get_text_config(decoder=True).use_cache = False
    inner = tiny_config(name).get_text_config(decoder=True)
    return compared(name, folder, model, tiny_inputs(inner))


def calmed(model: PreTrainedModel) -> PreTrainedModel:
    """Return a model with scores of a usual size: the float32 next to a large one is further away than EXACT."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter *= 0.5
    return model


def compared(name: str, folder: Path, model: Callable[..., Any], inputs: dict[str, torch.Tensor]) -> ConformanceRow:
    """Inspect a checkpoint, and compare every layer with what its model returns."""
    text, target = (words(inputs.get(key)) for key in ("input_ids", "decoder_input_ids"))
    try:
        checkpoint = opened(folder, "all")
        trace = checkpoint.trace(text or "", target=target)
        # Blocks of a few rows, as if the sentence were long.
        with patch.object(interface, "_BLOCK", 100):
            blocks = checkpoint.trace(text or "", target=target)
    except AttnError as error:
        return ConformanceRow(name, "none", reason=str(error).replace(str(folder), name))
    ours = (interface.ATTENTION, interface.EAGER_MASKS)
    way = "interface" if checkpoint.model.config._attn_implementation in ours else "softmax"
    with torch.no_grad():
        output = model(**inputs, output_attentions=True)
    differences = []
    for kind in dict.fromkeys(layer.kind for layer in trace.layers):
        layers = [layer for layer in trace.layers if layer.kind == kind]
        expected = output.get("attentions" if kind == "self" else f"{kind}_attentions") or ()
        if len(expected) != len(layers):  # a hybrid returns all its layers, or those with attention alone
            expected = [expected[layer.layer] for layer in layers if layer.layer < len(expected)]
        differences += [difference(name, layer, other) for layer, other in zip(layers, expected, strict=False)]
    if len(differences) < len(trace.layers):
        return ConformanceRow(
            name, way, len(differences), reason=f"returns {len(differences)} of {len(trace.layers)} layers"
        )
    capture = ", ".join(dict.fromkeys(layer.capture for layer in trace.layers))
    pairs = zip(blocks.layers, trace.layers, strict=True)
    in_blocks = max(float(np.abs(stacked(block) - stacked(layer)).max()) for block, layer in pairs)
    return ConformanceRow(name, way, len(differences), max(differences), capture, "", in_blocks, checkpoint, trace)


def opened(folder: Path, layers: str, **more: Any) -> Checkpoint:
    """Open a checkpoint that `save` wrote."""
    # Tokenizers are not the subject here, and some classes rebuild theirs from other files.
    with patch("attncli.encoding.auto_tokenizer.load_tokenizer", tokenizer_in):
        checkpoint = open_source(model=str(folder), layer=layers, special=False, engine="transformers", **more)
    assert isinstance(checkpoint, Checkpoint)
    return checkpoint


def stacked(layer: LayerTrace) -> Any:
    return np.stack([layer.head(head).weights for head in range(layer.num_heads)])


def arrays(layers: Sequence[LayerTrace]) -> list[np.ndarray]:
    return [array for layer in layers for array in (layer.q, layer.k, layer.v, layer.head(1).weights)]


def difference(name: str, layer: LayerTrace, expected: Any) -> float:
    """The largest difference of any weight; infinite if the two cannot be compared."""
    weights = stacked(layer)
    if not isinstance(expected, torch.Tensor):
        return np.inf
    if name in RETURNS_SCORES:
        expected = expected.softmax(dim=-1)
    if name in RETURNS_NO_SINKS:
        weights = weights / weights.sum(axis=-1, keepdims=True)
    own = whole_map(name, expected[0].numpy(), *weights.shape[1:])
    return float(np.abs(weights - own).max()) if own.shape == weights.shape else np.inf


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
