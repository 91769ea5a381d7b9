"""Attention over training: counts the steps of a program, and measures the heads in the first and each N-th.

A step is one of an optimizer of torch. Without an optimizer it is a `backward`, and without that a forward of the
outermost module in which attention ran. Query rows count that have a key and are no padding.
"""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from torch.utils._python_dispatch import _disable_current_modes

from attncli.attention import FORBIDDEN_BELOW
from attncli.recording.call import AttentionCall, CallSite, LayerMetrics
from attncli.recording.notes import Notes
from attncli.recording.watch import watching

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Bool, Float, Int

    _Rows = tuple[Float[Tensor, "B H R K"], Float[Tensor, "B H R K"], Bool[Tensor, "#B #H R K"]]

# Its module, or its place outside of modules; which call in a run of its module it is; and its heads.
_Layer = tuple[int | CallSite, int, int]
_OPTIMIZER = "optimizer step"
_COMPILED = "code that torch.compile compiled would run eagerly: nothing is measured from step {} on"
_COMPILED += "; set TORCH_COMPILE_DISABLE=1 to measure the program without it"
_CELLS, _ROWS = 2**19, 8  # of a call: cells that are measured at most, and query positions at least


class StepMeter:
    """Counts steps, and hands over the number and the layers of each N-th and of the first, while the program waits."""

    def __init__(self, every: int, on_step: Callable[[int, list[LayerMetrics]], object], notes: Notes) -> None:
        self.unit, self.steps = "step", 0  # `optimizer step`, `backward` or `forward`, and how many have ended
        self.sampling = ""  # how many query positions are measured, if not all
        self._every, self._on_step, self._notes = every, on_step, notes
        self._numbers = dict[_Layer, int]()  # of layers, in the order in which they ran first
        self._steps_of = dict[int, int]()  # optimizers
        self._counting, self._watch, self._process = ExitStack(), ExitStack(), os.getpid()
        self._begin_step(is_recorded=False)

    def _begin_step(self, is_recorded: bool) -> None:
        """Forget the calls before: of the last step, or without autograd, as an evaluation has none."""
        self._is_recorded = is_recorded
        self._runs = Counter[tuple[int | CallSite, int]]()  # calls in each run of a module
        self._sums = dict[_Layer, tuple[CallSite, Tensor, Tensor]]()  # over all calls, and the largest scores

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Measure the attention that runs inside."""
        hook = register_optimizer_step_post_hook(lambda optimizer, *_: self._optimizer_stepped(optimizer))
        with self._counting:
            self._counting.callback(hook.remove)
            self._counting.callback(setattr, torch, "compile", torch.compile)
            torch.compile = self._ending_with(torch.compile)
            self._counting.callback(self._watch.close)
            self._watch_if_due()
            yield

    def _watch_if_due(self) -> None:
        """Watch the next step or not; between measured steps torch is as it is without us."""
        self._watch.close()
        if self._is_due:
            self._watch.enter_context(watching(self._take, notes=self._notes, on_end=self._ended))

    def _ending_with(self, compiler: Callable[..., Any]) -> Callable[..., Any]:
        """Return torch.compile that ends the measuring: an eager step in the place of a compiled one has other bits."""

        def end() -> None:
            self._notes.add(_COMPILED.format(self.steps + 1))
            self._counting.close()

        @wraps(compiler)
        def compile_unseen(model: Any = None, **options: Any) -> Any:
            backend = getattr(options.get("backend"), "__name__", options.get("backend"))
            compiled = compiler(model, **options)
            if model is None or backend == "eager" or os.environ.get("TORCH_COMPILE_DISABLE") == "1":  # flex has eager
                return compiled
            if isinstance(model, nn.Module):
                end()
                return compiled

            @wraps(compiled)
            def call_unseen(*args: Any, **kwargs: Any) -> Any:
                end()
                return compiled(*args, **kwargs)

            return call_unseen

        return compile_unseen  # libraries compile functions as they are imported, and call few of them

    @property
    def _is_due(self) -> bool:
        """Whether the step that runs is measured."""
        return self.steps == 0 or (self.steps + 1) % self._every == 0

    def _take(self, call: AttentionCall) -> None:
        if call.is_recorded and not self._is_recorded:
            self._begin_step(is_recorded=True)
        if call.is_recorded != self._is_recorded:
            return
        owner = call.run[0] or call.place
        run = owner, call.run[1]
        self._runs[run] += 1
        if not self._is_due:
            return
        batch, heads, queries, keys = call.shape
        rows = min(queries, max(_CELLS // (batch * heads * keys), _ROWS))
        if (found := _head_sums(call, rows)) is None:
            self._notes.add(f"{call.place} is not measured: {call.unsupported or 'its weights are not known'}")
            return
        key, (sums, largest) = (owner, self._runs[run], heads), found
        place, total, highest = self._sums.get(key, (call.place, 0, largest))
        self._sums[key] = place, total + sums, torch.maximum(highest, largest)
        if rows < queries:
            self.sampling = f"at {rows} of {queries:,} query positions"

    def _ended(self, event: str) -> None:
        """End a step of a program without an optimizer, after a backward or a forward of an outermost module."""
        has_calls = bool(self._runs)
        if event == "backward":  # calls outside of modules begin anew
            self._runs.clear()
        if self.unit == _OPTIMIZER or not has_calls:
            return
        if not self.steps and any(issubclass(type(each), Optimizer) for each in gc.get_objects()):
            self.unit = _OPTIMIZER  # whose step is to come
            return
        # The first forward with gradients may have a backward.
        is_end = event == "backward" or self.unit == "forward" or not torch.is_grad_enabled()
        self.unit = "backward" if "backward" in (event, self.unit) else "forward"
        if self.unit == event and is_end:
            self._end_step()

    def _optimizer_stepped(self, optimizer: Optimizer) -> None:
        """End a step with that of the optimizer that made most; those that share a model with it make as many."""
        if os.getpid() != self._process:
            return
        with self._notes.of_faults("a step of training was not counted"):
            if self.steps and self.unit != _OPTIMIZER:
                self._notes.add(f"before the first optimizer step, {self.steps} steps of the table are {self.unit}s")
            self.unit, before = _OPTIMIZER, max(self.steps - 1, 0)
            self._steps_of[id(optimizer)] = number = self._steps_of.get(id(optimizer), before) + 1
            if number > self.steps:
                self._end_step()
                if self._every > 1:
                    self._watch_if_due()

    def _end_step(self) -> None:
        self.steps += 1
        layers = []
        with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.no_grad():
            for key, (place, *found) in self._sums.items():
                number = self._numbers.setdefault(key, len(self._numbers))
                layers.append(LayerMetrics(number, str(place), place.module or "", _head_metrics(*found)))
        self._begin_step(self._is_recorded)
        if layers:
            self._on_step(self.steps, sorted(layers))


def _head_sums(call: AttentionCall, rows: int) -> tuple[Float[Tensor, "8+H H"], Float[Tensor, " H"]] | None:
    """Return sums over query positions, counts and products of heads, and the largest scores; None if unknown."""
    if call.project is not None:
        q, k, _ = call.project()
        call = replace(call, q=q, k=k, project=None)
    is_self, at = call.shape[2] == call.shape[3], 2 * torch.arange(rows, device=call.device) + 1
    at = at * call.shape[2] // (2 * rows)  # the middles of equal strides
    if rows < call.shape[2] and call.q is not None:  # a long key shows in every row, a long query in its own
        at = torch.cat([at, call.q.detach().float().norm(dim=-1).amax(0).argmax(-1)])
    if (read := _read_rows(call, at)) is None:
        return None
    scores, weights, allowed = read
    is_row = allowed.any(-1)
    if is_self:  # a position that no query attends to is padding
        is_row = is_row & (allowed.any(-2) if rows == call.shape[2] else _allowed(call, at, of_keys=True).any(-1))
    highest = torch.where(is_row, scores.amax(-1), -torch.inf).amax((0, 2))
    weights = torch.where(is_row[..., None], weights, 0)[:, :, :rows]
    entropy = torch.special.entr(weights).sum(-1)
    counted, at = is_row[:, :, :rows].expand(entropy.shape), at[:rows, None]
    keys = allowed[:, :, :rows].sum(-1).expand(entropy.shape)
    of_rows = torch.stack([entropy, entropy.exp(), keys.to(entropy)])
    distance = at - torch.arange(call.shape[3], device=at.device)
    later = at > 0 if is_self else at >= 0  # the weight of the first position on itself is no sink
    of_cells = torch.stack([later & (distance == at), distance == 1, distance.abs()]).to(weights)
    of_cells[1:] *= 1 if is_self else torch.nan
    of_heads = weights.transpose(0, 1).flatten(2)
    linear = of_heads.sum(1) @ of_cells.flatten(1).mT
    counts = torch.stack([counted, counted & later[:, 0]]).sum((1, 3)).to(entropy)
    of_choices = torch.where(keys[..., None] > 1, weights, 0).transpose(0, 1).flatten(1)
    products = of_choices @ of_choices.mT
    return torch.cat([torch.where(counted, of_rows, 0).sum((1, 3)), linear.mT, counts, products]), highest


def _read_rows(call: AttentionCall, at: Int[Tensor, " R"]) -> _Rows | None:
    """Return the scores of query positions, -inf where they are hidden, their weights, and the allowed keys."""
    allowed = _allowed(call, at)
    if call.weights is not None:  # the program's own
        weights = _at(call.weights, at)
        scores = weights * torch.nan if call.scores is None else _at(call.scores, at)
        return scores.masked_fill(~allowed, -torch.inf), weights, allowed
    q, k = call.q, call.k
    if q is None or k is None or call.scale is None or call.unsupported is not None:
        return None
    q = _at(q, at) * call.scale
    grouped = q.reshape(len(q), k.shape[1], -1, q.shape[-1])  # the queries of all heads that share keys
    bias = sum(_at(mask.values, at) for mask in call.masks if mask.convention == "additive")
    scores = (grouped @ k.detach().mT.to(q)).view(-1, call.shape[1], len(at), call.shape[3]) + bias
    scores = scores if call.softcap is None else call.softcap * (scores / call.softcap).tanh()
    scores = scores.masked_fill_(~allowed, -torch.inf)
    sinks = [] if call.sinks is None else [_at(call.sinks, at).expand(*scores.shape[:3], 1)]
    return scores, torch.cat([scores, *sinks], -1).softmax(-1)[..., : scores.shape[-1]], allowed


def _allowed(call: AttentionCall, at: Int[Tensor, " R"], of_keys: bool = False) -> Bool[Tensor, "#B #H R K"]:
    """Return which keys query positions may attend to, or which queries may attend to key positions."""
    others = torch.arange(call.shape[2 if of_keys else 3], device=call.device)
    allowed = ((others >= at[:, None] if of_keys else others <= at[:, None]) | (not call.is_causal))[None, None]
    for mask in call.masks:
        values, is_masked = _at(mask.values, at, of_keys), mask.convention == "masked"
        is_hidden = values <= FORBIDDEN_BELOW if mask.convention == "additive" else (values != 0) == is_masked
        allowed = allowed & ~is_hidden
    if call.weights is not None and call.scores is not None:
        allowed = allowed & ~(_at(call.scores, at, of_keys) <= FORBIDDEN_BELOW)  # NaN is allowed
    return allowed


def _at(tensor: Tensor, at: Int[Tensor, " R"], of_keys: bool = False) -> Float[Tensor, "#B #H #R D"]:
    """Return query positions, or key positions, of what broadcasts to `[B, H, Q, D]`, in float32 at least."""
    tensor = tensor.detach()[(None,) * (4 - tensor.dim())]
    tensor = tensor.mT if of_keys else tensor
    tensor = tensor if tensor.shape[2] == 1 else tensor[:, :, at]
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _head_metrics(total: Float[Tensor, "8+H H"], highest: Float[Tensor, " H"]) -> Float[np.ndarray, "C H"]:
    """Return the `COLUMNS` of a layer over all of its calls in a step; NaN is one that is not defined."""
    total, highest = total.cpu(), highest.cpu()
    entropy, effective_keys, keys, sink, previous, distance = total[:6] / total[[6, 6, 6, 7, 7, 6]]
    lengths = total[8:].diagonal().sqrt()
    cosines = (total[8:] / lengths / lengths[:, None]).nan_to_num(-torch.inf).fill_diagonal_(-torch.inf)
    columns = [highest, entropy, effective_keys, sink, previous, distance, keys, effective_keys / keys, cosines.amax(0)]
    values = torch.stack(columns)
    return values.masked_fill(values.isneginf(), torch.nan).float().numpy()
