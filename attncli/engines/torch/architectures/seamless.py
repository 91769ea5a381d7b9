"""SeamlessM4T: a whole speech system, of which a text encoder and a text decoder read text."""

from __future__ import annotations

from attncli.engines.torch.architectures.architecture import Architecture


class Seamless(Architecture):
    """Either version of it, by the class of that part."""

    def __init__(self, text_class: str) -> None:
        self.text_class = text_class
