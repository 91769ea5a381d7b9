"""Attention that a program writes out: a product, a softmax, a product.

Between these points it is not interpreted what a program does: what has as many numbers as scores or weights is taken
for them. What it did to them is read from values at the three points; see `scores`. A softmax whose weights meet no
values, of a classifier or a router, is no attention; one of queries and keys that cannot be followed to its values is
counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from attncli.recording.cost import Cost
from attncli.recording.readers.contraction import PRODUCTS, Contraction, contraction
from attncli.recording.readers.heads import is_split, merged, split_heads
from attncli.recording.readers.origins import (
    UNKNOWN,
    AttentionOutput,
    Factor,
    Held,
    Lost,
    Number,
    Operand,
    Product,
    Scores,
    Weighing,
    Weights,
    has_values,
    is_learned,
    several_numbers,
)
from attncli.recording.readers.reader import Reader, ThreadContext
from attncli.recording.readers.written_out import WrittenOut

_TOO_MUCH = (
    "hand-written attention was followed for a part of the run, as it took longer than the program itself: what it "
    "computed later is not in the table; calls of torch's own attention functions are"
)
_SOFTMAX = ("softmax", "special_softmax")
_TIMES = {
    **dict.fromkeys(("mul", "multiply", "__mul__", "__rmul__", "__imul__"), "mul"),
    **dict.fromkeys(("div", "divide", "true_divide", "__truediv__", "__itruediv__"), "div"),
}
_NAMES = {
    **_TIMES,
    **dict.fromkeys(("__add__", "__radd__", "__iadd__"), "add"),
    **dict.fromkeys(("subtract", "__sub__", "__isub__"), "sub"),
    **dict.fromkeys(("__rsub__",), "rsub"),
    **dict.fromkeys(("negative", "__neg__"), "neg"),
    **dict.fromkeys(("log_softmax", "special_log_softmax"), "log_softmax"),
    "concat": "cat",
    "__setitem__": "setitem",
}
_VIEWS = ("view", "reshape", "flatten", "unflatten", "view_as", "reshape_as", "unsqueeze", "squeeze")
_ORDERS = ("transpose", "swapaxes", "swapdims", "t", "permute", "movedim", "moveaxis", "mT", "T", "adjoint")
_COPIES = (
    "contiguous", "clone", "detach", "to", "type", "type_as", "float", "half", "bfloat16", "double", "cpu", "cuda",
    "data",
)  # fmt: skip
_PARTS = ("__getitem__", "narrow", "select", "chunk", "split", "unbind", "expand", "expand_as", "repeat_interleave")
_KEEP_FACTORS = {*_VIEWS, *_ORDERS, *_COPIES, *_PARTS, "neg"}
# What gives something else than scores or weights in another order or another place.
_ENDING = {
    *PRODUCTS, *_SOFTMAX, "linear", "conv1d", "conv2d", "layer_norm", "rms_norm", "batch_norm", "group_norm", "sum",
    "mean", "amax", "amin", "max", "min", "logsumexp", "norm", "topk", "sort", "argmax", "var", "std", "cross_entropy",
    "nll_loss", "multinomial", "diag", "diagonal", "trace", "gather", "mv", "addmm", "log_softmax",
}  # fmt: skip
# Where functions of torch are; the last two also where the program put others in their place.
_HOMES = (torch.Tensor, torch, F, torch.special, torch.functional, torch._C.TensorBase, torch._C._VariableFunctions)


class Softmax(Reader):
    """Follows tensors from a product on, until this takes longer than the program itself.

    Args:
        context: the thread.
        clock: see `Cost`.
    """

    def __init__(self, context: ThreadContext, clock: Callable[[], float] = perf_counter) -> None:
        super().__init__(context)
        self._origins, self._written, self._cost = context.origins, WrittenOut(), Cost(clock)
        self.follows = self._seen
        names = (*PRODUCTS, *_SOFTMAX, *_TIMES, *_VIEWS)
        self._names = {function: name for name in names for function in spelled(name)}  # also of a program's own
        self.begins = {function: _always for name in (*PRODUCTS, *_SOFTMAX) for function in spelled(name)}
        self.begins |= {function: _may_begin for name in _TIMES for function in spelled(name)}
        self.begins |= {function: _may_split for name in _VIEWS for function in spelled(name)}

    def _seen(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if self._origins.is_over:
            return
        begun = self._cost.clock()
        name = self._names.get(func) or func.__name__
        if name == "__get__":
            name = getattr(func.__self__, "__name__", "")  # type: ignore[attr-defined]
        name = name if name.endswith("__") else name.rstrip("_")
        self._follow(_Ran(_NAMES.get(name, name), args, kwargs), result)
        if self._cost.is_too_much(begun):
            self._origins.end()
            self.context.note(_TOO_MUCH)

    def _follow(self, ran: _Ran, result: Any) -> None:
        if ran.name in PRODUCTS:
            if has_values(result) and result.is_floating_point() and result.numel():
                self._multiplied(ran, result)
        elif ran.name in _SOFTMAX:
            self._softmax(ran, result)
        elif ran.name in ("setitem", "copy"):
            self._assigned(ran.args[0], ran.args[-1])
        elif not ran.name.endswith("_like") and not ran.name.startswith("new_"):
            for each in result if isinstance(result, tuple | list) else (result,):
                if has_values(each) and each.is_floating_point():
                    self._went_on(ran, each)

    # --- the three points -----------------------------------------------------------------------------------

    def _multiplied(self, ran: _Ran, result: Tensor) -> None:
        """Take a product: weights meet values, or scores are made."""
        found = contraction(ran.name, ran.args, ran.kwargs)
        if found is None:
            is_of_tensors = len([each for each in ran.tensors if each.ndim > 2 and not is_learned(each)]) > 1
            self._origins.put(result, Lost() if is_of_tensors else None)
            return
        for each in (found, found.turned()):
            origin = self._origins.get(each.left)
            if isinstance(origin, Weights):
                self._meet(origin, each, result)
                return
            if isinstance(origin, Lost) and origin.stage == "weights":
                if _are_values(each, self._origins.get(each.right)):
                    self._origins.put(each.left, None)
                    self.context.lose(tuple(each.left.shape))
                return
            if isinstance(origin, Scores) and origin.product.is_of_pairs:
                if origin.is_raised:
                    self.context.lose(tuple(each.left.shape))  # a softmax that is written out
                    return
                if _mixes_heads(origin, each):
                    self._origins.put(result, Lost())
                    return
        left, right = (
            Operand(tensor, labels, self._origins.factor(tensor))
            for tensor, labels in ((found.left, found.first), (found.right, found.second))
        )
        product = Product(left, right, found.out, torch.empty(result.shape, device="meta"), result.dtype)
        lone = any(
            (label in found.first) != (label in found.second) for label in {*found.first, *found.second} - {*found.out}
        )
        if lone or not found.summed or not product.own(left) or not product.own(right):
            return
        scores = self._origins.begin(product)
        if found.added is not None:
            added, beta, alpha = found.added
            scores = scores if alpha == 1 else scores.changed("mul", alpha)
            scores = scores if beta == 0 else scores.changed("add", added if beta == 1 else added * beta)
        self._origins.put(result, scores)

    def _softmax(self, ran: _Ran, weights: Tensor) -> None:
        """Take a softmax, which makes weights."""
        tensor = ran.tensors[0]
        axis = _axis(ran.argument(1, "dim", None), tensor.ndim)
        origin = self._origins.get(tensor)
        if isinstance(origin, Lost):
            others = [each for i, each in enumerate(weights.shape) if i not in (0, axis)]
            is_of_pairs = weights.ndim > 2 and weights.shape[axis] > 1 and max(others) > 1
            if is_of_pairs and origin.stage == "scores":
                self.context.lose(tuple(weights.shape))
        elif isinstance(origin, Weights):
            self._went_on(ran, weights)
        elif isinstance(origin, Scores):
            self._origins.put(weights, Weights(Weighing(origin, axis, Held(tensor), Held(weights)), origin))
        elif weights.ndim > 2 and weights.shape[-1] == weights.shape[-2] > 1 and axis == weights.ndim - 1:
            self._origins.put(weights, Lost("weights"))

    def _meet(self, weights: Weights, found: Contraction, result: Tensor) -> None:
        """Take a product of weights with another tensor, which may be the values."""
        softmax = weights.softmax
        if _mixes_heads(weights.scores, found):
            self._lose("mixed", weights, result)
        if softmax.has_met or isinstance(self._origins.get(found.right), Weights):
            return
        begun = self._cost.clock()
        call = self._written.call(self.context, weights, found, result, self._origins.factor(found.right))
        if call is not None:
            softmax.has_met = True
            if softmax.lost is not None:
                self.context.find(softmax.lost)
            self._origins.put(result, AttentionOutput(call.place))
            self.context.emit(call)
        self._cost.leave_out(begun)

    # --- what is between them -------------------------------------------------------------------------------

    def _went_on(self, ran: _Ran, result: Tensor) -> None:
        """Let the origin of one of the inputs go on in a result."""
        inputs = ran.tensors
        if ran.name == "mul" and _is_of_all_pairs(inputs, result):
            self._origins.put(result, Lost("pairs"))
            return
        found = [(each, origin) for each in inputs if (origin := self._origins.get(each)) is not None]
        source, origin = min(found, key=lambda each: _rank(each[1])) if found else (result, Factor())
        if isinstance(origin, Factor):
            factor = self._factor(ran, result)
            self._origins.put(result, factor if factor != Factor() else None)
        elif isinstance(origin, AttentionOutput):
            if ran.name in _COPIES:
                self._origins.put(result, origin)
            elif ran.name in _VIEWS and (finding := merged(source, result, self.context.place)) is not None:
                self.context.emit_late(origin.place, finding)
        elif isinstance(origin, Lost):
            is_summed = ran.name == "sum" and origin.stage == "pairs" and result.ndim == source.ndim - 1
            goes_on = result.ndim > 2 and (is_summed or ran.name not in _ENDING)
            self._origins.put(result, (Lost() if is_summed else origin) if goes_on else None)
        else:
            scores = origin.scores if isinstance(origin, Weights) else origin
            several = {each.softmax for _, each in found if isinstance(each, Weights)}
            is_sum = len(several) > 1 and ran.name in ("add", "sub")
            after = None if is_sum else _gone_on(ran, scores, source, result)
            self._origins.put(result, after)
            if after is None:
                for _, each in found:
                    if isinstance(each, Scores | Weights):
                        self._lose(ran.name, each, result)
            elif isinstance(origin, Weights):
                weights = origin._replace(scores=after)
                p = ran.argument(1, "p", 0.5) if ran.name == "dropout" and ran.argument(2, "training", True) else 0
                if p > 0:
                    weights = weights._replace(dropout=float(p), in_dropout=self.context.is_training())
                self._origins.put(result, weights)

    def _lose(self, name: str, origin: Scores | Weights, result: Tensor) -> None:
        """Take scores or weights that are put elsewhere, or changed in number."""
        scores = origin.scores if isinstance(origin, Weights) else origin
        if name in _ENDING or result.ndim < 3 or not scores.product.is_of_pairs:
            return
        if isinstance(origin, Scores):
            self._origins.put(result, Lost())
        elif not (origin.softmax.lost or origin.softmax.has_met):
            origin.softmax.lost = self.context.lose(origin.softmax.given.shape)

    def _assigned(self, target: Tensor, value: Any) -> None:
        """Take what is written into a part of a tensor."""
        origin, written = self._origins.get(target), self._origins.get(value)
        if isinstance(written, Lost) or (isinstance(written, Scores) and written.product.is_of_pairs):
            for each in (target, target._base):
                if each is not None and each.ndim > 2:
                    self._origins.put(each, Lost())
        elif isinstance(origin, Scores):
            self._origins.put(target, origin.changed("assigned"))
        elif isinstance(origin, Weights):
            self._origins.put(target, origin._replace(scores=origin.scores.changed("assigned")))

    # --- factors and outputs --------------------------------------------------------------------------------

    def _factor(self, ran: _Ran, result: Tensor) -> Factor:
        """Return what is known of a tensor that was multiplied, or whose heads a view made or moved."""
        inputs = ran.tensors
        first = next((own for each in inputs if (own := self._origins.factor(each)) != Factor()), Factor())
        number = ran.number if ran.name in ("mul", "div") and result.ndim > 1 else None
        if ran.name in _VIEWS and inputs:
            heads, split = split_heads(inputs[0].shape, result.shape), is_split(inputs[0].shape, result.shape)
            split = first.is_split or (split and not is_learned(inputs[0]))
            return first._replace(heads=max(heads, first.heads), is_split=split)
        if number is not None:
            return first._replace(numbers=several_numbers(first.numbers, (number,)))
        if ran.name in ("mul", "div", "add", "sub", "rsub", "cat", "stack"):
            return first._replace(numbers=(UNKNOWN,) * bool(first.numbers))
        return first if ran.name in _KEEP_FACTORS else Factor()


class _Ran:
    """A function that ran.

    Attributes:
        name: of the function, without what says that it is in place.
        args: its arguments.
        kwargs: likewise.
        tensors: those among them that it took numbers of.
    """

    def __init__(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.name, self.args, self.kwargs = name, args, kwargs
        self.tensors: list[Tensor] = []
        for each in (*args, *kwargs.values()):
            some = each if isinstance(each, tuple | list) else (each,)
            self.tensors += [one for one in some if isinstance(one, Tensor)]
        if name.endswith("_as"):
            self.tensors = self.tensors[:1]  # the other one is a pattern

    def argument(self, position: int, name: str, default: Any) -> Any:
        """Return an argument by its position or its name."""
        return self.args[position] if position < len(self.args) else self.kwargs.get(name, default)

    @property
    def numbers(self) -> list[float]:
        """The arguments that are numbers."""
        values = (*self.args, *self.kwargs.values())
        return [float(each) for each in values if isinstance(each, int | float) and not isinstance(each, bool)]

    @property
    def number(self) -> Number | None:
        """The number that a tensor was multiplied with; None where it was no number."""
        small = [UNKNOWN if is_learned(each) else each.detach() for each in self.tensors if each.numel() == 1]
        number = self.numbers[0] if self.numbers else small[0] if small and len(self.tensors) == 2 else None
        if number is None or self.name == "mul":
            return number
        return 1 / number if isinstance(number, Tensor) or number else UNKNOWN


def _gone_on(ran: _Ran, scores: Scores, source: Tensor, result: Tensor) -> Scores | None:
    """Return where a result comes from that was made of scores, or of weights; None where it is neither any more."""
    before, after = source.shape, result.shape
    if before == after and ran.name not in _ORDERS:
        return scores if ran.name in _COPIES else _changed(ran, scores, source, result)
    if result.numel() != source.numel() or result is source:
        return None
    axes = _moved(ran, scores.axes, source)
    return scores._replace(axes=axes) if axes is not None and axes.shape == after else None


def _moved(ran: _Ran, axes: Tensor, source: Tensor) -> Tensor | None:
    """Return the axes of scores after a function; None where it makes no view of them."""
    # Not what the program may have put in the place of a function, which is not to be called by us.
    method = getattr(torch._C.TensorBase, ran.name, None)
    if method is None or not ran.args or ran.args[0] is not source:
        return None
    try:
        moved = method(axes, *ran.args[1:], **ran.kwargs) if callable(method) else method.__get__(axes)
    except (RuntimeError, TypeError):
        return None
    is_view = isinstance(moved, Tensor) and moved.untyped_storage()._cdata == axes.untyped_storage()._cdata
    return moved if is_view else None


def _changed(ran: _Ran, scores: Scores, source: Tensor, result: Tensor) -> Scores:
    others = [each for each in ran.tensors if each is not source and _broadcasts(each, result)]
    is_first = bool(ran.tensors) and ran.tensors[0] is source
    other: Tensor | float | None = None
    if ran.name in ("where", "masked_fill") and others:
        other = next((each for each in others if each.dtype == torch.bool), others[0])
        is_first = any(each is source for each in ran.args[:2])
    elif ran.name in ("tril", "triu"):
        ones = torch.ones(result.shape[-2:], dtype=torch.bool, device=result.device)
        other = getattr(ones, ran.name)(int(ran.argument(1, "diagonal", 0)))
    elif others:
        other = others[0]
    elif ran.name in ("mul", "div", "add", "sub", "rsub") and ran.numbers:
        other = ran.numbers[0]
        is_first = isinstance(ran.args[0], Tensor)
    return scores.changed(ran.name, other, is_first)


def _broadcasts(tensor: Tensor, other: Tensor) -> bool:
    sizes = zip(reversed(tensor.shape), reversed(other.shape), strict=False)
    return tensor.ndim <= other.ndim and all(one in (1, size) for one, size in sizes)


def _mixes_heads(scores: Scores, found: Contraction) -> bool:
    """Return whether a matrix mixes heads of scores or weights, the left factor of a product."""
    if found.right.ndim != 2 or len(found.summed) != 1:
        return False
    axis = scores.product.axis(scores.axes, found.first.index(found.summed[0]))
    return axis is not None and axis >= 0 and scores.product.out[axis] in scores.product.shared


def _are_values(found: Contraction, origin: Any) -> bool:
    """Return whether a softmax of what nothing is known of weighs what was computed: values of each batch row.

    What is a product itself is no values: linear attention multiplies keys and values first.
    """
    last, rows = found.first[-1], found.first[-2]
    is_of_keys = last in found.second and last not in found.out and rows not in found.second
    return is_of_keys and found.right.ndim > 2 and not is_learned(found.right) and not isinstance(origin, Scores)


def _rank(origin: Any) -> tuple[int, int]:
    """Return which of several origins a result has: of scores those whose factors are alike, as of queries and keys."""
    kinds = (Weights, Scores, Lost, AttentionOutput, Factor)
    product = origin.product if isinstance(origin, Scores) else None
    is_other = product is not None and (len(product.left.shape) != len(product.right.shape) or not product.is_of_pairs)
    return next(i for i, kind in enumerate(kinds) if isinstance(origin, kind)), int(is_other)


def _always(*_: Any) -> bool:
    return True


def _may_begin(args: tuple[Any, ...], result: Any) -> bool:
    """Return whether a product is one with a number, or of all pairs."""
    is_of_tensors = all(isinstance(each, Tensor) and each.ndim for each in args)
    return len(args) == 2 and (not is_of_tensors or _is_of_all_pairs(args, result))


def _is_of_all_pairs(factors: Sequence[Tensor], result: Tensor) -> bool:
    """Return whether a product is one of each query and each key, whose sum over the width is the scores."""
    if len(factors) != 2 or not factors[0].ndim == factors[1].ndim == result.ndim >= 4:
        return False
    one, other = (tuple(each.shape) for each in factors)
    are_spread = all(any(a == 1 < b for a, b in zip(*shapes, strict=True)) for shapes in ((one, other), (other, one)))
    return are_spread and one[-1] == other[-1] > 1


def _may_split(args: tuple[Any, ...], result: Any) -> bool:
    """Return whether a view may make heads, or put them into the batch."""
    before, after = args[0].shape if args else (), result.shape
    has_axes = len(before) in (3, 4) and len(after) in (3, 4)
    return has_axes and (split_heads(before, after) > 1 or is_split(before, after))


def _axis(dim: int | None, axes: int) -> int:
    """Return the axis of a softmax; without one, torch takes that of its earliest versions."""
    if dim is None:
        return 0 if axes in (0, 1, 3) else 1
    return int(dim) % axes


def spelled(name: str) -> Iterator[Callable[..., Any]]:
    """Yield what has a name: methods, in place too, and the functions of torch's namespaces."""
    for home in _HOMES:
        for each in (name, f"{name}_"):
            if callable(function := getattr(home, each, None)):
                yield function
