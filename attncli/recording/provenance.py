"""What became of a product of two tensors, as far as it may be attention: scale, masks, softmax, dropout.

A tensor that is followed has a `Node`: what its axes are, and a `State` that it shares with the views of it, so that
what is done in place to one is known of all. Nodes are found by the tensor's identity and end with it. What they hold
of the program's tensors are aliases without a history, for as long as a tensor that came from the product lives and
few others were computed since.

What is held of one tensor is bounded, however long the program goes on with it: of more numbers or masks than a few it
is only known that there were some.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple
from weakref import WeakSet, ref

import torch

from attncli.masks.conventions import Convention
from attncli.recording.axes import Atom, Axis, Layout, beside, leaves
from attncli.recording.call import CallSite

# operand: what may be a factor. outer: factors multiplied, not yet summed. Then what a softmax makes, at once or by
# hand: scores, exp of them, log of the weights, weights. pending: weights multiplied with values, not yet summed.
# sum, logsumexp, max: what they are divided by, or less. lost: what came from scores in ways that are not followed.
# unknown: a softmax of what came from nowhere, as from what torch.jit compiled.
Stage = Literal[
    "operand", "outer", "scores", "exp", "log", "weights", "pending", "sum", "logsumexp", "max", "lost", "unknown"
]

# A tensor of one element is looked at when a call is told, as looking at it waits for the device.
Number = float | torch.Tensor

UNKNOWN: Number = math.nan  # among the numbers of a tensor: it was also multiplied with what is no one constant
# Why a flow is unread.
BESIDE = "what is beside the scores"
ADDED_TO_WEIGHTS = "what is added to the weights"
FACTOR_OF_WEIGHTS = "a factor of the weights"
_MOST_PRODUCTS = 64  # that are followed at a time
_MOST_HELD = 16  # numbers, masks or other weights that one tensor is followed with


class Operand(NamedTuple):
    """A factor of a product.

    Attributes:
        tensor: an alias of the program's.
        layout: what its axes are.
        steps: the numbers that it was multiplied with before.
        is_learned: whether it is a parameter of a module, or a view of one.
        version: of the tensor when the product was computed.
        operation: that it is the result of, as autograd counts them; None without gradients.
        is_split: whether a view alone made heads of it; see `heads`.
    """

    tensor: torch.Tensor
    layout: Layout
    steps: tuple[Number, ...] = ()
    is_learned: bool = False
    version: int = 0
    operation: int | None = None
    is_split: bool = False


class Product:
    """A product of two tensors, from which everything that is followed comes.

    Attributes:
        left: the first factor.
        right: the second.
        summed: the axes that were summed over.
        own: the axes that only the first and only the second has.
    """

    __slots__ = ("left", "own", "right", "summed")

    def __init__(self, left: Operand, right: Operand, summed: Axis, own: tuple[Axis, Axis]) -> None:
        self.left, self.right, self.summed, self.own = left, right, summed, own

    def own_leaves(self) -> tuple[frozenset[Atom], frozenset[Atom]]:
        """Return the atoms that only the first and only the second factor has, divided as they are now."""
        return frozenset(leaves(self.own[0])), frozenset(leaves(self.own[1]))


class Laid(NamedTuple):
    """What was laid on scores or weights.

    Attributes:
        how: the operation.
        values: the mask; None where it is that of `torch.tril`, or can only be read from what the softmax received.
        layout: of the mask.
        convention: what its values mean, or that they multiply.
        fill: what forbidden cells were set to.
        factor: what the values were multiplied with since.
        diagonal: of `torch.tril`.
        is_capped: whether a tanh came after it.
        is_random: whether its values were drawn.
        is_of_exp: whether it was laid on the exp of the scores.
    """

    how: str
    values: torch.Tensor | None
    layout: Layout
    convention: Convention | Literal["multiplied", "tril", "triu"]
    fill: float = 0.0
    factor: Number = 1.0
    diagonal: int = 0
    is_capped: bool = False
    is_random: bool = False
    is_of_exp: bool = False


class Softmax:
    """A softmax of what came from a product.

    Attributes:
        over: the axes that it normalises over.
        layout: of scores and weights.
        scores: what it received, while that is at hand.
        weights: what it gave.
        versions: of both then.
        is_second: whether it received weights.
        lost: where weights of it were lost that have met no values.
    """

    __slots__ = ("is_second", "layout", "lost", "over", "scores", "versions", "weights")

    def __init__(
        self,
        over: frozenset[Atom],
        layout: Layout,
        scores: torch.Tensor | None,
        weights: torch.Tensor,
        is_second: bool = False,
    ) -> None:
        self.over, self.layout, self.scores, self.weights, self.is_second = over, layout, scores, weights, is_second
        self.lost: CallSite | None = None
        self.versions = (0 if scores is None else version(scores), version(weights))


class Flow(NamedTuple):
    """How a tensor came from a product.

    Attributes:
        stage: what it is.
        product: where it came from; None of an operand.
        factors: the two of an `outer` or `pending` product; the second of `pending` are the values.
        scale: what multiplies the product; None where that is no one number.
        steps: the numbers that it was multiplied with, in order.
        capped: the scale before the tanh of a soft cap; None without.
        laid: on the scores, in order.
        sinks: a column that was put beside the scores, which nothing was done to since but to all of a row alike.
        four: the layout with four axes that the scores had; None where they had none.
        softmax: that it went through.
        after: what was laid on the weights.
        again: the axes that the weights were normalised over once more.
        dropout: the probability.
        in_dropout: whether the module that dropped weights was in training mode.
        summed: of a `sum`, `max` or `log`: the axes that went.
        unread: what of it is not understood.
        is_random: whether an operand's values were drawn.
        is_split: whether a view alone made heads of an operand; see `heads`.
        beside: weights of other softmaxes that were added to these.
        family: the states of all that came from the same product; None of an operand.
    """

    stage: Stage
    product: Product | None = None
    factors: tuple[Operand, Operand] | None = None
    scale: Number | None = 1.0
    steps: tuple[Number, ...] = ()
    capped: Number | None = None
    laid: tuple[Laid, ...] = ()
    sinks: Laid | None = None
    four: Layout | None = None
    softmax: Softmax | None = None
    after: tuple[Laid, ...] = ()
    again: frozenset[Atom] = frozenset()
    dropout: float = 0.0
    in_dropout: bool | None = None
    summed: frozenset[Atom] = frozenset()
    unread: str | None = None
    is_random: bool = False
    is_split: bool = False
    beside: tuple[tuple[Flow, Layout], ...] = ()
    family: WeakSet[State] | None = None


class State:
    """The flow of a tensor and of its views; None once its attention was told, or it is too long ago."""

    __slots__ = ("__weakref__", "flow", "version", "was_told")

    def __init__(self, flow: Flow, at: int) -> None:
        self.flow: Flow | None = flow
        self.version = at
        self.was_told = False
        if flow.family is not None:
            flow.family.add(self)


class Node(NamedTuple):
    """A tensor that is followed."""

    state: State
    layout: Layout


class _Key(ref[torch.Tensor]):
    __slots__ = ("key",)
    key: int


class Nodes:
    """The nodes of the tensors of one thread that are followed and still exist.

    Attributes:
        is_over: whether nothing is followed any more.
    """

    def __init__(self) -> None:
        self.is_over = False
        self._known: dict[int, tuple[_Key, Node]] = {}
        self._families: deque[WeakSet[State]] = deque()
        self._with_factors: deque[ref[State]] = deque()
        self._outputs: dict[int, tuple[_Key, CallSite]] = {}
        known, outputs = self._known, self._outputs
        self._ended = lambda dead: known.pop(dead.key, None)
        self._output_ended = lambda dead: outputs.pop(dead.key, None)

    def knows(self, values: Iterable[object]) -> bool:
        """Return whether one of some values is a tensor that is followed."""
        return not self._known.keys().isdisjoint(map(id, values))

    def holds(self, values: Iterable[object]) -> bool:
        """Return whether one of some values is a tensor that is followed, or came out of an attention."""
        known, outputs = self._known, self._outputs
        return any(id(each) in known or id(each) in outputs for each in values)

    def get(self, tensor: object) -> Node | None:
        """Return the node of a tensor; None of one that is not followed, that has other axes now, and of all else."""
        node = self.before(tensor)
        return node if node is None or (isinstance(tensor, torch.Tensor) and tensor.ndim == len(node.layout)) else None

    def before(self, tensor: object) -> Node | None:
        """Return the node of a tensor that may have got or lost an axis just now."""
        entry = self._known.get(id(tensor))
        return None if entry is None else entry[1]

    def steps(self, tensor: torch.Tensor) -> tuple[Number, ...]:
        """Return the numbers that a tensor was multiplied with, as far as it was followed."""
        node = self.get(tensor)
        if node is None:
            return (UNKNOWN,) if self.is_over else ()
        steps = steps_of(node.state.flow)
        return steps if version(tensor) == node.state.version else unsure(steps)

    def follow(self, tensor: torch.Tensor, flow: Flow, layout: Layout) -> None:
        """Follow a tensor that is new; of the oldest of many that hold factors, these are let go."""
        state = State(flow, version(tensor))
        if flow.factors is not None:
            self._with_factors.append(ref(state))
            if len(self._with_factors) > _MOST_PRODUCTS and (oldest := self._with_factors.popleft()()) is not None:
                oldest.flow = None
        self.share(tensor, Node(state, layout))

    def share(self, tensor: torch.Tensor, node: Node) -> None:
        """Follow a tensor with the state of another, of which it is a view; a number is not followed."""
        if not node.layout or self.is_over:
            return
        key = _Key(tensor, self._ended)
        key.key = id(tensor)
        self._known[id(tensor)] = key, node

    def keep_output(self, tensor: torch.Tensor, place: CallSite) -> None:
        """Remember what came out of an attention, while it lives."""
        key = _Key(tensor, self._output_ended)
        key.key = id(tensor)
        self._outputs[id(tensor)] = key, place

    def output_of(self, tensor: object) -> CallSite | None:
        """Return the place of the attention that a tensor came out of."""
        entry = self._outputs.get(id(tensor))
        return None if entry is None else entry[1]

    def end(self) -> None:
        """Follow nothing any more, and let go of what is held."""
        self.is_over = True
        for _, node in list(self._known.values()):
            node.state.flow = None
        self._known.clear()

    def begin(self) -> WeakSet[State]:
        """Return a new family, of a product: what became of the oldest product is followed no more."""
        family: WeakSet[State] = WeakSet()
        self._families.append(family)
        if len(self._families) > _MOST_PRODUCTS:
            for state in list(self._families.popleft()):
                state.flow = None
        return family


def steps_of(flow: Flow | None) -> tuple[Number, ...]:
    """Return the numbers that a factor of a product was multiplied with; weights are a factor as they are."""
    if flow is None or flow.softmax is not None:
        return ()
    return unsure(flow.steps) if flow.laid else flow.steps


def unsure(steps: tuple[Number, ...]) -> tuple[Number, ...]:
    """Return the numbers of a tensor that not all of it was multiplied with, or that were taken back."""
    return (UNKNOWN,) if steps else ()


def together(*several: tuple[Number, ...]) -> tuple[Number, ...]:
    """Return numbers one after another."""
    steps = sum(several, ())
    return steps if len(steps) <= _MOST_HELD else unsure(steps)


def version(tensor: torch.Tensor) -> int:
    """Return how often a tensor was changed in place; tensors of the inference mode do not count it."""
    return 0 if tensor.is_inference() else tensor._version


def scaled(flow: Flow, number: Number, step: Number | None) -> Flow:
    """Return a flow after all of it was multiplied with a number, which is a step of the scale, or none."""
    laid = tuple(each._replace(factor=each.factor * number) for each in flow.laid) if flow.laid else ()
    steps = flow.steps if step is None else together(flow.steps, (step,))
    flow = sinks_unread(flow)
    return flow._replace(scale=None if flow.scale is None else flow.scale * number, steps=steps, laid=laid)


def sinks_unread(flow: Flow) -> Flow:
    """Return a flow of scores whose sinks, if there are any, are not what was put beside them any more."""
    return flow if flow.sinks is None else flow._replace(sinks=None, unread=BESIDE)


def unread_weights(flow: Flow, what: str) -> Flow:
    """Return a flow of weights after what hides no key; what leaves the mask unread stays said."""
    is_readable = flow.unread in (None, ADDED_TO_WEIGHTS, FACTOR_OF_WEIGHTS)
    return flow._replace(unread=what) if is_readable else flow


def laid_on(flow: Flow, laid: Laid, layout: Layout) -> Flow:
    """Return a flow after something was laid on a tensor that has this layout now."""
    if len(flow.laid) + len(flow.after) >= _MOST_HELD:
        return flow._replace(unread=f"more than {_MOST_HELD} masks, one after another")
    if laid.values is not None:
        where = beside(layout, laid.values.shape)
        if where is None:
            return flow._replace(unread=f"the shape of what was laid on by {laid.how}")
        kept = laid.values.detach() if laid.values.requires_grad else laid.values
        laid = laid._replace(values=kept, layout=where)
    if flow.stage == "weights":
        return flow._replace(after=(*flow.after, laid))
    if laid.how != "max":
        flow = sinks_unread(flow)
    if flow.stage == "exp":  # what is 0 there has no weight
        laid = laid._replace(fill=-math.inf if laid.fill == 0 else laid.fill, is_of_exp=True)
    return flow._replace(laid=(*flow.laid, laid))


def assigned_to(flow: Flow, fill: float) -> Flow:
    """Return a flow of scores of which a part was set to a number: what the softmax receives says which."""
    for each in flow.laid:  # it is read once, however many parts there are
        if each.how == "assigned" and each.values is None and each.fill == fill and not each.is_capped:
            return flow
    return laid_on(flow, Laid("assigned", None, (), "masked", fill), ())


def beside_others(flow: Flow, other: Flow, layout: Layout) -> Flow:
    """Return a flow of weights that others, which have this layout, were added to."""
    found = *flow.beside, (other._replace(beside=()), layout), *other.beside
    return flow._replace(beside=found[:_MOST_HELD])


def with_others(flow: Flow, others: Sequence[Flow | None]) -> Flow:
    """Return the flow of a factor that others were added to, or put beside, which may have other scales."""
    is_same = all(other is not None and (other is flow or other.steps == flow.steps) for other in others)
    has_steps = any(each is not None and each.steps for each in (flow, *others))
    steps = flow.steps if is_same else (UNKNOWN,) * has_steps
    return flow._replace(stage="operand", factors=None, steps=steps)
