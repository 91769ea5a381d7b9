"""Architectures of which neither the configuration nor the modules tell whether a query sees later keys."""

from __future__ import annotations

from typing import Any

from attncli.engines.torch.architectures.architecture import Architecture

# Text towers that are causal though their modules say otherwise.
CLIP_TOWERS = tuple(
    f"{name}_text_model" for name in ("clip", "clipseg", "groupvit", "metaclip_2", "owlv2", "owlvit", "xclip")
)


class KnownCausality(Architecture):
    """CLIP's kin and GIT, which look at the past alone; XLNet, which does so in training alone; BLIP, as a decoder."""

    def __init__(self, *causal_classes: str, always: bool = False) -> None:
        self._causal_classes = causal_classes
        self._always = always

    def is_causal(self, model: Any) -> bool:
        """See `Architecture.is_causal`."""
        return self._always or type(model).__name__ in self._causal_classes
