"""The families of models: each is a function from a configuration to a `ModelSpec`, in `SPECS` of its module."""

from __future__ import annotations

from importlib import import_module

import numpy as np

from attncli.checkpoints.config_reader import ConfigReader, UnsupportedError
from attncli.engines.numpy.model_spec import ModelSpec

# The module of each model type, imported where it is needed.
FAMILIES = {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "camembert", "electra", "distilbert"), "bert"),
    **dict.fromkeys(("gpt2", "gpt_neox"), "gpt"),
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "smollm3", "olmo2"), "llama"),
    **dict.fromkeys(("gemma", "gemma2", "gemma3_text"), "gemma"),
}
# Language models inside of models that read pictures too.
TOWERS = dict.fromkeys(
    ("gemma3", "internvl", "llava", "llava_next", "mistral3", "qwen2_5_vl", "qwen2_vl", "qwen3_vl"), "text_towers"
)


def model_spec(fields: ConfigReader) -> ModelSpec:
    """Return the spec of the model that a configuration describes.

    Raises:
        UnsupportedError: its family, or what one of its fields says, is not implemented.
    """
    family = fields.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES.keys() | TOWERS.keys():
        raise UnsupportedError(f"the architecture {family} is not among its own")
    module = import_module(f"{__name__}.{(FAMILIES | TOWERS)[family]}")
    try:
        with np.errstate(all="ignore"):  # an extreme number overflows here as it does in torch
            spec: ModelSpec = module.SPECS[family](fields)
    except (TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise UnsupportedError(f"its config.json is odd: {error}") from None
    fields.reject_unknown()
    return spec
