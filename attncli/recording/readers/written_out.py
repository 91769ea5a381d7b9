"""The call of an attention that a program writes out.

Values are read in the first calls of each kind at a place, then ever more seldom; see `scores`. In between it is known
from them which tensors are the masks, and what these hide is read in every call.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attncli.attention import FORBIDDEN_BELOW
from attncli.recording.call import AttentionCall, MaskArgument
from attncli.recording.lineage import Lineage, operation
from attncli.recording.readers.contraction import Contraction
from attncli.recording.readers.heads import SPLIT
from attncli.recording.readers.layout import Points, compact
from attncli.recording.readers.origins import Factor, Weights
from attncli.recording.readers.reader import ThreadContext
from attncli.recording.readers.scores import HIDES_NOTHING, Mask, ScoresReading, read

_MOST_KINDS = 1024  # of calls that are known


class WrittenOut:
    """The attention of a thread that is written out."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], tuple[int, ScoresReading]] = {}

    def call(
        self, context: ThreadContext, weights: Weights, found: Contraction, result: Tensor, values: Factor
    ) -> AttentionCall | None:
        """Return the attention of weights that met another tensor; None where this is none.

        Args:
            context: the thread.
            weights: where they come from.
            found: the product; its left factor is the weights.
            result: of it.
            values: what is known of the other tensor.
        """
        points = Points.of(weights, found, result)
        if points is None:
            return None
        place, is_training = context.place(), context.is_training()
        kind = (
            place, points.order, points.wrong, points.keys_are_left, points.shape[1], points.shape[2] == 1,
            result.dtype, len(weights.softmax.scores.changes), weights.dropout, weights.in_dropout, is_training,
            *((each.name, each.is_first, None if each.tensor is None else each.tensor.ndim) for each in points.changes),
        )  # fmt: skip
        reading = self._reading(kind, points, is_training)
        findings = list(reading.findings)
        if any(each.is_split for each in (points.q_side.factor, points.k_side.factor, values)):
            findings.append(SPLIT)
        masks = [(mask, argument) for mask in reading.masks if (argument := _argument(mask, points)) is not None]
        batch, heads, *_ = points.shape
        q, k, v = points.q, points.k, points.v
        return AttentionCall(
            api="softmax",
            place=place,
            shape=points.shape,
            dtype=str(points.q_side.dtype).removeprefix("torch."),
            device=str(points.q_side.device),
            q=None if q is None else q.expand(batch, heads, -1, -1),
            k=None if k is None else k.expand(batch, -1, -1, -1),
            v=None if v is None else v.expand(batch, -1, -1, -1),
            masks=tuple(argument for mask, argument in masks if mask.is_applied),
            ignored_masks=tuple(argument for mask, argument in masks if not mask.is_applied),
            scale=reading.scale,
            softcap=reading.softcap,
            dropout=weights.dropout,
            is_training=is_training,
            scores=points.scores,
            weights=points.weights,
            output=points.output,
            findings=tuple(findings),
            unsupported=" and ".join(reading.unread) or None,
            is_mask_read=all(each in HIDES_NOTHING for each in reading.unread),
            lineage=Lineage.of(points.q_side.operation, points.k_side.operation, operation(result)),
        )

    def _reading(self, kind: tuple[Any, ...], points: Points, is_training: bool | None) -> ScoresReading:
        """Return what the values say; of a kind of calls that is known, what those of an earlier one said."""
        count, reading = self._known.get(kind, (0, None))
        if reading is None or _is_looked_at(count) or _hide_now(reading, points):
            with torch.autocast(points.q_side.device.type, enabled=False):
                reading = read(points, is_training)
        if len(self._known) >= _MOST_KINDS:
            self._known.clear()
        self._known[kind] = count + 1, reading
        return reading


def _is_looked_at(count: int) -> bool:
    """Return whether the values of a call are read: of its kind the first two, the 5th, the 17th and so on."""
    return count < 2 or (count & (count - 1) == 0 and count.bit_length() % 2 == 1)


def _hide_now(reading: ScoresReading, points: Points) -> bool:
    """Return whether a mask hides something now that hid nothing when values were looked at."""
    for mask in reading.masks:
        tensor = points.changes[mask.change].tensor if mask.is_vacuous and mask.change is not None else None
        if tensor is not None and bool((tensor != 0 if mask.convention == "masked" else tensor == 0).any()):
            return True
    return False


def _argument(mask: Mask, points: Points) -> MaskArgument | None:
    """Return a mask as this call has it."""
    if mask.change is None:
        hidden = _forbidden(points)
        return None if hidden is None else MaskArgument(mask.name, compact(hidden), "masked")
    change = points.changes[mask.change]
    values = points.tensor(change)
    if values is None:
        return None
    if mask.convention != "additive":
        name = "multiplied" if mask.name == "mul" else mask.name
        return MaskArgument(name, values if values.dtype == torch.bool else values != 0, mask.convention, change.tensor)
    if not values.is_floating_point():
        values = values.to(torch.float32 if points.weights is None else points.weights.dtype)
    if mask.factor == 1:
        return MaskArgument("added", values, "additive", change.tensor)
    return MaskArgument("added", values * mask.factor, "additive")


def _forbidden(points: Points) -> Tensor | None:
    """Return where scores are forbidden by their values alone."""
    if points.scores is not None:
        return points.scores <= FORBIDDEN_BELOW
    return None if points.weights is None else points.weights == 0
