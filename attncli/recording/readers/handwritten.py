"""Hand-written attention, found by what flows into what: a product, a softmax, a product.

Every function that may be part of it is seen, and says what it made of the flow of its arguments. A function that is
not known here ends a flow. The attention is told when its weights meet the values; a softmax whose weights meet none
(of a classifier, of a router) is no attention. What puts scores or weights together anew, as bands of blocks are made,
ends a flow too, and their softmax is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from attncli.recording import elementwise, matmul_ops, softmax, unfollowed, views
from attncli.recording.cost import Cost
from attncli.recording.readers.reader import Begins, Handler, Reader, ThreadContext
from attncli.recording.tracer import Did, Flows

_Takes = Callable[[Flows, Did], None]

_TOO_MUCH = (
    "hand-written attention was followed for a part of the run, as it took longer than the program itself: what it "
    "computed later is not in the table; calls of torch's own attention functions are"
)

# What takes the functions of torch that may begin a flow, by their names, and those that only go on with one.
_BEGIN: dict[str, _Takes] = {
    **dict.fromkeys(("matmul", "bmm", "mm", "mv", "__matmul__"), matmul_ops.matmul),
    "einsum": matmul_ops.einsum,
    **dict.fromkeys(("baddbmm", "addmm"), matmul_ops.added_product),
    **dict.fromkeys(("div", "divide", "true_divide", "__truediv__"), elementwise.divided),
    **dict.fromkeys(("softmax", "special_softmax", "log_softmax", "special_log_softmax"), softmax.softmax),
    **dict.fromkeys(("rand", "rand_like", "bernoulli"), elementwise.drawn),
}
# And those that begin one by what says so.
_MAY_BEGIN: dict[str, tuple[_Takes, Begins]] = {
    **dict.fromkeys(("mul", "multiply", "__mul__", "__rmul__"), (elementwise.multiplied, elementwise.begins)),
    **dict.fromkeys(
        ("view", "reshape", "flatten", "unflatten", "view_as", "reshape_as"), (views.reshape, views.begins)
    ),
}
_GO_ON: dict[str, _Takes] = {
    **{name: takes for name, (takes, _) in _MAY_BEGIN.items()},
    **dict.fromkeys(("cat", "concat"), views.joined),
    "stack": unfollowed.lose,
    **dict.fromkeys(("neg", "negative", "__neg__"), elementwise.negated),
    **dict.fromkeys(("add", "__add__", "__radd__"), elementwise.added),
    **dict.fromkeys(("sub", "subtract", "__sub__", "rsub", "__rsub__"), elementwise.added),
    "masked_fill": elementwise.filled,
    "where": elementwise.where,
    "__setitem__": elementwise.assigned,
    **dict.fromkeys(("tril", "triu"), elementwise.triangle),
    "tanh": elementwise.tanh,
    **dict.fromkeys(("clamp", "clip", "clamp_min", "clamp_max", "maximum", "minimum"), elementwise.clamped),
    "exp": softmax.exp,
    "sum": softmax.summed,
    **dict.fromkeys(("logsumexp", "max", "amax"), softmax.greatest),
    "dropout": elementwise.dropout,
    **dict.fromkeys(("transpose", "swapaxes", "swapdims", "t", "permute"), views.permuted),
    "squeeze": views.squeezed,
    "unsqueeze": views.unsqueezed,
    **dict.fromkeys(("expand", "expand_as"), views.expanded),
    "__getitem__": views.index,
    **dict.fromkeys(("contiguous", "clone", "detach", "to", "type", "type_as"), views.same),
    **dict.fromkeys(("float", "half", "bfloat16", "double", "cpu", "cuda", "nan_to_num"), views.same),
    **dict.fromkeys(("linear", "conv1d", "conv2d", "layer_norm", "rms_norm"), matmul_ops.mixed),
    **dict.fromkeys(("batch_norm", "group_norm", "instance_norm"), matmul_ops.mixed),
    **dict.fromkeys((*unfollowed.PLACING, *unfollowed.CHANGING), unfollowed.lose),
    **dict.fromkeys(("gt", "lt", "ge", "le", "__gt__", "__lt__", "__ge__", "__le__"), elementwise.compared),
}
# Where functions of torch are; the last three also where the program put others in their place.
_HOMES = (torch.Tensor, torch, F, torch.special, torch.functional, torch._C.TensorBase, torch._C._VariableFunctions)
# What makes something else of scores or weights, and not these in another order or another place.
_ENDING = (
    matmul_ops.matmul, matmul_ops.einsum, matmul_ops.added_product, matmul_ops.mixed, softmax.softmax, softmax.summed,
    softmax.greatest, elementwise.drawn, unfollowed.lose,
)  # fmt: skip


class HandWritten(Reader):
    """Follows tensors from a product on, until this takes longer than the program itself.

    Args:
        context: the thread.
        clock: see `Cost`.
    """

    def __init__(self, context: ThreadContext, clock: Callable[[], float] = perf_counter) -> None:
        super().__init__(context)
        self._flows = Flows(context, Cost(clock))
        self.functions = {
            function: self._seen(name, takes) for name, takes in _BEGIN.items() for function in _spelled(name)
        }
        self.followed = {
            function: self._seen(name, takes) for name, takes in _GO_ON.items() for function in _spelled(name)
        }
        self.begins = {function: begins for name, (_, begins) in _MAY_BEGIN.items() for function in _spelled(name)}
        for name, takes in (("mT", views.permuted), ("T", views.permuted), ("data", views.same)):
            self.followed[getattr(torch.Tensor, name).__get__] = self._seen(name, takes)

    def _seen(self, name: str, takes: _Takes) -> Handler:
        flows, cost, goes_on = self._flows, self._flows.cost, takes not in _ENDING

        def seen(_: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
            if flows.nodes.is_over:
                return
            begun, did = cost.clock(), Did(name, args, kwargs, result)
            takes(flows, did)
            if goes_on:
                unfollowed.lose(flows, did)
            if cost.is_too_much(begun):
                flows.nodes.end()
                flows.context.note(_TOO_MUCH)

        return seen


def _spelled(name: str) -> Iterator[Callable[..., Any]]:
    """Yield what has a name: methods, in place too, and the functions of torch's namespaces."""
    for home in _HOMES:
        for spelled in (name, f"{name}_"):
            if callable(function := getattr(home, spelled, None)):
                yield function
