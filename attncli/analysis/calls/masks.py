"""The mask of a call: the keys that each query may see, batch row by batch row, and the rule they follow."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attncli.attention import FORBIDDEN_BELOW
from attncli.masks.audit import audit_fills
from attncli.masks.conventions import LEAST, Convention, Reading, read_as
from attncli.masks.expressions import And, Atom, conjuncts, is_padding
from attncli.masks.files import StoredMask
from attncli.masks.findings import Finding, error
from attncli.masks.mask_grid import MaskGrid
from attncli.masks.recognition import Rule, Shape, rule_of
from attncli.recording.call import MaskArgument
from attncli.recording.detach import mask_values

if TYPE_CHECKING:
    from jaxtyping import Bool

    Keys = Bool[np.ndarray, "B K"]

_SIDE = re.compile(r"\bpad\([^)]*\)")  # how much padding there is belongs to a batch
UNKNOWN = "irregular mask"  # which follows no simple rule


class MaskReading(NamedTuple):
    """A mask that was handed to a call, understood."""

    name: str  # what the API calls it
    shape: tuple[int, ...]  # of its values, four axes, those along which they only repeat being 1
    convention: Convention  # what they mean to this API
    allowed: Bool[np.ndarray, "#B #H #Q #K"]  # True = attend
    digest: int  # equal where values are
    fills: tuple[float, ...] = ()  # the numbers with which it forbids, where it is added
    has_bias: bool = False  # whether it adds other numbers to the scores of keys that it allows
    findings: tuple[Finding, ...] = ()  # about its values
    made_at: str | None = None  # the line of the program that made it, where that is known


def read_mask(argument: MaskArgument, dtype: str) -> MaskReading:
    """Read a mask of a call of a dtype, while the program waits; its convention is that of the API that reads it."""
    values, kind = mask_values(argument), str(argument.values.dtype).removeprefix("torch.")
    digest = hash((values.shape, kind, values.tobytes()))
    reading = read_as(values, argument.convention)
    own = MaskReading(argument.name, values.shape, reading.convention, reading.allowed, digest)
    if reading.convention != "additive":
        return own
    findings = tuple(_findings_of_numbers(own.name, StoredMask(values, kind), reading, dtype))
    has_bias = bool((values[reading.allowed] != 0).any())
    return own._replace(fills=reading.fills, has_bias=has_bias, findings=findings)


def _findings_of_numbers(name: str, stored: StoredMask, reading: Reading, dtype: str) -> Iterator[Finding]:
    """Yield what is wrong with the numbers of an additive mask."""
    values = stored.values
    least, most = float(values.min()), float(values.max())
    other = most if least == 0 else least
    # The same number everywhere is a bias that has not learned yet.
    if 0 in (least, most) and other and bool(((values == 0) | (values == other)).all()):
        count, numbers = int(np.count_nonzero(values)), f"{name} adds 0 and {other:g} ({stored.dtype}) to the scores"
        # Also 1e-9, for −1e9. Of −1 it takes a third key, where a bias that grows with the distance has another number.
        if 0 < other <= 1 or (other == -1 and values.shape[-1] > 2):
            yield error("added-bool", f"{numbers}, which masks nothing", count, "pass booleans, or 0 and -inf")
            return
        if other >= -FORBIDDEN_BELOW:
            message = f"{numbers}: all weight goes to the keys that it should mask"
            yield error("leak", message, count, f"use -{other:g}")
            return
    subject = MaskGrid(name, reading.allowed[0], 0, None, stored, reading)
    yield from audit_fills(subject, dtype if dtype in LEAST else None)


class CallMask(NamedTuple):
    """The mask of a call, all that hides keys taken together."""

    planes: tuple[Bool[np.ndarray, "#B #H #Q #K"], ...]  # the masks that were handed to it, True = attend
    is_causal: bool  # whether the API hides later keys, aligned top-left
    shape: Shape  # `(B, H, Q, K)`
    rule: Rule  # what they follow together
    has_bias: bool = False  # whether a mask adds other numbers to the scores

    @property
    def size(self) -> int:
        """Bytes of the masks."""
        return sum(one.nbytes for one in self.planes)

    @property
    def past(self) -> int:
        """How many keys come before the first query, if the last query is at the last key."""
        return max(self.shape[3] - self.shape[2], 0)

    @property
    def allowed(self) -> Bool[np.ndarray, "#B #H #Q #K"]:
        """True = attend, in the smallest shape that holds it."""
        return together(self.planes, self.is_causal, self.shape)

    @property
    def is_top_left(self) -> bool:
        """Whether its queries are taken for the first positions, though they are fewer than the keys."""
        return any(variant.past == 0 != self.past for variant in self.rule.variants)

    @property
    def sees_later(self) -> bool:
        """Whether a query sees a key behind its own position."""
        queries, keys = self.shape[2:]
        return bool((self.allowed & ~np.tri(queries, keys, keys - queries, dtype=bool)).any())

    @property
    def words_see_later(self) -> bool:
        """Whether a query that is no padding sees a key behind its own position."""
        queries, keys = self.shape[2:]
        words = self.allowed & self.rule.tokens[:, None, :, None] if queries == keys else self.allowed
        return bool((words & ~np.tri(queries, keys, keys - queries, dtype=bool)).any())

    @property
    def name(self) -> str:
        """The rule without what belongs to this batch alone."""
        if self.rule.varies is not None:
            return str(self)
        name = UNKNOWN if self.rule.expression is None else _SIDE.sub("pad", str(self.rule.expression))
        return name + ", aligned top-left" * self.is_top_left + " + bias" * self.has_bias

    def __str__(self) -> str:
        return self.rule.text + " + bias" * self.has_bias


def mask_of(
    masks: tuple[MaskReading, ...], is_causal: bool, shape: Shape, tokens: Keys | None = None, is_cut: bool = False
) -> CallMask:
    """Return what masks hide together; a single query of a cut cache sees no later key, as those before it do not."""
    planes = tuple(one.allowed for one in masks)
    rule = rule_of(together(planes, is_causal, shape), shape, tokens=tokens)
    if is_cut and shape[2] == 1 and rule.expression is not None:
        parts = [part for part in conjuncts(rule.expression) if part != Atom("full")]
        if all(map(is_padding, parts)):
            causal = And((Atom("causal"), *parts)) if parts else Atom("causal")
            text = f"causal & {rule.text}" if parts else "causal"
            rule = replace(rule, text=text, variants=(rule.variants[0]._replace(expression=causal),))
    return CallMask(planes, is_causal, shape, rule, any(one.has_bias for one in masks))


def together(
    masks: Iterable[Bool[np.ndarray, "_ _ _ _"]], is_causal: bool, shape: Shape
) -> Bool[np.ndarray, "_ _ _ _"]:
    """Return which keys are seen under several masks; axes along which nothing changes are 1."""
    planes = [*masks, *([np.tri(*shape[2:], dtype=bool)[None, None]] if is_causal else [])]
    return reduce(np.logical_and, planes) if planes else np.ones((1, 1, 1, 1), bool)
