"""What an architecture may do that others do not; each method is what all others do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

Positions = list[range]  # the tokens that each position stands for


class Architecture:
    """An architecture without anything of its own.

    Attributes:
        adds_to_its_mask: whether it puts numbers of its own beside those of the mask, which booleans are none of.
        is_exact: whether a query attends to every key that the configuration lets it see.
    """

    adds_to_its_mask = False
    is_exact = True

    def notes(self, config: Any, last: int) -> Iterator[str]:
        """Yield what a model computes beside the weights that are shown, up to a layer."""
        return iter(())

    def inputs(self, config: Any, inputs: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """Return what the model reads, given what the tokenizer made."""
        return inputs

    def reach(self, config: Any, layer: int) -> int | None:
        """Return how many keys to each side a layer computes, which works in a band; None for all others."""
        return None

    def key_positions(self, config: Any, layer: int, tokens: int) -> Positions | None:
        """Return what a layer's keys are where they are not the tokens, given how many tokens there are."""
        return None

    def selected_keys(self, config: Any, count: int) -> int:
        """Return how many keys a query attends to, given what the configuration counts."""
        return count
