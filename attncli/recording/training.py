"""Attention over training: counts the steps of a program, and measures the heads in the first and each N-th.

A step is one of an optimizer of torch. Without an optimizer it is a `backward`, and without that a forward of the
outermost module in which attention ran. All micro-batches of a step count; forwards in evaluation do not.
"""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from torch.utils._python_dispatch import _disable_current_modes

from attncli.recording.call import AttentionCall, CallSite, LayerMetrics
from attncli.recording.head_metrics import head_metrics, head_sums, measured_rows
from attncli.recording.notes import Notes
from attncli.recording.watch import watching

_OPTIMIZER = "optimizer step"


class StepMeter:
    """Counts steps, and hands over the number and the layers of each N-th and of the first, while the program waits."""

    def __init__(self, every: int, on_step: Callable[[int, list[LayerMetrics]], object], notes: Notes) -> None:
        self.unit, self.steps = "", 0  # `optimizer step`, `backward` or `forward`, and how many have ended
        self.sampling = ""  # how many query positions are measured, if not all
        self._every, self._on_step, self._notes, self._process = every, on_step, notes, os.getpid()
        self._layers: dict[tuple[CallSite, int], int] = {}  # the second counts calls at a place in a run of its module
        self._runs: Counter[tuple[CallSite, int]] = Counter()
        self._sums: dict[int, list[Tensor]] = {}  # of the step, by layer
        self._has_calls = self._has_trained = self._has_optimizer = False
        self._optimizers: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()  # how many steps each made
        self._forwards = 0  # before the first step
        self._watch, self._is_on = ExitStack(), False

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Measure the attention that runs inside."""
        hook = register_optimizer_step_post_hook(lambda optimizer, *_: self._optimizer_stepped(optimizer))
        try:
            self._switch(True)
            yield
        finally:
            self._switch(False)
            hook.remove()

    def _switch(self, is_on: bool) -> None:
        """Watch or not; between measured steps torch is as it is without us."""
        if is_on and not self._is_on:
            self._watch.enter_context(watching(self._take, notes=self._notes, on_end=self._ended))
        elif not is_on:
            self._watch.close()
        self._is_on = is_on

    def _take(self, call: AttentionCall) -> None:
        """Add a call to the step."""
        has_grad = any(each is not None and each.requires_grad for each in (call.q, call.k, call.v, call.output))
        is_of_training = has_grad or call.is_training is not False
        if self._has_trained and not is_of_training:
            return
        if is_of_training and not self._has_trained:  # before it ran an evaluation
            self._has_trained = True
            self._sums.clear()
        self._has_calls = True
        if not self._is_due(self.steps + 1):
            return
        if call.device == "meta" or (sums := head_sums(call)) is None:
            self._notes.add(f"{call.place} is not measured: {call.unsupported or 'its weights are not known'}")
            return
        run = call.place, 0 if call.slices is None else call.slices.forward
        layer = self._layers.setdefault((call.place, self._runs[run]), len(self._layers))
        self._runs[run] += call.slices is not None
        self._sums.setdefault(layer, []).append(sums)
        if (rows := measured_rows(call)) < call.shape[2]:
            self.sampling = f"{rows} of {call.shape[2]:,} query positions"

    def _ended(self, event: str) -> None:
        """End a step of a program without an optimizer, after a backward or a forward of an outermost module."""
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
            places = {layer: place for (place, _), layer in self._layers.items()}
            with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.no_grad():
                layers = [
                    LayerMetrics(layer, str(places[layer]), places[layer].module or "", head_metrics(own))
                    for layer, own in sorted(sums.items())
                ]
            self._on_step(self.steps, layers)

    def _is_due(self, step: int) -> bool:
        return step == 1 or step % self._every == 0
