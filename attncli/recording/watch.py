"""Watching a running program: every attention that it computes is handed over, and none of its numbers changes.

A `TorchFunctionMode` sees functions of torch in one thread: every thread that begins while the program is watched gets
one. Torch's global forward hooks see modules.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch._higher_order_ops.flex_attention import flex_attention as flex_attention_operator
from torch.nn.modules import module as torch_modules
from torch.overrides import TorchFunctionMode, _pop_mode, _push_mode
from torch.utils._python_dispatch import _disable_current_modes

from attncli.recording.call import AttentionCall
from attncli.recording.import_hook import when_imported
from attncli.recording.input_hint import Hints
from attncli.recording.input_metadata import InputReader
from attncli.recording.notes import Notes
from attncli.recording.readers import flash_xformers, flex, mha, sdpa
from attncli.recording.readers.reader import RunningModule, ThreadContext, Watch, can_read_values
from attncli.recording.readers.softmax import Softmax

_EAGERLY = "under attn, modules that torch.compile compiled ran eagerly; numbers may differ in their last digits"
_SCRIPTED = "attn does not see attention that torch.jit compiled"
_TRANSFORMED = "attn does not read attention inside torch.func and torch.vmap"

# Modes in which tensors have shapes and no numbers, as while a program is exported.
_WITHOUT_NUMBERS = [getattr(torch._C._TorchDispatchModeKey, name) for name in ("FAKE", "PROXY", "FUNCTIONAL")]
_OPERATORS = torch._ops.OpOverload, torch._ops.OpOverloadPacket
# The functions and modules that compute attention, and their readers. `flash_xformers` reads operators of libraries,
# and `softmax` attention that a program writes out.
FUSED: Mapping[Callable[..., Any], Callable[..., None]] = {
    torch._C._nn.scaled_dot_product_attention: sdpa.read,  # also if the program replaced the one in F
    F.multi_head_attention_forward: mha.read_function,
    flex_attention_operator: flex.read,
}
MODULES: Mapping[Callable[..., Any], Callable[..., None]] = {
    nn.MultiheadAttention.forward: mha.read_module,
    nn.TransformerEncoderLayer.forward: mha.read_layer,
}
_FORGET_IN_A_CHILD: list[Callable[[], None]] = []  # a process that the program forks is not watched


@contextmanager
def watching(
    on_call: Callable[[AttentionCall], object],
    module: nn.Module | None = None,
    notes: Notes | None = None,
    hints: Callable[[], Hints] | None = None,
    on_end: Callable[[str], object] = lambda _: None,
) -> Iterator[Watch]:
    """Hand over every attention that runs inside.

    Args:
        on_call: takes each call while the program waits, from any of its threads, one at a time. It is neither watched
            nor recorded by autograd; it must not draw random numbers. What it raises is a note.
        module: whose attention alone is handed over; None is all.
        notes: takes what the calls do not say; None is a list of the watch's own.
        hints: gives what takes the inputs of modules, in the thread that runs.
        on_end: takes `backward` after a tensor's backward, and `forward` after that of an outermost module.
    """
    hooks = _Hooks(Watch(on_call, module, Notes() if notes is None else notes, hints, on_end))
    _FORGET_IN_A_CHILD.append(hooks.remove)
    with ExitStack() as stack:
        stack.callback(_FORGET_IN_A_CHILD.remove, hooks.remove)
        stack.callback(hooks.remove)

        def run_eagerly() -> None:  # a compiled region calls no function that could be seen
            stack.enter_context(torch.compiler.set_stance("force_eager"))
            message = "Using `torch.compile\\(module\\)` when there are global hooks"  # which are ours
            if not any(getattr(each[1], "pattern", "") == message for each in warnings.filters):
                warnings.filterwarnings("ignore", message, UserWarning)  # it has others be shown anew

        # Importing it here would take a second from programs that compile nothing.
        stack.enter_context(when_imported("torch._dynamo", run_eagerly))
        hooks.here().enter()
        yield hooks.watch


class _Hooks:
    """Hooks of torch and of Python, by which a watch sees modules and threads, from when this is made."""

    def __init__(self, watch: Watch) -> None:
        self.watch, self._local, self._profile = watch, threading.local(), threading.getprofile()
        self._before = torch_modules.register_module_forward_pre_hook(self._enter_module)
        leave = self._leave_module
        self._after = torch_modules.register_module_forward_hook(leave, with_kwargs=True, always_call=True)
        torch_modules._global_forward_hooks.move_to_end(self._after.id, last=False)  # type: ignore[attr-defined]
        threading.setprofile(self._begin)

    def remove(self) -> None:
        """Watch no more."""
        self.watch.is_on = False
        threading.setprofile(self._profile)
        self._before.remove()
        self._after.remove()
        # The handle forgets this, and torch.compile warns of global hooks for as long as it is there.
        torch_modules._global_forward_hooks_with_kwargs.pop(self._after.id, None)
        self.here().leave_all()

    def here(self) -> _Thread:
        """Return what watches the thread that runs."""
        thread: _Thread | None = getattr(self._local, "thread", None)
        if thread is None:
            thread = self._local.thread = _Thread(self.watch)
        return thread

    def _begin(self, *event: Any) -> None:
        """Watch a thread from its first line on, as its profile; then the program's own profile begins."""
        sys.setprofile(self._profile)
        with self.watch.notes.of_faults():
            if self.watch.is_on:
                self.here().enter()
        if self._profile is not None:
            self._profile(*event)

    def _enter_module(self, module: nn.Module, args: Any) -> None:
        if not self.watch.is_on:  # a hook before this one ended it
            return
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
        self.watch.is_on = False
        self.here().leave_all()
        self.watch.notes.failed(fault)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: [forget() for forget in reversed(_FORGET_IN_A_CHILD)])


class _Thread(ThreadContext, TorchFunctionMode):
    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._forwards = 0
        self._sees_functions = True
        self._is_here = False  # in the stack of modes
        self._followed = self.origins.by_id.keys()
        self._inputs = None if watch.hints is None else InputReader(watch.hints())
        self._softmax = Softmax(self)
        self._wanted = {*FUSED, *self._softmax.begins, torch.Tensor.backward}

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
            if func is torch.Tensor.backward:
                self.watch.on_end(func.__name__)
            if self._sees_functions and self.watch.is_on:
                self._read(func, args, kwargs, result, is_followed)
        except Exception as fault:
            self.watch.notes.failed(fault)
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
        while self.running and not _is_inside(frame, self.running[-1].frame):
            self._leave()  # left without its hook: by a KeyboardInterrupt or another such exception
        if self.running:
            self.running[-1].has_called = True
        elif not self._is_here:
            self._sees_functions = False  # a thread that began before the watch is seen inside of modules
        self._forwards += 1
        running = RunningModule(module, frame, self._sees_functions, self._forwards, torch.is_grad_enabled())
        self.running.append(running)
        self._see_functions(not mha.is_fused(module))
        if isinstance(module, torch.jit.ScriptModule):
            self.watch.notes.add(_SCRIPTED)
        if type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None:
            self.watch.notes.add(_EAGERLY)
        if self._inputs is not None:
            modules = [each.module for each in self.running]
            running.hint = self._guarded(self._inputs.enter, modules, args, frame)

    def leave_module(self, module: nn.Module, ran: tuple[Any, ...] | None) -> None:
        """End with a module: with its arguments and its output, if it did not fail."""
        if not any(each.module is module for each in self.running):
            return
        while self.running[-1].module is not module:
            self._leave()
        reader, running = MODULES.get(getattr(type(module), "forward", None)), self.running[-1]  # type: ignore[arg-type]
        if reader is not None and ran is not None and self._is_on():
            self._quietly(reader, self, module, running.has_called, *ran)
        if self._inputs is not None and running.hint is not None:
            self._guarded(self._inputs.leave, running.hint, ran)
        self._keep_output(None if ran is None else ran[-1])
        self._leave()
        if not self.running and torch._C._current_graph_task_id() < 0:  # and not run again by a backward
            self._guarded(self.watch.on_end, "forward")

    def _keep_output(self, output: Any) -> None:
        """Keep the output of the last module until the one that called it ends, and none of those inside of it."""
        depth = len(self.running)
        while self.outputs and self.outputs[-1][0] > depth:
            self.outputs.pop()
        if depth > 1 and type(output) is torch.Tensor:
            with torch._C.DisableTorchFunction():
                if output.dim() in (3, 4) and not output.requires_grad:
                    self.outputs.append((depth, output))

    def enter(self) -> None:
        """Enter below the modes of the program, so that theirs leave as the uppermost."""
        with _modes_above_default():
            self.__enter__()  # type: ignore[no-untyped-call]
        self._is_here = True

    def leave_all(self) -> None:
        self.outputs.clear()
        while self.running:
            self._leave()
        if self._is_here:
            self._step_out()

    def _is_on(self, function: Callable[..., Any] | None = None) -> bool:
        if not self.watch.is_on or not can_read_values():
            if function in FUSED and torch._C._functorch.peek_interpreter_stack() is not None:
                self.watch.notes.add(_TRANSFORMED)
            return False
        only = self.watch.only
        return only is None or any(each.module is only for each in self.running)

    def _guarded(self, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return function(*args)
        except Exception as fault:
            self.watch.notes.failed(fault)

    def _quietly(self, reader: Callable[..., None], *ran: Any) -> None:
        """Run a reader, seen by no mode, of ours or the program's, and recorded by no autograd."""
        if torch._C._len_torch_dispatch_stack():
            if not any(torch._C._get_dispatch_mode(kind) is not None for kind in _WITHOUT_NUMBERS):
                with _disable_current_modes():
                    self._quietly(reader, *ran)
            return
        with torch._C.DisableTorchFunction():
            self.is_recorded = had_grad = torch.is_grad_enabled()
            torch._C._set_grad_enabled(False)
            try:
                result = ran[-1]
                first = result[0] if isinstance(result, tuple | list) and result else result  # also of torch.max
                if first is None or (isinstance(first, torch.Tensor) and not first.is_meta):  # None is in place
                    reader(*ran)
            except Exception as fault:
                self.watch.notes.failed(fault)
            finally:
                torch._C._set_grad_enabled(had_grad)

    def _leave(self) -> None:
        self._see_functions(self.running.pop().saw_functions)

    def _see_functions(self, sees: bool) -> None:
        """See functions or not. A mode keeps modules from their fast path, so it goes."""
        if sees and not self._sees_functions and not self._is_here:
            self.enter()
        elif self._sees_functions and not sees:
            self._step_out()
        self._sees_functions = sees

    def _step_out(self) -> None:
        with _modes_above_default() as modes:
            if self in modes:  # it is not while it handles a function
                modes.remove(self)
                self._is_here = False


@contextmanager
def _modes_above_default() -> Iterator[list[TorchFunctionMode]]:
    """Take modes from the stack, the uppermost first, and put them back; the default device's stays the lowest."""
    count = torch._C._len_torch_function_stack()
    default = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    has_device = count > 0 and torch._C._get_function_stack_at(0) is default
    modes = [_pop_mode() for _ in range(count - has_device)]  # type: ignore[no-untyped-call]
    try:
        yield modes
    finally:
        for mode in reversed(modes):
            _push_mode(mode)  # type: ignore[no-untyped-call]


def _is_inside(frame: FrameType | None, outer: FrameType) -> bool:
    while frame is not None and frame is not outer:
        frame = frame.f_back
    return frame is not None
