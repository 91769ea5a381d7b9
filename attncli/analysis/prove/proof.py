"""What was proved of a forward, and what leaks in it."""

from __future__ import annotations

from dataclasses import dataclass
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
    """An output that moves when a position changes that it must not depend on.

    Attributes:
        row: of the batch, in which the output is.
        position: of the output; None where only its row is known.
        changed: the row and the position whose vector was changed.
        module: the first module whose output moved there, by its name in the model.
        place: the line of the program that called the module, or that computed its attention.
        kind: what the module is.
        size: how far it moved, as the largest difference of a number.
        allowed_size: the furthest that an output of the module moved which may.
    """

    row: int
    position: int | None
    changed: tuple[int, int]
    module: str
    place: str
    kind: Cause
    size: float
    allowed_size: float

    def as_dict(self) -> dict[str, Any]:
        """Return the leak as the JSON document spells it."""
        row, position = self.changed
        return {**vars(self), "changed": {"row": row, "position": position}}

    @property
    def finding(self) -> Finding:
        """The leak as a finding."""
        row, changed = self.changed
        at = "" if self.position is None else f"position {self.position}"
        changed_at = f"position {changed}"
        if self.row != row or self.position is None:
            at, changed_at = f"row {self.row}" + (at and f", {at}"), f"row {row}, {changed_at}"
        message = (
            f"{at} moves by {self.size:.2g} when {changed_at} changes; outputs that may move do so by "
            f"{self.allowed_size:.2g}. First in {self.module or 'the model'} ({self.kind})"
        )
        return Finding("leak", "error", message, advice=_ADVICE.get(self.kind), made_at=(self.place,))


@dataclass(frozen=True, repr=False)
class ModelProof(Displayed):
    """What was proved of a forward of a model.

    Attributes:
        expression: what was claimed: which key each query may see.
        model: the class of the model.
        forwards: how many forwards were run beside the program's own.
        rows: of the batch.
        rows_changed: rows in which a position was changed.
        positions: outputs of these rows that were held against the claim.
        total: outputs of these rows that are no padding.
        dtype: of the outputs.
        device: on which they were computed.
        moved: what moved and must not.
        others: what else is wrong, or worth knowing.
        is_provable: whether two equal runs gave equal numbers.
        inputs_changed: inputs that changed, of those that are no padding.
        inputs: that are no padding, in all rows.
        is_alone: whether each of them changed without others of its row.
    """

    expression: str
    model: str
    forwards: int
    rows: int
    rows_changed: int
    positions: int
    total: int
    dtype: str
    device: str
    moved: tuple[Leak, ...] = ()
    others: tuple[Finding, ...] = ()
    is_provable: bool = True
    inputs_changed: int = 0
    inputs: int = 0
    is_alone: bool = False

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All that is wrong or worth knowing; the leaks first."""
        return *(leak.finding for leak in self.moved), *self.others

    @property
    def is_proved(self) -> bool:
        """Whether nothing moved that must not, and nothing else is wrong."""
        return self.is_provable and not any(one.severity == "error" for one in self.findings)

    @property
    def verdict(self) -> str:
        """`proved`, `not proved`, or `not provable`."""
        return "proved" if self.is_proved else "not proved" if self.is_provable else "not provable"

    @property
    def scope(self) -> str:
        """What exactly was asked."""
        alone = "each alone" if self.is_alone else "each alone or in a group"
        scope = f"{self.inputs_changed} of {plural(self.inputs, 'input')} changed, {alone}, {plural(self.rows, 'row')}"
        return f"{scope}, {self.dtype} on {self.device}; {plural(self.forwards, 'more forward')}"

    def as_dict(self) -> dict[str, Any]:
        """Return the proof as the JSON document spells it."""
        return {
            "schema": "attncli.proof/1",
            "expression": self.expression,
            "model": self.model,
            "proved": self.is_proved,
            "forwards": self.forwards,
            "rows": self.rows,
            "rows_changed": self.rows_changed,
            "positions": self.positions,
            "total": self.total,
            "dtype": self.dtype,
            "device": self.device,
            "inputs_changed": self.inputs_changed,
            "inputs": self.inputs,
            "moved": [leak.as_dict() for leak in self.moved],
            "findings": [one.as_dict() for one in self.findings],
        }

    def __str__(self) -> str:
        """Return the verdict, what was asked, and what was found, a line each."""
        found = [filter(None, (f"{one.severity}: {one.message}", *one.made_at, one.advice)) for one in self.findings]
        lines = [f"{self.verdict}: {self.expression} in {self.model} ({self.scope})", *map("; ".join, found)]
        return "\n".join(lines)

    def __repr__(self) -> str:
        """Return the verdict, in a line."""
        return f"ModelProof({self.verdict}: {self.expression} in {self.model})"
