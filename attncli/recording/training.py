"""Attention over training: counts the steps of a program, and measures the heads of each N-th.

A step is one of an optimizer of torch. Without an optimizer it is a `backward`, and without that a forward of the
outermost module in which attention ran. All micro-batches of a step count; forwards in evaluation do not.
"""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from torch.utils._python_dispatch import _disable_current_modes

from attncli.recording.call import AttentionCall, CallSite
from attncli.recording.head_metrics import LayerMetrics, head_metrics
from attncli.recording.head_sums import BATCH, ROWS, head_sums, is_measurable
from attncli.recording.notes import Notes
from attncli.recording.readers.reader import Watch
from attncli.recording.watch import watching

Unit = Literal["optimizer step", "backward", "forward"]


class StepMeter:
    """Counts steps, and hands over the metrics of each N-th, and of the first.

    Args:
        every: N.
        on_step: takes the number of a step and its layers, while the program waits.
        on_restart: called where an optimizer's first step shows that those before were of another unit.
        is_wanted: whether attention at a place is measured.
        notes: takes what is not measured, and faults of ours.

    Attributes:
        unit: of the steps; None before the first.
        steps: how many steps have ended.
        is_sampled: whether calls had more rows than are measured.
    """

    def __init__(
        self,
        every: int,
        on_step: Callable[[int, list[LayerMetrics]], object],
        on_restart: Callable[[], object],
        is_wanted: Callable[[CallSite], bool],
        notes: Notes,
    ) -> None:
        self.notes, self.steps, self.is_sampled = notes, 0, False
        self.unit: Unit | None = None
        self._every, self._on_step, self._on_restart, self._is_wanted = every, on_step, on_restart, is_wanted
        self._process = os.getpid()
        self._layers: dict[tuple[CallSite, int], int] = {}  # the second counts calls at a place in a run of its module
        self._runs: Counter[tuple[CallSite, int]] = Counter()
        self._sums: dict[int, list[Tensor]] = {}  # of the step, by layer
        self._has_trained = self._has_optimizer = False
        self._optimizers: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()  # how many steps each made
        self._root: ref[nn.Module] | None = None  # the outermost module in which attention ran
        self._forwards = 0  # of it, since the last backward
        self._watch: Watch | None = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Measure the attention that runs inside."""
        hook = register_optimizer_step_post_hook(lambda optimizer, *_: self._optimizer_stepped(optimizer))
        try:
            with watching(self._take, notes=self.notes, on_event=self._ran) as self._watch:
                yield
        finally:
            hook.remove()

    @property
    def sampled(self) -> str:
        """The rows that are measured of calls with more."""
        return f"of a call {ROWS} query positions and {BATCH} batch rows at most"

    def _take(self, call: AttentionCall) -> None:
        """Add a call to the step."""
        tensors = (call.q, call.k, call.v, call.output)
        has_grad = any(each is not None and each.requires_grad for each in tensors)
        is_of_training = has_grad or call.is_training is not False
        if not self._is_wanted(call.place) or (self._has_trained and not is_of_training):
            return
        if is_of_training and not self._has_trained:  # what ran before was an evaluation
            self._has_trained = True
            self._clear()
        if not is_measurable(call):
            self.notes.add(f"{call.place} is not measured: {call.unsupported or 'its weights are not known'}")
            return
        run = call.place, 0 if call.slices is None else call.slices.forward
        layer = self._layers.setdefault((call.place, self._runs[run]), len(self._layers))
        self._runs[run] += call.slices is not None
        self._sums.setdefault(layer, []).append(head_sums(call))
        self.is_sampled |= call.shape[0] > BATCH or call.shape[2] > ROWS

    def _ran(self, event: str, module: nn.Module | None) -> None:
        """End a step of a program without an optimizer, after a backward or a forward of an outermost module."""
        if self.unit == "optimizer step" or os.getpid() != self._process:
            return
        if event == "forward":
            if self._root is None and self._sums and module is not None:
                self._root = ref(module)
            if self._root is None or self._root() is not module:
                return
        self._forwards = self._forwards + 1 if event == "forward" else 0
        if self.unit is None:
            self._has_optimizer = self._has_optimizer or _finds_optimizer()
            if not self._has_optimizer:
                self.unit = "backward" if event == "backward" or torch.is_grad_enabled() else "forward"
        elif self.unit == "backward" and not self.steps and self._forwards > 1:
            self.unit = "forward"  # no backward came
        if self.unit == event:
            self._end_step()

    def _optimizer_stepped(self, optimizer: Optimizer) -> None:
        if os.getpid() != self._process:
            return
        with self.notes.of_faults("a step of training was not counted"):
            if self.unit != "optimizer step":
                if self.steps:
                    self._on_restart()
                self.unit, self.steps = "optimizer step", 0
            # Several optimizers may share the parameters of a model: the one with the most steps counts.
            number = self._optimizers.get(optimizer, max(self.steps - 1, 0)) + 1
            self._optimizers[optimizer] = number
            if number > self.steps:
                self._end_step()

    def _end_step(self) -> None:
        self.steps += 1
        if self._is_due(self.steps) and self._sums:
            places = {layer: place for (place, _), layer in self._layers.items()}
            with torch._C.DisableTorchFunction(), _disable_current_modes():
                sums = {layer: [one.cpu().numpy() for one in own] for layer, own in self._sums.items()}
            layers = [
                LayerMetrics(layer, str(places[layer]), places[layer].module or "", head_metrics(own))
                for layer, own in sorted(sums.items())
            ]
            self._on_step(self.steps, layers)
        self._clear()
        is_due = self._is_due(self.steps + 1)
        if self._watch is None:
            return
        if self.unit != "optimizer step":  # whose steps alone are seen by a hook of their own
            self._watch.is_on = is_due
        elif is_due:
            self._watch.resume()
        else:
            self._watch.pause()

    def _is_due(self, step: int) -> bool:
        return step == 1 or step % self._every == 0

    def _clear(self) -> None:
        self._sums.clear()
        self._runs.clear()


def _finds_optimizer() -> bool:
    return any(issubclass(type(each), Optimizer) for each in gc.get_objects())
