"""The softmax, at once and by hand: exp, what it is divided by, and sums that are products in disguise."""

from __future__ import annotations

from typing import Any

import torch

from attncli.recording import unfollowed
from attncli.recording.axes import Atom, fresh, long
from attncli.recording.elementwise import clamped
from attncli.recording.matmul_ops import meet, multiply
from attncli.recording.operands import Factor
from attncli.recording.provenance import Flow, Node, Operand, Softmax
from attncli.recording.tracer import Did, Flows


def softmax(flows: Flows, did: Did) -> None:
    """Take a softmax, which makes weights, or a log_softmax, whose exp does."""
    tensor, dim = did.first(), did.get(1, "dim")
    if (found := flows.of(did, tensor)) is None:
        if "log" not in did.name and flows.nodes.get(tensor) is None:
            unfollowed.begin(flows, did.result, _softmax_axis(dim, tensor.ndim))
        return
    if found[1].stage not in ("scores", "weights", "lost"):
        return
    node, flow = found
    axis = _softmax_axis(dim, tensor.ndim)
    over = long((node.layout[axis],))
    if flow.stage == "lost":
        unfollowed.count(flows, tensor, axis)
        return
    if "log" in did.name:
        if flow.stage == "scores":
            flows.go_on(did, tensor, node, flow._replace(stage="log", summed=over), node.layout)
    elif not _is_over_learned(flow, over):
        scores = tensor.detach() if flow.stage == "scores" else None
        softmax = Softmax(over, node.layout, scores, did.result.detach(), is_second=flow.softmax is not None)
        flows.go_on(did, tensor, node, flow._replace(stage="weights", softmax=softmax), node.layout)


def exp(flows: Flows, did: Did) -> None:
    """Take an exp, of scores or of their log_softmax."""
    tensor = did.first()
    if (found := flows.of(did, tensor)) is None:
        return
    node, flow = found
    if flow.stage == "scores":
        flows.go_on(did, tensor, node, flow._replace(stage="exp"))
    elif flow.stage == "log" and not _is_over_learned(flow, flow.summed):
        softmax = Softmax(flow.summed, node.layout, None, did.result.detach())
        flows.go_on(did, tensor, node, flow._replace(stage="weights", softmax=softmax))


def summed(flows: Flows, did: Did) -> None:
    """Take a sum: what an exp is divided by, or the end of a product by hand."""
    tensor = did.first()
    if (found := flows.of(did, tensor)) is None or not isinstance(did.result, torch.Tensor):
        return
    node, flow = found
    if flow.stage in ("exp", "weights"):
        _reduce(flows, did, node, flow, "sum")
    elif flow.factors is not None and flow.stage in ("outer", "pending") and len(did.dims(tensor.ndim) or ()) == 1:
        _sum_of_factors(flows, did, flow, flow.factors)


def _sum_of_factors(flows: Flows, did: Did, flow: Flow, factors: tuple[Operand, Operand]) -> None:
    """Take the sum that makes a product of two tensors multiplied before."""
    axes = did.first().ndim
    first, second = (list(range(axes - each.tensor.ndim, axes)) for each in factors)
    summed = (did.dims(axes) or (0,))[0]
    out = [label for label in range(axes) if label != summed]
    if any(summed not in labels or factor.tensor.shape[labels.index(summed)] != did.first().shape[summed]
           for factor, labels in zip(factors, (first, second), strict=True)):  # fmt: skip
        return
    result = did.result.squeeze(summed) if did.keeps() else did.result
    one, two = (Factor(each.tensor, each.layout or fresh(each.tensor.shape)) for each in factors)
    if flow.stage == "pending":
        flow = flow._replace(stage="weights", factors=None)
        meet(flows, result, one._replace(flow=flow, is_weights=True), two, first, second, out)
        return
    multiply(flows, result, one, two, first, second, out)
    if (found := flows.of(did, result)) is None or found[1].stage != "scores":
        return
    node = found[0]
    node.state.flow = found[1]._replace(scale=flow.scale, steps=flow.steps)
    if did.keeps():
        layout = (*node.layout[:summed], (), *node.layout[summed:])
        flows.nodes.share(did.result, Node(node.state, layout))


def greatest(flows: Flows, did: Did) -> None:
    """Take the greatest of each row, or the logsumexp, which is a smooth one."""
    if isinstance(did.get(1, "other"), torch.Tensor):
        clamped(flows, did)
    elif (found := flows.of(did, did.first())) is not None and found[1].stage == "scores":
        _reduce(flows, did, *found, "max" if "max" in did.name else "logsumexp")


def _reduce(flows: Flows, did: Did, node: Node, flow: Flow, stage: Any) -> None:
    """Follow what scores or weights are to be divided by, or less."""
    dims = did.dims(len(node.layout))
    gone = range(len(node.layout)) if dims is None else dims
    result = did.result if isinstance(did.result, torch.Tensor) else did.result[0]
    layout = tuple(() if i in gone else axis for i, axis in enumerate(node.layout) if i not in gone or did.keeps())
    summed = long(node.layout[i] for i in gone)
    flows.nodes.follow(result, Flow(stage, flow.product, summed=summed, family=flow.family), layout)


def _softmax_axis(dim: int | None, axes: int) -> int:
    """Return the axis of a softmax; without one, torch takes that of its earliest versions."""
    if dim is None:
        return 0 if axes in (0, 1, 3) else 1
    return dim % axes


def _is_over_learned(flow: Flow, over: frozenset[Atom]) -> bool:
    """Return whether a softmax is over rows of a parameter: the classes, words or experts that a program chooses of."""
    product = flow.product
    if product is None or not over:
        return False
    left, right = product.own_leaves()
    return (product.left.is_learned and over <= left) or (product.right.is_learned and over <= right)
