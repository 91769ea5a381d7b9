"""What the values at three points say of an attention that a program writes out.

The points are the product of queries and keys, what the softmax received and gave, and the weights as they met the
values. A mask is where scores are forbidden, or far below what the product explains; the scale is a fit of the scores
to q·k up to a shift of each row; a mask after the softmax is weights that met the values as 0; and a wrong axis is one
that the values are not summed over. Tensors that the program added, or filled by, give these things their names.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from attncli.attention import FORBIDDEN_BELOW
from attncli.masks.conventions import Convention
from attncli.masks.findings import Finding, Severity
from attncli.recording.readers.origins import Change, Number, Weights
from attncli.recording.readers.scale_checks import is_root, no_scale, scaled_twice, wrong_scale

_NO_WEIGHT = 1e-6  # what a mask has to leave to a forbidden key at most, of the weight that it would have
_HIDDEN = math.log(_NO_WEIGHT)
_MOST_CELLS = 2**23  # of a call that are fitted
_ZEROS = ("mul", "tril", "triu")  # what is 0 afterwards may be hidden by something else
_FILLS = ("masked_fill", "where", *_ZEROS)
_MIXING = ("mixed", "linear", "conv1d", "conv2d", "layer_norm", "batch_norm", "group_norm", "rms_norm")

_CHANGED = "what was done to the scores"
_MIXED = "the mixing of heads"
_OF_HEADS = "a factor of each head"
_BESIDE = "what is beside the scores"
_OTHERS = "what is added to the weights"
_FACTOR = "a factor of the weights"
_NORMALISED = "the normalisation of the weights"
# What is not read, and hides no key.
HIDES_NOTHING = (_OF_HEADS, _OTHERS, _FACTOR, _NORMALISED)


class Mask(NamedTuple):
    """Which tensor is a mask.

    Attributes:
        name: of the operation that laid it on.
        change: its place among the changes; None where the values of scores or weights alone say what is hidden.
        convention: what its values mean.
        factor: what they were multiplied with since.
        is_applied: whether it hides anything; if it does not, it was meant to.
        is_before: whether it was laid on before the softmax.
        is_vacuous: whether it hid nothing in this call.
    """

    name: str
    change: int | None
    convention: Convention
    factor: float = 1.0
    is_applied: bool = True
    is_before: bool = True
    is_vacuous: bool = False


class Reading(NamedTuple):
    """What values say of a call, and of others of its kind.

    Attributes:
        scale: what multiplies q·k; None where it is no one number.
        softcap: see AttentionCall.
        masks: in the order in which they apply.
        findings: what is wrong.
        unread: what is not understood.
        sinks: see AttentionCall.
    """

    scale: float | None
    softcap: float | None = None
    masks: tuple[Mask, ...] = ()
    findings: tuple[Finding, ...] = ()
    unread: tuple[str, ...] = ()
    sinks: Tensor | None = None

    @property
    def is_normalised_again(self) -> bool:
        """Whether weights were masked, and their rows normalised again."""
        return any(mask.is_applied and not mask.is_before for mask in self.masks)


class Points(NamedTuple):
    """A call at its three points, tensors as `[B, H, …]`.

    Attributes:
        q: queries, None where they were changed since; k: keys, likewise.
        k: keys, likewise.
        scores: what the softmax received; None where it is written out.
        weights: what it gave.
        met: the weights as they met the values; None where they were added to others.
        changes: of scores and weights.
        tensors: what they were done with.
        origin: where the weights come from.
        dtype: of the product.
        numbers: what queries and keys were multiplied with before.
        wrong_axis: what the softmax is over, if it is not the keys.
        is_of_right: whether that is the right factor of the product, and the keys are the left one.
        is_training: see AttentionCall.
        sinks: the column beside the scores.
    """

    q: Tensor | None
    k: Tensor | None
    scores: Tensor | None
    weights: Tensor | None
    met: Tensor | None
    changes: tuple[Change, ...]
    tensors: tuple[Tensor | None, ...]
    origin: Weights
    dtype: torch.dtype
    numbers: tuple[tuple[Number, ...], tuple[Number, ...]]
    wrong_axis: str | None
    is_of_right: bool
    is_training: bool | None
    sinks: Tensor | None


def read(points: Points) -> Reading:
    """Return what the values of a call say."""
    return _Call(points).read()


class _Call:
    def __init__(self, points: Points) -> None:
        self.points = points
        self.findings: list[Finding] = []
        self.unread: list[str] = []
        self.masks: list[Mask] = []
        before = points.origin.before
        self.before, self.after = points.changes[:before], points.changes[before:]

    def read(self) -> Reading:
        """Return what was found."""
        reading = self._scores()
        self._weights()
        if self.points.origin.is_second:
            message = "a second softmax is taken of the weights of a first, nearly even ones"
            self.findings.append(Finding("after-softmax", "error", message))
        origin = self.points.origin
        if origin.dropout and origin.in_dropout and self.points.is_training is False:
            message = f"{origin.dropout:g} of the weights are dropped by a module in training mode"
            self.findings.append(Finding("dropout", "note", message))
        found, unread = tuple(dict.fromkeys(self.findings)), tuple(dict.fromkeys(self.unread))
        return reading._replace(masks=tuple(self.masks), findings=found, unread=unread)

    # --- scores ---------------------------------------------------------------------------------------------

    def _scores(self) -> Reading:
        points = self.points
        received = points.scores
        if received is None and points.weights is not None and points.origin.received is None:
            received = points.weights.float().log()  # a softmax changes nothing but a shift of each row
        if received is None or points.q is None or points.k is None:
            self.unread.append("tensors that were changed before they met the values")
            return Reading(None)
        if any(change.name in _MIXING for change in self.before):
            self.unread.append(_MIXED)
            return Reading(None)
        cut = _Cut(received.shape)
        self._cut = cut
        y, w = cut(received).float(), None if points.weights is None else cut(points.weights).float()
        if w is not None and self.after and points.met is not None and points.met.shape == received.shape:
            w = w.masked_fill(cut(points.met) == 0, 0)  # what was masked after the softmax is no weight
        q, k = (
            cut(points.q).float(),
            cut(points.k.repeat_interleave(max(received.shape[1] // points.k.shape[1], 1), 1)).float(),
        )
        x = q @ k.mT
        if x.shape[-2:] != y.shape[-2:]:
            self.unread.append(_CHANGED)
            return Reading(None)
        x = x.expand(y.shape)
        added, total, number, cap = self._added()
        below = total <= _HIDDEN
        visible = (y > FORBIDDEN_BELOW) & y.isfinite() & x.isfinite() & (total.abs() < -_HIDDEN)
        rest = (y - total.nan_to_num(neginf=0.0, posinf=0.0)).expand(y.shape)
        fit = _Fit(
            x, rest, visible, _tolerance(points.dtype, y.dtype if points.scores is None else points.scores.dtype)
        )
        flat = torch.zeros_like(visible)
        scale, softcap = fit.scale(), None
        if scale is None and (constant := _constant(rest, visible)) is not None and _is_structured(constant, ~visible):
            flat = constant
            fit = _Fit(x, rest, visible & ~flat, fit.tolerance)
            scale = fit.scale()
        if scale is None and cap:
            rest = cap * (rest / cap).clamp(-1 + 1e-6, 1 - 1e-6).atanh()
            fit = _Fit(x, rest, visible & ~flat & (y.abs() < abs(cap) * 0.999), 20 * fit.tolerance)
            scale, softcap = fit.scale(), cap
        if scale is None:
            self.unread.append(_OF_HEADS if fit.scales_of_heads() else _CHANGED)
            hidden = y <= FORBIDDEN_BELOW
            expected = None
        else:
            scale = number if number is not None and math.isclose(scale, number, rel_tol=2e-3) else scale
            shift = fit.shift(scale)
            hidden = (y <= FORBIDDEN_BELOW) | (visible & ~flat & (rest - x * scale - shift < _HIDDEN))
            expected = x * scale + shift
        if points.wrong_axis is None:
            self._added_masks(added, w, hidden | below)
            self._filled_masks(hidden, below.expand(y.shape), flat, y, w)
        else:
            self._added_masks(added, None, hidden | below)
            self._filled_masks(hidden, below.expand(y.shape), torch.zeros_like(flat), y, None)
        sinks = None
        if any(change.name == "beside" for change in points.changes):
            if points.sinks is None or expected is None or cut.is_cut:
                self.unread.append(_BESIDE)
            else:
                sinks = points.sinks.float() - shift
        if scale is not None:
            self._scale(scale, q, k)
        elif _OF_HEADS in self.unread:
            pass
        return Reading(scale, softcap, sinks=sinks)

    def _added(self) -> tuple[list[tuple[int, float]], Tensor, float | None, float | None]:
        """Return what was added to the scores, with its factors; all of it; the scale by numbers; and a soft cap."""
        added: list[tuple[int, float]] = []
        number: float | None = 1.0
        cap: float | None = None
        for index, change in enumerate(self.before):
            tensor, factor = self.points.tensors[index], _number(change)
            if change.name in ("mul", "div", "neg"):
                if change.name == "neg":
                    factor = -1.0
                if factor is None:
                    number = None if number is not None and change.name == "mul" and not _is_binary(tensor) else number
                    continue
                factor = 1 / factor if change.name == "div" and factor else factor
                added = [(i, own * factor) for i, own in added]
                number = None if number is None else number * factor
                cap = None if cap is None else cap * factor
            elif change.name == "tanh":
                added, cap = [(i, own) for i, own in added], 1.0
            elif change.name in ("add", "sub", "rsub"):
                is_negated = change.name == "rsub" if change.is_first else change.name == "sub"
                if is_negated:
                    added = [(i, -own) for i, own in added]
                    number = None if number is None else -number
                if tensor is not None and tensor.shape[-1] > 1 and tensor.stride(-1):
                    added.append((index, -1.0 if change.name == "sub" and change.is_first else 1.0))
        total = torch.zeros(1, 1, 1, 1, device=self.points.q.device if self.points.q is not None else None)
        for index, factor in added:
            own = self.points.tensors[index]
            assert own is not None
            total = total + self._cut(own).float() * factor
        return added, total, number, cap

    def _added_masks(self, added: list[tuple[int, float]], weights: Tensor | None, hidden: Tensor) -> None:
        for index, factor in added:
            tensor = self.points.tensors[index]
            assert tensor is not None
            own = self._cut(tensor)
            forbidden = own.float() * factor <= FORBIDDEN_BELOW
            if weights is not None and _has_weight(forbidden.expand(weights.shape), weights, ~hidden):
                why = "a mask is added before the tanh of the soft cap, which leaves masked keys a weight"
                self.findings.append(_no_mask(why))
                self.masks.append(Mask("added", index, "additive", factor, is_applied=False))
                continue
            if _is_boolean(tensor):
                kind = "booleans are" if tensor.dtype == torch.bool else "a mask of 0 and 1 is"
                self.findings.append(Finding(
                    "added-bool", "error", f"{kind} added to the scores: 1 is a small bias, and nothing is masked",
                    advice="use masked_fill, or add 0 and -inf",
                ))  # fmt: skip
            self.masks.append(Mask("added", index, "additive", factor))

    def _filled_masks(self, hidden: Tensor, below: Tensor, flat: Tensor, y: Tensor, weights: Tensor | None) -> None:
        """Take the masks that scores were filled by, and fills that hide nothing."""
        everything, covered = hidden | below, torch.zeros_like(hidden)
        has_weight = weights is not None and bool(flat.any()) and _has_weight(flat, weights, ~everything)
        if not has_weight:
            everything = everything | flat
        named: list[Mask] = []
        flat_name = None
        for index, change in sorted(enumerate(self.before), key=lambda each: each[1].name in _ZEROS):
            tensor = self.points.tensors[index]
            if tensor is None or change.name not in _FILLS or (change.name in _ZEROS and not _is_binary(tensor)):
                continue
            own = self._cut(tensor) != 0
            for hides, convention in _ways(change, own):
                wide = hides.expand(everything.shape)
                if has_weight and bool((flat & wide).any()) and not bool((wide & ~(flat | everything)).any()):
                    fill = float(y[flat & wide][0])
                    flat_name = change.name, fill
                    named.append(Mask(change.name, index, convention, is_applied=False))
                    break
                is_empty = not bool(wide.any())
                if bool((wide & ~everything).any()):
                    continue
                if change.name in _ZEROS and not bool((wide & ~below & ~covered).any()):
                    break  # something else hides what is 0
                named.append(Mask(change.name, index, convention, is_vacuous=is_empty))
                covered = covered | wide
                break
        rest = (hidden | (flat if not has_weight else torch.zeros_like(flat))) & ~below & ~covered
        if bool(rest.any()):
            named = [mask for mask in named if not mask.is_applied]
            named.append(Mask("assigned", None, "masked"))
        self.masks += named
        if has_weight:
            self._no_mask(flat_name)

    def _no_mask(self, named: tuple[str, float] | None) -> None:
        name, fill = named or ("the program", 0.0)
        if name in _ZEROS:
            what = "are multiplied with a mask of 0 and 1" if name == "mul" else f"go through torch.{name}"
            self.findings.append(_no_mask(f"scores {what} before the softmax: 0 is a score like others"))
        else:
            self.findings.append(_no_mask(f"{name} sets masked scores to {fill:g}, which leaves them a weight"))

    def _scale(self, scale: float, q: Tensor, k: Tensor) -> None:
        """Take what is wrong with the scale: √D twice, or none, as some models have it on purpose (T5)."""
        width, heads = q.shape[-1], self.points.q.shape[1] if self.points.q is not None else 1
        if width == 1 or not scale:
            return
        steps = [number for change in self.before if (number := _scaling(change)) is not None]
        before = [float(each) for side in self.points.numbers for each in side]
        if not steps and not before:
            is_binary = any(change.name == "mul" for change in self.before)
            if math.isclose(scale, 1, rel_tol=1e-3) and not is_binary:
                self.findings.append(no_scale(width))
            return
        twice = scaled_twice((*self.points.numbers, steps), width, "before the product and after it")
        if twice is not None:
            self.findings.append(twice)
        elif sum(is_root(step, width) for step in steps) > 1:
            # A layer's number may be the root of its width, and divide the scores on purpose.
            severity: Severity = "note" if math.isqrt(width) ** 2 == width else "error"
            self.findings.append(Finding("unscaled", severity, f"the scores are divided by √{width} twice"))
        else:
            wrong = wrong_scale(
                scale * math.prod(before), [*steps, *before], heads, width, self.points.q, self.points.k
            )
            self.findings += [] if wrong is None else [wrong]

    # --- weights --------------------------------------------------------------------------------------------

    def _weights(self) -> None:
        """Take the axis of the softmax, and what was done to weights since."""
        points, weights, met = self.points, self.points.weights, self.points.met
        if points.origin.others or met is None:
            self.unread.append(_OTHERS)
        if weights is None or points.origin.others:
            return
        is_again = met is not None and met.shape == weights.shape and bool(self.after) and _sums_to_one(met, -1)
        over = points.wrong_axis
        if points.origin.received is None and not _sums_to_one(weights, -1):
            if _sums_to_one(weights, -2):
                over = "the queries"
            else:
                self.unread.append(_NORMALISED)
        if over is not None and is_again:
            self.unread.append(_NORMALISED)
        elif over is not None:
            self.findings.append(_wrong_axis(over, points.is_of_right))
        if any(change.name in _MIXING for change in self.after):
            self.unread.append(_MIXED)
        elif (
            met is not None and met.shape == weights.shape and self.after and not points.origin.dropout and over is None
        ):
            self._met(weights, met, is_again)

    def _met(self, weights: Tensor, met: Tensor, is_again: bool) -> None:
        zero, live = met == 0, weights > _NO_WEIGHT
        lost = zero & live & ~zero.all(-1, keepdim=True)
        kept = live & ~zero
        ratio = (met / weights)[kept]
        is_same = not ratio.numel() or bool((ratio - 1).abs().max() < 0.02)
        if bool(lost.any()) and (is_same or is_again) and _is_structured(lost, ~live | zero.all(-1, keepdim=True)):
            self._masked_late(is_again)
        elif not is_same or bool(lost.any()):
            self.unread.append(_FACTOR)

    def _masked_late(self, is_again: bool) -> None:
        names = [change.name for change in self.after if change.name in _FILLS]
        name = {"mul": "multiplied"}.get(names[0], names[0]) if names else "weights"
        self.masks.append(Mask(name, None, "masked", is_applied=is_again, is_before=False))
        if is_again:
            message = "the mask is laid on after the softmax, and rows are normalised again"
            self.findings.append(Finding("after-softmax", "note", message))
        else:
            self.findings.append(Finding(
                "after-softmax", "error",
                "the mask is laid on after the softmax: masked keys have taken part in it, and rows do not sum to 1",
                advice="lay the mask on the scores, before the softmax",
            ))  # fmt: skip


class _Cut:
    """Cuts tensors of large calls to the first rows and heads."""

    def __init__(self, shape: torch.Size) -> None:
        batch, heads, queries, keys = shape
        self.heads = max(min(heads, _MOST_CELLS // (queries * keys)), 1)
        self.batch = max(min(batch, _MOST_CELLS // (self.heads * queries * keys)), 1)
        self.is_cut = (self.batch, self.heads) != (batch, heads)

    def __call__(self, tensor: Tensor) -> Tensor:
        return tensor[: self.batch, : self.heads].detach() if self.is_cut else tensor.detach()


class _Fit:
    """A fit of scores to products, up to a shift of each row.

    Args:
        products: `[B, H, Q, K]`.
        scores: likewise.
        visible: which cells count.
        tolerance: how far numbers may be apart, of 1 and of themselves.
    """

    def __init__(self, products: Tensor, scores: Tensor, visible: Tensor, tolerance: float) -> None:
        self.x, self.y, self.visible, self.tolerance = products, scores, visible, tolerance
        self.dx, self.dy = (_centred(each, visible) for each in (products, scores))

    def scale(self) -> float | None:
        """Return the factor; None where there is no such factor, 1 where nothing shows one."""
        square = float((self.dx * self.dx).sum())
        if square < 1e-12:
            return 1.0 if self._is_close(torch.zeros_like(self.dy)) else None
        scale = float((self.dx * self.dy).sum()) / square
        return scale if self._is_close(self.dx * scale) else None

    def scales_of_heads(self) -> bool:
        """Return whether each head has a factor of its own."""
        square = (self.dx * self.dx).sum((-2, -1), keepdim=True).clamp(min=1e-12)
        return self._is_close(self.dx * (self.dx * self.dy).sum((-2, -1), keepdim=True) / square)

    def shift(self, scale: float) -> Tensor:
        """Return what was added to each row, `[B, H, Q, 1]`."""
        return _means(self.y - self.x * scale, self.visible)

    def _is_close(self, expected: Tensor) -> bool:
        size = 1 + torch.maximum(self.y.abs(), self.dy.abs())
        is_far = ((self.dy - expected).abs() > self.tolerance * size) & self.visible
        return int(is_far.sum()) <= 1e-3 * int(self.visible.sum())


def _means(values: Tensor, visible: Tensor) -> Tensor:
    """Return the mean of each row over what is visible; 0 where nothing is."""
    return values.masked_fill(~visible, 0).sum(-1, keepdim=True) / visible.sum(-1, keepdim=True).clamp(min=1)


def _centred(values: Tensor, visible: Tensor) -> Tensor:
    return (values - _means(values, visible)).masked_fill(~visible, 0)


def _tolerance(*dtypes: torch.dtype) -> float:
    return (
        max(30 * torch.finfo(dtype).eps if dtype in (torch.float16, torch.bfloat16) else 1e-3 for dtype in dtypes) / 4
    )


def _constant(scores: Tensor, visible: Tensor) -> Tensor | None:
    """Return the cells that hold one and the same number, the one that most of them hold."""
    values, counts = scores[visible].unique(return_counts=True)  # type: ignore[no-untyped-call]
    if not len(counts) or int(counts.max()) < 2:
        return None
    return (scores == values[counts.argmax()]) & visible


def _is_structured(cells: Tensor, unknown: Tensor) -> bool:
    """Return whether some cells are a mask, and not drawn or chosen by values: the same in all rows, heads or queries.

    Args:
        cells: `[B, H, Q, K]`.
        unknown: where nothing is known.
    """
    others = ~cells & ~unknown
    for axis in range(3):
        if cells.shape[axis] > 1 and not bool((cells.any(axis) & others.any(axis)).any()):
            return True
    queries, keys = cells.shape[-2:]
    later = torch.ones(queries, keys, dtype=torch.bool, device=cells.device).triu(keys - queries + 1)
    return not bool(((cells & ~later) | (others & later)).any())


def _has_weight(forbidden: Tensor, weights: Tensor, allowed: Tensor) -> bool:
    """Return whether a row that may attend to some keys has weight on others, which are forbidden.

    A row whose other keys are hidden too is one of padding and may not attend to any.
    """
    heaviest = weights.masked_fill(~forbidden, 0).amax(-1)
    return bool(((heaviest > _NO_WEIGHT) & (allowed & ~forbidden).any(-1)).any())


def _ways(change: Change, mask: Tensor) -> Iterator[tuple[Tensor, Convention]]:
    """Yield what a mask may hide, by what it is filled with: what is True, or what is not."""
    ways: list[tuple[Tensor, Convention]] = [(mask, "masked"), (~mask, "attend")]
    yield from ways if change.name == "masked_fill" else reversed(ways)


def _number(change: Change) -> float | None:
    other = change.other
    if isinstance(other, Tensor):
        return float(other) if other.numel() == 1 else None
    return other


def _scaling(change: Change) -> float | None:
    """Return the number that scores were multiplied with."""
    number = _number(change) if change.name in ("mul", "div") else None
    return number if change.name == "mul" or not number else 1 / number


def _is_binary(values: Tensor | None) -> bool:
    return values is not None and (values.dtype == torch.bool or bool(((values == 0) | (values == 1)).all()))


def _is_boolean(values: Tensor) -> bool:
    """Return whether values that are added are a mask of 0 and 1: numbers that are all 0, or all 1.0, are none."""
    if values.dtype == torch.bool:
        return True
    least, most = (float(each) for each in values.aminmax())
    if most != 1 or least not in (0, 1) or (least == 1 and values.is_floating_point()):
        return False
    return _is_binary(values)


def _sums_to_one(weights: Tensor, axis: int) -> bool:
    """Return whether weights sum to 1 along an axis, where there are any."""
    sums = weights.float().sum(axis)
    return bool(((sums - 1).abs() < 2e-2).logical_or(sums == 0).logical_or(sums.isnan()).all()) and bool(
        (weights >= 0).logical_or(weights.isnan()).all()
    )


def _no_mask(message: str) -> Finding:
    return Finding("no-mask", "error", message, advice="set masked scores to -inf")


def _wrong_axis(over: str, is_of_right: bool) -> Finding:
    if is_of_right:
        # Tokens that are dealt to clusters, and clusters that are their sums, are written so.
        return Finding("axis", "note", "the softmax is over the right factor of the scores, the sum over the left one")
    return Finding(
        "axis", "error", f"the softmax is over {over}, and not over the keys, which the values are summed over",
        advice="give softmax the axis of the keys",
    )  # fmt: skip
