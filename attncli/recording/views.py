"""Views and copies: the same numbers with other axes, and parts of them."""

from __future__ import annotations

from typing import Any

import torch

from attncli.recording.axes import beside, broadcast, fresh, reshaped, size
from attncli.recording.indexing import extended, indexed, taken
from attncli.recording.operands import is_learned
from attncli.recording.provenance import BESIDE, Flow, Laid, Node, with_others
from attncli.recording.readers.heads import is_split
from attncli.recording.tracer import Did, Flows


def permuted(flows: Flows, did: Did) -> None:
    """Follow axes in another order."""
    tensor = did.first()
    if did.name in ("T", "mT"):  # a property's getter
        tensor = did.args[0]
    if (node := flows.nodes.get(tensor)) is None:
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
    flows.view(did, node, tuple(layout[i] for i in order))


def begins(args: tuple[Any, ...], result: Any) -> bool:
    """Return whether a view of what is not followed is to be: one that may split heads, or fold them into the batch."""
    if not args or not isinstance(args[0], torch.Tensor) or not isinstance(result, torch.Tensor):
        return False
    before, after = args[0].shape, result.shape
    return len(before) > 2 and len(after) in (3, 4) and before != after and before[1] != 1


def reshape(flows: Flows, did: Did) -> None:
    """Follow axes that are put together or taken apart."""
    tensor, result = did.first(), did.result
    node = flows.nodes.get(tensor)
    if is_split(tensor.shape, result.shape) and not is_learned(tensor):
        flow = Flow("operand") if node is None or node.state.flow is None else node.state.flow
        if flow.stage == "operand":
            axes = reshaped(fresh(tensor.shape), tensor.shape, result.shape) or fresh(result.shape)
            flows.nodes.follow(result, flow._replace(is_split=True), axes)
            return
    if node is None:
        # Heads that are folded into the batch may be unfolded, if it is known how many they are.
        if result.ndim == 3 and 2 < tensor.ndim < 5 and result.shape != tensor.shape:
            folded = reshaped(fresh(tensor.shape), tensor.shape, result.shape)
            if folded is not None and max(len(axis) for axis in folded[:2]) > 1:
                flows.begin(result, Flow("operand"), folded)
        return
    if result.dtype != tensor.dtype or (result is tensor):
        return
    layout = reshaped(node.layout, tensor.shape, result.shape)
    if layout is None:
        return
    if did.name in ("view", "view_as", "unflatten"):
        flows.view(did, node, layout)
    elif node.state.flow is not None:
        flows.go_on(did, tensor, node, node.state.flow, layout)
    else:
        flows.nodes.share(result, Node(node.state, layout))


def squeezed(flows: Flows, did: Did) -> None:
    """Follow a tensor without axes of one position."""
    if (node := flows.nodes.before(did.first())) is None:
        return
    dims = did.dims(len(node.layout))
    gone = [i for i in range(len(node.layout)) if size(node.layout[i]) == 1 and (dims is None or i in dims)]
    layout = tuple(axis for i, axis in enumerate(node.layout) if i not in gone)
    if len(layout) == did.result.ndim:
        flows.view(did, node, layout)


def unsqueezed(flows: Flows, did: Did) -> None:
    """Follow a tensor with an axis of one position more."""
    if (node := flows.nodes.before(did.first())) is not None:
        at = did.get(1, "dim") % (len(node.layout) + 1)
        flows.view(did, node, (*node.layout[:at], (), *node.layout[at:]))


def expanded(flows: Flows, did: Did) -> None:
    """Follow a tensor whose axes of one position are repeated."""
    if (node := flows.nodes.get(did.first())) is not None:
        flows.view(did, node, broadcast(node.layout, did.result.shape))


def index(flows: Flows, did: Did) -> None:
    """Follow what an index takes, whole axes or parts of them."""
    if (node := flows.nodes.get(did.args[0])) is None or not isinstance(did.result, torch.Tensor):
        return
    found = indexed(node.layout, did.args[1] if isinstance(did.args[1], tuple) else (did.args[1],))
    flow = node.state.flow
    if found is None:
        if flow is not None and flow.stage == "operand":
            flows.nodes.follow(did.result, flow, fresh(did.result.shape))
        return
    layout, parts = found
    if not parts:
        flows.view(did, node, layout)
        return
    if flow is not None and flow.stage == "operand":
        flows.nodes.follow(did.result, flow, layout)
        return
    for part in parts:
        flow = None if flow is None or flow.stage not in ("scores", "weights") else taken(flow, part)
    if flow is not None:
        flows.go_on(did, did.args[0], node, flow, layout)


def joined(flows: Flows, did: Did) -> None:
    """Follow scores that columns were put beside, such as the sinks of gpt-oss, and factors joined again."""
    tensors = did.get(0, "tensors")
    if not isinstance(tensors, list | tuple):
        return
    followed = [(i, *found) for i, each in enumerate(tensors) if (found := flows.of(did, each)) is not None]
    if not followed:
        return
    i, node, flow = followed[0]
    if flow.stage == "operand":
        by_place = {index: each for index, _, each in followed}
        flow = with_others(flow, [by_place.get(index) for index in range(len(tensors))])
        if flow.steps or flow.is_random:  # nothing else is known of it
            flows.nodes.follow(did.result, flow, fresh(did.result.shape))
    elif flow.stage == "scores" and all(also.stage == "operand" for _, _, also in followed[1:]):
        dim = did.get(1, "dim", default=0) % did.result.ndim
        start = sum(each.shape[dim] for each in tensors[:i])
        axis = extended(node.layout[dim], start, did.result.shape[dim])
        others = [each for j, each in enumerate(tensors) if j != i]
        if flow.sinks is None and dim == did.result.ndim - 1 and [each.shape[dim] for each in others] == [1]:
            where = beside(node.layout, others[0].shape) or ()
            flow = flow._replace(sinks=Laid("beside", others[0].detach(), where, "additive"))
        else:
            flow = flow._replace(unread=BESIDE)
        flows.go_on(did, tensors[i], node, flow, (*node.layout[:dim], axis, *node.layout[dim + 1 :]))


def same(flows: Flows, did: Did) -> None:
    """Follow a copy, of another type or on another device."""
    tensor = did.first()
    if (node := flows.nodes.get(tensor)) is None or not isinstance(did.result, torch.Tensor):
        return
    if did.name in ("detach", "data"):
        flows.view(did, node, node.layout)
    elif did.result is not tensor and node.state.flow is not None and did.result.is_floating_point():
        flows.go_on(did, tensor, node, node.state.flow, node.layout)
