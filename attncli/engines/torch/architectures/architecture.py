"""What an architecture may do that others do not; each method is what all others do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from attncli.trace.tokens import Tokens


class Architecture:
    """An architecture without anything of its own.

    Attributes:
        adds_to_its_mask: whether it puts numbers of its own beside those of the mask, which booleans are none of.
        is_exact: whether a query attends to every key that the configuration lets it see.
        text_class: the class of the part that reads text, where the class for its configuration is of a larger system.
    """

    adds_to_its_mask = False
    is_exact = True
    text_class: str | None = None

    def notes(self, config: Any, last: int) -> Iterator[str]:
        """Yield what a model computes beside the weights that are shown, up to a layer."""
        return iter(())

    def prepare(self, model: Any, tokens: int) -> None:
        """Make a model ready for a text of so many tokens, padding included; raise NotExposedError if it cannot be."""

    def inputs(self, config: Any, inputs: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """Return what the model reads, given what the tokenizer made."""
        return inputs

    def is_causal(self, model: Any) -> bool | None:
        """Return whether a model looks at the past alone, where neither configuration nor modules tell; else None."""
        return None

    def reach(self, config: Any, layer: int) -> int | None:
        """Return how many keys to each side a layer computes, which works in a band; None for all others."""
        return None

    def key_count(self, config: Any, layer: int, tokens: int) -> int | None:
        """Return how many keys a layer has where they are not the tokens, given how many tokens there are."""
        return None

    def key_tokens(self, config: Any, layer: int, tokens: Tokens) -> Tokens | None:
        """Return what the keys of a layer are, where they are not the tokens."""
        return None

    def selected_keys(self, config: Any, count: int) -> int:
        """Return how many keys a query attends to, given what the configuration counts."""
        return count
