"""Tiny random checkpoints that read pictures, one of each family, with their processors."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from architectures import random_model, whole_class
from conformance import calmed
from PIL import Image
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import AutoModel, PreTrainedModel, PreTrainedTokenizerFast
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

SIDE, PATCH = 32, 8  # pixels of a picture that no processor changes, and of a patch

TOWER: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "image_size": SIDE,
    "patch_size": PATCH,
}  # fmt: skip
TEXT: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "intermediate_size": 48, "vocab_size": 128, "pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3,
}  # fmt: skip
SECTIONS = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}}
QWEN_TOWER = {"depth": 2, "num_heads": 4, "patch_size": PATCH, "spatial_merge_size": 2, "temporal_patch_size": 2}
IMAGE = 9  # the id of the token of a picture

STRETCHED = {"size": {"height": SIDE, "width": SIDE}}
CROPPED = {"size": {"shortest_edge": SIDE}, "crop_size": {"height": SIDE, "width": SIDE}}

TOWERS: dict[str, tuple[str, dict[str, Any]]] = {
    "beit": ("BeitImageProcessorPil", STRETCHED | {"do_center_crop": False}),
    "clip_vision_model": ("CLIPImageProcessorPil", CROPPED),
    "deit": ("DeiTImageProcessorPil", {"size": {"height": 40, "width": 40}, "crop_size": {"height": 32, "width": 32}}),
    "dinov2": ("BitImageProcessorPil", CROPPED),
    "dinov2_with_registers": ("BitImageProcessorPil", CROPPED),
    "dinov3_vit": ("ViTImageProcessorPil", STRETCHED),  # its own needs torchvision
    "siglip_vision_model": ("SiglipImageProcessorPil", STRETCHED),
    "vit": ("ViTImageProcessorPil", STRETCHED),
}
"""Of each vision transformer the class of its processor, and how it makes pictures of 32 × 32 pixels."""

OF_SIGLIP = {"vision_config": TOWER | {"model_type": "siglip_vision_model"}}
QWEN_PROCESSOR = ("Qwen2VLImageProcessorPil", {"size": {"shortest_edge": 256, "longest_edge": 4096}, "patch_size": 8})
TILES = {"size": {"longest_edge": 64}, "max_image_size": {"longest_edge": SIDE}}

FAMILIES: dict[str, tuple[dict[str, Any], tuple[str, dict[str, Any]], dict[str, Any]]] = {
    "gemma3": (
        {"vision_config": TOWER | {"model_type": "siglip_vision_model", "patch_size": 4}, "mm_tokens_per_image": 16,
         "text_config": TEXT | {"model_type": "gemma3_text", "sliding_window": 64, "query_pre_attn_scalar": 8}},
        ("Gemma3ImageProcessorPil", STRETCHED), {"image_seq_length": 16},
    ),
    "idefics3": (
        {"vision_config": TOWER | {"model_type": "idefics3_vision"}, "scale_factor": 2},
        ("Idefics3ImageProcessorPil", TILES), {"image_seq_len": 4},
    ),
    "internvl": (
        {"vision_config": TOWER | {"model_type": "internvl_vision", "image_size": [SIDE, SIDE],
         "patch_size": [PATCH, PATCH]}, "text_config": TEXT | {"model_type": "qwen2"}, "downsample_ratio": 0.5},
        ("GotOcr2ImageProcessorPil", STRETCHED | {"crop_to_patches": True, "max_patches": 4}), {"image_seq_length": 4},
    ),
    "llava": (
        {"vision_config": TOWER | {"model_type": "clip_vision_model"}, "vision_feature_layer": -1},
        ("CLIPImageProcessorPil", CROPPED),
        {"patch_size": PATCH, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1},
    ),
    "paligemma": (
        OF_SIGLIP | {"text_config": TEXT | {"model_type": "gemma"}, "projection_dim": 32},
        ("SiglipImageProcessorPil", STRETCHED | {"image_seq_length": 16}), {},
    ),
    "qwen2_vl": (
        {"vision_config": QWEN_TOWER | {"embed_dim": 32, "hidden_size": 32, "mlp_ratio": 2},
         "text_config": TEXT | SECTIONS}, QWEN_PROCESSOR, {},
    ),
    "qwen2_5_vl": (
        {"vision_config": QWEN_TOWER | {"hidden_size": 32, "out_hidden_size": 32, "intermediate_size": 48,
         "window_size": 16, "fullatt_block_indexes": [1]}, "text_config": TEXT | SECTIONS}, QWEN_PROCESSOR, {},
    ),
    "qwen3_vl": (
        {"vision_config": QWEN_TOWER | {"hidden_size": 32, "out_hidden_size": 32, "intermediate_size": 48,
         "num_position_embeddings": 16, "deepstack_visual_indexes": [0]}, "text_config": TEXT | SECTIONS},
        QWEN_PROCESSOR, {},
    ),
    "smolvlm": (
        {"vision_config": TOWER | {"model_type": "smolvlm_vision"}, "scale_factor": 2},
        ("SmolVLMImageProcessorPil", TILES), {"image_seq_len": 4},
    ),
}  # fmt: skip
"""Of each model that reads both: its configuration, the class and the settings of its image processor, and its own."""

# Names of the tokens that processors look for, and how they are spelled.
TOKENS = {
    "image_token": "<image>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>",
    "start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<image>",
    "video_token": "<video>", "vision_start_token": "<|vision_start|>", "vision_end_token": "<|vision_end|>",
    "fake_image_token": "<fake_token_around_image>", "global_image_token": "<global-img>",
    "end_of_utterance_token": "<end_of_utterance>",
}  # fmt: skip


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """Noise, no two places of which look alike."""
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def save_tower(name: str, folder: Path) -> PreTrainedModel:
    """Save a vision transformer, and return it."""
    config = CONFIG_MAPPING[name](**TOWER | ({"num_register_tokens": 3} if "reg" in name or "v3" in name else {}))
    model = calmed(random_model(AutoModel.from_config, config))
    model.save_pretrained(folder)
    kind, settings = TOWERS[name]
    getattr(transformers, kind)(**settings).save_pretrained(folder)
    return model


def save_pictured(name: str, folder: Path, **more: Any) -> PreTrainedModel:
    """Save a model that reads pictures beside text, and return it; its words are w40, w41, …."""
    settings, (kind, of_images), of_processor = FAMILIES[name]
    text = {"text_config": TEXT | {"model_type": "llama"}} | settings
    config = CONFIG_MAPPING[name](**text, image_token_id=IMAGE, **more)
    # Twice, for a tower and a language model follow each other.
    model = calmed(calmed(random_model(whole_class(name)._from_config, config)))
    model.save_pretrained(folder)
    save_picture_tokenizer(folder)
    getattr(transformers, kind)(**of_images).save_pretrained(folder)
    if of_processor:
        (folder / "processor_config.json").write_text(json.dumps(of_processor))
    return model


def save_picture_tokenizer(folder: Path) -> None:
    """Save a tokenizer with the tokens that stand for pictures."""
    names = ["<unk>", "<pad>", "<s>", "</s>", *dict.fromkeys(TOKENS.values())]
    names.remove("<image>")
    marks = [*names[:IMAGE], "<image>", *names[IMAGE:], *(f"<row_{r}_col_{c}>" for r in (1, 2) for c in (1, 2))]
    words = [*marks, *(f"w{id_}" for id_ in range(len(marks), 128))]
    tokenizer = Tokenizer(WordLevel({word: id_ for id_, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.add_special_tokens(marks)
    named = {"unk_token": "<unk>", "pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    whole = PreTrainedTokenizerFast(tokenizer_object=tokenizer, extra_special_tokens=TOKENS, **named)
    whole.save_pretrained(folder)


def without_mixing(model: PreTrainedModel) -> None:
    """Let each patch of a vision tower stay what it is, so that a position depends on its own pixels alone."""
    ends = ("out_proj", "attn.proj", "attention.output.dense", "projection_layer", "o_proj", "attention.projection")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_tower = any(part in name for part in ("vision", "visual"))
            if is_tower and name.rpartition(".")[0].endswith(ends):
                parameter.zero_()


def save_models(folder: Path) -> Path:
    """Save a vision transformer, two models that read both, one with a chat template, and two pictures; return where.

    They are `vit`, `llava`, `qwen2_vl`, `a.png` and `b.png`.
    """
    save_tower("vit", folder / "vit")
    for name in ("llava", "qwen2_vl"):
        save_pictured(name, folder / name)
    (folder / "qwen2_vl" / "chat_template.jinja").write_text(
        "{% for each in messages[0].content %}{% if each.type == 'image' %}<|vision_start|><image><|vision_end|>"
        "{% else %}w50 {{ each.text }} {% endif %}{% endfor %}"
    )
    picture(96, 64).save(folder / "a.png")
    picture(50, 90, seed=1).save(folder / "b.png")
    return folder
