"""Attention over training: counts the steps of a program, and measures the heads in the first and each N-th.

A step is one of an optimizer of torch. Without an optimizer it is a `backward`, and without that a forward of the
outermost module in which attention ran. Calls are reduced where their tensors are, while the program waits. Query rows
count that have a key and are no padding, which is a position that no query may attend to.
"""

from __future__ import annotations

import gc
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import islice
from types import FrameType, FunctionType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from torch.utils._python_dispatch import _disable_current_modes

from attncli.attention import FORBIDDEN_BELOW
from attncli.recording.call import AttentionCall, CallSite, LayerMetrics
from attncli.recording.call_site import is_of_library, line_of
from attncli.recording.import_hook import when_imported
from attncli.recording.notes import Notes
from attncli.recording.watch import watching

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Bool, Float, Int

    _Scored = tuple[Float[Tensor, "B H R K"], Bool[Tensor, "#B #H R K"]]

# Its module, or its place outside of modules; its heads; and which call in a run of its module it is.
_Layer = tuple[int | CallSite, int, int | CallSite]
_OPTIMIZER = "optimizer step"
_COMPILED = (
    "the program calls torch.compile, and attention in compiled code is not seen: nothing is measured{since}; set "
    "TORCH_COMPILE_DISABLE=1 to measure the program without it"
)
_CELLS, _ROWS = 2**20, 8  # of a call: cells that are measured at most, and query positions at least
_MEANS = 6  # of `COLUMNS`, from entropy to keys

# Also where the program replaced those in torch.
_matmul, _softmax = torch._C._VariableFunctions.matmul, torch._C._VariableFunctions.softmax


class StepMeter:
    """Counts steps, and hands over the number and the layers of each N-th and of the first, while the program waits."""

    def __init__(self, every: int, on_step: Callable[[int, list[LayerMetrics]], object], notes: Notes) -> None:
        self.unit, self.steps = "", 0  # `optimizer step`, `backward` or `forward`, and how many have ended
        self.sampling = ""  # how many query positions are measured, if not all
        self._every, self._on_step, self._notes, self._process = every, on_step, notes, os.getpid()
        self._layers: dict[_Layer, tuple[int, CallSite]] = {}  # with their numbers and places
        self._runs: Counter[tuple[int | CallSite, int]] = Counter()
        self._sums: dict[_Layer, Tensor] = {}  # of the step
        self._has_calls = self._has_optimizer = False
        self._level = 0  # of calls that are measured
        self._optimizers: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()  # how many steps each made
        self._forwards = 0  # before the first step
        self._watch, self._counting, self._is_on = ExitStack(), ExitStack(), False
        self._is_compiled, self._backends = False, 0  # of torch.compile: how many were looked through

    @property
    def is_waiting(self) -> bool:
        """Whether an optimizer made no step yet."""
        return self._has_optimizer and not self.steps

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Measure the attention that runs inside."""
        _, self._backends = _compiles(None, 0)  # of another program
        hook = register_optimizer_step_post_hook(lambda optimizer, *_: self._optimizer_stepped(optimizer))
        compiler = when_imported("torch._inductor.compile_fx", lambda: self._leave_compiled(sys._getframe()))
        with self._counting:
            self._counting.callback(hook.remove)
            self._counting.enter_context(compiler)
            self._counting.callback(self._switch, False)
            self._switch(True)
            yield

    def _switch(self, is_on: bool) -> None:
        """Watch or not; between measured steps torch is as it is without us."""
        if is_on and not self._is_on and not self._is_compiled:
            hook = register_module_forward_pre_hook(lambda *_: self._leave_compiled(None))
            self._watch.callback(hook.remove)
            self._watch.enter_context(watching(self._take, notes=self._notes, on_end=self._ended))
        elif not is_on:
            self._watch.close()
        self._is_on = is_on

    def _leave_compiled(self, frame: FrameType | None) -> None:
        """End the watch of a program that compiles: an eager step in the place of a compiled one has other bits."""
        is_compiled, self._backends = _compiles(frame, self._backends)
        if is_compiled and not self._is_compiled:
            self._is_compiled = True
            self._notes.add(_COMPILED.format(since=f" after step {self.steps}" if self.steps else ""))
            self._sums.clear()
            self._counting.close()

    def _take(self, call: AttentionCall) -> None:
        """Add a call to the step."""
        has_grad = any(each is not None and each.requires_grad for each in (call.q, call.k, call.v, call.output))
        # The more of these three the more it is of training: a frozen model's has no gradient, an evaluation less.
        level = call.is_recorded + (call.is_recorded and (has_grad or call.is_training is not False))
        if level < self._level:
            return
        if level > self._level:  # an evaluation ran before
            self._level = level
            for each in (self._sums, self._runs, self._layers):
                each.clear()
        self._has_calls = True
        if not self._is_due(self.steps + 1):
            return
        if call.device == "meta" or (sums := _head_sums(call)) is None:
            self._notes.add(f"{call.place} is not measured: {call.unsupported or 'its weights are not known'}")
            return
        owner = call.module_id or call.place
        run = owner, 0 if call.slices is None else call.slices.forward
        key = owner, call.shape[1], call.place if call.slices is None else self._runs[run]
        self._runs[run] += 1
        self._layers.setdefault(key, (len(self._layers), call.place))
        before = self._sums.get(key)
        self._sums[key] = sums if before is None else _together(before, sums)
        if (rows := _measured_rows(call)) < call.shape[2]:
            self.sampling = f"means over {rows} of {call.shape[2]:,} query positions"

    def _ended(self, event: str) -> None:
        """End a step of a program without an optimizer, after a backward or a forward of an outermost module."""
        if event == "backward":  # calls outside of modules begin anew
            self._runs.clear()
        if self.unit == _OPTIMIZER or not self._has_calls:
            return
        if not self.unit and not self._has_optimizer:
            self._has_optimizer = any(issubclass(type(each), Optimizer) for each in gc.get_objects())
        if self._has_optimizer:  # whose step is to come
            return
        self._forwards += event == "forward"
        if event == "backward" or (not self.unit and (self._forwards > 1 or not torch.is_grad_enabled())):
            self.unit = event
        if self.unit == event:
            self._end_step()

    def _optimizer_stepped(self, optimizer: Optimizer) -> None:
        if os.getpid() != self._process:
            return
        with self._notes.of_faults("a step of training was not counted"):
            # Several optimizers may share the parameters of a model: the one with the most steps counts.
            before = max(self.steps - 1, 0) if self.unit == _OPTIMIZER else self.steps
            if self.steps and self.unit != _OPTIMIZER:
                self._notes.add(f"before the first optimizer step, {self.steps} steps of the table are {self.unit}s")
            self.unit = _OPTIMIZER
            number = self._optimizers[optimizer] = self._optimizers.get(optimizer, before) + 1
            if number > self.steps:
                self._end_step()
                self._switch(self._is_due(self.steps + 1))

    def _end_step(self) -> None:
        self.steps += 1
        sums, self._sums, self._has_calls = self._sums, {}, False
        self._runs.clear()
        if sums and self._is_due(self.steps):
            with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.no_grad():
                layers = [
                    LayerMetrics(number, str(place), place.module or "", _head_metrics(sums[key]))
                    for key, (number, place) in self._layers.items()
                    if key in sums
                ]
            self._on_step(self.steps, sorted(layers))

    def _is_due(self, step: int) -> bool:
        return step == 1 or step % self._every == 0


def _compiles(frame: FrameType | None, checked: int) -> tuple[bool, int]:
    """Return whether a program compiles: now, in a frame, or after it had made `checked` backends; and their number.

    The backend `eager` compiles nothing; flex_attention makes one in each call that is not compiled.
    """
    while frame is not None and frame.f_code is not torch.compile.__code__:
        frame = frame.f_back
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    backends = {} if dynamo is None else dynamo.cached_backends
    checked = checked if checked <= len(backends) else 0  # torch._dynamo.reset forgets them
    recent = islice(reversed(backends.values()), len(backends) - checked)
    is_eager = all(getattr(each, "compiler_name", each) in (None, "eager") for each in recent)
    return line_of(frame, "") is not None or not (is_eager or _is_of_libraries()), len(backends)


def _is_of_libraries() -> bool:
    """Return whether all that torch.compile was called for are functions of libraries, which compile as imported."""
    functions = (each for each in gc.get_objects() if type(each) is FunctionType)
    compiled = (each for each in functions if not getattr(each, "_torchdynamo_disable", False))
    originals = filter(None, (getattr(each, "_torchdynamo_orig_callable", None) for each in compiled))
    return all(type(each) is FunctionType and is_of_library(each.__code__) for each in originals)


def _measured_rows(call: AttentionCall) -> int:
    """Return how many query positions of a call are measured, spread evenly: all that are few enough."""
    batch, heads, queries, keys = call.shape
    return min(queries, max(_CELLS // (batch * heads * keys), _ROWS))


def _head_sums(call: AttentionCall) -> Float[Tensor, "13+H H"] | None:
    """Return sums over rows with counts, the largest score, and products of two heads' weights; None if unknown."""
    queries, rows = call.shape[2], _measured_rows(call)
    at = queries - 1 - torch.arange(rows, device=call.device).flip(0) * (queries - 1) // max(rows - 1, 1)
    if call.project is not None:
        q, k, _ = call.project()
        call = replace(call, q=q, k=k, project=None)
    together = at if rows == queries else torch.cat([at, _steepest(call)])
    if (scored := _scores(call, together)) is None:
        return None
    highest = _highest(*scored, together, is_self := queries == call.shape[3])
    scores, allowed = (each[:, :, :rows] for each in scored)
    weights = _weights(call, at, scores)
    keys = torch.arange(call.shape[3], device=at.device)
    entropy = torch.special.entr(weights).sum(-1)  # [B, H, R], as are all that follow
    counted = (allowed.any(-1) & allowed.any(-2)[..., at] if is_self else allowed.any(-1)).expand(entropy.shape)
    later = counted & (at > 0) if is_self else counted  # the weight of the first position on itself is no sink
    weights = torch.where(counted[..., None], weights, 0)
    before = (at - 1).clamp(0, len(keys) - 1)[:, None].expand(*weights.shape[:3], 1)
    values = [
        entropy, entropy.exp(), weights[..., 0], weights.gather(-1, before)[..., 0],
        (weights * (at[:, None] - keys).abs()).sum(-1), allowed.sum(-1).expand(counted.shape).to(entropy),
    ]  # fmt: skip
    has = torch.stack([counted, counted, later, later & is_self, counted & is_self, counted])
    sums = torch.where(has, torch.stack(values), 0).sum((1, 3))
    of_heads = weights.transpose(0, 1).flatten(1)
    return torch.cat([sums, has.sum((1, 3)).to(sums), highest[None], _matmul(of_heads, of_heads.mT)])


def _steepest(call: AttentionCall) -> Int[Tensor, " R"]:
    """Return query positions of large scores: where a program's own are largest, or queries longest.

    A long key is seen by every query, so that the rows which are spread evenly have its scores; a long query is not.
    """
    if call.scores is not None:
        sizes = call.scores.detach().amax(-1)
    elif call.q is not None:
        sizes = call.q.detach().float().square().sum(-1)
    else:
        return torch.arange(0, device=call.device)
    return sizes[(None,) * (3 - sizes.dim())].amax(0).argmax(-1)


def _highest(
    scores: Float[Tensor, "B H R K"], allowed: Bool[Tensor, "#B #H R K"], at: Int[Tensor, " R"], is_self: bool
) -> Float[Tensor, " H"]:
    """Return the largest score of each head; −inf without any."""
    is_real = allowed.any(-1)
    if is_self:  # a position that no query attends to is padding
        is_real = is_real & allowed.any(-2)[..., at]
    return torch.where(is_real, scores.amax(-1), -torch.inf).amax((0, 2))


def _together(sums: Float[Tensor, "13+H H"], more: Float[Tensor, "13+H H"]) -> Float[Tensor, "13+H H"]:
    """Return the sums of two calls of a layer."""
    both = sums + more
    both[2 * _MEANS] = torch.maximum(sums[2 * _MEANS], more[2 * _MEANS])
    return both


def _head_metrics(sums: Float[Tensor, "13+H H"]) -> Float[np.ndarray, "C H"]:
    """Return the `COLUMNS` of a layer over all of its calls in a step; NaN is one that is not defined."""
    total = sums.cpu()
    means, products = total[:_MEANS] / total[_MEANS : 2 * _MEANS], total[2 * _MEANS + 1 :]
    sizes = products.diagonal().sqrt()
    alike = (products / sizes / sizes[:, None]).nan_to_num(-torch.inf).fill_diagonal_(-torch.inf)
    similarity, twin = alike.max(0)
    twin = torch.where(similarity.isfinite(), twin, torch.nan)  # none where a layer has one head
    columns = torch.stack([total[2 * _MEANS], *means, means[1] / means[-1], similarity, twin])
    return columns.masked_fill(columns.isneginf(), torch.nan).float().numpy()


def _of_rows(tensor: Tensor, at: Int[Tensor, " R"]) -> Tensor:
    """Return the query positions `at` of a tensor that broadcasts to `[B, H, Q, K]`, in float32 at least."""
    tensor = tensor.detach()[(None,) * (4 - tensor.dim())]
    tensor = tensor if tensor.shape[2] == 1 else tensor[:, :, at]
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _scores(call: AttentionCall, at: Int[Tensor, " R"]) -> _Scored | None:
    """Return the scores of query positions, −inf where they are hidden, and the allowed keys; None if unknown."""
    allowed = ((torch.arange(call.shape[3], device=call.device) <= at[:, None]) | (not call.is_causal))[None, None]
    bias: Any = 0
    for mask in call.masks:
        values, is_additive = _of_rows(mask.values, at), mask.convention == "additive"
        is_hidden = values <= FORBIDDEN_BELOW if is_additive else (values != 0) == (mask.convention == "masked")
        allowed = allowed & ~is_hidden
        bias = bias + values.masked_fill(is_hidden, 0) if is_additive else bias
    if call.weights is not None:  # the program's own
        scores = _of_rows(call.weights if call.scores is None else call.scores, at)
        allowed = allowed if call.scores is None else allowed & ~(scores <= FORBIDDEN_BELOW)
        return (scores * torch.nan if call.scores is None else scores.masked_fill(~allowed, -torch.inf)), allowed
    q, k = call.q, call.k
    if q is None or k is None or call.scale is None or call.unsupported is not None:
        return None
    q = _of_rows(q, at) * call.scale
    together = q.reshape(len(q), k.shape[1], -1, q.shape[-1])  # the queries of all heads that share keys
    scores = _matmul(together, k.mT.to(q)).reshape(-1, q.shape[1], len(at), call.shape[3])
    scores = scores + bias if call.masks else scores
    scores = scores if call.softcap is None else call.softcap * (scores / call.softcap).tanh()
    return scores.masked_fill_(~allowed, -torch.inf), allowed


def _weights(call: AttentionCall, at: Int[Tensor, " R"], scores: Float[Tensor, "B H R K"]) -> Float[Tensor, "B H R K"]:
    """Return the weights of query positions."""
    if call.weights is not None:
        return _of_rows(call.weights, at)
    sinks = [] if call.sinks is None else [_of_rows(call.sinks, at).expand(*scores.shape[:3], 1)]
    return _softmax(torch.cat([scores, *sinks], -1), -1)[..., : scores.shape[-1]]
