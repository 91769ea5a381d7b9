"""Architectures of which neither the configuration nor the modules tell whether a query sees later keys."""

from __future__ import annotations

from typing import Any

from attncli.engines.torch.architectures.architecture import Architecture

# Text towers that are causal though their modules say otherwise.
CLIP_TOWERS = tuple(
    f"{name}_text_model" for name in ("clip", "clipseg", "groupvit", "metaclip_2", "owlv2", "owlvit", "xclip")
)


class Causal(Architecture):
    """A model that looks at the past alone: CLIP's kin, and GIT, to which all of a text is what it writes."""

    def is_causal(self, model: Any) -> bool:
        """See `Architecture.is_causal`."""
        return True


class Permutation(Architecture):
    """XLNet, which is causal in training alone."""

    def is_causal(self, model: Any) -> bool:
        """See `Architecture.is_causal`."""
        return False


class Blip(Architecture):
    """BLIP, which is causal as a decoder alone."""

    def is_causal(self, model: Any) -> bool:
        """See `Architecture.is_causal`."""
        return bool(type(model).__name__ == "BlipTextLMHeadModel")
