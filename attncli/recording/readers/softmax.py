"""Attention that a program writes out: a product, a softmax, a product.

Functions between these points are only recorded: whatever has as many numbers as scores or weights is taken for them;
see `scores`. A softmax whose weights meet no values, of a classifier or a router, is no attention; one of queries and
keys that cannot be followed to its values is noted. The lines that make masks are recorded too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from attncli.recording.readers.layout import PRODUCTS, Contraction, contraction, joined_product, product_of
from attncli.recording.readers.origins import (
    Factor,
    Held,
    MadeMask,
    Origin,
    Scores,
    SoftmaxCall,
    Untracked,
    has_values,
    head_axes,
    is_learned,
)
from attncli.recording.readers.reader import ThreadContext
from attncli.recording.readers.scores import WrittenAttention

_NAMES = {
    **dict.fromkeys(("multiply", "__mul__", "__rmul__", "__imul__"), "mul"),
    **dict.fromkeys(("divide", "true_divide", "__truediv__", "__itruediv__"), "div"),
    **dict.fromkeys(("__add__", "__radd__", "__iadd__"), "add"),
    **dict.fromkeys(("subtract", "__sub__", "__isub__"), "sub"),
    "negative": "neg", "__neg__": "neg", "__rsub__": "rsub", "concat": "cat", "__setitem__": "setitem",
    "special_softmax": "softmax", "special_log_softmax": "log_softmax",
}  # fmt: skip
_VIEWS = ("view", "reshape", "flatten")
_ORDERS = ("transpose", "swapaxes", "swapdims", "t", "permute", "movedim", "moveaxis", "mT", "T", "adjoint")
_COPIES = (
    "contiguous", "clone", "detach", "to", "type", "type_as", "float", "half", "bfloat16", "double", "cpu", "cuda",
    "data",
)  # fmt: skip
_SCALINGS = ("mul", "div", *(name for name, own in _NAMES.items() if own in ("mul", "div")))
# Leave queries scaled as they were; the first ones where all that they take is scaled alike.
_SUMS = ("add", "sub", "cat", "stack")
_LAID_OUT = (
    *_VIEWS, *_ORDERS, *_COPIES, "__getitem__", "squeeze", "unsqueeze", "unflatten", "expand", "repeat",
    "repeat_interleave", "chunk", "split", "unbind", "narrow", "neg", "view_as_complex", "view_as_real",
)  # fmt: skip
# Give something else than scores or weights in another order or another place.
_ENDING = {
    *PRODUCTS, "softmax", "linear", "conv1d", "conv2d", "layer_norm", "rms_norm", "batch_norm", "group_norm", "sum",
    "mean", "amax", "amin", "max", "min", "logsumexp", "norm", "topk", "sort", "argmax", "var", "std", "cross_entropy",
    "nll_loss", "multinomial", "diag", "diagonal", "trace", "gather", "mv", "addmm", "log_softmax",
}  # fmt: skip
# Make a mask of any input; the last ones also of another mask a new one.
_LOGIC = ("and", "or", "xor", "not")
_ANEW = ("tril", "triu", "setitem")
_MAKERS = (
    *(f"{a}{name}{a}" for name in ("eq", "ne", "lt", "le", "gt", "ge") for a in ("", "__")), "isin", "__invert__",
    *(f"{kind}_{name}" for kind in ("logical", "bitwise") for name in _LOGIC),
    *(f"__{i}{name}__" for i in ("", "i", "r") for name in _LOGIC), "masked_fill", "where", "tril", "triu",
    "__setitem__", "ones", "zeros", "full",
)  # fmt: skip
_HOMES = (Tensor, torch, F, torch.special, torch.functional, torch._C.TensorBase, torch._C._VariableFunctions)


def functions_named(*names: str) -> Iterator[Callable[..., Any]]:
    """Yield methods of tensors, in place too, and the functions of torch's namespaces."""
    found = (getattr(home, f"{name}{end}", None) for home in _HOMES for name in names for end in ("", "_"))
    return filter(callable, found)


class Softmax:
    """Follows the tensors of a thread from a product on.

    Attributes:
        begins: the functions at which origins begin, each with a test of its arguments and result.
    """

    def __init__(self, context: ThreadContext) -> None:
        self.context, self._origins, self._written = context, context.origins, WrittenAttention()
        self.begins: dict[Callable[..., Any], Callable[[tuple[Any, ...], Any], bool]] = {
            **dict.fromkeys(functions_named(*PRODUCTS, "softmax", "special_softmax"), lambda *_: True),
            **dict.fromkeys(functions_named(*_VIEWS), lambda args, result: _folded_heads(args, result) > 1),
            **dict.fromkeys(functions_named(*_SCALINGS), _may_scale),
            **dict.fromkeys(functions_named(*_MAKERS), _may_make_mask),
        }

    def follow(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Record a function that begins an origin, or was given a tensor that has one."""
        is_property = func.__name__ == "__get__"
        name = getattr(func.__self__, "__name__", "") if is_property else func.__name__  # type: ignore[attr-defined]
        name = name if name.endswith("__") else name.rstrip("_")
        ran = _Operation(_NAMES.get(name, name), args, kwargs)
        if ran.name in PRODUCTS:
            if has_values(result) and result.is_floating_point() and result.numel():
                self._multiply(ran, result)
        elif ran.name == "softmax":
            self._weigh(ran, result)
        elif ran.name in ("setitem", "copy"):
            self._assign(ran)
        elif not ran.name.endswith("_like") and not ran.name.startswith("new_"):
            for each in result if isinstance(result, tuple | list) else (result,):
                if has_values(each):
                    self._propagate(ran, each)

    def _multiply(self, ran: _Operation, result: Tensor) -> None:
        matmul = contraction(ran.name, ran.args, ran.kwargs)
        if matmul is None:
            computed = [each for each in ran.tensors if each.ndim > 2 and not is_learned(each)]
            return self._origins.put(result, Untracked() if len(computed) > 1 else None)
        for each in (matmul, matmul.turned()):
            origin = self._origins.get(each.left)
            if isinstance(origin, Scores) and origin.softmax is not None:
                return self._meet(origin, origin.softmax, each, result)
            if isinstance(origin, Untracked) and origin.shape is not None:
                if not origin.is_noted and _are_values(each, self._origins.get(each.right)):
                    origin.is_noted = True
                    self.context.note_lost(origin.shape)
                return None
            if isinstance(origin, Scores) and origin.product.is_of_pairs:
                if any(change.name in ("exp", "exp2") for change in origin.changes):  # a softmax that is written out
                    return self.context.note_lost(tuple(each.left.shape))
                if _mixes_heads(origin, each):
                    return self._origins.put(result, Untracked())
        made = product_of(matmul, result, (self._origins.factor(matmul.left), self._origins.factor(matmul.right)))
        if made is None:
            return None
        scores = Scores(*made)
        if matmul.added is not None:
            added, beta, alpha = matmul.added
            scores = scores if alpha == 1 else scores.changed("mul", alpha)
            scores = scores if beta == 0 else scores.changed("add", added if beta == 1 else added * beta)
        return self._origins.put(result, scores)

    def _weigh(self, ran: _Operation, weights: Tensor) -> None:
        tensor, axis = ran.tensors[0], ran.argument(1, "dim", None)
        if axis is None:  # as torch takes it of old programs
            axis = 0 if tensor.ndim in (0, 1, 3) else 1
        axis = int(axis) % max(tensor.ndim, 1)
        origin = self._origins.get(tensor)
        if isinstance(origin, Untracked):
            others = [each for i, each in enumerate(weights.shape) if i not in (0, axis)]
            if origin.shape is None and weights.ndim > 2 and weights.shape[axis] > 1 and max(others) > 1:
                self.context.note_lost(tuple(weights.shape))
        elif isinstance(origin, Scores):
            received, result = Held(tensor), Held(weights)
            if origin.joined is not None and (joined := origin.joined.tensor) is not None:
                received, result = Held(joined[..., :-1]), Held(weights[..., :-1])
            self._origins.put(weights, origin._replace(softmax=SoftmaxCall(origin, axis, received, result)))
        elif weights.ndim > 2 and weights.shape[-1] == weights.shape[-2] > 1 and axis == weights.ndim - 1:
            self._origins.put(weights, Untracked(tuple(weights.shape)))

    def _meet(self, weights: Scores, softmax: SoftmaxCall, matmul: Contraction, result: Tensor) -> None:
        if _mixes_heads(weights, matmul):
            self._lose("mixed", weights, result)
        other = self._origins.get(matmul.right)
        if softmax.is_used or (isinstance(other, Scores) and other.softmax is not None):
            return
        call = self._written.call(self.context, weights, matmul, result)
        if call is not None:
            softmax.is_used = True
            self.context.emit(call)

    def _propagate(self, ran: _Operation, result: Tensor) -> None:
        followed = [(each, origin) for each in ran.tensors if (origin := self._origins.get(each)) is not None]
        source, origin = min(followed, key=lambda each: _rank(each[1])) if followed else (result, None)
        if isinstance(origin, Scores) and result.is_floating_point():
            self._change(ran, source, origin, [each for _, each in followed if isinstance(each, Scores)], result)
        elif isinstance(origin, Untracked):
            is_again = origin.shape is not None and result.shape == source.shape  # weights, of other numbers
            is_followed = result.ndim > 2 and (is_again or ran.name not in _ENDING)
            self._origins.put(result, origin if is_followed else None)
        elif isinstance(origin, MadeMask):
            self._make_mask(ran, result, ran.tensors)
        else:
            factor = self._factor(ran, source, result)
            self._origins.put(result, factor if factor != Factor() else None)
            if factor == Factor():
                self._make_mask(ran, result, ran.tensors)

    def _factor(self, ran: _Operation, source: Tensor, result: Tensor) -> Factor:
        heads, scale, axes = self._origins.factor(source)
        if (folded := _folded_heads(ran.args, result)) > 1 or result.ndim != 3:
            heads = folded
        elif heads > 1 and len(result) not in (len(source), source.shape[1]):
            heads = 1
        is_alike = ran.name in _SUMS and len({self._origins.factor(each).scale for each in ran.tensors}) == 1
        if ran.name in ("mul", "div"):
            scale *= _multiplier(ran, result)
        elif ran.name not in _LAID_OUT and not is_alike:
            scale = 1.0
        if source is result:  # of which nothing was known
            source = next((each for each in ran.tensors if each.shape == result.shape), source)
        axes = axes or head_axes(source, source.ndim - 1)
        outer = max(axes, default=0) + 1
        is_moved = ran.name in _ORDERS or result.shape[:outer] != source.shape[:outer]
        return Factor(heads, scale, frozenset() if is_moved else axes)

    def _change(self, ran: _Operation, source: Tensor, origin: Scores, parts: list[Scores], result: Tensor) -> None:
        """Give a result the origin of scores or weights, or record that these are followed no further."""
        softmaxes = {id(each.softmax) for each in parts if each.softmax is not None}
        if ran.name == "add" and not softmaxes and len(parts) == 2 and (both := joined_product(*parts)) is not None:
            return self._origins.put(result, Scores(*both, changes=origin.changes))
        is_sum = ran.name in ("add", "sub") and len(softmaxes) > 1
        after = None if is_sum else self._changed(ran, origin, source, result)
        if after is None and origin.softmax is None and not origin.product.is_of_pairs:
            factor = self._factor(ran, source, result)
            return self._origins.put(result, factor if factor.head_axes else None)
        if after is not None and after.softmax is not None and ran.name == "dropout":
            p = float(ran.argument(1, "p", 0.5)) if ran.argument(2, "training", True) else 0.0
            after = after._replace(dropout=p, in_dropout=self.context.is_training())
        self._origins.put(result, after)
        for each in parts if after is None else ():
            self._lose(ran.name, each, result)
        return None

    def _changed(self, ran: _Operation, scores: Scores, source: Tensor, result: Tensor) -> Scores | None:
        """Return the origin of a result of scores or weights; None where it is neither any more."""
        if ran.name == "cat" and scores.joined is None and _is_joined(ran, source, result):
            return scores._replace(joined=Held(result))
        if scores.joined is not None and source.shape[-1] == scores.axes.shape[-1] + 1:
            return scores if _keeps_sinks(ran, source, result) else None
        if source.shape != result.shape or ran.name in _ORDERS:
            axes = _moved(ran, scores.axes, source) if result.numel() == source.numel() else None
            if axes is None or axes.shape != result.shape or result is source:
                return None
            return scores._replace(axes=axes)
        if ran.name in _COPIES:
            return scores
        name, others = ran.name, [each for each in ran.tensors if each is not source and _broadcasts(each, result)]
        other: Tensor | float | None = others[0] if others else None
        is_first = bool(ran.tensors) and ran.tensors[0] is source
        if name in ("where", "masked_fill") and others:
            other = next((each for each in others if each.dtype == torch.bool), others[0])
            is_first = any(each is source for each in ran.args[:2])
        elif name in ("tril", "triu"):  # as a product with a mask of 0 and 1
            ones = torch.ones(result.shape[-2:], dtype=torch.bool, device=result.device)
            name, other = "mul", getattr(ones, name)(int(ran.argument(1, "diagonal", 0)))
        elif name == "neg":
            name, other = "mul", -1.0
        elif not others and name in ("mul", "div", "add", "sub", "rsub"):
            values = (each for each in (*ran.args, *ran.kwargs.values()) if not isinstance(each, bool))
            other = next((float(each) for each in values if isinstance(each, int | float)), None)
            is_first = isinstance(ran.args[0], Tensor)
        if name == "rsub" or (name == "sub" and not is_first):
            name, scores = "add", scores.changed("mul", -1.0)
        elif name == "div" and not is_first:
            other = None
        return scores.changed(name, other, is_first, self._origins.made_at(other))

    def _lose(self, name: str, origin: Scores, result: Tensor) -> None:
        """Record scores or weights that are put elsewhere, or changed in number."""
        if name in _ENDING or result.ndim < 3 or not origin.product.is_of_pairs:
            return
        if origin.softmax is None:
            self._origins.put(result, Untracked())
        elif not origin.softmax.is_used:
            self._origins.put(result, origin.softmax.untracked)

    def _assign(self, ran: _Operation) -> None:
        target, value = ran.args[0], ran.args[-1]
        origin, written = self._origins.get(target), self._origins.get(value)
        is_of_scores = isinstance(written, Scores) and written.softmax is None and written.product.is_of_pairs
        if isinstance(written, Untracked) or is_of_scores:
            for each in (target, target._base):
                if each is not None and each.ndim > 2:
                    self._origins.put(each, Untracked())
        elif isinstance(origin, Scores):
            self._origins.put(target, origin.changed("assigned"))
        elif has_values(target):
            tensors = [target, *([value] if isinstance(value, Tensor) and value.numel() > 1 else [])]
            self._make_mask(ran, target, tensors)

    def _make_mask(self, ran: _Operation, result: Tensor, inputs: list[Tensor]) -> None:
        """Record the line that made a mask; a copy or a part of one keeps its own."""
        if ran.name == "masked_fill" and not isinstance(self._origins.get(inputs[0]), MadeMask):
            inputs = inputs[1:]  # what fills another tensor is what that becomes
        origins = [self._origins.get(each) for each in inputs if each.numel() > 1]
        is_of_masks = bool(origins) and all(isinstance(each, MadeMask) for each in origins)
        is_changed = bool(inputs) and result is inputs[0] and ran.name not in _COPIES
        origin = origins[0] if is_of_masks else None
        if not is_of_masks or len(origins) > 1 or ran.name in _ANEW or is_changed:
            makes = ran.name in _MAKERS and (result.dtype == torch.bool or ran.name in ("masked_fill", "where", *_ANEW))
            if ran.name == "setitem":  # else what a cache is written by
                makes = len(inputs) == 1
            origin = self.context.line() if is_of_masks or makes else None
        if origin is not None or isinstance(self._origins.get(result), MadeMask):
            self._origins.put(result, None if result.requires_grad else origin)


class _Operation:
    def __init__(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.name, self.args, self.kwargs = name, args, kwargs
        self.tensors: list[Tensor] = []  # whose numbers it took
        for each in (*args, *kwargs.values()):
            some = each if isinstance(each, tuple | list) else (each,)
            self.tensors += [one for one in some if isinstance(one, Tensor)]
        if name.endswith("_as"):
            self.tensors = self.tensors[:1]  # the other one is a pattern

    def argument(self, position: int, name: str, default: Any) -> Any:
        return self.args[position] if position < len(self.args) else self.kwargs.get(name, default)


def _moved(ran: _Operation, axes: Tensor, source: Tensor) -> Tensor | None:
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


def _is_joined(ran: _Operation, source: Tensor, result: Tensor) -> bool:
    """Return whether a last column of logits was joined to scores, as one more key."""
    dim = ran.argument(1, "dim", ran.kwargs.get("axis", 0))
    is_column = len(ran.tensors) == 2 and result.shape == (*source.shape[:-1], source.shape[-1] + 1)
    return is_column and ran.tensors[0] is source and dim in (-1, result.ndim - 1)


def _keeps_sinks(ran: _Operation, source: Tensor, result: Tensor) -> bool:
    """Return whether scores or weights with sinks are copied, moved along a row, or cut out from among them."""
    if result.shape == source.shape:
        is_shift = ran.name == "sub" and all(each is source or each.shape[-1] == 1 for each in ran.tensors)
        return is_shift or ran.name in _COPIES
    cut = source[..., :-1]
    return result.shape == cut.shape and result.data_ptr() == cut.data_ptr() and result.stride() == cut.stride()


def _broadcasts(tensor: Tensor, other: Tensor) -> bool:
    sizes = zip(reversed(tensor.shape), reversed(other.shape), strict=False)
    return tensor.ndim <= other.ndim and all(one in (1, size) for one, size in sizes)


def _mixes_heads(scores: Scores, matmul: Contraction) -> bool:
    """Return whether a matrix mixes heads of scores or weights, the left factor of a product."""
    if matmul.right.ndim != 2 or len(matmul.summed) != 1:
        return False
    axis = scores.product.axis(scores.axes, matmul.first.index(matmul.summed[0]))
    return axis is not None and 0 <= axis < scores.product.shared


def _are_values(matmul: Contraction, origin: Any) -> bool:
    """Return whether a softmax of unknown origin weighs what was computed: values of each batch row."""
    last, rows = matmul.first[-1], matmul.first[-2]
    is_of_keys = last in matmul.second and last not in matmul.out and rows not in matmul.second
    is_product = isinstance(origin, Scores) and origin.softmax is None  # linear attention multiplies keys and values
    return is_of_keys and matmul.right.ndim > 2 and not is_learned(matmul.right) and not is_product


def _rank(origin: Origin) -> tuple[int, bool]:
    """Return which of several origins a result has: of scores those whose factors are alike, as of queries and keys."""
    if not isinstance(origin, Scores):
        return 4 if isinstance(origin, MadeMask) else 3 if isinstance(origin, Factor) else 2, False
    product, is_weights = origin.product, origin.softmax is not None
    is_unlike = product.left.ndim != product.right.ndim or not product.is_of_pairs
    return int(not is_weights), is_unlike and not is_weights


def _folded_heads(args: tuple[Any, ...], result: Any) -> int:
    """Return how many heads a view of `[B, H, T, D]` or `[T, B, H·D]` puts into the batch, 1 without any."""
    before: Any = getattr(args[0], "shape", ()) if args else ()
    after = result.shape
    if len(after) == 4 and after[1] == 1:
        after = (after[0], *after[2:])
    if len(after) != 3 or not all(after):
        return 1
    if len(before) == 4 and before[2:] == after[1:]:
        return int(before[1])
    is_split = len(before) == 3 and before[0] == after[0] and before[2] != after[2] and before[2] % after[2] == 0
    return int(before[2] // after[2]) if is_split and before[1] and after[1] % before[1] == 0 else 1


def _may_scale(args: tuple[Any, ...], result: Any) -> bool:
    """Return whether a function multiplied all numbers of a head alike, as those of queries are; GELU has 0.5 … 2."""
    if not has_values(result) or result.ndim < 3:
        return False
    other = _other(args, result)
    if isinstance(other, Tensor):
        return other.numel() == 1 or (result.ndim > 3 and other.shape[-1] == 1)
    return isinstance(other, int | float) and (result.ndim > 3 or not 0.5 <= abs(other) <= 2)


def _other(args: tuple[Any, ...], result: Tensor) -> Any:
    """Return the multiplier or divisor of a tensor; None where that is as large as it is."""
    return next((each for each in args[:2] if not isinstance(each, Tensor) or each.shape != result.shape), None)


def _multiplier(ran: _Operation, result: Tensor) -> float:
    """Return what queries were multiplied with; 1 where each number has its own, NaN where that is not known."""
    other, is_product = _other(ran.args, result), ran.name == "mul"
    if other is None or (isinstance(other, Tensor) and other.numel() > 1 < other.shape[-1]):
        return 1.0 if is_product else math.nan
    if isinstance(other, Tensor) and (other.numel() > 1 or other.requires_grad or other.device.type != "cpu"):
        return math.nan
    is_known = isinstance(other, Tensor | int | float) and (is_product or ran.args[0] is not other)
    number = float(other) if is_known else 0.0
    return math.nan if not number else number if is_product else 1 / number


def _may_make_mask(args: tuple[Any, ...], result: Any) -> bool:
    mask = args[0] if result is None and args else result
    return has_values(mask) and mask.ndim > 0 and not mask.requires_grad
