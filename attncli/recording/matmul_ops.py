"""Products: what makes scores, and where weights meet values."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from attncli.recording import unfollowed
from attncli.recording.axes import Axis, Layout, fresh, leaves, long, size
from attncli.recording.operands import Factor, Labels, joined, letters, own, own_of_broadcast
from attncli.recording.provenance import ADDED_TO_WEIGHTS, Flow, Laid, Product, laid_on, scaled, unread_weights
from attncli.recording.recognise import Meeting, told
from attncli.recording.tracer import Did, Flows, has_values


def matmul(flows: Flows, did: Did) -> None:
    """Follow a product of matrices, or of batches of them."""
    left, right = did.first(), did.get(1, "other", "mat2", "vec", "tensor2")
    if not isinstance(did.result, torch.Tensor) or did.result.ndim < 2:
        return
    batch = [*range(max(left.ndim, right.ndim) - 2, 0, -1)]
    first = [*batch[len(batch) - left.ndim + 2 :], "left", "sum"] if left.ndim > 1 else ["sum"]
    second = [*batch[len(batch) - right.ndim + 2 :], "sum", "right"] if right.ndim > 1 else ["sum"]
    out = [*batch, *["left"][: left.ndim - 1], *["right"][: right.ndim - 1]]
    multiply(flows, did.result, flows.factor(left), flows.factor(right), first, second, out)


def einsum(flows: Flows, did: Did) -> None:
    """Follow a sum of two tensors that letters name the axes of."""
    if not did.args or not isinstance(did.args[0], str):
        return
    factors = did.args[1:]
    if len(factors) == 1 and isinstance(factors[0], list | tuple):
        factors = tuple(factors[0])
    if len(factors) != 2:
        return
    named = letters(did.args[0], factors[0].ndim, factors[1].ndim)
    if named is not None:
        multiply(flows, did.result, flows.factor(factors[0]), flows.factor(factors[1]), *named)


def added_product(flows: Flows, did: Did) -> None:
    """See torch.baddbmm: beta · input + alpha · product."""
    added, left, right = did.first(), did.get(1, "batch1", "mat1"), did.get(2, "batch2", "mat2")
    alpha, beta = (did.kwargs.get(name, 1) for name in ("alpha", "beta"))
    if not all(isinstance(each, torch.Tensor) for each in (added, left, right)):
        return
    inner = [*range(left.ndim - 2)]
    first, second, out = [*inner, "left", "sum"], [*inner, "sum", "right"], [*inner, "left", "right"]
    multiply(flows, did.result, flows.factor(left), flows.factor(right), first, second, out)
    found = flows.of(did, did.result)
    if found is None or found[1].stage != "scores":
        return
    node, flow = found
    if alpha != 1:
        flow = scaled(flow, float(alpha), float(alpha))
    if beta != 0:
        flow = laid_on(flow, Laid("added", added, (), "additive", factor=float(beta)), node.layout)
    node.state.flow = flow


def multiply(
    flows: Flows, result: torch.Tensor, left: Factor, right: Factor, first: Labels, second: Labels, out: Labels
) -> None:
    """Follow a product, or let weights meet values.

    Args:
        flows: what is followed.
        result: of the product.
        left: a factor.
        right: the other.
        first: names of the axes of `left`.
        second: names of the axes of `right`.
        out: names of the axes of the result.
    """
    if not has_values(result) or not result.is_floating_point() or not result.numel():
        return
    unfollowed.meet(flows, left, right, first, second, out)
    unfollowed.meet(flows, right, left, second, first, out)
    if left.is_weights and right.is_weights:
        return
    if left.is_weights or right.is_weights:
        if left.is_weights:
            meet(flows, result, left, right, first, second, out)
        else:
            meet(flows, result, right, left, second, first, out)
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
            _mix(flows, result, flow, tuple(axes[label if label in labels else summed[0]] for label in out))
            return
    product = Product(
        left.operand(first, axes),
        right.operand(second, axes),
        tuple(atom for label in summed for atom in axes[label]),
        own_of_broadcast(left, right, first, axes) if first == second else own(first, second, axes),
    )
    four = layout if len(layout) == 4 else None
    flows.nodes.follow(result, Flow("scores", product, four=four, family=flows.nodes.begin()), layout)


def mixed(flows: Flows, did: Did) -> None:
    """Follow scores or weights whose heads a layer or a convolution mixes, or a norm goes over."""
    tensor = did.first()
    if (found := flows.of(did, tensor)) is None or did.result.ndim != tensor.ndim:
        return
    node, flow = found
    axis = len(node.layout) - 1 if did.name in ("linear", "layer_norm", "rms_norm") else 1
    if _mixes_heads(flow, [node.layout[axis]]):
        layout = list(node.layout)
        if did.result.shape[axis] != tensor.shape[axis]:
            layout[axis] = fresh(did.result.shape[axis : axis + 1])[0]
        _mix(flows, did.result, flow if flow.softmax else flow._replace(scale=None), tuple(layout))


def _mix(flows: Flows, result: torch.Tensor, flow: Flow, layout: Layout) -> None:
    """Follow scores or weights whose heads were mixed."""
    if [size(axis) for axis in layout] == list(result.shape):
        flows.nodes.follow(result, flow._replace(unread="the mixing of heads"), layout)


def meet(
    flows: Flows, result: torch.Tensor, weights: Factor, other: Factor, first: Labels, second: Labels, out: Labels
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
            _mix(flows, result, flow, tuple(axes[label if label in first else summed[0]] for label in out))
        return
    _, alone = own_of_broadcast(weights, other, first, axes) if first == second else own(first, second, axes)
    call = told(
        flows.context,
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
    for state in list(flow.family or ()):
        if state.flow is not None and state.flow.softmax is flow.softmax:
            state.flow, state.was_told = None, True
    flows.nodes.keep_output(result, call.place)
    flows.emit(call)
    unfollowed.forget(flows, flow)
    for also, layout_of_it in flow.beside:
        also = unread_weights(also._replace(beside=()), ADDED_TO_WEIGHTS)
        meet(flows, result, weights._replace(flow=also, layout=layout_of_it), other, first, second, out)


def _mixes_heads(flow: Flow, summed: Sequence[Axis]) -> bool:
    """Return whether a sum over axes of scores or weights leaves their queries and keys as they are."""
    if flow.product is None or flow.stage not in ("scores", "weights"):
        return False
    atoms, (left, right) = long(summed), flow.product.own_leaves()
    return bool(atoms) and bool(left) and bool(right) and not atoms & (left | right)
