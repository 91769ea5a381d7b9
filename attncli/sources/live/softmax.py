"""Hand-written attention, found by what flows into what: a product, a softmax, a product.

Every function that may be part of it is seen, and says what it made of the flow of its arguments. A function that is
not known here ends a flow. The attention is told when its weights meet the values; a softmax whose weights meet none
(of a classifier, of a router) is no attention.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from numbers import Real
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812

from attncli.sources.live.axes import Atom, Axis, Layout, beside, broadcast, fresh, leaves, long, reshaped, size
from attncli.sources.live.factors import Factor, Labels, is_learned, joined, letters, own, own_of_broadcast
from attncli.sources.live.flow import (
    UNKNOWN,
    Flow,
    Laid,
    Node,
    Nodes,
    Number,
    Operand,
    Product,
    Softmax,
    unsure,
    version,
)
from attncli.sources.live.handwritten import Meeting, told
from attncli.sources.live.reader import Handler, Reader, Scene
from attncli.sources.live.taking import extended, indexed, taken

_BESIDE = "what is beside the scores"


class _Did(NamedTuple):
    """A function that ran."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any

    def get(self, position: int, *names: str, default: Any = None) -> Any:
        """Return an argument by its position or one of its names."""
        if position < len(self.args):
            return self.args[position]
        return next((self.kwargs[name] for name in names if name in self.kwargs), default)

    def first(self) -> Any:
        return self.get(0, "input")

    def dims(self, axes: int) -> tuple[int, ...] | None:
        """Return which of so many axes a reduction goes over, counted from the left; None is all."""
        dim = self.get(1, "dim", "axis")
        if dim is None:
            return None
        return tuple(each % axes for each in ((dim,) if isinstance(dim, int) else dim))

    def keeps(self) -> bool:
        return bool(self.get(2, "keepdim", "keepdims", default=False))


class HandWritten(Reader):
    """Follows tensors from a product on."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._nodes = scene.nodes
        self.functions = dict(self._functions())

    def _functions(self) -> Iterator[tuple[Callable[..., Any], Handler]]:
        """Yield every function with what takes it: methods, in place too, and the functions of torch's namespaces."""
        begin: dict[str, Callable[[_Did], None]] = {
            **dict.fromkeys(("matmul", "bmm", "mm", "mv", "__matmul__"), self._matmul),
            "einsum": self._einsum,
            **dict.fromkeys(("baddbmm", "addmm"), self._added_product),
            **dict.fromkeys(("mul", "multiply", "__mul__", "__rmul__"), self._multiplied),
            **dict.fromkeys(("div", "divide", "true_divide", "__truediv__"), self._divided),
            **dict.fromkeys(("view", "reshape", "flatten", "unflatten", "view_as", "reshape_as"), self._reshaped),
            **dict.fromkeys(("rand", "rand_like", "bernoulli"), self._drawn),
            **dict.fromkeys(("cat", "concat"), self._joined),
        }
        go_on: dict[str, Callable[[_Did], None]] = {
            **dict.fromkeys(("neg", "negative", "__neg__"), self._negated),
            **dict.fromkeys(("add", "__add__", "__radd__"), self._added),
            **dict.fromkeys(("sub", "subtract", "__sub__", "rsub", "__rsub__"), self._added),
            "masked_fill": self._filled,
            "where": self._where,
            "__setitem__": self._assigned,
            **dict.fromkeys(("tril", "triu"), self._triangle),
            "tanh": self._tanh,
            **dict.fromkeys(("clamp", "clip", "clamp_min", "clamp_max", "maximum", "minimum"), self._clamped),
            **dict.fromkeys(("softmax", "special_softmax", "log_softmax", "special_log_softmax"), self._softmax),
            "exp": self._exp,
            "sum": self._sum,
            **dict.fromkeys(("logsumexp", "max", "amax"), self._greatest),
            "dropout": self._dropout,
            **dict.fromkeys(("transpose", "swapaxes", "swapdims", "t", "permute"), self._permuted),
            "squeeze": self._squeezed,
            "unsqueeze": self._unsqueezed,
            **dict.fromkeys(("expand", "expand_as"), self._expanded),
            "__getitem__": self._taken,
            **dict.fromkeys(("contiguous", "clone", "detach", "to", "type", "type_as"), self._same),
            **dict.fromkeys(("float", "half", "bfloat16", "double", "cpu", "cuda", "nan_to_num"), self._same),
            **dict.fromkeys(("gt", "lt", "ge", "le", "__gt__", "__lt__", "__ge__", "__le__"), self._compared),
        }
        for named, seen in ((begin, self._beginning), (go_on, self._going_on)):
            for name, handler in named.items():
                for home in (torch.Tensor, torch, F, torch.special):
                    for spelled in (name, f"{name}_"):
                        if callable(function := getattr(home, spelled, None)):
                            yield function, seen(name, handler)
        for name, handler in (("mT", self._permuted), ("T", self._permuted), ("data", self._same)):
            yield getattr(torch.Tensor, name).__get__, self._going_on(name, handler)

    def _beginning(self, name: str, handler: Callable[[_Did], None]) -> Handler:
        def seen(_: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
            handler(_Did(name, args, kwargs, result))

        return seen

    def _going_on(self, name: str, handler: Callable[[_Did], None]) -> Handler:
        """Return what takes a function that only goes on with a flow; most of its calls are of no flow."""
        knows = self._nodes.knows

        def seen(_: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
            if knows(args) or (kwargs and knows(kwargs.values())):
                handler(_Did(name, args, kwargs, result))

        return seen

    # What is followed, and how it goes on.

    def _flow(self, did: _Did, tensor: Any) -> tuple[Node, Flow] | None:
        """Return the node and the flow of a tensor that is followed, as it was before this function ran."""
        node = self._nodes.get(tensor)
        if node is None or node.state.flow is None:
            return None
        flow = node.state.flow
        if version(tensor) > node.state.version + (did.result is tensor or did.name == "__setitem__"):
            flow = flow._replace(unread="an operation in place")
        return node, flow

    def _begin(self, result: torch.Tensor, flow: Flow, layout: Layout) -> None:
        if _has_values(result):
            self._nodes.follow(result, flow, layout)

    def _go_on(self, did: _Did, source: torch.Tensor, node: Node, flow: Flow, layout: Layout | None = None) -> None:
        """Let the flow of a source go on in the result, which may be the source itself, changed in place."""
        result = source if did.name == "__setitem__" else did.result
        if result is source:
            node.state.flow, node.state.version = flow, version(result)
        elif isinstance(result, torch.Tensor):
            layout = broadcast(node.layout, result.shape) if layout is None else layout
            if len(layout) == 4 and flow.stage == "scores":
                flow = flow._replace(four=layout)
            self._nodes.follow(result, flow, layout)

    def _view(self, did: _Did, node: Node, layout: Layout) -> None:
        """Let a view have the state of what it is a view of."""
        flow = node.state.flow
        if len(layout) == 4 and flow is not None and flow.stage == "scores":
            node.state.flow = flow._replace(four=layout)
        self._nodes.share(did.result, Node(node.state, layout))

    # Products.

    def _matmul(self, did: _Did) -> None:
        left, right = did.first(), did.get(1, "other", "mat2", "vec", "tensor2")
        if not isinstance(did.result, torch.Tensor) or did.result.ndim < 2:
            return
        batch = [*range(max(left.ndim, right.ndim) - 2, 0, -1)]
        first = [*batch[len(batch) - left.ndim + 2 :], "left", "sum"] if left.ndim > 1 else ["sum"]
        second = [*batch[len(batch) - right.ndim + 2 :], "sum", "right"] if right.ndim > 1 else ["sum"]
        out = [*batch, *["left"][: left.ndim - 1], *["right"][: right.ndim - 1]]
        self._multiply(did.result, self._factor(left), self._factor(right), first, second, out)

    def _einsum(self, did: _Did) -> None:
        if not did.args or not isinstance(did.args[0], str):
            return
        factors = did.args[1:]
        if len(factors) == 1 and isinstance(factors[0], list | tuple):
            factors = tuple(factors[0])
        if len(factors) != 2:
            return
        named = letters(did.args[0], factors[0].ndim, factors[1].ndim)
        if named is not None:
            self._multiply(did.result, self._factor(factors[0]), self._factor(factors[1]), *named)

    def _added_product(self, did: _Did) -> None:
        """See torch.baddbmm: beta · input + alpha · product."""
        added, left, right = did.first(), did.get(1, "batch1", "mat1"), did.get(2, "batch2", "mat2")
        alpha, beta = (did.kwargs.get(name, 1) for name in ("alpha", "beta"))
        if not all(isinstance(each, torch.Tensor) for each in (added, left, right)):
            return
        inner = [*range(left.ndim - 2)]
        self._multiply(
            did.result, self._factor(left), self._factor(right), [*inner, "left", "sum"], [*inner, "sum", "right"],
            [*inner, "left", "right"],
        )  # fmt: skip
        found = self._flow(did, did.result)
        if found is None or found[1].stage != "scores":
            return
        node, flow = found
        if alpha != 1:
            flow = _scaled(flow, float(alpha), float(alpha))
        if beta != 0:
            flow = _laid_on(flow, Laid("added", added, (), "additive", factor=float(beta)), node.layout)
        node.state.flow = flow

    def _factor(self, tensor: torch.Tensor) -> Factor:
        return Factor.of(tensor, self._nodes.get(tensor))

    def _multiply(
        self, result: torch.Tensor, left: Factor, right: Factor, first: Labels, second: Labels, out: Labels
    ) -> None:
        """Follow a product, or let weights meet values.

        Args:
            result: of the product.
            left: a factor.
            right: the other.
            first: names of the axes of `left`.
            second: names of the axes of `right`.
            out: names of the axes of the result.
        """
        if not _has_values(result) or not result.is_floating_point() or not result.numel():
            return
        if left.is_weights and right.is_weights:
            return
        if left.is_weights or right.is_weights:
            if left.is_weights:
                self._meet(result, left, right, first, second, out)
            else:
                self._meet(result, right, left, second, first, out)
            return
        if any((label in first) != (label in second) for label in {*first, *second} - {*out}):
            return
        axes = joined(left, right, first, second)
        summed = [label for label in first if label in second and label not in out]
        layout = tuple(axes[label] for label in out)
        for factor, labels in ((left, first), (right, second)):
            gone = [factor.layout[labels.index(each)] for each in summed]
            if factor.flow is not None and _mixes_heads(factor.flow, gone):
                flow = factor.flow._replace(scale=None)
                self._mix(result, flow, tuple(axes[label if label in labels else summed[0]] for label in out))
                return
        product = Product(
            left.operand(first, axes),
            right.operand(second, axes),
            tuple(atom for label in summed for atom in axes[label]),
            own_of_broadcast(left, right, first, axes) if first == second else own(first, second, axes),
        )
        self._nodes.begin(product)
        self._nodes.follow(result, Flow("scores", product, four=layout if len(layout) == 4 else None), layout)

    def _mix(self, result: torch.Tensor, flow: Flow, layout: Layout) -> None:
        """Follow scores or weights whose heads were mixed."""
        if [size(axis) for axis in layout] == list(result.shape):
            self._nodes.follow(result, flow._replace(unread="the mixing of heads"), layout)

    def _meet(
        self, result: torch.Tensor, weights: Factor, other: Factor, first: Labels, second: Labels, out: Labels
    ) -> None:
        """Let weights meet what they are multiplied with: values, if it is summed over keys."""
        flow = weights.flow
        if flow is None or flow.product is None or flow.softmax is None:  # it was told
            return
        axes = joined(weights, other, first, second)
        summed = [label for label in first if label in second and label not in out]
        layout = tuple(axes[label] for label in out)
        if _mixes_heads(flow, [axes[label] for label in summed]):
            if not flow.softmax.over & long(axes[label] for label in summed):
                self._mix(result, flow, tuple(axes[label if label in first else summed[0]] for label in out))
            return
        _, alone = own_of_broadcast(weights, other, first, axes) if first == second else own(first, second, axes)
        call = told(
            self.scene,
            Meeting(
                flow,
                weights.operand(first, axes),
                other.operand(second, axes),
                tuple(leaf for label in summed for leaf in leaves(axes[label])),
                leaves(alone),
                result,
                layout,
            ),
        )
        if call is None:
            return
        for state in list(flow.product.states):
            if state.flow is not None and state.flow.softmax is flow.softmax:
                state.flow, state.was_told = None, True
        self.scene.tell(call)
        for also, layout_of_it in flow.beside:
            also = also._replace(beside=(), unread="what is added to the weights")
            self._meet(result, weights._replace(flow=also, layout=layout_of_it), other, first, second, out)

    # Factors, sums, what is laid on.

    def _multiplied(self, did: _Did) -> None:
        left, right = did.first(), did.get(1, "other")
        if (number := _number(right, self._nodes)) is not None:
            self._times(did, left, _constant(right, number), number)
        elif (number := _number(left, self._nodes)) is not None:
            self._times(did, right, _constant(left, number), number)
        elif isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
            self._times_tensor(did, left, right)

    def _times(self, did: _Did, tensor: Any, step: Number | None, number: Number) -> None:
        """Take a product with a number, which is a step of the scale; none where it is a sign."""
        if not isinstance(tensor, torch.Tensor) or not isinstance(did.result, torch.Tensor):
            return
        found = self._flow(did, tensor)
        if found is not None:
            node, flow = found
            if flow.stage in ("operand", "outer", "scores"):
                flow = _scaled(flow, number, step)
            elif flow.stage == "weights" and not any(laid.is_random for laid in flow.after):
                flow = flow._replace(unread="a factor of the weights")
            elif flow.stage not in ("weights", "pending"):
                return
            self._go_on(did, tensor, node, flow)
        elif step is not None and tensor.ndim > 1 and did.result.shape == tensor.shape and tensor.is_floating_point():
            self._begin(did.result, Flow("operand", steps=(step,)), fresh(tensor.shape))

    def _negated(self, did: _Did) -> None:
        self._times(did, did.first(), None, -1.0)

    def _times_tensor(self, did: _Did, left: torch.Tensor, right: torch.Tensor) -> None:
        """Take a product without a sum: a factor of scores or weights, or a step of a product by hand."""
        found = self._flow(did, left), self._flow(did, right)
        one, two = (None if each is None else each[1] for each in found)
        for each, tensor, other, laid in ((found[0], left, right, two), (found[1], right, left, one)):
            if each is None or each[1].stage not in ("scores", "exp", "weights"):
                continue
            if laid is not None and laid.stage != "operand":
                continue
            node, flow = each
            if did.result.shape == tensor.shape:
                is_random = laid is not None and laid.is_random
                self._lay(did, tensor, node, flow, Laid("multiplied", other, (), "multiplied", is_random=is_random))
            elif flow.stage == "weights":
                flow = flow._replace(stage="pending", factors=(self._factor(tensor).kept(), self._factor(other).kept()))
                self._nodes.follow(did.result, flow, fresh(did.result.shape))
            elif flow.stage == "scores":
                self._begin_outer(did, left, right)
            return
        if (one is None or one.stage in ("operand", "scores")) and (two is None or two.stage in ("operand", "scores")):
            if left.shape != right.shape and left.ndim == right.ndim > 2:
                self._begin_outer(did, left, right)
            elif (kept := found[0] or found[1]) is not None and kept[1].stage == "operand":
                flow = kept[1]._replace(steps=self._steps_of_both(did, left, right))
                self._go_on(did, left if kept is found[0] else right, kept[0], flow)

    def _begin_outer(self, did: _Did, left: torch.Tensor, right: torch.Tensor) -> None:
        """Follow two tensors that were multiplied after they were broadcast: a sum makes it a product."""
        factors = self._factor(left), self._factor(right)
        if left.ndim == right.ndim and did.result.is_floating_point() and did.result is not left:
            steps = self._steps_of_both(did, left, right)
            flow = Flow("outer", factors=(factors[0].kept(), factors[1].kept()), steps=steps)
            self._begin(did.result, flow, fresh(did.result.shape))

    def _steps_of_both(self, did: _Did, left: torch.Tensor, right: torch.Tensor) -> tuple[Number, ...]:
        """Return the numbers of two tensors that were multiplied; what is learned, or one number a row, is no constant.

        A number for each row may undo a scale, as a norm does.
        """
        steps = *self._nodes.steps(left), *self._nodes.steps(right)
        width = did.result.shape[-1:]
        is_clear = all(each.shape[-1:] == width and not is_learned(each) for each in (left, right))
        return steps if is_clear else unsure(steps)

    def _divided(self, did: _Did) -> None:
        left, right = did.first(), did.get(1, "other")
        if (number := _number(right, self._nodes)) is not None:
            inverse = math.inf if isinstance(number, float) and not number else 1 / number
            self._times(did, left, _constant(right, inverse), inverse)
            return
        found, by = self._flow(did, left), self._flow(did, right)
        if found is None:
            return
        node, flow = found
        if by is not None and by[1].stage == "sum" and by[1].product is flow.product:
            over = by[1].summed
            if flow.stage == "exp":
                softmax = Softmax(over, node.layout, None, did.result.detach())
                self._go_on(did, left, node, flow._replace(stage="weights", softmax=softmax), node.layout)
            elif flow.stage == "weights":
                self._go_on(did, left, node, flow._replace(again=flow.again | over), node.layout)
        elif flow.stage == "operand":
            self._go_on(did, left, node, flow._replace(steps=unsure(flow.steps)))
        elif flow.stage == "scores" and did.result.shape == left.shape:
            self._go_on(did, left, node, flow._replace(scale=None, unread="a division by a tensor"))

    def _added(self, did: _Did) -> None:
        """Take one · left + two · right."""
        left, right, alpha = did.first(), did.get(1, "other"), float(did.kwargs.get("alpha", 1))
        one, two = (-alpha, 1.0) if "rsub" in did.name else (1.0, -alpha if "sub" in did.name else alpha)
        found, also = self._flow(did, left), self._flow(did, right)
        if found is None or (also is not None and _comes_first(*also, *found)):
            left, right, one, two, found, also = right, left, two, one, also, found
        if found is None or not isinstance(did.result, torch.Tensor):
            return
        node, flow = found
        if flow.stage == "scores" and one != 1:
            flow = _scaled(flow, one, None)
        if not isinstance(right, torch.Tensor) or right.numel() == 1:
            self._go_on(did, left, node, flow)
        elif flow.stage in ("operand", "outer"):
            self._go_on(did, left, node, _with_others(flow, [None if also is None else also[1]]))
        elif flow.stage == "weights":
            flow = flow._replace(unread="what is added to the weights")
            if also is not None and also[1].stage == "weights":
                flow = flow._replace(beside=(*flow.beside, (also[1], also[0].layout), *also[1].beside))
            self._go_on(did, left, node, flow)
        elif flow.stage == "scores":
            of_these = also[1] if also is not None and also[1].product is flow.product else None
            if of_these is not None and of_these.stage == "logsumexp" and (one, two) == (1, -1):
                self._go_on(did, left, node, flow._replace(stage="log", summed=of_these.summed))
            else:
                how = "max" if of_these is not None and of_these.stage == "max" else "added"
                self._lay(did, left, node, flow, Laid(how, right, (), "additive", factor=two))

    def _filled(self, did: _Did) -> None:
        tensor, mask, value = did.first(), did.get(1, "mask"), did.get(2, "value")
        found, fill = self._flow(did, tensor), _fill(value)
        if found is not None and fill is not None:
            self._lay(did, tensor, *found, Laid("masked_fill", mask, (), "masked", fill))

    def _where(self, did: _Did) -> None:
        """Take `torch.where(condition, input, other)`, and the method of the input that has the condition second."""
        condition, chosen, other = did.get(0, "condition"), did.get(1, "input"), did.get(2, "other")
        if isinstance(chosen, torch.Tensor) and chosen.dtype == torch.bool:
            condition, chosen = chosen, condition
        for tensor, filled, convention in ((chosen, other, "attend"), (other, chosen, "masked")):
            if (found := self._flow(did, tensor)) is not None:
                fill = _fill(filled)
                if fill is not None and self._flow(did, filled) is None:
                    self._lay(did, tensor, *found, Laid("where", condition, (), convention, fill))  # type: ignore[arg-type]
                return

    def _assigned(self, did: _Did) -> None:
        tensor, index, value = did.args
        found = self._flow(did, tensor)
        if found is None:
            return
        node, flow = found
        fill, mask = _fill(value), _mask_of(index, tensor.ndim)
        if fill is not None and mask is not None and beside(node.layout, mask.shape) is not None:
            self._lay(did, tensor, node, flow, Laid("assigned", mask, (), "masked", fill))
        elif fill is not None and flow.stage == "scores":
            self._go_on(did, tensor, node, flow._replace(laid=(*flow.laid, Laid("assigned", None, (), "masked", fill))))
        else:
            self._go_on(did, tensor, node, flow._replace(unread="an assignment to a part"))

    def _triangle(self, did: _Did) -> None:
        tensor = did.first()
        if (found := self._flow(did, tensor)) is not None and found[1].stage in ("scores", "exp", "weights"):
            diagonal = did.get(1, "diagonal", default=0)
            laid = Laid(did.name, None, found[0].layout[-2:], did.name, diagonal=diagonal)  # type: ignore[arg-type]
            self._lay(did, tensor, *found, laid)

    def _lay(self, did: _Did, tensor: torch.Tensor, node: Node, flow: Flow, laid: Laid) -> None:
        """Let scores, their exp or the weights go on with something that was laid on them."""
        result = tensor if did.result is None else did.result
        layout = broadcast(node.layout, result.shape) if result is not tensor else node.layout
        if flow.stage == "operand":
            self._go_on(did, tensor, node, flow)
        elif flow.stage in ("scores", "exp", "weights"):
            self._go_on(did, tensor, node, _laid_on(flow, laid, layout), layout)

    def _tanh(self, did: _Did) -> None:
        tensor = did.first()
        if (found := self._flow(did, tensor)) is None or found[1].stage != "scores" or found[1].capped is not None:
            return
        node, flow = found
        laid = tuple(each._replace(is_capped=True) for each in flow.laid)
        flow = _sinks_unread(flow)
        self._go_on(did, tensor, node, flow._replace(capped=flow.scale, scale=1.0, laid=laid))

    def _clamped(self, did: _Did) -> None:
        """Let scores go on that are held within bounds, which are noted where they may hold anything but a mask."""
        for tensor, other in ((did.first(), did.get(1, "other", "min")), (did.get(1, "other"), did.first())):
            if (found := self._flow(did, tensor)) is None:
                continue
            node, flow = found
            if isinstance(other, torch.Tensor) and other.numel() != 1:
                return
            bounds = [_fill(each) for each in (*did.args[1:], *did.kwargs.values(), other) if each is not tensor]
            if flow.stage == "scores" and any(each is not None and abs(each) < 9_000 for each in bounds):
                flow = flow._replace(unread="the clamp of the scores")
            if flow.stage in ("scores", "exp", "weights", "sum", "operand"):
                self._go_on(did, tensor, node, flow)
            return

    # The softmax, at once and by hand.

    def _softmax(self, did: _Did) -> None:
        tensor, dim = did.first(), did.get(1, "dim")
        if (found := self._flow(did, tensor)) is None or found[1].stage not in ("scores", "weights"):
            return
        node, flow = found
        over = long((node.layout[_softmax_axis(dim, tensor.ndim)],))
        if "log" in did.name:
            if flow.stage == "scores":
                self._go_on(did, tensor, node, flow._replace(stage="log", summed=over), node.layout)
        elif not _is_over_learned(flow, over):
            scores = tensor.detach() if flow.stage == "scores" else None
            softmax = Softmax(over, node.layout, scores, did.result.detach(), is_second=flow.softmax is not None)
            self._go_on(did, tensor, node, flow._replace(stage="weights", softmax=softmax), node.layout)

    def _exp(self, did: _Did) -> None:
        tensor = did.first()
        if (found := self._flow(did, tensor)) is None:
            return
        node, flow = found
        if flow.stage == "scores":
            self._go_on(did, tensor, node, flow._replace(stage="exp"))
        elif flow.stage == "log" and not _is_over_learned(flow, flow.summed):
            softmax = Softmax(flow.summed, node.layout, None, did.result.detach())
            self._go_on(did, tensor, node, flow._replace(stage="weights", softmax=softmax))

    def _sum(self, did: _Did) -> None:
        tensor = did.first()
        if (found := self._flow(did, tensor)) is None or not isinstance(did.result, torch.Tensor):
            return
        node, flow = found
        if flow.stage in ("exp", "weights"):
            self._reduce(did, node, flow, "sum")
        elif flow.factors is not None and flow.stage in ("outer", "pending") and len(did.dims(tensor.ndim) or ()) == 1:
            self._sum_of_factors(did, flow, flow.factors)

    def _sum_of_factors(self, did: _Did, flow: Flow, factors: tuple[Operand, Operand]) -> None:
        """Take the sum that makes a product of two tensors multiplied before."""
        axes = did.first().ndim
        first, second = (list(range(axes - each.tensor.ndim, axes)) for each in factors)
        summed = (did.dims(axes) or (0,))[0]
        out = [label for label in range(axes) if label != summed]
        if any(summed not in labels or factor.tensor.shape[labels.index(summed)] != did.first().shape[summed]
               for factor, labels in zip(factors, (first, second), strict=True)):  # fmt: skip
            return
        result = did.result.squeeze(summed) if did.keeps() else did.result
        one, two = (Factor(each.tensor, each.layout) for each in factors)
        if flow.stage == "pending":
            flow = flow._replace(stage="weights", factors=None)
            self._meet(result, one._replace(flow=flow, is_weights=True), two, first, second, out)
            return
        self._multiply(result, one, two, first, second, out)
        if (found := self._flow(did, result)) is None or found[1].stage != "scores":
            return
        node = found[0]
        node.state.flow = found[1]._replace(scale=flow.scale, steps=flow.steps)
        if did.keeps():
            layout = (*node.layout[:summed], (), *node.layout[summed:])
            self._nodes.share(did.result, Node(node.state, layout))

    def _greatest(self, did: _Did) -> None:
        """Take the greatest of each row, or the logsumexp, which is a smooth one."""
        if isinstance(did.get(1, "other"), torch.Tensor):
            self._clamped(did)
        elif (found := self._flow(did, did.first())) is not None and found[1].stage == "scores":
            self._reduce(did, *found, "max" if "max" in did.name else "logsumexp")

    def _reduce(self, did: _Did, node: Node, flow: Flow, stage: Any) -> None:
        """Follow what scores or weights are to be divided by, or less."""
        dims = did.dims(len(node.layout))
        gone = range(len(node.layout)) if dims is None else dims
        result = did.result if isinstance(did.result, torch.Tensor) else did.result[0]
        layout = tuple(() if i in gone else axis for i, axis in enumerate(node.layout) if i not in gone or did.keeps())
        summed = long(node.layout[i] for i in gone)
        self._nodes.follow(result, Flow(stage, flow.product, summed=summed), layout)

    def _dropout(self, did: _Did) -> None:
        tensor = did.first()
        if (found := self._flow(did, tensor)) is None:
            return
        node, flow = found
        p, is_on = float(did.get(1, "p", default=0.5)), bool(did.get(2, "training", "train", default=True))
        if is_on and p > 0:
            if flow.stage == "weights":
                flow = flow._replace(dropout=p, in_dropout=self.scene.is_training())
            elif flow.stage != "operand":
                flow = flow._replace(unread="a dropout of the scores")
        self._go_on(did, tensor, node, flow)

    # Views and copies.

    def _permuted(self, did: _Did) -> None:
        tensor = did.first()
        if did.name in ("T", "mT"):  # a property's getter
            tensor = did.args[0]
        if (node := self._nodes.get(tensor)) is None:
            return
        layout = node.layout
        order = list(range(len(layout)))
        if did.name == "permute":
            dims = did.args[1:] if len(did.args) > 2 else did.get(1, "dims")
            order = [each % len(layout) for each in ((dims,) if isinstance(dims, int) else dims)]
        elif did.name in ("t", "T"):
            order.reverse()
        else:
            swapped = (-2, -1) if did.name == "mT" else (did.get(1, "dim0", "axis0"), did.get(2, "dim1", "axis1"))
            one, two = (each % len(layout) for each in swapped)
            order[one], order[two] = order[two], order[one]
        self._view(did, node, tuple(layout[i] for i in order))

    def _reshaped(self, did: _Did) -> None:
        tensor, result = did.first(), did.result
        node = self._nodes.get(tensor)
        if node is None:
            # Heads that are folded into the batch may be unfolded, if it is known how many they are.
            if result.ndim == 3 and 2 < tensor.ndim < 5 and result.shape != tensor.shape:
                folded = reshaped(fresh(tensor.shape), tensor.shape, result.shape)
                if folded is not None and max(len(axis) for axis in folded[:2]) > 1:
                    self._begin(result, Flow("operand"), folded)
            return
        if result.dtype != tensor.dtype or (result is tensor):
            return
        layout = reshaped(node.layout, tensor.shape, result.shape)
        if layout is None:
            return
        if did.name in ("view", "view_as", "unflatten"):
            self._view(did, node, layout)
        elif node.state.flow is not None:
            self._go_on(did, tensor, node, node.state.flow, layout)
        else:
            self._nodes.share(result, Node(node.state, layout))

    def _squeezed(self, did: _Did) -> None:
        if (node := self._nodes.before(did.first())) is None:
            return
        dims = did.dims(len(node.layout))
        gone = [i for i in range(len(node.layout)) if size(node.layout[i]) == 1 and (dims is None or i in dims)]
        layout = tuple(axis for i, axis in enumerate(node.layout) if i not in gone)
        if len(layout) == did.result.ndim:
            self._view(did, node, layout)

    def _unsqueezed(self, did: _Did) -> None:
        if (node := self._nodes.before(did.first())) is not None:
            at = did.get(1, "dim") % (len(node.layout) + 1)
            self._view(did, node, (*node.layout[:at], (), *node.layout[at:]))

    def _expanded(self, did: _Did) -> None:
        if (node := self._nodes.get(did.first())) is not None:
            self._view(did, node, broadcast(node.layout, did.result.shape))

    def _taken(self, did: _Did) -> None:
        """Follow what an index takes, whole axes or parts of them."""
        if (node := self._nodes.get(did.args[0])) is None or not isinstance(did.result, torch.Tensor):
            return
        found = indexed(node.layout, did.args[1] if isinstance(did.args[1], tuple) else (did.args[1],))
        flow = node.state.flow
        if found is None:
            if flow is not None and flow.stage == "operand":
                self._nodes.follow(did.result, flow, fresh(did.result.shape))
            return
        layout, parts = found
        if not parts:
            self._view(did, node, layout)
            return
        if flow is not None and flow.stage == "operand":
            self._nodes.follow(did.result, flow, layout)
            return
        for part in parts:
            flow = None if flow is None or flow.stage not in ("scores", "weights") else taken(flow, part)
        if flow is not None:
            self._go_on(did, did.args[0], node, flow, layout)

    def _joined(self, did: _Did) -> None:
        """Follow scores that columns were put beside, such as the sinks of gpt-oss, and factors joined again."""
        tensors = did.get(0, "tensors")
        if not isinstance(tensors, list | tuple) or not self._nodes.knows(tensors):
            return
        followed = [(i, *found) for i, each in enumerate(tensors) if (found := self._flow(did, each)) is not None]
        if not followed:
            return
        i, node, flow = followed[0]
        if flow.stage == "operand":
            flows = {index: each for index, _, each in followed}
            flow = _with_others(flow, [flows.get(index) for index in range(len(tensors))])
            self._nodes.follow(did.result, flow, fresh(did.result.shape))
        elif flow.stage == "scores" and all(also.stage == "operand" for _, _, also in followed[1:]):
            dim = did.get(1, "dim", default=0) % did.result.ndim
            start = sum(each.shape[dim] for each in tensors[:i])
            axis = extended(node.layout[dim], start, did.result.shape[dim])
            others = [each for j, each in enumerate(tensors) if j != i]
            if flow.sinks is None and dim == did.result.ndim - 1 and [each.shape[dim] for each in others] == [1]:
                where = beside(node.layout, others[0].shape) or ()
                flow = flow._replace(sinks=Laid("beside", others[0].detach(), where, "additive"))
            else:
                flow = flow._replace(unread=_BESIDE)
            self._go_on(did, tensors[i], node, flow, (*node.layout[:dim], axis, *node.layout[dim + 1 :]))

    def _same(self, did: _Did) -> None:
        tensor = did.first()
        if (node := self._nodes.get(tensor)) is None or not isinstance(did.result, torch.Tensor):
            return
        if did.name in ("detach", "data"):
            self._view(did, node, node.layout)
        elif did.result is not tensor and node.state.flow is not None and did.result.is_floating_point():
            self._go_on(did, tensor, node, node.state.flow, node.layout)

    # Numbers that are drawn: a dropout by hand.

    def _drawn(self, did: _Did) -> None:
        if isinstance(did.result, torch.Tensor) and did.result.ndim > 1:
            self._begin(did.result, Flow("operand", is_random=True), fresh(did.result.shape))

    def _compared(self, did: _Did) -> None:
        for each in did.args[:2]:
            if (found := self._flow(did, each)) is not None and found[1].is_random:
                self._go_on(did, each, *found)


def _scaled(flow: Flow, number: Number, step: Number | None) -> Flow:
    """Return a flow after all of it was multiplied with a number, which is a step of the scale, or none."""
    laid = tuple(each._replace(factor=each.factor * number) for each in flow.laid) if flow.laid else ()
    steps = flow.steps if step is None else (*flow.steps, step)
    flow = _sinks_unread(flow)
    return flow._replace(scale=None if flow.scale is None else flow.scale * number, steps=steps, laid=laid)


def _sinks_unread(flow: Flow) -> Flow:
    """Return a flow of scores whose sinks, if there are any, are not what was put beside them any more."""
    return flow if flow.sinks is None else flow._replace(sinks=None, unread=_BESIDE)


def _laid_on(flow: Flow, laid: Laid, layout: Layout) -> Flow:
    """Return a flow after something was laid on a tensor that has this layout now."""
    if laid.values is not None:
        where = beside(layout, laid.values.shape)
        if where is None:
            return flow._replace(unread=f"the shape of what was laid on by {laid.how}")
        kept = laid.values.detach() if laid.values.requires_grad else laid.values
        laid = laid._replace(values=kept, layout=where)
    if flow.stage == "weights":
        return flow._replace(after=(*flow.after, laid))
    if laid.how != "max":
        flow = _sinks_unread(flow)
    if flow.stage == "exp":  # what is 0 there has no weight
        laid = laid._replace(fill=-math.inf if laid.fill == 0 else laid.fill, is_of_exp=True)
    return flow._replace(laid=(*flow.laid, laid))


def _with_others(flow: Flow, others: Sequence[Flow | None]) -> Flow:
    """Return the flow of a factor that others were added to, or put beside, which may have other scales."""
    is_same = all(other is not None and (other is flow or other.steps == flow.steps) for other in others)
    steps = tuple(step for each in (flow, *others) if each is not None for step in each.steps)
    return flow._replace(stage="operand", factors=None, steps=flow.steps if is_same else unsure(steps))


def _constant(value: Any, number: Number) -> Number:
    """Return a number that a value is or stands for as a step of the scale; what is learned is no constant."""
    is_tensor = isinstance(value, torch.Tensor)
    return UNKNOWN if is_tensor and (value.requires_grad or is_learned(value)) else number


def _number(value: Any, nodes: Nodes) -> Number | None:
    """Return a number, or a tensor of one element, which is not waited for; None of all else."""
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, torch.Tensor) and value.numel() == 1 and value.ndim < 2 and nodes.get(value) is None:
        return value.detach().reshape(()).float()
    return None


def _has_values(result: Any) -> bool:
    """Return whether a result is a plain tensor, with numbers of its own."""
    is_plain = type(result) is torch.Tensor and not (result.is_meta or result.is_nested)
    return is_plain and not torch._C._functorch.is_functorch_wrapped_tensor(result)


def _fill(value: Any) -> float | None:
    """Return what cells are set to, by a number or a tensor that holds nothing else; None where it holds more."""
    if isinstance(value, Real):
        return float(value)
    if not isinstance(value, torch.Tensor) or not value.numel() or value.dtype == torch.bool:
        return None
    if value.numel() == 1:
        return float(value)
    least, most = value.aminmax()
    return float(most) if least == most else None


def _mask_of(index: Any, axes: int) -> torch.Tensor | None:
    """Return the booleans that an index picks cells with, where they have the last axes of the tensor."""
    parts = index if isinstance(index, tuple) else (index,)
    *whole, mask = parts
    if not isinstance(mask, torch.Tensor) or mask.dtype != torch.bool:
        return None
    if any(each is not Ellipsis and each != slice(None) for each in whole):
        return None
    has_dots = any(each is Ellipsis for each in whole)
    return mask if has_dots or len(whole) + mask.ndim == axes else None


def _softmax_axis(dim: int | None, axes: int) -> int:
    """Return the axis of a softmax; without one, torch takes that of its earliest versions."""
    if dim is None:
        return 0 if axes in (0, 1, 3) else 1
    return dim % axes


def _comes_first(node: Node, flow: Flow, other: Node, of_other: Flow) -> bool:
    """Return whether of two tensors that are added the second is the scores, and the first is added to them."""
    if of_other.stage in ("operand", "outer", "max"):
        return True
    return flow.stage == of_other.stage == "scores" and _is_of_pairs(node, flow) and not _is_of_pairs(other, of_other)


def _is_of_pairs(node: Node, flow: Flow) -> bool:
    """Return whether scores are a product of each query with each key, and not of a query with keys of its own."""
    if flow.product is None or len(node.layout) < 2:
        return False
    one, two = (long((axis,)) for axis in node.layout[-2:])
    left, right = flow.product.own_leaves()
    return (one <= left and two <= right) or (one <= right and two <= left)


def _is_over_learned(flow: Flow, over: frozenset[Atom]) -> bool:
    """Return whether a softmax is over rows of a parameter: the classes, words or experts that a program chooses of."""
    product = flow.product
    if product is None or not over:
        return False
    left, right = product.own_leaves()
    return (product.left.is_learned and over <= left) or (product.right.is_learned and over <= right)


def _mixes_heads(flow: Flow, summed: Sequence[Axis]) -> bool:
    """Return whether a sum over axes of scores or weights leaves their queries and keys as they are."""
    if flow.product is None or flow.stage not in ("scores", "weights"):
        return False
    atoms, (left, right) = long(summed), flow.product.own_leaves()
    return bool(atoms) and bool(left) and bool(right) and not atoms & (left | right)
