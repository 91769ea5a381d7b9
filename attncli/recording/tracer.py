"""What is followed of a hand-written attention, and how it goes on when a function of torch has run."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from attncli.recording.axes import Layout, broadcast, fresh
from attncli.recording.call import AttentionCall
from attncli.recording.cost import Cost
from attncli.recording.operands import Factor, is_learned
from attncli.recording.provenance import Flow, Node, Operand, version
from attncli.recording.readers.reader import ThreadContext


class Did(NamedTuple):
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
        """Return the first argument."""
        return self.get(0, "input")

    def dims(self, axes: int) -> tuple[int, ...] | None:
        """Return which of so many axes a reduction goes over, counted from the left; None is all."""
        dim = self.get(1, "dim", "axis")
        if dim is None:
            return None
        return tuple(each % axes for each in ((dim,) if isinstance(dim, int) else dim))

    def keeps(self) -> bool:
        """Return whether a reduction keeps its axes."""
        return bool(self.get(2, "keepdim", "keepdims", default=False))


class Flows:
    """The tensors of a thread that are followed.

    Attributes:
        context: the thread.
        nodes: what is known of its tensors.
        cost: what following them takes.
    """

    def __init__(self, context: ThreadContext, cost: Cost) -> None:
        self.context = context
        self.nodes = context.nodes
        self.cost = cost

    def of(self, did: Did, tensor: Any) -> tuple[Node, Flow] | None:
        """Return the node and the flow of a tensor that is followed, as it was before this function ran."""
        node = self.nodes.get(tensor)
        if node is None or node.state.flow is None:
            return None
        flow = node.state.flow
        if version(tensor) > node.state.version + (did.result is tensor or did.name == "__setitem__"):
            flow = flow._replace(unread="an operation in place")
        return node, flow

    def emit(self, call: AttentionCall) -> None:
        """Hand over an attention."""
        begun = self.cost.clock()
        self.context.emit(call)
        self.cost.leave_out(begun)

    def factor(self, tensor: torch.Tensor) -> Factor:
        """Return a tensor as a factor of a product; one that was multiplied, and never summed, is one by itself."""
        node = self.nodes.get(tensor)
        if node is not None and node.state.flow is not None and node.state.flow.stage == "outer":
            return Factor(tensor, fresh(tensor.shape), node.state.flow._replace(stage="operand", factors=None))
        return Factor.of(tensor, node)

    def kept(self, tensor: torch.Tensor) -> Operand:
        """Return a tensor as it is kept for a call; without a layout, where nothing is known of its axes."""
        if (node := self.nodes.get(tensor)) is not None:
            return Factor.of(tensor, node).kept()
        return Operand(tensor.detach(), (), (), is_learned(tensor), version(tensor))

    def begin(self, result: torch.Tensor, flow: Flow, layout: Layout) -> None:
        """Follow a result from here on, if it has numbers of its own."""
        if has_values(result):
            self.nodes.follow(result, flow, layout)

    def go_on(self, did: Did, source: torch.Tensor, node: Node, flow: Flow, layout: Layout | None = None) -> None:
        """Let the flow of a source go on in the result, which may be the source itself, changed in place."""
        result = source if did.name == "__setitem__" else did.result
        if result is source:
            node.state.flow, node.state.version = flow, version(result)
        elif isinstance(result, torch.Tensor):
            layout = broadcast(node.layout, result.shape) if layout is None else layout
            if len(layout) == 4 and flow.stage == "scores":
                flow = flow._replace(four=layout)
            self.nodes.follow(result, flow, layout)

    def view(self, did: Did, node: Node, layout: Layout) -> None:
        """Let a view have the state of what it is a view of."""
        flow = node.state.flow
        if len(layout) == 4 and flow is not None and flow.stage == "scores":
            node.state.flow = flow._replace(four=layout)
        self.nodes.share(did.result, Node(node.state, layout))


def has_values(result: Any) -> bool:
    """Return whether a result is a plain tensor, with numbers of its own."""
    is_plain = type(result) is torch.Tensor and not (result.is_meta or result.is_nested)
    return is_plain and not torch._C._functorch.is_functorch_wrapped_tensor(result)
