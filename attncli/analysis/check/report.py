"""The report on a checkpoint: its findings, and the ways of running it that were compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from attncli.text import plural
from attncli.trace.display import Displayed

if TYPE_CHECKING:
    from attncli.masks.findings import Finding


@dataclass(frozen=True)
class Invariance:
    """Two ways of running the same text that should give the same numbers."""

    name: str  # the code of the finding that it would be
    ways: str  # that were compared
    change: float | None = None  # the largest of a token's hidden state, relative to its length; None if it did not run
    layer: tuple[int, str] | None = None  # that has this change, −1 for the embeddings, with the kind of the layer
    first: tuple[int, str] | None = None  # layer whose change is above the noise floor
    floor: float | None = None  # of noise
    reason: str | None = None  # why it was not run, or what went wrong when it was
    has_failed: bool = False  # whether the model did not run in this way
    changes: Mapping[tuple[int, str], float] = field(default_factory=dict)  # the largest of each layer

    @property
    def is_skipped(self) -> bool:
        """Whether a graph did not run so, and should; many read no cache."""
        return self.reason is not None and (self.has_failed or self.name != "cache")


def layers_by_mask(masks: Iterable[tuple[str, tuple[int, str]]]) -> tuple[tuple[str, str, tuple[int, ...]], ...]:
    """Return each mask and kind of attention with its layers, of the masks of layers and their kinds."""
    layers: dict[tuple[str, str], list[int]] = {}
    for mask, (layer, kind) in masks:
        layers.setdefault((mask, kind), []).append(layer)
    return tuple((*key, tuple(alike)) for key, alike in layers.items())


@dataclass(frozen=True)
class Report(Displayed):
    """The findings of a check of a checkpoint; a notebook shows it as `attn check` does."""

    model: str  # folder or hub name
    architecture: str  # its model type
    dtype: str  # of the weights it was run with
    tokens: tuple[int, ...]  # how many each sentence has
    masks: tuple[tuple[str, str, tuple[int, ...]], ...]  # implied by the configuration, with their kind and layers
    findings: tuple[Finding, ...]  # the worst first
    invariances: tuple[Invariance, ...]
    notes: tuple[str, ...] = ()  # on the texts and the layers, a sentence each
    is_graph: bool = False  # whether the masks are those of an exported graph, and none is implied
    tower: str | None = None  # the model type of the language model inside of another model that was checked

    def __repr__(self) -> str:
        return f"Report({self.model}, {plural(len(self.findings), 'finding')})"
