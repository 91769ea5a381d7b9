"""Language models inside of models that read pictures too: what a text family computes, under other names.

Of a text alone, the positions in Qwen's rotary sections are all the same, and nothing made of a picture comes in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from attncli.checkpoints.config_reader import ConfigReader, UnsupportedError
from attncli.engines.numpy.families.gemma import gemma3
from attncli.engines.numpy.families.llama import llama, mistral, qwen2, qwen2_vl, qwen3, qwen3_vl
from attncli.engines.numpy.model_spec import ModelSpec

# What says something of pictures alone, or which token stands for one.
_FIELDS = """
    boi_token_index downsample_ratio eoi_token_index ignore_index image_grid_pinpoints image_seq_length image_token_id
    image_token_index mm_tokens_per_image multimodal_projector_bias projector_hidden_act spatial_merge_size
    video_token_id vision_config vision_end_token_id vision_feature_layer vision_feature_select_strategy
    vision_start_token_id vision_token_id
"""
_OF_PICTURES = _FIELDS.split()

_LATER, _EARLIER = "model.language_model.", "language_model.model."  # by the version of transformers that saved them


class Tower(NamedTuple):
    """A family of models with a language model inside.

    Attributes:
        texts: what the language model may be, by its model type.
        prefixes: what the names of its tensors begin with, by the version that saved them.
        is_flat: whether older configurations have its fields among those of the whole.
    """

    texts: Mapping[str, Callable[[ConfigReader], ModelSpec]]
    prefixes: tuple[str, ...] = (_LATER, _EARLIER)
    is_flat: bool = False


TOWER_MODELS = {
    "gemma3": Tower({"gemma3_text": gemma3}),
    "internvl": Tower({"llama": llama, "qwen2": qwen2, "qwen3": qwen3}),
    "llava": Tower({"llama": llama, "mistral": mistral, "qwen2": qwen2}),
    "llava_next": Tower({"llama": llama, "mistral": mistral, "qwen2": qwen2}),
    "mistral3": Tower({"mistral": mistral}),
    "qwen2_5_vl": Tower({"qwen2_5_vl_text": qwen2_vl}, (_LATER, "model."), is_flat=True),
    "qwen2_vl": Tower({"qwen2_vl_text": qwen2_vl}, (_LATER, "model."), is_flat=True),
    "qwen3_vl": Tower({"qwen3_vl_text": qwen3_vl}, (_LATER,)),
}


def tower_spec(fields: ConfigReader, family: str) -> ModelSpec:
    """Return the spec of the language model inside of a model that reads pictures too.

    Raises:
        UnsupportedError: it is none that a text family computes.
    """
    tower = TOWER_MODELS[family]
    for name in _OF_PICTURES:
        fields.get(name, None)
    inner = fields.get("text_config", None)
    if inner is None and tower.is_flat:
        (kind,) = tower.texts
        spec = tower.texts[kind](fields)
    elif isinstance(inner, Mapping):
        text = ConfigReader(inner)
        kind = text.get("model_type", among=tower.texts)
        spec = tower.texts[kind](text)
        text.reject_unknown()
    else:
        raise UnsupportedError("its config.json has no text_config")
    return spec._replace(tower=kind, tower_prefixes=tower.prefixes)


SPECS = {family: partial(tower_spec, family=family) for family in TOWER_MODELS}
