"""SeamlessM4T: a whole speech system, of which a text encoder and a text decoder read text."""

from __future__ import annotations

from attncli.engines.torch.architectures.architecture import Architecture


class Seamless(Architecture):
    """The first version."""

    text_class = "SeamlessM4TForTextToText"


class SeamlessV2(Architecture):
    """The second version."""

    text_class = "SeamlessM4Tv2ForTextToText"
