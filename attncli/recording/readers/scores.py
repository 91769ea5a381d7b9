"""What the values at three points say of an attention that a program writes out.

The points are the product of queries and keys, what the softmax received and gave, and the weights as they met the
values. A mask is where scores are forbidden, or far below what the product explains; the scale is a fit of the scores
to q·k up to a shift of each row; a mask after the softmax is weights that met the values as 0; and a wrong axis is one
that the values are not summed over. Tensors that the program added, or filled by, give these things their names.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from attncli.attention import FORBIDDEN_BELOW
from attncli.masks.conventions import Convention
from attncli.masks.findings import Finding
from attncli.recording.readers.layout import Points
from attncli.recording.readers.scale_checks import no_scale, scaled_twice, wrong_scale

# Also where the program puts a function of its own in its place, which is not to be called by us.
_matmul = torch._C._VariableFunctions.matmul

_NO_WEIGHT = 1e-6  # what a mask has to leave to a forbidden key at most, of the weight that it would have
_HIDDEN = math.log(_NO_WEIGHT)
_MOST_CELLS = 2**19  # of a call that are fitted
_ZEROS = ("mul", "tril", "triu")  # what is 0 afterwards may be hidden by something else
_FILLS = ("masked_fill", "where", *_ZEROS)
_MIXING = ("mixed", "linear", "conv1d", "conv2d", "layer_norm", "batch_norm", "group_norm", "rms_norm")

_CHANGED = "what was done to the scores"
_BETWEEN = "tensors that were changed before they met the values"
_MIXED = "the mixing of heads"
_AFTERWARDS = "what was done to the weights"
_OF_HEADS = "a factor of each head"
_FACTOR = "a factor of the weights"
_NORMALISED = "the normalisation of the weights"
# What is not read, and hides no key.
HIDES_NOTHING = (_OF_HEADS, _FACTOR, _NORMALISED)


class Mask(NamedTuple):
    """Which tensor is a mask.

    Attributes:
        name: of the operation that laid it on.
        change: its place among the changes; None where the values of scores alone say what is hidden.
        convention: what its values mean.
        factor: what they were multiplied with since.
        is_applied: whether it hides anything; if it does not, it was meant to.
        is_vacuous: whether it hid nothing in this call.
    """

    name: str
    change: int | None
    convention: Convention
    factor: float = 1.0
    is_applied: bool = True
    is_vacuous: bool = False


class ScoresReading(NamedTuple):
    """What values say of a call, and of others of its kind.

    Attributes:
        scale: what multiplies q·k; None where it is no one number.
        softcap: see AttentionCall.
        masks: in the order in which they apply.
        findings: what is wrong.
        unread: what is not understood.
    """

    scale: float | None
    softcap: float | None
    masks: tuple[Mask, ...]
    findings: tuple[Finding, ...]
    unread: tuple[str, ...]


def read(points: Points, is_training: bool | None) -> ScoresReading:
    """Return what the values of a call say.

    Args:
        points: the call.
        is_training: see AttentionCall.
    """
    call, origin = _Call(points), points.origin
    scale, softcap = call.read_scores()
    call.read_weights()
    if origin.dropout and origin.in_dropout and is_training is False:
        message = f"{origin.dropout:g} of the weights are dropped by a module in training mode"
        call.findings.append(Finding("dropout", "note", message))
    found, unread = tuple(dict.fromkeys(call.findings)), tuple(dict.fromkeys(call.unread))
    return ScoresReading(scale, softcap, tuple(call.masks), found, unread)


class _Call:
    def __init__(self, points: Points) -> None:
        self.points, self.tensors = points, [points.tensor(change) for change in points.changes]
        self.findings: list[Finding] = []
        self.unread: list[str] = []
        self.masks: list[Mask] = []
        before = len(points.origin.softmax.scores.changes)
        self.numbers = points.q_side.factor.numbers, points.k_side.factor.numbers
        self.before, self.after = points.changes[:before], points.changes[before:]

    # --- scores ---------------------------------------------------------------------------------------------

    def read_scores(self) -> tuple[float | None, float | None]:
        """Take what was done before the softmax; return the scale and a soft cap, None where there is none."""
        points = self.points
        if points.scores is None or points.q is None or points.k is None:
            self.unread.append(_BETWEEN)
            return None, None
        if any(change.name in _MIXING for change in self.before):
            self.unread.append(_MIXED)
            return None, None
        self._cut = cut = _Cut(points.scores.shape)
        q, k, y = (cut(each).float() for each in (points.q, points.k, points.scores))
        x = _matmul(q, k.repeat_interleave(max(q.shape[1] // k.shape[1], 1), 1).mT).expand(y.shape)
        added, cap = self._added()
        total = y.new_zeros(y.shape)
        for _, tensor, factor in added:
            total = total + cut(tensor).float() * factor
        below, is_far = total <= _HIDDEN, total.abs() >= -_HIDDEN
        visible = (y > FORBIDDEN_BELOW) & y.isfinite() & x.isfinite() & ~is_far
        rest = y - total.masked_fill(is_far, 0)
        flat, softcap = visible & False, None
        fit = _Fit(x, rest, visible, _tolerance(points.product.dtype, points.scores.dtype))
        if fit.scale is None and (filled := _filled(rest, visible)) is not None:
            flat, fit = filled, _Fit(x, rest, visible & ~filled, fit.tolerance)
        if fit.scale is None and cap:
            capped = cap * (rest / cap).clamp(-1 + 1e-6, 1 - 1e-6).atanh()
            inside = visible & ~flat & (rest.abs() < abs(cap) * 0.999)
            fit, rest, softcap = _Fit(x, capped, inside, 20 * fit.tolerance), capped, cap
        scale, hidden = fit.scale, y <= FORBIDDEN_BELOW
        if scale is None:
            self.unread.append(_OF_HEADS if fit.has_scale_of_each_head() else _CHANGED)
        else:
            usual = (1.0, q.shape[-1] ** -0.5)
            scale = next((each for each in usual if math.isclose(scale, each, rel_tol=2e-3)), scale)
            hidden |= visible & ~flat & (rest - x * scale - fit.shift(scale) < _HIDDEN)
            self._scale(scale, q, k)
        self._masks(added, hidden, below, flat, y)
        return scale, softcap

    def _added(self) -> tuple[list[tuple[int, Tensor, float]], float | None]:
        """Return what was added to the scores, with its factors, and a soft cap."""
        added: list[tuple[int, Tensor, float]] = []
        cap: float | None = None
        for index, change in enumerate(self.before):
            is_negated = change.name in ("neg", "sub" if not change.is_first else "rsub")
            if (factor := -1.0 if is_negated else change.factor) is not None:
                added = [(i, each, own * factor) for i, each, own in added]
                cap = None if cap is None else cap * factor
            tensor = self.tensors[index]
            if change.name == "tanh":
                cap = 1.0
            elif change.name in ("add", "sub", "rsub") and tensor is not None and tensor.shape[-1] > 1:
                added.append((index, tensor, -1.0 if change.name == "sub" and change.is_first else 1.0))
        return [each for each in added if each[1].stride(-1)], cap

    def _masks(
        self, added: list[tuple[int, Tensor, float]], hidden: Tensor, below: Tensor, flat: Tensor, y: Tensor
    ) -> None:
        """Take the masks that were added, those that scores were filled by, and those that hide nothing.

        Args:
            added: what was added, with its factors.
            hidden: what is hidden.
            below: by what was added.
            flat: what is filled by a number that may hide nothing.
            y: the scores.
        """
        points, live = self.points, y < -math.inf
        if points.weights is not None and points.wrong is None:
            live = (self._cut(points.weights) > _NO_WEIGHT) & ~(hidden | below).all(-1, keepdim=True)
            live &= self._cut(points.met) != 0  # what was masked later is no weight
        for index, bias, factor in added:
            if _is_boolean(bias):
                self.findings.append(_added_boolean(bias.dtype))
            forbidden = self._cut(bias).float() * factor <= FORBIDDEN_BELOW
            is_idle = bool((forbidden & live).any())
            self.unread += [_CHANGED] * is_idle
            self.masks.append(Mask("added", index, "additive", factor, is_applied=not is_idle))
        idle = flat & live
        idle = flat if bool((idle.any(-1) & ~(hidden | below | flat).all(-1)).any()) else flat & False
        covered, is_known = below, not bool(idle.any())
        fills = [(index, change) for index, change in enumerate(self.before) if change.name in _FILLS]
        found = []
        for index, change in sorted(fills, key=lambda each: each[1].name in _ZEROS):
            tensor = self.tensors[index]
            if tensor is None or (change.name in _ZEROS and not _is_binary(tensor)):
                continue
            convention: Convention = "masked" if change.name == "masked_fill" or not change.is_first else "attend"
            hides = ((self._cut(tensor) != 0) == (convention == "masked")).expand(y.shape)
            if bool((hides & ~(hidden | flat | below)).any()):
                continue
            if not is_known and bool((hides & idle).any()):
                self.findings.append(_idle(change.name, float(y[hides & idle][0])))
                found.append(Mask(change.name, index, convention, is_applied=False))
                is_known = True
            elif change.name not in _ZEROS or bool((hides & ~covered).any()):
                found.append(Mask(change.name, index, convention, is_vacuous=not bool(hides.any())))
                covered = covered | hides
        uncovered = (hidden if bool(idle.any()) else hidden | flat) & ~covered
        is_known &= not bool((uncovered & (y > FORBIDDEN_BELOW)).any())
        if bool(uncovered.any()):
            found = [*(mask for mask in found if not mask.is_applied), Mask("assigned", None, "masked")]
        if not is_known:
            self.unread.append("an assignment to a part of the scores")
        self.masks += found

    def _scale(self, scale: float, q: Tensor, k: Tensor) -> None:
        """Take what is wrong with the scale: √D twice, or none, as some models have it on purpose (T5)."""
        width, heads = q.shape[-1], self.points.shape[1]
        steps = [factor for change in self.before if (factor := change.factor) is not None]
        before = [float(each) for side in self.numbers for each in side]
        wrong: Finding | None = None
        if steps or before:
            wrong = scaled_twice((*self.numbers, steps), width, "before the product and after it") or wrong_scale(
                scale * math.prod(before), [*steps, *before], heads, width, self.points.q, self.points.k
            )
        elif math.isclose(scale, 1, rel_tol=1e-3) and all(change.name != "mul" for change in self.before):
            wrong = no_scale(width)
        self.findings += [] if wrong is None or width == 1 else [wrong]

    # --- weights --------------------------------------------------------------------------------------------

    def read_weights(self) -> None:
        """Take the axis of the softmax, and what was done to weights since."""
        weights, met, over = self.points.weights, self.points.met, self.points.wrong
        if any(change.name in _MIXING for change in self.after):
            self.unread.append(_MIXED)
        if weights is None:
            return
        is_again = bool(self.after) and _sums_to_one(met)
        if over is not None and is_again:
            self.unread.append(_NORMALISED)
        elif over is not None:
            self.findings.append(_wrong_axis(over, self.points.keys_are_left and over == "the queries"))
        elif self.after and not self.points.origin.dropout and _MIXED not in self.unread:
            self._met(weights, met, is_again)

    def _met(self, weights: Tensor, met: Tensor, is_again: bool) -> None:
        zero, live = met == 0, weights > _NO_WEIGHT
        lost = zero & live & ~zero.all(-1, keepdim=True)
        factor = (met / weights).masked_fill(zero | ~live, math.nan)
        is_same = not bool(((factor - 1).abs() > 0.02).any())
        is_late = bool(lost.any()) and _is_structured(lost, ~live | zero.all(-1, keepdim=True))
        if is_late and is_again:
            self.unread.append(_AFTERWARDS)
        elif is_late and is_same:
            self.findings.append(Finding(
                "after-softmax", "error",
                "the mask is laid on after the softmax: masked keys have taken part in it, and rows do not sum to 1",
                advice="lay the mask on the scores, before the softmax",
            ))  # fmt: skip
        elif bool(((factor - factor.nanmean(-1, keepdim=True)).abs() > 0.02 * factor.abs()).any()):
            self.unread.append(_AFTERWARDS)
        elif not is_same or bool(lost.any()):
            self.unread.append(_FACTOR)


class _Cut:
    """Cuts tensors of large calls to some of their rows and heads."""

    def __init__(self, shape: torch.Size) -> None:
        batch, heads, queries, keys = shape
        most = max(_MOST_CELLS // (queries * keys), 1)
        self.heads = max(min(heads, most // batch), min(heads, 2))  # masks differ by rows rather than by heads
        self.batch = max(min(batch, most // self.heads), 1)
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

    Attributes:
        scale: the factor; None where there is no such factor.
    """

    def __init__(self, products: Tensor, scores: Tensor, visible: Tensor, tolerance: float) -> None:
        self.x, self.y, self.visible, self.tolerance = products, scores, visible, tolerance
        self.dx, self.dy = (_centred(each, visible) for each in (products, scores))

        square = float((self.dx * self.dx).sum())
        # Of what does not differ within a row, nothing shows a scale.
        scale = 1.0 if square < 1e-12 else float((self.dx * self.dy).sum()) / square
        self.scale = scale if self._is_close(self.dx * scale) else None

    def has_scale_of_each_head(self) -> bool:
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
    halves = (torch.finfo(dtype).eps for dtype in dtypes if dtype in (torch.float16, torch.bfloat16))
    return max(7.5 * max(halves, default=0), 2.5e-4)


def _filled(scores: Tensor, visible: Tensor) -> Tensor | None:
    """Return the cells of one and the same number, the one that most of them hold, if they are a mask."""
    values, counts = scores[visible].unique(return_counts=True)  # type: ignore[no-untyped-call]
    if not len(counts) or int(counts.max()) < 2:
        return None
    cells = (scores == values[counts.argmax()]) & visible
    return cells if _is_structured(cells, ~visible) else None


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


def _sums_to_one(weights: Tensor) -> bool:
    """Return whether weights of queries sum to 1, where there are any."""
    sums = weights.float().sum(-1)
    is_one = ((sums - 1).abs() < 2e-2) | (sums == 0) | sums.isnan()
    return bool(is_one.all()) and bool(((weights >= 0) | weights.isnan()).all())


def _idle(name: str, fill: float) -> Finding:
    """Return that a mask leaves masked scores a weight."""
    if name in _ZEROS:
        what = "are multiplied with a mask of 0 and 1" if name == "mul" else f"go through torch.{name}"
        return _no_mask(f"scores {what} before the softmax: 0 is a score like others")
    return _no_mask(f"{name} sets masked scores to {fill:g}, which leaves them a weight")


def _no_mask(message: str) -> Finding:
    return Finding("no-mask", "error", message, advice="set masked scores to -inf")


def _added_boolean(dtype: torch.dtype) -> Finding:
    kind = "booleans are" if dtype == torch.bool else "a mask of 0 and 1 is"
    return Finding(
        "added-bool", "error", f"{kind} added to the scores: 1 is a small bias, and nothing is masked",
        advice="use masked_fill, or add 0 and -inf",
    )  # fmt: skip


def _wrong_axis(over: str, is_of_right: bool) -> Finding:
    if is_of_right:
        # Tokens that are dealt to clusters, and clusters that are their sums, are written so.
        return Finding("axis", "note", "the softmax is over the right factor of the scores, the sum over the left one")
    return Finding(
        "axis", "error", f"the softmax is over {over}, and not over the keys, which the values are summed over",
        advice="give softmax the axis of the keys",
    )  # fmt: skip
