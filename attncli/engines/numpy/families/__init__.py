"""The families of models: each is a function from a configuration to a `ModelSpec`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from attncli.checkpoints.config_reader import DeclinedError, Fields
from attncli.engines.numpy.families.bert import bert, distilbert
from attncli.engines.numpy.families.gemma import gemma, gemma2, gemma3
from attncli.engines.numpy.families.gpt import gpt2, gpt_neox
from attncli.engines.numpy.families.llama import llama, mistral, olmo2, qwen2, qwen3, smollm3
from attncli.engines.numpy.families.text_towers import TOWERS, tower_spec
from attncli.engines.numpy.model_spec import ModelSpec

FAMILIES: dict[str, Callable[[Fields], ModelSpec]] = {
    "bert": partial(bert, prefix="bert."),
    "roberta": partial(bert, prefix="roberta.", vocabulary=50265, is_roberta=True),
    "xlm-roberta": partial(bert, prefix="roberta.", is_roberta=True),
    "camembert": partial(bert, prefix="roberta.", is_roberta=True),
    "electra": partial(bert, prefix="electra.", width=256, heads=4, inner=1024),
    "distilbert": distilbert,
    "gpt2": gpt2,
    "gpt_neox": gpt_neox,
    "llama": llama,
    "mistral": mistral,
    "qwen2": qwen2,
    "qwen3": qwen3,
    "smollm3": smollm3,
    "olmo2": olmo2,
    "gemma": gemma,
    "gemma2": gemma2,
    "gemma3_text": gemma3,
}


def model_spec(fields: Fields) -> ModelSpec:
    """Return the spec of the model that a configuration describes.

    Raises:
        DeclinedError: its family, or what one of its fields says, is not implemented.
    """
    family = fields.take("model_type")
    if not isinstance(family, str) or family not in FAMILIES.keys() | TOWERS.keys():
        raise DeclinedError(f"the architecture {family} is not among its own")
    try:
        with np.errstate(all="ignore"):  # an extreme number overflows here as it does in torch
            spec = FAMILIES[family](fields) if family in FAMILIES else tower_spec(fields, family)
    except (TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise DeclinedError(f"its config.json is odd: {error}") from None
    fields.check_all_read()
    return spec
