"""Attention over training: counts the steps of a program, and measures the heads in the first and each N-th.

A step is one of an optimizer of torch. Without an optimizer it is a `backward`, and without that a forward of the
outermost module in which attention ran. Query rows count that have a key and are no padding.
"""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from torch.utils._python_dispatch import _disable_current_modes

from attncli.attention import FORBIDDEN_BELOW
from attncli.recording.call import AttentionCall, CallSite, LayerMetrics
from attncli.recording.notes import Notes
from attncli.recording.watch import watching

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Bool, Float

# Its module, or its place outside of modules; which call in a run of its module it is; and its heads.
_Layer = tuple[int | CallSite, int, int]
_OPTIMIZER = "optimizer step"
_COMPILED = (
    "code that torch.compile compiled would run eagerly: nothing is measured from step {} on; set "
    "TORCH_COMPILE_DISABLE=1 to measure the program without it"
)
_CELLS = 2**18  # of a call, whose weights are measured; of a larger one, some rows
_MOST, _ROWS = 32, 8  # every how many rows at most; and how many at least
_BLOCK = 2**20  # cells whose scores are held at a time


class StepMeter:
    """Counts steps, and hands over the number and the layers of each N-th and of the first, while the program waits."""

    def __init__(self, every: int, on_step: Callable[[int, list[LayerMetrics]], object], notes: Notes) -> None:
        self.unit, self.steps = "step", 0  # `optimizer step`, `backward` or `forward`, and how many have ended
        self.stride = 1  # the largest number of query rows of which one is measured
        self._every, self._on_step, self._notes = every, on_step, notes
        # Of layers, in the order in which they ran first; and how many steps each optimizer made.
        self._numbers, self._steps_of = dict[_Layer, int](), dict[int, int]()
        self._counting, self._watch, self._process = ExitStack(), ExitStack(), os.getpid()
        self._begin_step(is_recorded=False)

    def _begin_step(self, is_recorded: bool) -> None:
        """Forget the calls of the last step, or those of an evaluation, which ran without autograd."""
        self._is_recorded, self._is_due = is_recorded, self.steps == 0 or (self.steps + 1) % self._every == 0
        self._runs = Counter[tuple[int | CallSite, int]]()  # calls in each run of a module
        self._sums = dict[_Layer, tuple[CallSite, Tensor, Tensor]]()  # over all calls, and the largest scores

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Measure the attention that runs inside."""
        hook = register_optimizer_step_post_hook(lambda optimizer, *_: self._optimizer_stepped(optimizer))
        with self._counting:
            self._counting.callback(hook.remove)
            self._counting.callback(setattr, torch, "compile", torch.compile)
            torch.compile = wraps(torch.compile)(partial(self._compile, torch.compile))
            self._counting.callback(self._watch.close)
            self._watch_if_due()
            yield

    def _watch_if_due(self) -> None:
        """Watch the next step or not; between measured steps torch is as it is without us."""
        self._watch.close()
        if self._is_due:
            self._watch.enter_context(watching(self._take, notes=self._notes, on_end=self._ended))

    def _compile(self, compiler: Callable[..., Any], model: Any = None, **options: Any) -> Any:
        """Compile a module or a function, and end the measuring; libraries compile functions that never run."""
        compiled, ending = compiler(model, **options), self._ending()
        backend = getattr(options.get("backend"), "__name__", options.get("backend"))
        if model is None or backend == "eager" or os.environ.get("TORCH_COMPILE_DISABLE") == "1":  # flex has eager
            return compiled
        if not isinstance(model, nn.Module):
            return ending(compiled)
        with ending:
            return compiled

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """End the measuring, as code that torch.compile compiled has other bits when it runs eagerly."""
        self._notes.add(_COMPILED.format(self.steps + 1))
        self._counting.close()
        yield

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
        if call.project is not None:
            q, k, _ = call.project()
            call = replace(call, q=q, k=k, project=None)
        if call.weights is None and (call.q is None or call.k is None or call.scale is None or call.unsupported):
            self._notes.add(f"{call.place} is not measured: {call.unsupported or 'its weights are not known'}")
            return
        _, heads, queries, keys = call.shape
        batch = max(len(each) for each in (call.q, call.k, call.weights) if each is not None)  # one may be of all
        stride = max(min(-(-batch * heads * keys * queries // _CELLS), _MOST, queries // _ROWS), 1)
        self.stride = max(self.stride, stride)
        key, size = (owner, self._runs[run], heads), max(_BLOCK // (heads * queries * keys), 1)
        for start in range(0, batch, size):
            sums, largest = _head_sums(call, slice(start, start + size), _sampled(queries, stride))
            place, total, highest = self._sums.get(key, (call.place, 0, largest))
            self._sums[key] = place, total + sums, torch.maximum(highest, largest)

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
        """Count a step of an optimizer; a step of training ends when the optimizer with the most steps makes one."""
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


def _sampled(queries: int, stride: int) -> list[int]:
    """Return a query row of each stride, at distances without a period, as packed texts and pictures have one."""
    golden = (5**0.5 - 1) / 2
    return [int((number + (number * golden + 0.5) % 1) * stride) for number in range(queries // stride)]


def _head_sums(
    call: AttentionCall, batch: slice, sampled: list[int]
) -> tuple[Float[Tensor, "8+H H"], Float[Tensor, " H"]]:
    """Return sums over the query rows of a part of the batch, counts and products of heads, and the largest scores."""
    largest, weights, allowed, is_row = _read_rows(call, batch, sampled)
    is_self = call.shape[2] == call.shape[3]
    at, keys = (torch.arange(length, device=call.device) for length in call.shape[2:])
    distance = at[sampled, None] - keys
    entropy = torch.special.entr(weights).sum(-1)
    counts, is_row = allowed.sum(-1).expand(entropy.shape), is_row.expand(entropy.shape)
    of_rows = torch.stack([entropy, entropy.exp(), counts.to(entropy)])
    is_later = distance[:, :1] >= is_self  # the weight of the first position on itself is no sink
    of_cells = torch.stack([is_later & (keys == 0), distance == 1, distance.abs()]).to(weights)
    of_cells[1:] *= 1 if is_self else torch.nan
    linear = weights.sum(0).flatten(1) @ of_cells.flatten(1).mT
    numbers = torch.stack([is_row, is_row & is_later[:, 0]]).sum((1, 3)).to(entropy)
    of_choices = (weights * (counts[..., None] > 1)).transpose(0, 1).flatten(1)
    products = of_choices @ of_choices.mT
    return torch.cat([torch.where(is_row, of_rows, 0).sum((1, 3)), linear.mT, numbers, products]), largest


def _read_rows(call: AttentionCall, batch: slice, sampled: list[int]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the largest scores `[H]` of all query rows; of sampled ones weights, allowed keys, and which count."""
    _, heads, queries, keys = call.shape
    size = max(_BLOCK // (heads * keys), 1)
    blocks = list[tuple[Tensor, ...]]()
    for start in range(0, queries, size):
        rows = range(start, min(start + size, queries))
        scores, allowed = _masked_scores(call, batch, rows)
        inside = [at - start for at in sampled if at in rows]
        of_all = F.pad(scores[:, :, inside], (0, keys - scores.shape[-1]), value=-torch.inf)
        blocks.append((scores.amax(-1), allowed.any(-1), of_all, allowed[:, :, inside], allowed.any(-2)))
    *of_rows, is_key = zip(*blocks, strict=True)
    maxima, is_row, scores, allowed = (torch.cat(each, 2) for each in of_rows)
    if queries == keys:  # a position that no query attends to is padding
        is_row = is_row & torch.stack(is_key).any(0)
    largest = torch.where(is_row, maxima, -torch.inf).amax((0, 2))
    if call.weights is not None:  # the program's own
        weights = _rows(call.weights, batch, sampled)
    else:
        sinks = [] if call.sinks is None else [_rows(call.sinks, batch, sampled).expand(*scores.shape[:3], 1)]
        weights = torch.cat([scores, *sinks], -1).softmax(-1)[..., :keys]
    is_row = is_row[:, :, sampled]
    return largest, torch.where(is_row[..., None], weights, 0), allowed, is_row


def _masked_scores(
    call: AttentionCall, batch: slice, rows: range
) -> tuple[Float[Tensor, "B H R K"], Bool[Tensor, "#B #H R K"]]:
    """Return the scores of query rows, and the allowed keys; scores that are made here are -inf at others.

    Of causal attention these are the scores of keys up to the last row.
    """
    at, keys = (torch.arange(*ends, device=call.device) for ends in ((rows.start, rows.stop), (call.shape[3],)))
    allowed, biases = ((keys <= at[:, None]) | (not call.is_causal))[None, None], list[Tensor]()
    for mask in call.masks:
        values = _rows(mask.values, batch, rows)
        if mask.convention == "additive":
            biases.append(values)
            values = values <= FORBIDDEN_BELOW
        allowed = allowed & ((values != 0) == (mask.convention == "attend"))
    if call.scores is not None:
        scores = _rows(call.scores, batch, rows)
        return scores, allowed & ~(scores <= FORBIDDEN_BELOW)  # NaN is allowed
    if call.weights is not None:
        return torch.full_like(_rows(call.weights, batch, rows), -torch.inf), allowed  # which are not known
    q, k, scale = cast(Any, (call.q, call.k, call.scale))  # which are known
    k = _rows(k, batch, range(rows.stop if call.is_causal else len(keys)))
    q, stop = _rows(q, batch, rows) * scale, k.shape[2]
    grouped = q.reshape(len(q), k.shape[1], -1, q.shape[-1])  # the queries of all heads that share keys
    scores = (grouped @ k.mT).reshape(-1, call.shape[1], len(at), stop)
    for bias in biases:
        scores += bias[..., :stop]
    scores = scores if call.softcap is None else call.softcap * (scores / call.softcap).tanh()
    hidden = ~allowed[..., :stop]
    return scores.add_(torch.zeros_like(hidden, dtype=scores.dtype).masked_fill_(hidden, -torch.inf)), allowed


def _rows(tensor: Tensor, batch: slice, rows: Sequence[int]) -> Float[Tensor, "#B #H #R D"]:
    """Return query rows of a part of the batch of what broadcasts to `[B, H, Q, D]`, in float32 at least."""
    tensor = tensor.detach()[(None,) * (4 - tensor.dim())]
    tensor = tensor if len(tensor) == 1 else tensor[batch]
    if tensor.shape[2] > 1:
        tensor = tensor[:, :, slice(rows.start, rows.stop) if isinstance(rows, range) else rows]
    return tensor.float() if tensor.itemsize == 2 else tensor


def _head_metrics(total: Float[Tensor, "8+H H"], highest: Float[Tensor, " H"]) -> Float[np.ndarray, "C H"]:
    """Return the `COLUMNS` of a layer over all of its calls in a step; NaN is one that is not defined."""
    entropy, effective, keys, sink, previous, distance = total[:6] / total[[6, 6, 6, 7, 7, 6]]
    lengths = total[8:].diagonal().sqrt()
    cosines = (total[8:] / lengths / lengths[:, None]).nan_to_num(-torch.inf).fill_diagonal_(-torch.inf)
    columns = highest, entropy, effective, sink, previous, distance, keys, effective / keys, cosines.amax(0)
    values = torch.stack(columns).float().cpu()
    values[:6, values[0].isnan()] = torch.nan  # a row that is not sampled may have been no number
    return values.masked_fill(values.isneginf(), torch.nan).numpy()
