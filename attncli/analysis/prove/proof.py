"""Proof of a forward, and leaks that it found."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

from attncli.masks.findings import Finding
from attncli.text import plural
from attncli.trace.display import Displayed

Cause = Literal["attention", "convolution", "norm", "router", "cache", "other"]

_ADVICE: dict[Cause, str] = {
    "attention": "see the mask that reaches its scores: attn run --expect",
    "convolution": "pad on the left alone: F.pad(x, (kernel_size - 1, 0))",
    "norm": "normalize the features of each position by themselves",
    "router": "its room is shared by all tokens of the batch; give every token room, and none to padding",
    "cache": "with a cache, query i stands at position past + i",
}


@dataclass(frozen=True)
class Leak:
    """An output that moves when a position changes that it must not depend on."""

    row: int  # of the batch, in which the output is
    position: int | None  # of the output; None where only its row is known
    changed: tuple[int, int]  # the row and the position whose vector was changed
    module: str  # the first module whose output moved there, by its name in the model
    place: str  # the line of the program that called the module, or that computed its attention
    kind: Cause  # of module
    size: float  # how far it moved, as the largest difference of a number
    allowed_size: float  # the furthest that an output of the module moved which may

    def as_dict(self) -> dict[str, Any]:
        """Return the leak as the JSON document spells it."""
        return {**vars(self), "changed": dict(zip(("row", "position"), self.changed, strict=True))}

    @property
    def finding(self) -> Finding:
        """The leak as a finding."""
        row, changed = self.changed
        at, changed_at = f"position {self.position}", f"position {changed}"
        if self.row != row or self.position is None:
            at = f"row {self.row}" if self.position is None else f"row {self.row}, {at}"
            changed_at = f"row {row}, {changed_at}"
        message = (
            f"{at} moves by {self.size:.2g} when {changed_at} changes; outputs that may move do so by "
            f"{self.allowed_size:.2g}. First in {self.module or 'the model'} ({self.kind})"
        )
        return Finding("leak", "error", message, advice=_ADVICE.get(self.kind), made_at=(self.place,))


@dataclass(frozen=True, repr=False)
class ModelProof(Displayed):
    """Proof of a forward of a model, or the reasons against it."""

    expression: str  # the claim: which key each query may see
    model: str  # its class
    forwards: int  # how many forwards were run in addition to the program's own
    rows: int  # of the batch
    rows_changed: int  # in which a position was changed
    positions: int  # outputs of these rows that were held against the claim
    total: int  # outputs of these rows that are no padding
    dtype: str  # of the outputs
    device: str  # on which they were computed
    moved: tuple[Leak, ...] = ()  # which must not
    others: tuple[Finding, ...] = ()  # all else that is wrong, or worth knowing
    is_provable: bool = True  # whether two equal runs gave equal numbers
    inputs_changed: int = 0  # of those that are no padding
    inputs: int = 0  # that are no padding, in all rows
    is_alone: bool = False  # whether each of them changed without others of its row

    def with_findings(self, findings: Iterable[Finding]) -> ModelProof:
        """Return the proof with those of other findings whose code is not among its own."""
        codes = {finding.code for finding in self.others}
        return replace(self, others=(*self.others, *(finding for finding in findings if finding.code not in codes)))

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All that is wrong or worth knowing; the leaks first."""
        return *(leak.finding for leak in self.moved), *self.others

    @property
    def is_proved(self) -> bool:
        """Whether nothing moved that must not, and nothing else is wrong."""
        return self.is_provable and not any(finding.severity == "error" for finding in self.findings)

    @property
    def verdict(self) -> str:
        """`proved`, `not proved`, or `not provable`."""
        return "proved" if self.is_proved else "not proved" if self.is_provable else "not provable"

    @property
    def scope(self) -> str:
        """The inputs that changed, and in how many forwards."""
        alone = "each alone" if self.is_alone else "each alone or in a group"
        scope = f"{self.inputs_changed} of {plural(self.inputs, 'input')} changed, {alone}, {plural(self.rows, 'row')}"
        return f"{scope}, {self.dtype} on {self.device}; {plural(self.forwards, 'more forward')}"

    def as_dict(self) -> dict[str, Any]:
        """Return the proof as the JSON document spells it."""
        left_out = ("moved", "others", "is_provable", "is_alone")
        return {
            "schema": "attncli.proof/1",
            "proved": self.is_proved,
            **{name: value for name, value in vars(self).items() if name not in left_out},
            "moved": [leak.as_dict() for leak in self.moved],
            "findings": [finding.as_dict() for finding in self.findings],
        }

    def __str__(self) -> str:
        """Return the verdict, what was asked, and what was found, a line each."""
        lines = [f"{self.verdict}: {self.expression} in {self.model} ({self.scope})"]
        findings = ((f"{item.severity}: {item.message}", *item.made_at, item.advice or "") for item in self.findings)
        return "\n".join([*lines, *("; ".join(filter(None, parts)) for parts in findings)])

    def __repr__(self) -> str:
        """Return the verdict, in a line."""
        return f"ModelProof({self.verdict}: {self.expression} in {self.model})"
