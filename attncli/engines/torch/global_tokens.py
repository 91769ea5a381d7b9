"""Tokens that see all others, and that all others see, beside the band of a Longformer.

A base model is told which they are. The classes for some tasks choose them before they run it; here they are chosen
as the class does that the checkpoint was saved from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch


def has_global_tokens(config: Any) -> bool:
    """Whether the class that a checkpoint was saved from chooses tokens that see all others."""
    return _chooser(config) is not None


def needs_pair(config: Any) -> bool:
    """Whether that class looks for them in a text of two parts."""
    return _chooser(config) in (_question, _choice)


def with_global_tokens(config: Any, inputs: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
    """Return what a model reads, with the tokens that see all others where its class chooses them."""
    choose = _chooser(config)
    if choose is None or "global_attention_mask" in inputs:
        return inputs
    return {**inputs, "global_attention_mask": choose(config, inputs["input_ids"]).long()}


def _chooser(config: Any) -> Callable[[Any, torch.Tensor], torch.Tensor] | None:
    names = config.architectures if config.model_type == "longformer" else None
    if not isinstance(names, list):  # a file may say anything
        return None
    return next((_CHOOSERS[name] for name in names if isinstance(name, str) and name in _CHOOSERS), None)


def _first(_: Any, ids: torch.Tensor) -> torch.Tensor:
    return torch.arange(ids.shape[1]).expand_as(ids) == 0


def _question(config: Any, ids: torch.Tensor) -> torch.Tensor:
    """Return the tokens before the first separator; none if there are not three, as of a question and a text."""
    is_separator = ids == config.sep_token_id
    return (is_separator.cumsum(dim=1) == 0) & (is_separator.sum(dim=1, keepdim=True) == 3)


def _choice(config: Any, ids: torch.Tensor) -> torch.Tensor:
    """Return the tokens after the second separator, or none likewise."""
    is_separator = ids == config.sep_token_id
    second = is_separator.long().argmax(dim=1, keepdim=True) + 1
    return (torch.arange(ids.shape[1]) > second) & (is_separator.sum(dim=1, keepdim=True) == 3)


_CHOOSERS: Mapping[str, Callable[[Any, torch.Tensor], torch.Tensor]] = {
    "LongformerForMultipleChoice": _choice,
    "LongformerForQuestionAnswering": _question,
    "LongformerForSequenceClassification": _first,
}
