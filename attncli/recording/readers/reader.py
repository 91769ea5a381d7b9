"""The context of the readers of attention, and what readers of whole functions share.

After a function of torch ran, `recording/watch.py` hands a reader the thread, the function, its arguments and its
result, while the program waits: no function that the reader calls is watched, and none is recorded by autograd.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from attncli.recording.call import Api, AttentionCall, CallSite, CallSlices, MaskArgument, PositionSlice
from attncli.recording.call_site import ModuleNames, line_of, user_line
from attncli.recording.input_hint import Hints
from attncli.recording.notes import Notes
from attncli.recording.readers.origins import Origins, base_of

_MOST_OUTPUTS = 8  # of modules that are kept while others run


@dataclass(eq=False)
class Watch:
    """A program that is watched."""

    on_call: Callable[[AttentionCall], object]
    only: nn.Module | None  # whose attention alone is handed over; None is all
    notes: Notes  # what the calls do not say, such as that compiled regions run eagerly
    hints: Callable[[], Hints] | None
    on_end: Callable[[str], object] = lambda _: None
    is_on: bool = True
    start: str = field(default_factory=os.getcwd)  # the working directory that files are named from
    names: ModuleNames = field(default_factory=ModuleNames)
    lock: Any = field(default_factory=threading.RLock)  # held while something is handed over


@dataclass
class RunningModule:
    """A module whose forward runs."""

    module: nn.Module
    frame: FrameType  # what runs it
    saw_functions: bool  # before it began
    number: int  # of the runs of modules in this thread
    is_recorded: bool  # whether autograd was on as it began
    hint: tuple[int, int] | None = None  # what had been handed over when it began
    has_called: bool = False  # whether it called a module


class ThreadContext:
    """A thread of the program: the modules that run in it, and the origins of its tensors."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch, self.origins = watch, Origins()
        self.running: list[RunningModule] = []
        self.is_recorded = True  # whether autograd was on in the program when a reader began
        # Outputs of modules, and how deep these ran, while the module runs that called them.
        self.outputs: deque[tuple[int, Tensor]] = deque(maxlen=_MOST_OUTPUTS)

    def place(self) -> CallSite:
        """Return the place in the program that runs."""
        modules = [each.module for each in self.running]
        return CallSite(*user_line(self.watch.start), self.watch.names.name(modules))

    def line(self) -> str | None:
        """Return the line of the user's own code that called torch, `train.py:40`; None where a library did."""
        return line_of(sys._getframe(1), self.watch.start)

    def is_training(self) -> bool | None:
        """Return whether the innermost module that runs is in training mode; None outside of modules."""
        return self.running[-1].module.training if self.running else None

    def emit(self, call: AttentionCall) -> None:
        """Hand over an attention."""
        if not all(call.shape) or (call.q is not None and is_of_nothing(call.q)):
            return

        def with_line(mask: MaskArgument) -> MaskArgument:
            line = mask.made_at or self.origins.made_at(mask.source_tensor)
            return mask._replace(made_at=None if line == str(call.place) else line)

        slices, projections = call.slices, call.projections
        if slices is None and call.q is not None and call.k is not None:
            slices = CallSlices(PositionSlice.of(call.q, base_of(call.q)), PositionSlice.of(call.k, base_of(call.k)))
        if slices is not None and self.running:
            slices = slices._replace(forward=self.running[-1].number)
        if call.q is not None and not call.q.requires_grad:  # there is no cache in training
            projections = tuple(one for depth, one in self.outputs if depth == len(self.running) + 1)
        masks, ignored = tuple(map(with_line, call.masks)), tuple(map(with_line, call.ignored_masks))
        is_recorded, run = self.is_recorded, (0, 0)
        if self.running:
            is_recorded, run = self.running[0].is_recorded, (id(self.running[-1].module), self.running[-1].number)
        call = replace(call, masks=masks, ignored_masks=ignored, slices=slices, projections=projections)
        call = replace(call, is_recorded=is_recorded, run=run)
        kind = call.device.partition(":")[0]
        is_cast = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
        with torch.autocast(kind, enabled=False) if is_cast else nullcontext(), self.watch.lock:
            self.watch.on_call(call)

    def note_lost(self, shape: tuple[int, ...]) -> None:
        """Note a softmax whose weights could not be followed from scores to values."""
        with self.watch.lock:
            self.watch.notes.add_lost(str(self.place()), shape)


def can_read_values() -> bool:
    """Return whether values of tensors can be read now.

    They cannot while a program is traced, a CUDA graph is captured or a function runs inside of `torch.func`. A
    backward pass computes again what was read in the forward.
    """
    return (
        torch._C._current_graph_task_id() < 0
        and not torch._C._get_tracing_state()
        and torch._C._functorch.peek_interpreter_stack() is None
        and not (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())  # type: ignore[no-untyped-call]
    )


def is_of_nothing(*tensors: Tensor) -> bool:
    """Return whether an attention has no rows, heads, queries, keys or width."""
    return not all(each.numel() for each in tensors)


def emit(context: ThreadContext, api: Api, query: Tensor, key: Tensor, scale: float, **parts: Any) -> None:
    """Emit the call of a function that does everything itself; `scale` is what it multiplies q·k with."""
    if "scale_factors" not in parts and not query.is_nested:
        parts["scale_factors"] = *(context.origins.factor(each).scale for each in (query, key)), scale
    parts = {"is_training": context.is_training(), "dtype": str(query.dtype).removeprefix("torch."), **parts}
    place = parts.pop("place", None) or context.place()
    context.emit(AttentionCall(api=api, place=place, device=str(query.device), scale=scale, **parts))


# --- nested tensors: sequences of their own lengths, without padding between them ----------------------------


def longest(x: Tensor) -> int:
    """Return the length of `[…, T, D]`, or of the longest sequence of a nested tensor."""
    return max(row.shape[-2] for row in x.unbind()) if x.is_nested else x.shape[-2]


def padded(x: Tensor) -> Tensor:
    """Return a tensor whose sequences all have the length of the longest."""
    return x.to_padded_tensor(0.0) if x.is_nested else x


def own_tokens(key: Tensor) -> MaskArgument:
    """Return as a mask the lengths of nested keys: each sequence attends to its own."""
    lengths = torch.tensor([row.shape[-2] for row in key.unbind()], device=key.device)
    own = torch.arange(longest(key), device=key.device) < lengths[:, None]
    return MaskArgument("nested", own[:, None, None], "attend")
