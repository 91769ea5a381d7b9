"""The call of an attention that a program writes out: what was done between the product and the values.

Scores are made once more of the queries, the keys and the recorded changes, step by step; where that gives what the
softmax received, scale, caps and masks are known. The weight that a mask leaves to a key tells whether it hides it.
This is done in the first calls of each kind at a place, then ever more seldom. In between it is known which tensors are
the masks, and these are read in every call.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attncli.attention import FORBIDDEN_BELOW
from attncli.masks.conventions import Convention
from attncli.masks.findings import Finding, Severity
from attncli.recording.call import AttentionCall, MaskArgument
from attncli.recording.readers.layout import Contraction, Points, compact
from attncli.recording.readers.origins import Change, Held, Scores
from attncli.recording.readers.reader import ThreadContext

# Also where the program puts a function of its own in its place, which is not to be called by us.
_matmul = torch._C._VariableFunctions.matmul

_MOST_KINDS = 1024  # of calls that are remembered
_NO_WEIGHT = 1e-6  # what a mask has to leave to a forbidden key at most, of the weight that it would have
_HIDDEN = math.log(_NO_WEIGHT)
_MOST_CELLS = 2**19  # of a call that are compared
_TIMES = "multiplied"  # with a mask of 0 and 1: what is 0 afterwards may be hidden by something else
_CHANGED = "what was done to the scores"
_AFTERWARDS = "what was done to the weights"
_LOST = "tensors that were changed before they met the values"
_ADDED = Finding(
    "added-bool", "error", "a mask of 0 and 1 is added to the scores: 1 is a small bias, and nothing is masked",
    advice="use masked_fill, or add 0 and -inf",
)  # fmt: skip
_LATE = Finding(
    "after-softmax", "error", "the mask is applied after the softmax, so rows do not sum to 1",
    advice="mask the scores before the softmax",
)  # fmt: skip


class ScoresMask(NamedTuple):
    """Change of scores that is a mask."""

    name: str  # of the operation
    change: int | None  # its place among them; None where scores alone say what is hidden
    convention: Convention  # what its values mean
    factor: float = 1.0  # what they were multiplied with since
    is_applied: bool = True  # whether it hides anything; if not, it was meant to
    is_vacuous: bool = False  # whether it hid nothing in this call


class WrittenAttention:
    """The attention of a thread that is written out, and of its kinds the masks and other attributes of the call."""

    def __init__(self) -> None:
        self._readings: dict[tuple[Any, ...], tuple[int, list[ScoresMask], dict[str, Any]]] = {}
        self._query_axes: dict[tuple[Any, ...], int] = {}

    def call(
        self, context: ThreadContext, weights: Scores, matmul: Contraction, result: Tensor
    ) -> AttentionCall | None:
        """Return the attention of weights that met another tensor; None unless this is values."""
        place = context.place()
        points = Points.of(weights, matmul, result, self._query_axes, place)
        if points is None:
            return None
        kind = (
            place, points.wrong_axis, points.keys_are_left, points.shape[1], points.shape[2] == 1,
            result.dtype, points.softmax_at, weights.dropout,
            *((each.name, each.is_first, None if each.tensor is None else each.tensor.ndim) for each in points.changes),
        )  # fmt: skip
        read, facts = self._reading(kind, points)
        masks = [(mask, argument) for mask in read if (argument := _argument(mask, points)) is not None]
        if len(masks) < len(read):
            facts = {**facts, "unsupported": _LOST, "is_mask_read": False}
        batch, heads, *_ = points.shape
        q, k, v = points.q, points.k, points.v
        return AttentionCall(
            "softmax", place, points.shape, str(points.q_side.dtype).removeprefix("torch."), str(points.q_side.device),
            q=None if q is None else q.expand(batch, heads, -1, -1),
            k=None if k is None else k.expand(batch, -1, -1, -1),
            v=None if v is None else v.expand(batch, -1, -1, -1),
            masks=tuple(argument for mask, argument in masks if mask.is_applied),
            ignored_masks=tuple(argument for mask, argument in masks if not mask.is_applied),
            scores=points.scores, weights=points.weights, output=points.output, sinks=points.sinks,
            dropout=weights.dropout, is_training=weights.in_dropout if weights.dropout else context.is_training(),
            slices=points.slices, **facts,
        )  # fmt: skip

    def _reading(self, kind: tuple[Any, ...], points: Points) -> tuple[list[ScoresMask], dict[str, Any]]:
        """Return what the values of a call show; of a kind that is known, those of an earlier one."""
        count, masks, facts = self._readings.get(kind, (0, [], {}))
        # Of a kind the first two are read, the 5th, the 17th and so on.
        is_due = count < 2 or (count & (count - 1) == 0 and count.bit_length() % 2 == 1)
        if is_due or any(_hides_now(mask, points) for mask in masks):
            with torch.autocast(points.q_side.device.type, enabled=False):
                masks, facts = _ValueReader(points).read()
        if len(self._readings) >= _MOST_KINDS:
            self._readings.clear()
        self._readings[kind] = count + 1, masks, facts
        return masks, facts


def _hides_now(mask: ScoresMask, points: Points) -> bool:
    tensor = points.changes[mask.change].tensor if mask.is_vacuous and mask.change is not None else None
    return tensor is not None and bool((tensor != 0 if mask.convention == "masked" else tensor == 0).any())


def _argument(mask: ScoresMask, points: Points) -> MaskArgument | None:
    if mask.change is None:
        if points.scores is None:
            return None
        return MaskArgument(mask.name, compact(points.scores <= FORBIDDEN_BELOW), "masked")
    change = points.changes[mask.change]
    if (values := points.tensor(change)) is None:
        return None
    if mask.convention != "additive":
        values = values if values.dtype == torch.bool else values != 0
        return MaskArgument(mask.name, values, mask.convention, change.tensor, change.made_at)
    if not values.is_floating_point():
        values = values.to(torch.float32 if points.weights is None else points.weights.dtype)
    if mask.factor == 1:
        return MaskArgument("added", values, "additive", change.tensor, change.made_at)
    return MaskArgument("added", values * mask.factor, "additive", made_at=change.made_at)


class _ValueReader:
    """Reads the values of one call; of a large one, those of some of its rows and heads."""

    def __init__(self, points: Points) -> None:
        self._points = points
        self._masks: list[ScoresMask] = []  # in the order in which they apply
        self._findings: list[Finding] = []
        self._unread: list[str] = []  # what is not understood, and may hide keys
        self._harmless: list[str] = []  # what is not understood, and hides none
        batch, heads, queries, keys = points.shape
        most = max(_MOST_CELLS // (queries * keys), 1)
        self._heads = max(min(heads, most // batch), min(heads, 2))  # masks differ by rows rather than by heads
        self._batch = max(min(batch, most // self._heads), 1)

    def read(self) -> tuple[list[ScoresMask], dict[str, Any]]:
        """Return the masks, and other attributes of an AttentionCall."""
        facts = self._read_scores()
        self._read_weights()
        facts["findings"] = tuple(dict.fromkeys(self._findings))
        facts["unsupported"] = " and ".join(dict.fromkeys((*self._unread, *self._harmless))) or None
        return self._masks, {**facts, "is_mask_read": not self._unread}

    def _cut(self, tensor: Tensor) -> Tensor:
        return tensor[: self._batch, : self._heads].detach()

    def _read_scores(self) -> dict[str, Any]:
        """Read what was done before the softmax; return the scale and the soft cap."""
        points = self._points
        if points.scores is None or points.q is None or points.k is None:
            self._unread.append(_LOST)
            return {}
        q, k, y = (self._cut(each).float() for each in (points.q, points.k, points.scores))
        product = _matmul(q, k.repeat_interleave(max(q.shape[1] // k.shape[1], 1), 1).mT).expand(y.shape)
        replay = _Replay(product)
        for index, change in enumerate(points.changes[: points.softmax_at]):
            tensor = points.tensor(change)
            replay.step(index, change, None if tensor is None else self._cut(tensor))
        halves = [torch.finfo(each).eps for each in (points.product.dtype, points.scores.dtype) if each.itemsize == 2]
        tolerance = max(7.5 * max(halves, default=0), 2.5e-4)
        size = 1 + torch.maximum(y.abs(), (product * replay.scale).abs())
        is_off = ~((y - replay.scores).abs() <= tolerance * size)
        hidden = ((y <= FORBIDDEN_BELOW) & is_off) | (y - replay.scores < _HIDDEN)
        below = replay.added <= _HIDDEN
        visible = ~(hidden | below | replay.filled) & y.isfinite() & product.isfinite() & (replay.added < -_HIDDEN)
        self._read_masks(replay, hidden, below, y)
        if not replay.is_clear or int((is_off & visible).sum()) > 1e-3 * int(visible.sum()):
            self._unread.append(_CHANGED)
        elif replay.is_scaled_by_heads:
            self._harmless.append("a factor of each head")
        else:
            factors = () if replay.softcap else (points.q_side.scale, points.k_side.scale, *replay.factors)
            return {"scale": replay.scale, "softcap": replay.softcap, "scale_factors": factors}
        return {}

    def _read_masks(self, replay: _Replay, hidden: Tensor, below: Tensor, y: Tensor) -> None:
        """Read the masks: what was added hides what is `below`, and fills what is `hidden` of the other scores."""
        points, live = self._points, y < -math.inf
        if points.weights is not None and points.wrong_axis is None:
            live = (self._cut(points.weights) > _NO_WEIGHT) & ~(hidden | below).all(-1, keepdim=True)
            live &= self._cut(points.final) != 0  # what was masked later is no weight
        for index, values, factor in replay.biases:
            if _is_boolean(values):
                self._findings.append(_ADDED)
            self._masks.append(ScoresMask("added", index, "additive", factor))
        covered, found = below, []
        for index, name, convention, hides in sorted(replay.fills, key=lambda each: each[1] == _TIMES):
            hides = hides.expand(y.shape)
            is_weak = hides & live & ~(hidden | below)
            is_weak &= ~(hidden | below | hides).all(-1, keepdim=True)  # a row of one number is one of padding
            if bool(is_weak.any()):
                values = y[is_weak]
                if bool((values == values[0]).all()) and _is_structured(hides, torch.zeros_like(hides)):
                    message = f"{name} sets masked scores to {float(values[0]):g}, which leaves them a weight"
                    if name == _TIMES:
                        message = "scores are multiplied with a mask of 0 and 1: 0 is a score like others"
                    self._findings.append(Finding("no-mask", "error", message, advice="set masked scores to -inf"))
                else:  # scores of another kind, or chosen by their values
                    self._unread.append(_CHANGED)
                found.append(ScoresMask(name, index, convention, is_applied=False))
            elif name != _TIMES or bool((hides & ~covered).any()):
                found.append(ScoresMask(name, index, convention, is_vacuous=not bool(hides.any())))
                covered = covered | hides
        uncovered = hidden & ~covered
        if bool(uncovered.any()):
            found = [*(mask for mask in found if not mask.is_applied), ScoresMask("assigned", None, "masked")]
            if bool((uncovered & (y > FORBIDDEN_BELOW)).any()):
                self._unread.append(_CHANGED)
        self._masks += found

    def _read_weights(self) -> None:
        points = self._points
        weights, final, over = points.weights, points.final, points.wrong_axis
        after = points.changes[points.softmax_at :]
        if weights is None:
            return
        is_again = bool(after) and _sums_to_one(final)
        if over is not None and is_again:
            self._harmless.append("the normalisation of the weights")
        elif over is not None:
            # Tokens that are dealt to clusters, and clusters that are their sums, have their softmax over the queries.
            severity: Severity = "note" if points.keys_are_left and over == "the queries" else "error"
            message = f"the softmax is over {over}, not over the keys"
            self._findings.append(Finding("axis", severity, message, advice="give softmax the axis of the keys"))
        elif after and not points.origin.dropout:
            zero, live = final == 0, weights > _NO_WEIGHT
            lost = zero & live & ~zero.all(-1, keepdim=True)
            factor = (final / weights).masked_fill(zero | ~live, math.nan)
            is_same = not bool(((factor - 1).abs() > 0.02).any())
            is_late = bool(lost.any()) and _is_structured(lost, ~live | zero.all(-1, keepdim=True))
            if is_late and is_same and not is_again:
                self._findings.append(_LATE)
            elif is_late:
                self._unread.append(_AFTERWARDS)
            elif not is_same or bool(lost.any()):
                self._harmless.append(_AFTERWARDS)


class _Replay:
    """Scores as they are made once more of a product, but for what they were filled by."""

    def __init__(self, product: Tensor) -> None:
        self.scores, self.added = product, product.new_zeros(product.shape)
        self.filled = torch.zeros_like(product, dtype=torch.bool)
        self.scale, self.factors = 1.0, list[float]()  # what q·k was multiplied with, and of which that is made
        self.softcap: float | None = None  # c of c·tanh(scores/c)
        self.is_scaled_by_heads = False
        self.is_clear = True  # whether all steps can be said in these words
        # By the place among the steps: values that were added and their factor since; fills, and where they hide.
        self.biases: list[tuple[int, Tensor, float]] = []
        self.fills: list[tuple[int, str, Convention, Tensor]] = []

    def step(self, index: int, change: Change, tensor: Tensor | None) -> None:
        name, other = change.name, change.other
        if (factor := change.factor) is not None:
            self.scores, self.added, self.scale = self.scores * factor, self.added * factor, self.scale * factor
            self.factors.append(math.nan if isinstance(other, Held) and other.is_learned else factor)
            self.softcap = None if self.softcap is None else self.softcap * factor
            self.biases = [(at, values, before * factor) for at, values, before in self.biases]
        elif tensor is not None and (name in ("masked_fill", "where") or (name == "mul" and _is_binary(tensor))):
            convention: Convention = "attend" if name == "mul" or (name == "where" and change.is_first) else "masked"
            hides = (tensor != 0) == (convention == "masked")
            self.filled = self.filled | hides
            self.fills.append((index, _TIMES if name == "mul" else name, convention, hides))
        elif tensor is not None and name in ("mul", "div"):
            self.scores = self.scores * tensor if name == "mul" else self.scores / tensor
            self.is_scaled_by_heads = True
            self.is_clear &= not self.biases and not bool((tensor <= 0).any())
        elif name in ("add", "sub"):
            values, sign = other.tensor if isinstance(other, Held) else other, 1.0 if name == "add" else -1.0
            if tensor is not None and tensor.shape[-1] > 1 and tensor.stride(-1):
                self.added = self.added + tensor * sign
                self.biases.append((index, tensor, sign))
            if values is not None:
                self.scores = self.scores + (values if tensor is None else tensor) * sign
        elif name == "tanh":
            self.is_clear &= not self.biases and not self.fills and self.softcap is None
            self.scores, self.softcap = self.scores.tanh(), 1.0


def _is_structured(cells: Tensor, unknown: Tensor) -> bool:
    """Return whether cells are a mask, and not drawn or chosen by values: the same in all rows, heads or queries."""
    others = ~cells & ~unknown
    for axis in range(3):
        if cells.shape[axis] > 1 and not bool((cells.any(axis) & others.any(axis)).any()):
            return True
    queries, keys = cells.shape[-2:]
    later = torch.ones(queries, keys, dtype=torch.bool, device=cells.device).triu(keys - queries + 1)
    return not bool(((cells & ~later) | (others & later)).any())


def _is_binary(values: Tensor) -> bool:
    return values.dtype == torch.bool or bool(((values == 0) | (values == 1)).all())


def _is_boolean(values: Tensor) -> bool:
    """Return whether values that are added are a mask of 0 and 1: numbers that are all 0, or all 1.0, are none."""
    if values.dtype == torch.bool:
        return True
    least, most = (float(each) for each in values.aminmax())
    return most == 1 and (least == 0 or (least == 1 and not values.is_floating_point())) and _is_binary(values)


def _sums_to_one(weights: Tensor) -> bool:
    sums = weights.float().sum(-1)
    is_one = ((sums - 1).abs() < 2e-2) | (sums == 0) | sums.isnan()
    return bool(is_one.all()) and bool(((weights >= 0) | weights.isnan()).all())
