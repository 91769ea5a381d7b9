"""Watching a running program: every attention that it computes is handed over, and none of its numbers changes.

A `TorchFunctionMode` sees functions of torch in one thread: every thread that begins while the program is watched gets
one. Torch's global forward hooks see modules.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch._higher_order_ops.flex_attention import flex_attention as flex_attention_operator
from torch.nn.modules import module as torch_modules
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from attncli.recording.call import AttentionCall, CallSite, MaskArgument
from attncli.recording.call_site import ModuleNames, is_in_compiled_region, line_of, user_line
from attncli.recording.import_hook import when_imported
from attncli.recording.input_hint import Hints
from attncli.recording.input_metadata import InputReader
from attncli.recording.notes import Notes
from attncli.recording.readers import flash_xformers, flex, mha, sdpa
from attncli.recording.readers.origins import Origins
from attncli.recording.readers.reader import ModuleReader, Reader, can_read_values, is_of_nothing
from attncli.recording.readers.softmax import Softmax
from attncli.recording.slices import BaseLayout, CallSlices, PositionSlice

_EAGERLY = (
    "under attn, compiled regions ran eagerly. Compiled by torch.compile, numbers may differ in their last digits"
)
_SCRIPTED = "attn does not see attention that torch.jit compiled"
_TRANSFORMED = "attn does not read attention inside torch.func and torch.vmap"

# Modes in which tensors have shapes and no numbers, as while a program is exported.
_WITHOUT_NUMBERS = (
    torch._C._TorchDispatchModeKey.FAKE,
    torch._C._TorchDispatchModeKey.PROXY,
    torch._C._TorchDispatchModeKey.FUNCTIONAL,
)
_OPERATORS = torch._ops.OpOverload, torch._ops.OpOverloadPacket
_MOST_OUTPUTS = 8  # of modules that are kept while others run
# The functions and modules that compute attention, and their readers. `flash_xformers` reads operators of libraries,
# and `softmax` attention that a program writes out.
FUSED: Mapping[Callable[..., Any], Reader] = {
    torch._C._nn.scaled_dot_product_attention: sdpa.read,  # also if the program replaced the one in F
    F.multi_head_attention_forward: mha.read_function,
    flex_attention_operator: flex.read,
}
MODULES: Mapping[Callable[..., Any], ModuleReader] = {
    nn.MultiheadAttention.forward: mha.read_module,
    nn.TransformerEncoderLayer.forward: mha.read_layer,
}


@dataclass(eq=False)
class Watch:
    """A program that is watched."""

    on_call: Callable[[AttentionCall], object]
    only: nn.Module | None  # whose attention alone is handed over; None is all
    notes: Notes  # what the calls do not say, such as that compiled regions run eagerly
    hints: Callable[[], Hints] | None
    is_on: bool = True
    start: str = field(default_factory=os.getcwd)  # the working directory that files are named from
    names: ModuleNames = field(default_factory=ModuleNames)
    lock: Any = field(default_factory=threading.RLock)  # held while something is handed over
    _profile: Any = field(default_factory=threading.getprofile)
    _local: threading.local = field(default_factory=threading.local)

    def here(self) -> _Thread:
        """Return what watches the thread that runs."""
        thread: _Thread | None = getattr(self._local, "thread", None)
        if thread is None:
            thread = self._local.thread = _Thread(self)
        return thread

    def begin(self, *event: Any) -> None:
        """Watch a thread from its first line on, as its profile; then the program's own profile begins."""
        sys.setprofile(self._profile)
        try:
            if self.is_on:
                self.here().enter()
        except Exception as fault:
            self.notes.failed(fault)
        if self._profile is not None:
            self._profile(*event)

    def hook(self) -> Callable[[], None]:
        """Hook the forward of all modules, before other hooks; return what undoes it."""
        before = torch_modules.register_module_forward_pre_hook(self._enter_module)
        after = torch_modules.register_module_forward_hook(self._leave_module, with_kwargs=True, always_call=True)
        torch_modules._global_forward_hooks.move_to_end(after.id, last=False)  # type: ignore[attr-defined]

        def remove() -> None:
            before.remove()
            after.remove()
            # The handle forgets this, and torch.compile warns of global hooks for as long as it is there.
            torch_modules._global_forward_hooks_with_kwargs.pop(after.id, None)

        return remove

    def _enter_module(self, module: nn.Module, args: Any) -> None:
        try:
            self.here().enter_module(module, args, sys._getframe(1))  # what calls the hook
        except Exception as fault:
            self._end(fault)

    def _leave_module(self, module: nn.Module, args: Any, *rest: Any) -> None:
        """Leave a module; one that failed has neither keyword arguments nor an output."""
        try:
            self.here().leave_module(module, (args, *rest) if len(rest) == 2 else None)
        except Exception as fault:
            self._end(fault)

    def _end(self, fault: Exception) -> None:
        """End the watch, which lost track of the program: a mode that stays on changes its last bits."""
        self.is_on = False
        self.here().leave_all()
        self.notes.failed(fault)


@contextmanager
def watching(
    on_call: Callable[[AttentionCall], object],
    module: nn.Module | None = None,
    notes: Notes | None = None,
    hints: Callable[[], Hints] | None = None,
) -> Iterator[Watch]:
    """Hand over every attention that runs inside.

    Args:
        on_call: takes each call while the program waits, from any of its threads, one at a time. It is neither watched
            nor recorded by autograd; it must not draw random numbers. What it raises is a note.
        module: whose attention alone is handed over; None is all.
        notes: takes what the calls do not say; None is a list of the watch's own.
        hints: gives what takes the inputs of modules, in the thread that runs.
    """
    watch = Watch(on_call, module, Notes() if notes is None else notes, hints)
    earlier = threading.getprofile()
    remove_hooks = watch.hook()
    threading.setprofile(watch.begin)
    own = watch.here()

    def forget() -> None:
        watch.is_on = False
        threading.setprofile(earlier)
        remove_hooks()
        watch.here().leave_all()

    _FORGET_IN_A_CHILD.append(forget)
    try:
        with _compiled_regions_run_eagerly():
            own.enter()
            yield watch
    finally:
        forget()
        _FORGET_IN_A_CHILD.remove(forget)


@contextmanager
def _compiled_regions_run_eagerly() -> Iterator[None]:
    """Have what the program compiles run as it is written; a compiled region calls no function that could be seen."""
    with ExitStack() as settled:

        def settle() -> None:
            settled.enter_context(torch.compiler.set_stance("force_eager"))
            message = "Using `torch.compile\\(module\\)` when there are global hooks"  # which are ours
            warnings.filterwarnings("ignore", message, UserWarning)
            settled.callback(_remove_filter, warnings.filters[0])

        # Importing it here would take a second from programs that compile nothing.
        settled.enter_context(when_imported("torch._dynamo", settle))
        yield


def _remove_filter(filter_: Any) -> None:
    if filter_ in warnings.filters:  # the program may have set all filters anew
        warnings.filters.remove(filter_)  # type: ignore[attr-defined]


# A process that the program forks is not watched.
_FORGET_IN_A_CHILD: list[Callable[[], None]] = []


def _after_fork() -> None:
    for forget in reversed(_FORGET_IN_A_CHILD):
        forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@dataclass
class _RunningModule:
    """A module whose forward runs."""

    module: nn.Module
    frame: FrameType  # what runs it
    saw_functions: bool  # before it began
    number: int  # of the runs of modules in this thread
    hint: tuple[int, int] | None = None  # what had been handed over when it began
    called: list[nn.Module] = field(default_factory=list)  # the first module that it called


class _Thread(TorchFunctionMode):
    """Watches one thread; it is the context of its readers, see `ThreadContext`."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch
        self._running: list[_RunningModule] = []
        self._forwards = 0
        # Outputs of modules, and how deep these ran, while the module runs that called them.
        self._outputs: deque[tuple[int, torch.Tensor]] = deque(maxlen=_MOST_OUTPUTS)
        self._sees_functions = True
        self._is_here = False  # in the stack of modes
        self.origins = Origins()
        self._followed = self.origins.by_id.keys()
        self._inputs = None if watch.hints is None else InputReader(watch.hints())
        self._softmax = Softmax(self)
        self._wanted = {*FUSED, *self._softmax.begins}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        # Most calls are of nothing that is followed: this is what watching costs.
        followed = self._followed
        is_followed = bool(followed) and not (
            followed.isdisjoint(map(id, args))
            and (not args or type(args[0]) not in (tuple, list) or followed.isdisjoint(map(id, args[0])))
            and (not kwargs or followed.isdisjoint(map(id, kwargs.values())))
        )
        if not is_followed and func not in self._wanted and not isinstance(func, _OPERATORS):
            return result
        try:
            if self._sees_functions and self._watch.is_on:
                self._read(func, args, kwargs, result, is_followed)
        except Exception as fault:
            self._watch.notes.failed(fault)
        return result

    def _read(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, is_followed: bool
    ) -> None:
        """Have its reader read a function that ran, and follow it if it was given a tensor that is followed."""
        reader = FUSED.get(func) or (flash_xformers.read if isinstance(func, _OPERATORS) else None)
        begins = self._softmax.begins.get(func)
        is_followed = is_followed or (begins is not None and begins(args, result))
        if (reader is None and not is_followed) or not self._is_on(func):
            return
        if reader is not None:
            self._quietly(reader, self, func, args, kwargs, result)
        if is_followed:
            self._quietly(self._softmax.follow, func, args, kwargs, result)

    def enter_module(self, module: nn.Module, args: Any, frame: FrameType) -> None:
        """Begin with a module; inside of a fused one no function is seen, but the modules that it calls are."""
        self._drop_ended(frame)
        if self._running:
            if not self._running[-1].called:
                self._running[-1].called.append(module)
        elif not self._is_here:
            self._sees_functions = False  # a thread that began before the watch is seen inside of modules
        self._forwards += 1
        running = _RunningModule(module, frame, self._sees_functions, self._forwards)
        self._running.append(running)
        self._see_functions(not mha.is_fused(module))
        if isinstance(module, torch.jit.ScriptModule):
            self.note(_SCRIPTED)
        if self._inputs is not None:
            try:
                running.hint = self._inputs.enter([each.module for each in self._running], args, frame)
            except Exception as fault:
                self._watch.notes.failed(fault)

    def leave_module(self, module: nn.Module, ran: tuple[Any, ...] | None) -> None:
        """End with a module: with its arguments and its output, if it did not fail."""
        if not any(each.module is module for each in self._running):
            return
        while self._running[-1].module is not module:
            self._leave()
        reader = MODULES.get(getattr(type(module), "forward", None))
        if reader is not None and ran is not None and self._is_on():
            self._quietly(reader, self, module, self._running[-1].called, *ran)
        if self._inputs is not None and (hint := self._running[-1].hint) is not None:
            try:
                self._inputs.leave(hint, ran)
            except Exception as fault:
                self._watch.notes.failed(fault)
        self._keep_output(None if ran is None else ran[-1])
        self._leave()

    def _keep_output(self, output: Any) -> None:
        """Keep the output of the last module until the one that called it ends, and none of those inside of it."""
        depth = len(self._running)
        while self._outputs and self._outputs[-1][0] > depth:
            self._outputs.pop()
        if depth > 1 and type(output) is torch.Tensor:
            with torch._C.DisableTorchFunction():
                if output.dim() in (3, 4) and not output.requires_grad:
                    self._outputs.append((depth, output))

    def enter(self) -> None:
        self.__enter__()  # type: ignore[no-untyped-call]
        self._is_here = True

    def leave_all(self) -> None:
        self._outputs.clear()
        while self._running:
            self._leave()
        if self._is_here:
            self._step_out()

    def place(self) -> CallSite:
        if "torch._dynamo" in sys.modules and _EAGERLY not in self._watch.notes and is_in_compiled_region():
            self.note(_EAGERLY)
        return CallSite(*user_line(self._watch.start), self._watch.names.name([each.module for each in self._running]))

    def line(self) -> str | None:
        return line_of(sys._getframe(1), self._watch.start)

    def module(self) -> nn.Module | None:
        return self._running[-1].module if self._running else None

    def is_training(self) -> bool | None:
        return self._running[-1].module.training if self._running else None

    def emit(self, call: AttentionCall) -> None:
        if not all(call.shape) or (call.q is not None and is_of_nothing(call.q)):
            return

        def with_line(mask: MaskArgument) -> MaskArgument:
            line = mask.made_at or self.origins.made_at(mask.source_tensor)
            return mask._replace(made_at=None if line == str(call.place) else line)

        slices, projections = call.slices, call.projections
        if slices is None and call.q is not None and call.k is not None:
            q, k = (PositionSlice.of(each, BaseLayout.of(each)) for each in (call.q, call.k))
            slices = CallSlices(q, k)
        if slices is not None and self._running:
            slices = slices._replace(forward=self._running[-1].number)
        if call.q is not None and not call.q.requires_grad:  # there is no cache in training
            inside = len(self._running) + 1
            projections = tuple(one for depth, one in self._outputs if depth == inside)
        masks, ignored = tuple(map(with_line, call.masks)), tuple(map(with_line, call.ignored_masks))
        call = replace(call, masks=masks, ignored_masks=ignored, slices=slices, projections=projections)
        kind = call.device.partition(":")[0]
        is_cast = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
        with torch.autocast(kind, enabled=False) if is_cast else ExitStack(), self._watch.lock:
            self._watch.on_call(call)

    def count_lost(self, shape: tuple[int, ...]) -> None:
        with self._watch.lock:
            self._watch.notes.count_lost(str(self.place()), shape)

    def note(self, text: str) -> None:
        self._watch.notes.add(text)

    def _is_on(self, function: Callable[..., Any] | None = None) -> bool:
        """Return whether anything that runs now is read."""
        if not self._watch.is_on or not can_read_values():
            if function in FUSED and torch._C._functorch.peek_interpreter_stack() is not None:
                self.note(_TRANSFORMED)
            return False
        only = self._watch.only
        return only is None or any(each.module is only for each in self._running)

    def _quietly(self, reader: Callable[..., None], *ran: Any) -> None:
        """Run a reader, seen by no mode, of ours or the program's, and recorded by no autograd."""
        if torch._C._len_torch_dispatch_stack():
            if any(torch._C._get_dispatch_mode(kind) is not None for kind in _WITHOUT_NUMBERS):
                return
            with _disable_current_modes():
                self._quietly(reader, *ran)
            return
        with torch._C.DisableTorchFunction():
            had_grad = torch.is_grad_enabled()
            torch._C._set_grad_enabled(False)
            try:
                result = ran[-1]
                first = result[0] if isinstance(result, tuple | list) and result else result  # also of torch.max
                if first is None or (isinstance(first, torch.Tensor) and not first.is_meta):  # None is in place
                    reader(*ran)
            except Exception as fault:
                self._watch.notes.failed(fault)
            finally:
                torch._C._set_grad_enabled(had_grad)

    def _drop_ended(self, frame: FrameType) -> None:
        """Drop modules that were left without their hook: by a KeyboardInterrupt or another such exception."""
        while self._running:
            outer: FrameType | None = frame
            while outer is not None and outer is not self._running[-1].frame:
                outer = outer.f_back
            if outer is not None:
                return
            self._leave()

    def _leave(self) -> None:
        self._see_functions(self._running.pop().saw_functions)

    def _see_functions(self, sees: bool) -> None:
        """See functions or not. A mode keeps modules from their fast path, so it goes where it can go.

        It cannot from under a mode of the program's own, which keeps them from it anyway.
        """
        if sees == self._sees_functions:
            return
        self._sees_functions = sees
        if sees and not self._is_here:
            self.enter()
        elif not sees:
            self._step_out()

    def _step_out(self) -> None:
        """Leave the stack of modes, also from under those of other watches."""
        above: list[_Thread] = []
        while isinstance(mode := _innermost_mode(), _Thread):
            mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            if mode is self:
                self._is_here = False
                break
            above.append(mode)
        for other in reversed(above):
            other.__enter__()  # type: ignore[no-untyped-call]


def _innermost_mode() -> object:
    depth = torch._C._len_torch_function_stack()
    return torch._C._get_function_stack_at(depth - 1) if depth else None
