"""The report on a checkpoint: its findings, and which ways of running it were compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from attncli.text import plural
from attncli.trace.display import Displayed

if TYPE_CHECKING:
    from attncli.masks.findings import Finding


@dataclass(frozen=True)
class Invariance:
    """Two ways of running the same text that should give the same numbers.

    Attributes:
        name: the code of the finding that it would be.
        ways: what was compared.
        change: the largest change of any token's hidden state, relative to its length; None if it was not run.
        layer: where that is, −1 for the embeddings, with the kind of the layer.
        first: the first layer whose change is above the noise floor.
        floor: the noise floor.
        reason: why it was not run, or what went wrong when it was.
        has_failed: whether the model did not run in this way.
        changes: the largest change of each layer.
    """

    name: str
    ways: str
    change: float | None = None
    layer: tuple[int, str] | None = None
    first: tuple[int, str] | None = None
    floor: float | None = None
    reason: str | None = None
    has_failed: bool = False
    changes: Mapping[tuple[int, str], float] = field(default_factory=dict)


@dataclass(frozen=True)
class Report(Displayed):
    """What a check of a checkpoint has to say; a notebook shows it as `attn check` does.

    Attributes:
        model: folder or hub name.
        architecture: its model type.
        tower: the model type of the language model that was checked, where it stands inside of another model.
        dtype: of the weights it was run with.
        tokens: how many each sentence has.
        masks: the masks that the configuration implies, with the layers and the kind they are for.
        findings: what is wrong or worth knowing, the worst first.
        invariances: what was compared.
        notes: what the user should know of the texts and the layers, a sentence each.
    """

    model: str
    architecture: str
    dtype: str
    tokens: tuple[int, ...]
    masks: tuple[tuple[str, str, tuple[int, ...]], ...]
    findings: tuple[Finding, ...]
    invariances: tuple[Invariance, ...]
    notes: tuple[str, ...] = ()
    tower: str | None = None

    def __repr__(self) -> str:
        return f"Report({self.model}, {plural(len(self.findings), 'finding')})"
