"""Scores and weights that cannot be followed any further: their softmax is counted, and said in one line."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from attncli.recording.axes import fresh, size
from attncli.recording.call import CallSite
from attncli.recording.operands import Factor, Labels, is_learned
from attncli.recording.provenance import Flow
from attncli.recording.tracer import Did, Flows
from attncli.text import plural

# Functions that put numbers elsewhere, and those that make others of them one by one.
PLACING = (
    "pad", "as_strided", "gather", "index_select", "take_along_dim", "roll", "flip", "unfold", "narrow", "select",
    "split", "chunk", "unbind", "diagonal", "scatter", "repeat", "repeat_interleave", "copy_", "movedim",
)  # fmt: skip
CHANGING = ("relu", "leaky_relu", "elu", "gelu", "softplus", "abs", "sqrt", "square", "pow", "__pow__")
_PUT = {*PLACING, "cat", "concat", "stack", "__setitem__", "__getitem__"}
_MOST_PLACES = 3  # that are named

Shape = tuple[int, ...]


class Unfollowed:
    """The softmaxes of queries with keys whose weights were not followed to values.

    Args:
        notes: what is said at the end, where one note of theirs is kept up to date.
    """

    def __init__(self, notes: list[str]) -> None:
        self._notes, self._said = notes, ""
        self._at: dict[CallSite, tuple[int, Shape]] = {}

    def count(self, place: CallSite, shape: Shape) -> None:
        """Take in a softmax."""
        count, first = self._at.get(place, (0, shape))
        self._at[place] = count + 1, first
        self._say()

    def forget(self, place: CallSite) -> None:
        """Take one back, as its weights met values after all."""
        count, first = self._at.pop(place)
        if count > 1:
            self._at[place] = count - 1, first
        self._say()

    def _say(self) -> None:
        before, self._said = self._said, self._text()
        if before in self._notes:
            self._notes.remove(before)
        if self._said:
            self._notes.append(self._said)

    def _text(self) -> str:
        """Return how many there are, and where."""
        lines: dict[str, list[CallSite]] = {}
        for place in self._at:
            lines.setdefault(str(place), []).append(place)
        if not lines:
            return ""
        named = [self._named(places) for places in lines.values()]
        more = len(named) - _MOST_PLACES
        named = [*named[:_MOST_PLACES], *([plural(more, "more place")] if more > 0 else [])]
        count = sum(count for count, _ in self._at.values())
        what, them = (f"{count} softmaxes are", "them") if count > 1 else ("1 softmax is", "it")
        return f"{what} not shown, as attn could not follow {them} from scores to values: {', '.join(named)}"

    def _named(self, places: Sequence[CallSite]) -> str:
        """Return the size of the first softmax of a line, the line, and its modules."""
        first, *more = places
        modules = f" ({first.module}{f' and {len(more)} more' if more else ''})" if first.module else ""
        return f"{list(self._at[first][1])} at {first}{modules}"


def lose(flows: Flows, did: Did) -> None:
    """Take what ends a flow of scores, whose softmax will be counted; or puts weights elsewhere, whose softmax is."""
    sources = did.first() if isinstance(did.first(), list | tuple) else did.args
    if not flows.nodes.knows(sources):
        return
    made = did.result
    if did.name in ("__setitem__", "copy_"):  # into a part of what is used afterwards
        made = did.args[0], did.args[0]._base
    for result in made if isinstance(made, list | tuple) else (made,):
        is_new = isinstance(result, torch.Tensor) and result.ndim > 2 and flows.nodes.get(result) is None
        if is_new and result.is_floating_point():
            _lose_in(flows, sources, result, did.name in _PUT)


def _lose_in(flows: Flows, sources: Sequence[object], result: torch.Tensor, is_put: bool) -> None:
    for source in sources:
        node = flows.nodes.get(source)
        flow = None if node is None else node.state.flow
        if flow is None or not (flow.stage == "lost" or _is_of_pairs(flow)):
            continue
        if flow.stage in ("lost", "scores", "exp", "log"):
            flows.nodes.follow(result, Flow("lost"), fresh(result.shape))
            return
        if is_put and flow.stage == "weights" and flow.softmax is not None and flow.softmax.lost is None:
            flow.softmax.lost = flows.context.lose(tuple(flow.softmax.weights.shape))


def count(flows: Flows, weights: torch.Tensor, axis: int) -> None:
    """Count a softmax of what came from scores that were not followed to it, if it is over two long axes."""
    others = [each for i, each in enumerate(weights.shape) if i not in (0, axis)]
    if weights.ndim > 2 and weights.shape[axis] > 1 and max(others) > 1:
        flows.context.lose(tuple(weights.shape))


def begin(flows: Flows, weights: torch.Tensor, axis: int) -> None:
    """Begin with a softmax of what nothing is known of, which may be of as many queries as keys."""
    is_square = weights.ndim > 2 and weights.shape[-1] == weights.shape[-2] > 1
    if is_square and axis == weights.ndim - 1:
        flows.begin(weights, Flow("unknown"), fresh(weights.shape))


def meet(flows: Flows, weights: Factor, values: Factor, first: Labels, second: Labels, out: Labels) -> None:
    """Count a softmax of what nothing is known of, if it weighs what was computed: values of each batch row.

    What is a product itself is no values: linear attention multiplies keys and values first.
    """
    if weights.flow is None or weights.flow.stage != "unknown":
        return
    is_of_keys = first[-1] in second and first[-1] not in out and first[-2] not in second
    are_values = values.tensor.ndim > 2 and not is_learned(values.tensor)
    if is_of_keys and are_values and (values.flow is None or values.flow.stage != "scores"):
        flows.context.lose(tuple(weights.tensor.shape))
        node = flows.nodes.get(weights.tensor)
        if node is not None:
            node.state.flow = None


def forget(flows: Flows, flow: Flow) -> None:
    """Take back that the weights of a softmax were lost: they met values."""
    if flow.softmax is not None and flow.softmax.lost is not None:
        flows.context.find(flow.softmax.lost)
        flow.softmax.lost = None


def _is_of_pairs(flow: Flow) -> bool:
    """Return whether a flow is of pairs of what two computed tensors hold, such as queries and keys.

    A tensor of two axes is one for the whole batch, such as the words that a model chooses of.
    """
    if flow.product is None:
        return False
    sides = flow.product.left, flow.product.right
    is_computed = all(side.tensor.ndim > 2 and not side.is_learned for side in sides)
    return is_computed and all(size(own) > 1 for own in flow.product.own_leaves())
