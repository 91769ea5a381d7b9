"""What is done to each number of operands, scores and weights: factors, sums, masks, bounds, dropout."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import torch

from attncli.recording.axes import beside, broadcast, fresh, long
from attncli.recording.operands import is_learned
from attncli.recording.provenance import (
    ADDED_TO_WEIGHTS,
    FACTOR_OF_WEIGHTS,
    UNKNOWN,
    Flow,
    Laid,
    Node,
    Nodes,
    Number,
    Softmax,
    assigned_to,
    beside_others,
    laid_on,
    scaled,
    sinks_unread,
    together,
    unread_weights,
    unsure,
    with_others,
)
from attncli.recording.tracer import Did, Flows


def begins(args: tuple[Any, ...], _: Any) -> bool:
    """Return whether a product of what is not followed is to be: one with a number, or of queries with keys by hand."""
    if len(args) != 2 or type(args[0]) is not torch.Tensor or type(args[1]) is not torch.Tensor:
        return True
    left, right = args
    return left.ndim < 2 or right.ndim < 2 or _are_outer(left, right)


def multiplied(flows: Flows, did: Did) -> None:
    """Take a factor: a number, or a tensor that is laid on scores or weights."""
    left, right = did.first(), did.get(1, "other")
    if (number := _number(right, flows.nodes)) is not None:
        _times(flows, did, left, _constant(right, number), number)
    elif (number := _number(left, flows.nodes)) is not None:
        _times(flows, did, right, _constant(left, number), number)
    elif isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        _times_tensor(flows, did, left, right)


def _times(flows: Flows, did: Did, tensor: Any, step: Number | None, number: Number) -> None:
    """Take a product with a number, which is a step of the scale; none where it is a sign."""
    if not isinstance(tensor, torch.Tensor) or not isinstance(did.result, torch.Tensor):
        return
    found = flows.of(did, tensor)
    if found is not None:
        node, flow = found
        if flow.stage in ("operand", "outer", "scores"):
            flow = scaled(flow, number, step)
        elif flow.stage == "weights" and not any(laid.is_random for laid in flow.after):
            flow = unread_weights(flow, FACTOR_OF_WEIGHTS)
        elif flow.stage not in ("weights", "pending"):
            return
        flows.go_on(did, tensor, node, flow)
    elif step is None or (isinstance(step, float) and step == 1):
        return
    elif tensor.ndim > 1 and did.result.shape == tensor.shape and tensor.is_floating_point():
        flows.begin(did.result, Flow("operand", steps=(step,)), fresh(tensor.shape))


def negated(flows: Flows, did: Did) -> None:
    """Take a factor of -1, which is no step of the scale."""
    _times(flows, did, did.first(), None, -1.0)


def _times_tensor(flows: Flows, did: Did, left: torch.Tensor, right: torch.Tensor) -> None:
    """Take a product without a sum: a factor of scores or weights, or a step of a product by hand."""
    found = flows.of(did, left), flows.of(did, right)
    one, two = (None if each is None else each[1] for each in found)
    for each, tensor, other, laid in ((found[0], left, right, two), (found[1], right, left, one)):
        if each is None or each[1].stage not in ("scores", "exp", "weights"):
            continue
        if laid is not None and laid.stage != "operand":
            continue
        node, flow = each
        if did.result.shape == tensor.shape:
            is_random = laid is not None and laid.is_random
            _lay(flows, did, tensor, node, flow, Laid("multiplied", other, (), "multiplied", is_random=is_random))
        elif flow.stage == "weights":
            flow = flow._replace(stage="pending", factors=(flows.kept(tensor), flows.kept(other)))
            flows.nodes.follow(did.result, flow, fresh(did.result.shape))
        elif flow.stage == "scores":
            _begin_outer(flows, did, left, right)
        return
    if (one is None or one.stage in ("operand", "scores")) and (two is None or two.stage in ("operand", "scores")):
        if _are_outer(left, right):
            _begin_outer(flows, did, left, right)
        elif (kept := found[0] or found[1]) is not None and kept[1].stage == "operand":
            flow = kept[1]._replace(steps=_steps_of_both(flows, did, left, right))
            flows.go_on(did, left if kept is found[0] else right, kept[0], flow)


def _are_outer(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Return whether a sum may make a product of queries with keys, or of weights with values, of two tensors.

    Each is repeated along an axis of the other, and one axis is left to sum over. Of one query, without heads, either
    is repeated alone; with heads, what repeats one factor of all of them is a rotation.
    """
    if not left.ndim == right.ndim > 2:
        return False
    sizes = [*zip(left.shape, right.shape, strict=True)]
    if not any(one == two != 1 for one, two in sizes):
        return False
    grows = any(one < two for one, two in sizes), any(one > two for one, two in sizes)
    return all(grows) or (any(grows) and left.ndim == 3 and left.shape[-1] == right.shape[-1])


def _begin_outer(flows: Flows, did: Did, left: torch.Tensor, right: torch.Tensor) -> None:
    """Follow two tensors that were multiplied after they were broadcast: a sum makes it a product."""
    if not _are_outer(left, right) or not did.result.is_floating_point() or did.result is left:
        return
    steps = _steps_of_both(flows, did, left, right)
    flow = Flow("outer", factors=(flows.kept(left), flows.kept(right)), steps=steps)
    flows.begin(did.result, flow, ((),) * left.ndim)


def _steps_of_both(flows: Flows, did: Did, left: torch.Tensor, right: torch.Tensor) -> tuple[Number, ...]:
    """Return the numbers of two tensors that were multiplied; what is learned, or one number a row, is no constant.

    A number for each row may undo a scale, as a norm does.
    """
    steps = together(flows.nodes.steps(left), flows.nodes.steps(right))
    if not steps:
        return ()
    width = did.result.shape[-1:]
    is_clear = all(each.shape[-1:] == width and not is_learned(each) for each in (left, right))
    return steps if is_clear else unsure(steps)


def divided(flows: Flows, did: Did) -> None:
    """Take an inverse factor, or the division by a sum that makes weights of an exp."""
    left, right = did.first(), did.get(1, "other")
    if (number := _number(right, flows.nodes)) is not None:
        inverse = math.inf if isinstance(number, float) and not number else 1 / number
        _times(flows, did, left, _constant(right, inverse), inverse)
        return
    found, by = flows.of(did, left), flows.of(did, right)
    if found is None:
        return
    node, flow = found
    if by is not None and by[1].stage == "sum" and by[1].product is flow.product:
        over = by[1].summed
        if flow.stage == "exp":
            softmax = Softmax(over, node.layout, None, did.result.detach())
            flows.go_on(did, left, node, flow._replace(stage="weights", softmax=softmax), node.layout)
        elif flow.stage == "weights":
            flows.go_on(did, left, node, flow._replace(again=flow.again | over), node.layout)
    elif flow.stage == "operand":
        flows.go_on(did, left, node, flow._replace(steps=unsure(flow.steps)))
    elif flow.stage == "scores" and did.result.shape == left.shape:
        flows.go_on(did, left, node, flow._replace(scale=None, unread="a division by a tensor"))


def added(flows: Flows, did: Did) -> None:
    """Take one · left + two · right."""
    left, right, alpha = did.first(), did.get(1, "other"), float(did.kwargs.get("alpha", 1))
    one, two = (-alpha, 1.0) if "rsub" in did.name else (1.0, -alpha if "sub" in did.name else alpha)
    found, also = flows.of(did, left), flows.of(did, right)
    if found is None or (also is not None and _comes_first(*also, *found)):
        left, right, one, two, found, also = right, left, two, one, also, found
    if found is None or not isinstance(did.result, torch.Tensor):
        return
    node, flow = found
    if flow.stage == "scores" and one != 1:
        flow = scaled(flow, one, None)
    if not isinstance(right, torch.Tensor) or right.numel() == 1:
        flows.go_on(did, left, node, flow)
    elif flow.stage in ("operand", "outer"):
        both = with_others(flow, [None if also is None else also[1]])
        if flow.stage == "operand" or both.steps or did.result is left:  # of others nothing is known
            flows.go_on(did, left, node, both)
    elif flow.stage == "weights":
        flow = unread_weights(flow, ADDED_TO_WEIGHTS)
        if also is not None and also[1].stage == "weights":
            flow = beside_others(flow, also[1], also[0].layout)
        flows.go_on(did, left, node, flow)
    elif flow.stage == "scores":
        of_these = also[1] if also is not None and also[1].product is flow.product else None
        if of_these is not None and of_these.stage == "logsumexp" and (one, two) == (1, -1):
            flows.go_on(did, left, node, flow._replace(stage="log", summed=of_these.summed))
        else:
            how = "max" if of_these is not None and of_these.stage == "max" else "added"
            _lay(flows, did, left, node, flow, Laid(how, right, (), "additive", factor=two))


def filled(flows: Flows, did: Did) -> None:
    """Take a mask whose cells get one value."""
    tensor, mask, value = did.first(), did.get(1, "mask"), did.get(2, "value")
    found, fill = flows.of(did, tensor), _fill(value)
    if found is not None and fill is not None:
        _lay(flows, did, tensor, *found, Laid("masked_fill", mask, (), "masked", fill))


def where(flows: Flows, did: Did) -> None:
    """Take `torch.where(condition, input, other)`, and the method of the input that has the condition second."""
    condition, chosen, other = did.get(0, "condition"), did.get(1, "input"), did.get(2, "other")
    if isinstance(chosen, torch.Tensor) and chosen.dtype == torch.bool:
        condition, chosen = chosen, condition
    for tensor, filled, convention in ((chosen, other, "attend"), (other, chosen, "masked")):
        if (found := flows.of(did, tensor)) is not None:
            fill = _fill(filled)
            if fill is not None and flows.of(did, filled) is None:
                _lay(flows, did, tensor, *found, Laid("where", condition, (), convention, fill))  # type: ignore[arg-type]
            return


def assigned(flows: Flows, did: Did) -> None:
    """Take `tensor[index] = value`, which is a mask where the index is one."""
    tensor, index, value = did.args
    found = flows.of(did, tensor)
    if found is None:
        return
    node, flow = found
    fill, mask = _fill(value), _mask_of(index, tensor.ndim)
    if fill is not None and mask is not None and beside(node.layout, mask.shape) is not None:
        _lay(flows, did, tensor, node, flow, Laid("assigned", mask, (), "masked", fill))
    elif fill is not None and flow.stage == "scores":
        flows.go_on(did, tensor, node, assigned_to(flow, fill))
    else:
        flows.go_on(did, tensor, node, flow._replace(unread="an assignment to a part"))


def triangle(flows: Flows, did: Did) -> None:
    """Take `tril` and `triu`, which set the other triangle to 0."""
    tensor = did.first()
    if (found := flows.of(did, tensor)) is not None and found[1].stage in ("scores", "exp", "weights"):
        diagonal = did.get(1, "diagonal", default=0)
        laid = Laid(did.name, None, found[0].layout[-2:], did.name, diagonal=diagonal)  # type: ignore[arg-type]
        _lay(flows, did, tensor, *found, laid)


def _lay(flows: Flows, did: Did, tensor: torch.Tensor, node: Node, flow: Flow, laid: Laid) -> None:
    """Let scores, their exp or the weights go on with something that was laid on them."""
    result = tensor if did.result is None else did.result
    layout = broadcast(node.layout, result.shape) if result is not tensor else node.layout
    if flow.stage == "operand":
        flows.go_on(did, tensor, node, flow)
    elif flow.stage in ("scores", "exp", "weights"):
        flows.go_on(did, tensor, node, laid_on(flow, laid, layout), layout)


def tanh(flows: Flows, did: Did) -> None:
    """Take the cap of scores, as Gemma 2 has it: what was scaled before is inside, what comes after is not."""
    tensor = did.first()
    if (found := flows.of(did, tensor)) is None or found[1].stage != "scores" or found[1].capped is not None:
        return
    node, flow = found
    laid = tuple(each._replace(is_capped=True) for each in flow.laid)
    flow = sinks_unread(flow)
    flows.go_on(did, tensor, node, flow._replace(capped=flow.scale, scale=1.0, laid=laid))


def clamped(flows: Flows, did: Did) -> None:
    """Let scores go on that are held within bounds, which are noted where they may hold anything but a mask."""
    for tensor, other in ((did.first(), did.get(1, "other", "min")), (did.get(1, "other"), did.first())):
        if (found := flows.of(did, tensor)) is None:
            continue
        node, flow = found
        if isinstance(other, torch.Tensor) and other.numel() != 1:
            return
        bounds = [_fill(each) for each in (*did.args[1:], *did.kwargs.values(), other) if each is not tensor]
        if flow.stage == "scores" and any(each is not None and abs(each) < 9_000 for each in bounds):
            flow = flow._replace(unread="the clamp of the scores")
        if flow.stage in ("scores", "exp", "weights", "sum", "operand"):
            flows.go_on(did, tensor, node, flow)
        return


def dropout(flows: Flows, did: Did) -> None:
    """Take a dropout, which is expected of weights alone."""
    tensor = did.first()
    if (found := flows.of(did, tensor)) is None:
        return
    node, flow = found
    p, is_on = float(did.get(1, "p", default=0.5)), bool(did.get(2, "training", "train", default=True))
    if is_on and p > 0:
        if flow.stage == "weights":
            flow = flow._replace(dropout=p, in_dropout=flows.context.is_training())
        elif flow.stage != "operand":
            flow = flow._replace(unread="a dropout of the scores")
    flows.go_on(did, tensor, node, flow)


def drawn(flows: Flows, did: Did) -> None:
    """Begin with numbers that are drawn: those of a dropout by hand."""
    if isinstance(did.result, torch.Tensor) and did.result.ndim > 1:
        flows.begin(did.result, Flow("operand", is_random=True), fresh(did.result.shape))


def compared(flows: Flows, did: Did) -> None:
    """Go on with drawn numbers that are compared: the mask of a dropout by hand."""
    for each in did.args[:2]:
        if (found := flows.of(did, each)) is not None and found[1].is_random:
            flows.go_on(did, each, *found)


def _constant(value: Any, number: Number) -> Number:
    """Return a number that a value is or stands for as a step of the scale; what is learned is no constant."""
    is_tensor = isinstance(value, torch.Tensor)
    return UNKNOWN if is_tensor and (value.requires_grad or is_learned(value)) else number


def _number(value: Any, nodes: Nodes) -> Number | None:
    """Return a number, or a tensor of one element, which is not waited for; None of all else."""
    if not isinstance(value, torch.Tensor):
        return float(value) if isinstance(value, float | int | Real) else None
    if value.numel() == 1 and value.ndim < 2 and nodes.get(value) is None:
        return value.detach().reshape(()).to(torch.float32, copy=True)  # it may be a view of what is large
    return None


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
