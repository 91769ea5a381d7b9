"""The call that a hand-written attention was, and what is wrong with how it was written."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from attncli.attention import FORBIDDEN_BELOW
from attncli.masks.findings import Finding, Severity
from attncli.recording.axes import Atom, Axis, Layout, arranged, leaves, long, size
from attncli.recording.call import AttentionCall, MaskArgument
from attncli.recording.lineage import Lineage, operation
from attncli.recording.projections import swapped
from attncli.recording.provenance import (
    ADDED_TO_WEIGHTS,
    FACTOR_OF_WEIGHTS,
    Flow,
    Laid,
    Operand,
    Product,
    Softmax,
    version,
)
from attncli.recording.readers.heads import SPLIT
from attncli.recording.readers.reader import ThreadContext
from attncli.recording.scale_checks import is_root, no_scale, scaled_twice, wrong_scale

# Also where the program puts a function of its own in its place, which is not to be called by us.
_softmax = torch._C._VariableFunctions.softmax

_NO_WEIGHT = 1e-6  # what a mask has to leave to a forbidden key at most
_AGAIN = "the second normalisation of the weights"
_DROPPED = "a dropout by hand"
_OF_HEADS = "a factor of each head"
# What is not read, and hides no key.
_HIDES_NOTHING = {_AGAIN, _DROPPED, _OF_HEADS, FACTOR_OF_WEIGHTS, ADDED_TO_WEIGHTS}


class Meeting(NamedTuple):
    """Weights that are multiplied with values.

    Attributes:
        flow: where the weights came from.
        weights: as they are multiplied.
        values: what they are multiplied with.
        summed: the axes that are summed over: the keys.
        width: the axes that only the values have.
        result: weights·V.
        layout: of the result.
    """

    flow: Flow
    weights: Operand
    values: Operand
    summed: Axis
    width: Axis
    result: torch.Tensor
    layout: Layout


class _Axes(NamedTuple):
    """The four axes of a call, by what they are made of."""

    batch: Axis
    heads: Axis
    queries: Axis
    keys: Axis

    def name(self, atoms: frozenset[Atom]) -> str:
        """Return what some of them are called."""
        found = [name for name, axis in zip(("the batch", "the heads", "the queries", "the keys"), self, strict=True)
                 if atoms & frozenset(axis)]  # fmt: skip
        return " and ".join(found) or "an axis of one position"


class _Seen(NamedTuple):
    """What is known of one thing that was laid on scores or weights.

    Attributes:
        mask: that applies.
        unused: a mask that was meant to apply, and does not.
        finding: what is wrong.
        unread: what of it is not understood.
    """

    mask: MaskArgument | None = None
    unused: MaskArgument | None = None
    finding: Finding | None = None
    unread: str | None = None


def told(context: ThreadContext, met: Meeting) -> AttentionCall | None:
    """Return the attention of weights that met values; None where this is none."""
    flow, product, softmax = met.flow, met.flow.product, met.flow.softmax
    keys = long((met.summed,))
    if product is None or softmax is None or (keys_left := _keys_are_left(product, met.summed, softmax.over)) is None:
        return None
    q_side, k_side = (product.right, product.left) if keys_left else (product.left, product.right)
    asking = product.own_leaves()[1 if keys_left else 0]
    if k_side.is_learned or long((tuple(asking),)) & long(met.values.layout):
        return None  # rows of a parameter are classes or experts; and values of each query's own are no values
    axes = _four(softmax.layout if len(softmax.layout) == 4 else flow.four or softmax.layout, met.summed, asking)
    shape = (size(axes.batch), size(axes.heads), size(axes.queries), size(axes.keys))
    width, is_over_keys = leaves(product.summed), softmax.over == keys
    weights = _unchanged(softmax.weights, softmax.versions[1], softmax.layout, axes)
    scores = _unchanged(softmax.scores, softmax.versions[0], softmax.layout, axes)
    shown = _softmax(scores, -1) if weights is None and scores is not None and is_over_keys else weights
    is_again = keys <= flow.again
    late = [_laid_on_weights(laid, axes, shown, is_again) for laid in flow.after]
    for given in (each.mask or each.unused for each in late):
        if given is not None and shown is not None:  # what was masked after the softmax is no weight
            shown = shown.masked_fill(given.values, 0)
    seen = [*(_laid_on_scores(laid, axes, scores, shown) for laid in flow.laid), *late]
    if is_again:
        weights = None if flow.dropout else arranged(met.weights.tensor, met.weights.layout, axes)
    q = _unchanged(q_side.tensor, q_side.version, q_side.layout, (axes.batch, axes.heads, axes.queries, width))
    k = _unchanged(k_side.tensor, k_side.version, k_side.layout, (axes.batch, axes.heads, axes.keys, width))
    is_training = context.is_training()
    found = [
        None if is_over_keys or is_again else _wrong_axis(softmax, keys, axes, keys_left),
        _second_softmax(softmax),
        _scaling(flow, product, size(width)) or _wrong_scale(flow, shape[1], size(width), (q_side, k_side), (q, k)),
        SPLIT if q_side.is_split or k_side.is_split or met.values.is_split else None,
        *swapped(context.projected, context.module(), q_side.tensor, k_side.tensor),
        *(each.finding for each in seen),
        _dropout(flow, is_training),
    ]
    unread = [flow.unread, *(each.unread for each in seen)]
    sinks = None if flow.sinks is None else _values(flow.sinks, axes)
    if flow.sinks is not None and sinks is None:
        unread.append("what is beside the scores")
    if is_again and not is_over_keys:
        unread.append(_AGAIN)
    v = arranged(met.values.tensor, met.values.layout, (axes.batch, axes.heads, axes.keys, leaves(met.width)), True)
    return AttentionCall(
        api="softmax",
        place=context.place(),
        shape=shape,
        dtype=str(q_side.tensor.dtype).removeprefix("torch."),
        device=str(q_side.tensor.device),
        q=None if q is None else q.expand(shape[0], shape[1], -1, -1),
        k=None if k is None else k.expand(shape[0], -1, -1, -1),
        v=None if v is None else v.expand(shape[0], -1, -1, -1),
        masks=tuple(each.mask for each in seen if each.mask is not None),
        ignored_masks=tuple(each.unused for each in seen if each.unused is not None),
        scale=_whole_scale(flow) if all(each.unread not in (_FACTOR, _OF_HEADS) for each in seen) else None,
        softcap=None if flow.capped is None or flow.scale is None else float(flow.scale),
        sinks=sinks,
        dropout=flow.dropout,
        is_training=is_training,
        scores=None if any(laid.is_of_exp for laid in flow.laid) else scores,
        weights=weights,
        output=arranged(met.result, met.layout, (axes.batch, axes.heads, axes.queries, leaves(met.width))),
        findings=tuple(finding for finding in found if finding is not None),
        unsupported=" and ".join(dict.fromkeys(each for each in unread if each is not None)) or None,
        is_mask_read=_HIDES_NOTHING.issuperset(each for each in unread if each is not None),
        lineage=Lineage.of(q_side.operation, k_side.operation, operation(met.result)),
    )


def _keys_are_left(product: Product, summed: Axis, over: frozenset[Atom]) -> bool | None:
    """Return whether the keys are the left factor of the scores' product; None where what is summed over is no keys."""
    left, right = product.own_leaves()
    keys = long((summed,))
    if not keys:  # one key, of a factor that has no other
        many = long((tuple(left),)), long((tuple(right),))
        if over or all(many):
            return None
        return bool(many[1]) or (not many[0] and not left.isdisjoint(leaves(summed)))
    return True if keys <= left else False if keys <= right else None


def _four(layout: Layout, summed: Axis, asking: frozenset[Atom]) -> _Axes:
    """Return which axes of scores are batch, heads, queries and keys.

    Of several axes that only the queries' factor has, that of as many positions as keys is the queries, else the
    last; the others are heads that share keys. Of the rest the first is the batch, the others are heads.
    """
    summed = leaves(summed)
    axes = [leaves(axis) for axis in layout]
    keys = tuple(leaf for axis in axes for leaf in axis if leaf in summed)
    rest = [tuple(leaf for leaf in axis if leaf not in summed) for axis in axes if not axis or {*axis} - {*summed}]
    asks = [i for i, axis in enumerate(rest) if axis and asking.issuperset(axis)]
    asks = asks or [i for i, axis in enumerate(rest) if not axis]
    alike = [i for i in asks if size(rest[i]) == size(keys)]
    queries = rest.pop(alike[0] if len(alike) == 1 else asks[-1]) if asks else ()
    if len(rest) < 2:  # heads may be folded into the batch
        batch, heads = (rest[0][:1], rest[0][1:]) if rest else ((), ())
    else:
        batch, heads = rest[0], tuple(leaf for axis in rest[1:] for leaf in axis)
    return _Axes(batch, heads, queries, keys)


def _unchanged(tensor: torch.Tensor | None, then: int, layout: Layout, groups: Sequence[Axis]) -> torch.Tensor | None:
    """Return a tensor with these axes, unless it was changed in place since."""
    if tensor is None or version(tensor) != then:
        return None
    return arranged(tensor, layout, groups, is_grouped=True)


# What was laid on.

_FACTOR = "a factor of the scores"


def _laid_on_scores(laid: Laid, axes: _Axes, scores: torch.Tensor | None, weights: torch.Tensor | None) -> _Seen:
    if laid.values is None and laid.convention == "masked":  # to be read from what the softmax received
        if scores is None or not laid.fill <= FORBIDDEN_BELOW:
            return _Seen(unread="an assignment to a part of the scores")
        return _Seen(MaskArgument(laid.how, scores <= FORBIDDEN_BELOW, "masked"))
    values = _values(laid, axes)
    if values is None:
        return _Seen(unread=f"what was laid on by {laid.how}")
    if laid.how == "max" and (values.shape[-1] == 1 or not values.stride(-1)):
        return _Seen()  # it takes the same from all scores of a row
    if laid.convention == "additive":
        return _added(laid, values, weights)
    if laid.convention in ("masked", "attend"):
        forbidden = values if laid.convention == "masked" else ~values
        given = MaskArgument(laid.how, values, laid.convention, laid.values)
        if laid.fill <= FORBIDDEN_BELOW and not laid.is_capped:
            return _Seen(given)
        if weights is None or not _has_weight(forbidden, weights, scores):
            return _Seen(given)
        why = "before the tanh of the soft cap" if laid.is_capped else f"to {laid.fill:g}"
        return _Seen(unused=given, finding=_no_mask(f"{laid.how} sets masked scores {why}, which leaves them a weight"))
    if not _is_binary(values):
        is_of_heads = values.shape[-2:] == (1, 1) and bool((values > 0).all()) and not laid.is_of_exp
        return _Seen(unread="a factor of exp(scores)" if laid.is_of_exp else _OF_HEADS if is_of_heads else _FACTOR)
    given = MaskArgument(laid.how, values != 0, "attend", laid.values)
    if laid.is_of_exp:
        return _Seen(given)
    if weights is None or not _has_weight(values == 0, weights, scores):
        return _Seen()
    what = "are multiplied with a mask of 0 and 1" if laid.how == "multiplied" else f"go through torch.{laid.how}"
    return _Seen(unused=given, finding=_no_mask(f"scores {what} before the softmax: 0 is a score like others"))


def _added(laid: Laid, values: torch.Tensor, weights: torch.Tensor | None) -> _Seen:
    finding = None
    if _is_boolean(values):
        kind = "booleans are" if values.dtype == torch.bool else "a mask of 0 and 1 is"
        finding = Finding(
            "added-bool", "error", f"{kind} added to the scores: 1 is a small bias, and nothing is masked",
            advice="use masked_fill, or add 0 and -inf",
        )  # fmt: skip
    if not values.is_floating_point():
        values = values.to(torch.float32 if weights is None else weights.dtype)
    is_scaled = not isinstance(laid.factor, float) or laid.factor != 1
    given = MaskArgument(
        "added", values * laid.factor if is_scaled else values, "additive", None if is_scaled else laid.values
    )
    if laid.is_capped:
        if weights is not None and _has_weight(given.values <= FORBIDDEN_BELOW, weights):
            why = "a mask is added before the tanh of the soft cap, which leaves masked keys a weight"
            return _Seen(unused=given, finding=_no_mask(why))
        return _Seen(unread="a bias under the soft cap")
    return _Seen(given, finding=finding)


def _laid_on_weights(laid: Laid, axes: _Axes, weights: torch.Tensor | None, is_again: bool) -> _Seen:
    """Return what a mask after the softmax is: harmless where it takes weight from no row that keeps some."""
    values = _values(laid, axes)
    if laid.is_random:
        return _Seen(unread=_DROPPED)
    if values is None or (laid.convention in ("masked", "attend") and laid.fill != 0):
        return _Seen(unread=f"what was laid on the weights by {laid.how}")
    if laid.convention not in ("masked", "attend") and not _is_binary(values):
        return _Seen(unread=FACTOR_OF_WEIGHTS)
    forbidden = values if laid.convention == "masked" else values == 0
    if weights is None or not _has_weight(forbidden, weights):
        return _Seen()
    given = MaskArgument(laid.how, forbidden, "masked", laid.values)
    if is_again:
        return _Seen(given, finding=Finding(
            "after-softmax", "note", "the mask is laid on after the softmax, and rows are normalised again",
        ))  # fmt: skip
    return _Seen(unused=given, finding=Finding(
        "after-softmax", "error",
        "the mask is laid on after the softmax: masked keys have taken part in it, and rows do not sum to 1",
        advice="lay the mask on the scores, before the softmax",
    ))  # fmt: skip


def _values(laid: Laid, axes: _Axes) -> torch.Tensor | None:
    """Return a mask as `[B, H, Q, K]`, with axes of 1 where it is the same for all."""
    values, layout = laid.values, laid.layout
    if values is None:
        rows, columns = (size(axis) for axis in layout)
        of = torch.ones(rows, columns, dtype=torch.bool)
        values = of.tril(laid.diagonal) if laid.convention == "tril" else of.triu(laid.diagonal)
    return arranged(values, layout, axes)


def _has_weight(forbidden: torch.Tensor, weights: torch.Tensor, scores: torch.Tensor | None = None) -> bool:
    """Return whether a row that may attend to some keys has weight on others, which are forbidden.

    A row whose other keys are hidden too, by what the scores hold, is one of padding and may not attend to any.
    """
    forbidden = forbidden.to(weights.device)
    if forbidden.shape[-1] != weights.shape[-1]:
        return False
    heaviest = weights.masked_fill(~forbidden, 0).amax(-1)
    is_live = ~forbidden.all(-1)
    if scores is not None:
        is_live = is_live & (scores.masked_fill(forbidden, -math.inf).amax(-1) > FORBIDDEN_BELOW)
    return bool(((heaviest > _NO_WEIGHT) & is_live).any())


def _is_binary(values: torch.Tensor) -> bool:
    return values.dtype == torch.bool or bool(((values == 0) | (values == 1)).all())


def _is_boolean(values: torch.Tensor) -> bool:
    """Return whether values that are added are a mask of 0 and 1: numbers that are all 0, or all 1.0, are none."""
    if values.dtype == torch.bool:
        return True
    first = values[0, 0, 0]  # the first row of most masks and biases tells
    least, most = (float(each) for each in first.aminmax())
    if {least, most} <= {0, 1} and first.numel() < values.numel():
        least, most = (float(each) for each in values.aminmax())
    if most != 1 or least not in (0, 1) or (least == 1 and values.is_floating_point()):
        return False
    return _is_binary(values)


# What is wrong.


def _no_mask(message: str) -> Finding:
    return Finding("no-mask", "error", message, advice="set masked scores to -inf")


def _wrong_axis(softmax: Softmax, keys: frozenset[Atom], axes: _Axes, keys_left: bool) -> Finding:
    over = axes.name(softmax.over)
    if keys_left and softmax.over <= frozenset(axes.queries):
        # Tokens that are dealt to clusters, and clusters that are their sums, are written so.
        return Finding("axis", "note", "the softmax is over the right factor of the scores, the sum over the left one")
    if softmax.over & keys:
        return Finding("axis", "note", f"the softmax is over {over}, the sum with the values over other keys")
    return Finding(
        "axis", "error", f"the softmax is over {over}, and not over the keys, which the values are summed over",
        advice="give softmax the axis of the keys",
    )  # fmt: skip


def _second_softmax(softmax: Softmax) -> Finding | None:
    if not softmax.is_second:
        return None
    return Finding("after-softmax", "error", "a second softmax is taken of the weights of a first, nearly even ones")


def _scaling(flow: Flow, product: Product, width: int) -> Finding | None:
    """Return what is wrong with the scale: √D twice, or none, as some models have it on purpose (T5)."""
    sides = (product.left.steps, product.right.steps, flow.steps)
    if width == 1 or flow.scale is None:
        return None
    if not any(sides):
        return None if any(laid.convention == "multiplied" for laid in flow.laid) else no_scale(width)
    if (twice := scaled_twice(sides, width, "before the product and after it")) is not None:
        return twice
    if sum(is_root(float(step), width) for step in flow.steps) > 1:
        # A layer's number may be the root of its width, and divide the scores on purpose.
        severity: Severity = "note" if math.isqrt(width) ** 2 == width else "error"
        return Finding("unscaled", severity, f"the scores are divided by √{width} twice")
    return None


def _wrong_scale(
    flow: Flow, heads: int, width: int, sides: Sequence[Operand], inputs: Sequence[torch.Tensor | None]
) -> Finding | None:
    """Return that the scores are scaled by another number than 1/√D that is none on purpose."""
    scale = _whole_scale(flow)
    if scale is None or width == 1:
        return None
    before = [float(step) for side in sides for step in side.steps]
    numbers = [*map(float, flow.steps), *before]
    return wrong_scale(scale * math.prod(before), numbers, heads, width, *inputs)


def _whole_scale(flow: Flow) -> float | None:
    if flow.scale is None:
        return None
    return float(flow.scale) * (1.0 if flow.capped is None else float(flow.capped))


def _dropout(flow: Flow, is_training: bool | None) -> Finding | None:
    """Return a note where a module was left in training mode, by which weights are dropped in evaluation on purpose."""
    if not flow.dropout or not flow.in_dropout or is_training is not False:
        return None
    return Finding("dropout", "note", f"{flow.dropout:g} of the weights are dropped by a module in training mode")
