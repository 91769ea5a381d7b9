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
    Change,
    Factor,
    Held,
    Lost,
    Met,
    Move,
    Number,
    Operand,
    Product,
    Scores,
    Weights,
    has_values,
    is_learned,
    several_numbers,
    version,
)
from attncli.recording.readers.reader import Reader, ThreadContext
from attncli.recording.readers.written_out import WrittenOut

_TOO_MUCH = (
    "hand-written attention was followed for a part of the run, as it took longer than the program itself: what it "
    "computed later is not in the table; calls of torch's own attention functions are"
)
_MOST_MOVES = 16  # of axes of scores that are followed
_MOST_OTHERS = 4  # weights that are added to others
_SOFTMAX = ("softmax", "special_softmax", "log_softmax", "special_log_softmax")
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
    "nll_loss", "multinomial", "diag", "diagonal", "trace", "gather",
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
        self._follow(_NAMES.get(name, name), args, kwargs, result)
        if self._cost.is_too_much(begun):
            self._origins.end()
            self.context.note(_TOO_MUCH)

    def _follow(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if name in PRODUCTS:
            found = contraction(name, args, kwargs)
            if found is not None and has_values(result) and result.is_floating_point() and result.numel():
                self._multiplied(found, result)
            return
        inputs = _tensors(args, kwargs)
        if name.endswith("_as"):
            inputs = inputs[:1]  # the other one is a pattern
        if name.endswith("_like") or name.startswith("new_"):
            return
        if name in _SOFTMAX:
            dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
            self._softmax("log" in name, inputs[0], _axis(dim, inputs[0].ndim), result)
            return
        if name in ("setitem", "copy"):
            self._assigned(name, args)
            return
        results = result if isinstance(result, tuple | list) else (result,)
        for each in results:
            if has_values(each) and each.is_floating_point():
                self._went_on(name, inputs, _Arguments(args, kwargs), each)

    # --- the three points -----------------------------------------------------------------------------------

    def _multiplied(self, found: Contraction, result: Tensor) -> None:
        """Take a product: weights meet values, or scores are made, whose heads may be mixed by another one."""
        for each in (found, found.turned()):
            origin = self._origins.get(each.left)
            if isinstance(origin, Scores) and origin.is_raised:
                origin = Weights(origin, len(origin.changes), given=Held.of(each.left, origin.moves), met=Met())
            if isinstance(origin, Weights):
                self._meet(origin, each, result)
                return
            if isinstance(origin, Scores) and (moved := _mixed(origin, each, result)) is not None:
                self._origins.put(result, moved)
                return
        left, right = (
            Operand(tensor, labels, self._origins.factor(tensor))
            for tensor, labels in ((found.left, found.first), (found.right, found.second))
        )
        product = Product(left, right, found.out, result.dtype)
        lone = any(
            (label in found.first) != (label in found.second) for label in {*found.first, *found.second} - {*found.out}
        )
        if lone or not found.summed or not product.own(left) or not product.own(right):
            return
        self._origins.begin(result, product)
        if found.added is not None:
            added, beta, alpha = found.added
            scores = self._origins.get(result)
            assert isinstance(scores, Scores)
            for name, other in (("mul", alpha), ("add", added * beta if beta not in (0, 1) else added)):
                if (name == "mul" and other != 1) or (name == "add" and beta):
                    scores = scores.changed(_change(name, other, True, scores, result))
            self._origins.put(result, scores)

    def _softmax(self, is_log: bool, tensor: Tensor, axis: int, weights: Tensor) -> None:
        """Take a softmax, which makes weights, or a log_softmax, whose exponential does."""
        origin = self._origins.get(tensor)
        if isinstance(origin, Lost):
            others = [each for i, each in enumerate(weights.shape) if i not in (0, axis)]
            is_of_pairs = weights.ndim > 2 and weights.shape[axis] > 1 and max(others) > 1
            if is_of_pairs and not is_log and not origin.is_unsummed:
                self.context.lose(tuple(weights.shape))
        elif isinstance(origin, Weights):
            self._origins.put(weights, origin._replace(is_second=True))
        elif isinstance(origin, Scores):
            if is_log:
                self._origins.put(weights, origin.changed(_change("log_softmax", None, True, origin, weights)))
                return
            moves, shape = origin.moves, tuple(tensor.shape)
            own = Weights(
                origin, len(origin.changes), Held.of(tensor, moves), Held.of(weights, moves), origin.axis(shape, axis),
                met=Met(),
            )  # fmt: skip
            self._origins.put(weights, own)
        elif (
            not is_log and weights.ndim > 2 and weights.shape[-1] == weights.shape[-2] > 1 and axis == weights.ndim - 1
        ):
            self._origins.put(weights, Weights(None, met=Met()))

    def _meet(self, weights: Weights, found: Contraction, result: Tensor) -> None:
        """Take a product of weights with another tensor, which may be the values."""
        met = weights.met
        assert met is not None
        if weights.scores is None:
            if _are_values(found, self._origins.get(found.right)) and not met.has_met:
                met.has_met = True
                self.context.lose(tuple(found.left.shape))
            return
        moved = _mixed(weights.scores, found, result)
        if moved is not None:
            self._origins.put(result, weights._replace(scores=moved))
            return
        if met.has_met or isinstance(self._origins.get(found.right), Weights):
            return
        begun = self._cost.clock()
        call = self._written.call(self.context, weights, found, result, self._origins.factor(found.right))
        if call is not None:
            met.has_met = True
            self._find(met)
            self._origins.put(result, AttentionOutput(call.place))
            self.context.emit(call)
            for other in weights.others:
                if other.met is not None and not other.met.has_met:
                    other.met.has_met = True
                    beside = self._written.call(self.context, other, found, result, Factor(), is_beside=True)
                    if beside is not None:
                        self.context.emit(beside)
        self._cost.leave_out(begun)

    # --- what is between them -------------------------------------------------------------------------------

    def _went_on(self, name: str, inputs: list[Tensor], arguments: _Arguments, result: Tensor) -> None:
        """Let the origin of one of the inputs go on in a result."""
        if name == "mul" and _is_of_all_pairs(inputs, result):
            self._origins.put(result, Lost(is_unsummed=True))
            return
        found = [(each, origin) for each in inputs if (origin := self._origins.get(each)) is not None]
        if not found:
            self._begin_factor(name, inputs, arguments, result)
            return
        source, origin = min(found, key=lambda each: _rank(each[1]))
        if isinstance(origin, Factor):
            self._origins.put(result, self._factor(name, inputs, arguments, result))
        elif isinstance(origin, AttentionOutput):
            self._of_output(name, source, origin, result)
        elif isinstance(origin, Lost):
            is_summed = name == "sum" and origin.is_unsummed and result.ndim == source.ndim - 1
            goes_on = result.ndim > 2 and (is_summed or name not in _ENDING)
            self._origins.put(result, Lost(origin.is_unsummed and not is_summed) if goes_on else None)
        elif isinstance(origin, Weights) and origin.scores is None:
            self._origins.put(result, origin if result.numel() == source.numel() else None)
        else:
            scores = origin.scores if isinstance(origin, Weights) else origin
            assert scores is not None
            after = _gone_on(name, scores, source, inputs, arguments, result)
            if after is None:
                self._origins.put(result, None)
                for _, each in found:
                    if isinstance(each, Scores | Weights):
                        self._lose(name, each, result)
            elif isinstance(origin, Weights):
                self._origins.put(result, self._weights(name, origin._replace(scores=after), found, arguments))
            else:
                self._origins.put(result, after)

    def _weights(self, name: str, weights: Weights, found: list[tuple[Tensor, Any]], arguments: _Arguments) -> Weights:
        """Return weights after dropout, or with others that were added."""
        if name == "dropout" and arguments.get(2, "training", True) and arguments.get(1, "p", 0.5) > 0:
            weights = weights._replace(dropout=float(arguments.get(1, "p", 0.5)), in_dropout=self.context.is_training())
        if name in ("add", "sub"):
            more = [each for _, each in found if isinstance(each, Weights) and each.met is not weights.met]
            more += [one for each in more for one in each.others]
            others = (*weights.others, *(each._replace(others=()) for each in more))[:_MOST_OTHERS]
            weights = weights._replace(others=others)
        return weights

    def _lose(self, name: str, origin: Scores | Weights, result: Tensor) -> None:
        """Take scores or weights that are put elsewhere, or changed in number."""
        scores = origin.scores if isinstance(origin, Weights) else origin
        if name in _ENDING or result.ndim < 3 or scores is None or not scores.product.is_of_pairs:
            return
        if isinstance(origin, Scores):
            self._origins.put(result, Lost())
        elif origin.met is not None and origin.given is not None and not (origin.met.lost or origin.met.has_met):
            origin.met.lost = self.context.lose(tuple(origin.given.alias.shape))

    def _find(self, met: Met) -> None:
        """Take back that weights were lost: they met values."""
        if met.lost is not None:
            self.context.find(met.lost)
            met.lost = None

    def _assigned(self, name: str, args: tuple[Any, ...]) -> None:
        """Take what is written into a part of a tensor."""
        target, value = args[0], args[-1]
        origin = self._origins.get(target)
        if isinstance(value, Tensor) and isinstance(self._origins.get(value), Scores | Lost):
            from_pairs = self._origins.get(value)
            if isinstance(from_pairs, Lost) or from_pairs.product.is_of_pairs:  # type: ignore[union-attr]
                for each in (target, target._base):
                    if each is not None and each.ndim > 2:
                        self._origins.put(each, Lost())
        elif isinstance(origin, Scores):
            self._origins.put(target, origin.changed(_change("assigned", None, True, origin, target)))
        elif isinstance(origin, Weights) and origin.scores is not None:
            change = _change("assigned", None, True, origin.scores, target)
            self._origins.put(target, origin._replace(scores=origin.scores.changed(change)))

    # --- factors and outputs --------------------------------------------------------------------------------

    def _begin_factor(self, name: str, inputs: list[Tensor], arguments: _Arguments, result: Tensor) -> None:
        """Follow a tensor that was multiplied with a number, or whose heads a view made."""
        if name in ("mul", "div"):
            number = _number(arguments, inputs, name)
            if number is not None and not (isinstance(number, float) and number == 1) and result.ndim > 1:
                self._origins.put(result, Factor((number,)))
        elif name in _VIEWS and inputs:
            heads, split = split_heads(inputs[0].shape, result.shape), is_split(inputs[0].shape, result.shape)
            if heads > 1 or (split and not is_learned(inputs[0])):
                self._origins.put(result, Factor((), heads, split))

    def _factor(self, name: str, inputs: list[Tensor], arguments: _Arguments, result: Tensor) -> Factor | None:
        """Return what is known of a factor that something was done to; None where it may be another tensor by now."""
        own = [self._origins.factor(each) for each in inputs]
        first = next(each for each in own if each != Factor())
        if name in _KEEP_FACTORS:
            heads = split_heads(inputs[0].shape, result.shape) if name in _VIEWS else 1
            split = first.is_split or (name in _VIEWS and is_split(inputs[0].shape, result.shape))
            return first._replace(heads=max(heads, first.heads), is_split=split)
        if name in ("mul", "div"):
            number = _number(arguments, inputs, name)
            if number is not None:
                return first._replace(numbers=several_numbers(first.numbers, (number,)))
            numbers = several_numbers(*(each.numbers for each in own))
            # What is learned, or one number a row, is no constant, and may undo a scale, as a norm does.
            is_clear = name == "mul" and all(
                each.shape[-1:] == result.shape[-1:] and not is_learned(each) for each in inputs
            )
            return first._replace(numbers=numbers if is_clear else (UNKNOWN,) * bool(numbers))
        if name in ("add", "sub", "rsub", "cat", "stack"):
            is_same = all(each.numbers == first.numbers for each in own)
            return first._replace(numbers=first.numbers if is_same else (UNKNOWN,))
        return None

    def _of_output(self, name: str, source: Tensor, output: AttentionOutput, result: Tensor) -> None:
        """Follow an output until it has other axes, and see whether its heads are put together by a view alone."""
        if name in _COPIES:
            self._origins.put(result, output)
        elif name in _VIEWS:
            finding = merged(source, result, self.context.place)
            if finding is not None:
                self.context.emit_late(output.place, finding)


class _Arguments:
    """The arguments of a function that ran."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.args, self.kwargs = args, kwargs

    def get(self, position: int, name: str, default: Any) -> Any:
        """Return an argument by its position or its name."""
        return self.args[position] if position < len(self.args) else self.kwargs.get(name, default)


def _gone_on(
    name: str, scores: Scores, source: Tensor, inputs: list[Tensor], arguments: _Arguments, result: Tensor
) -> Scores | None:
    """Return where a result comes from that was made of scores, or of weights; None where it is neither any more."""
    before, after = tuple(source.shape), tuple(result.shape)
    if len(scores.moves) >= _MOST_MOVES:
        return None
    if name in _ENDING and name in ("sum", "mean", "amax", "amin", "max", "min", "logsumexp", "norm"):
        return (
            None if after != before or len(inputs) < 2 else _change_of(name, scores, source, inputs, arguments, result)
        )
    if name == "cat" and after[:-1] == before[:-1] and after[-1] > before[-1]:
        added = after[-1] - before[-1]
        is_last = arguments.get(1, "dim", 0) % len(after) == len(after) - 1
        first, *others = arguments.args[0] if arguments.args else arguments.kwargs["tensors"]
        if first is source and is_last and added == 1 and others:
            return scores.changed(_change("beside", None, True, scores, source)).moved(Move(before, added=1), after)
        return None
    last = scores.moves[-1] if scores.moves else None
    if last is not None and last.added and after == last.before and name in ("__getitem__", "narrow"):
        return scores._replace(moves=scores.moves[:-1])
    if (result.numel() == source.numel() and before != after) or name in _ORDERS:
        if result.numel() != source.numel():
            return None
        return scores.moved(Move(before, _dims(name, before, arguments)), after)
    is_grown = len(before) == len(after) and all(one in (other, 1) for one, other in zip(before, after, strict=True))
    if before == after or is_grown:
        return scores if name in _COPIES else _change_of(name, scores, source, inputs, arguments, result)
    return None


def _change_of(
    name: str, scores: Scores, source: Tensor, inputs: list[Tensor], arguments: _Arguments, result: Tensor
) -> Scores:
    others = [each for each in inputs if each is not source]
    numbers = [each for each in arguments.args if isinstance(each, int | float) and not isinstance(each, bool)]
    is_first = bool(inputs) and inputs[0] is source
    other: Any = None
    if name in ("where", "masked_fill") and others:
        other = next((each for each in others if each.dtype == torch.bool), others[0])
    elif name in ("tril", "triu"):
        ones = torch.ones(result.shape[-2:], dtype=torch.bool, device=result.device)
        other = getattr(ones, name)(int(arguments.get(1, "diagonal", 0)))
    elif others:
        other = others[0]
    elif name in ("mul", "div", "add", "sub", "rsub") and numbers:
        other = float(numbers[0])
        is_first = not arguments.args or isinstance(arguments.args[0], Tensor)
    return scores.changed(_change(name, other, is_first, scores, result))


def _change(name: str, other: Any, is_first: bool, scores: Scores, result: Tensor) -> Change:
    if isinstance(other, Tensor):
        return Change(name, other.detach(), is_first, scores.moves, tuple(result.shape), version(other))
    return Change(name, other, is_first, scores.moves, tuple(result.shape))


def _dims(name: str, shape: tuple[int, ...], arguments: _Arguments) -> tuple[int, ...]:
    """Return the dims that undo a permutation, of which torch itself says what it does."""
    if name not in _ORDERS:
        return ()
    sizes = tuple(range(2, 2 + len(shape)))  # each axis is known by its size
    probe = torch.empty(sizes, device="meta")
    moved = getattr(probe, name)
    if callable(moved):
        moved = moved(*arguments.args[1:], **{k: v for k, v in arguments.kwargs.items() if k != "input"})
    return tuple(moved.shape.index(size) for size in sizes)


def _mixed(scores: Scores, found: Contraction, result: Tensor) -> Scores | None:
    """Return scores or weights, the left factor of a product, whose heads a matrix mixes; None where it does not."""
    if found.right.ndim != 2 or result.ndim != found.left.ndim or len(found.summed) != 1:
        return None
    shape = tuple(found.left.shape)
    axis = scores.axis(shape, found.first.index(found.summed[0]))
    if axis is None or axis < 0 or scores.product.out[axis] not in scores.product.shared:
        return None
    (new,) = [label for label in found.out if label not in found.first] or [None]
    order = [found.summed[0] if label == new else label for label in found.out]
    dims = tuple(order.index(label) for label in found.first)
    scores = scores.changed(Change("mixed", None, True, scores.moves, shape))
    return scores.moved(Move(shape, dims), tuple(result.shape))


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
    is_other = product is not None and (product.left.ndim != product.right.ndim or not product.is_of_pairs)
    return next(i for i, kind in enumerate(kinds) if isinstance(origin, kind)), int(is_other)


def _tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    found: list[Tensor] = []
    for each in (*args, *kwargs.values()):
        found += [one for one in (each if isinstance(each, tuple | list) else (each,)) if isinstance(one, Tensor)]
    return found


def _number(arguments: _Arguments, inputs: list[Tensor], name: str) -> Number | None:
    """Return the number that a tensor was multiplied with; None where it was no number."""
    values = [*arguments.args, *arguments.kwargs.values()]
    numbers = [each for each in values if isinstance(each, int | float) and not isinstance(each, bool)]
    small = [UNKNOWN if is_learned(each) else each.detach() for each in inputs if each.numel() == 1]
    number = float(numbers[0]) if numbers else small[0] if small and len(inputs) == 2 else None
    if number is None or name == "mul":
        return number
    return 1 / number if isinstance(number, Tensor) or number else UNKNOWN


def _always(*_: Any) -> bool:
    return True


def _may_begin(args: tuple[Any, ...], result: Any) -> bool:
    """Return whether a product is one with a number, or of all pairs."""
    if len(args) != 2 or not isinstance(args[1], Tensor) or not isinstance(args[0], Tensor) or args[1].ndim == 0:
        return len(args) == 2
    return _is_of_all_pairs(args, result)


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
    return (
        len(before) in (3, 4) and len(after) in (3, 4) and (split_heads(before, after) > 1 or is_split(before, after))
    )


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
