"""Watching a running program: every attention that it computes is told, and none of its numbers changes.

Functions of torch are seen by a `TorchFunctionMode`, which belongs to one thread: every thread that begins while the
program is watched gets its own. Modules are seen by torch's global forward hooks.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from types import FrameType, FunctionType
from typing import Any

import torch
from torch.nn.modules import module as torch_modules
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from attncli.masks.findings import Finding
from attncli.recording.call import AttentionCall, CallSite
from attncli.recording.call_site import Names, is_in_compiled_region, user_line
from attncli.recording.import_hook import when_imported
from attncli.recording.input_hint import CallListener
from attncli.recording.input_metadata import Inputs
from attncli.recording.lineage import Lineage
from attncli.recording.losses import Loss
from attncli.recording.making import Making
from attncli.recording.notes import Notes
from attncli.recording.readers.flash_xformers import Fused
from attncli.recording.readers.flex import Flex
from attncli.recording.readers.mha import Mha, forward_of, is_fused
from attncli.recording.readers.objective import Objective
from attncli.recording.readers.origins import Origins
from attncli.recording.readers.reader import Handler, ModuleHandler, Reader, is_of_nothing, may_look
from attncli.recording.readers.sdpa import Sdpa
from attncli.recording.readers.softmax import Softmax
from attncli.recording.readers.windows import WindowReader
from attncli.recording.replaced import BUILTIN, as_torch_runs
from attncli.recording.unfollowed import Unfollowed

_EAGERLY = (
    "what torch.compile compiles ran eagerly while it was watched; without, its numbers may differ in their last digits"
)
_SCRIPTED = "what torch.jit compiled is not seen"
_TRANSFORMED = "attention inside of torch.func and torch.vmap is not read"

# Modes in which tensors have shapes and no numbers, as while a program is exported.
_WITHOUT_NUMBERS = (
    torch._C._TorchDispatchModeKey.FAKE,
    torch._C._TorchDispatchModeKey.PROXY,
    torch._C._TorchDispatchModeKey.FUNCTIONAL,
)

_OPERATORS = torch._ops.OpOverload, torch._ops.OpOverloadPacket
_MOST_LINEAGES = 1024  # of calls, which a loss may come from

READERS: tuple[type[Reader], ...] = (Sdpa, Mha, Flex, Fused, Softmax, Objective, WindowReader)


class Watch:
    """A program that is watched: what watches each of its threads is made when it is first needed.

    Attributes:
        notes: what the calls do not say, such as that compiled regions run eagerly.
        is_on: whether it goes on.
        only: the module whose attention alone is handed over; None is all.
        lock: held while something is handed over.
    """

    def __init__(
        self,
        on_call: Callable[[AttentionCall], object],
        module: torch.nn.Module | None,
        notes: Notes | None,
        listener: CallListener | None,
    ) -> None:
        self.notes = Notes() if notes is None else notes
        self.is_on, self.only, self.start = True, module, os.getcwd()
        self.on_call, self.listener = on_call, listener
        self.names, self.making, self.unfollowed = Names(), Making(self.start), Unfollowed(self.notes)
        self.lock = threading.RLock()
        self._profile, self._local = threading.getprofile(), threading.local()

    def here(self) -> _Thread:
        """Return what watches the thread that runs."""
        thread: _Thread | None = getattr(self._local, "thread", None)
        if thread is None:
            thread = self._local.thread = _Thread(self)
        return thread

    def begin(self, *event: Any) -> None:
        """Watch a thread from its first line on; what the program wants to begin there begins then."""
        sys.setprofile(self._profile)
        try:
            if self.is_on:
                self.here().enter()
        except Exception as fault:
            self.notes.failed(fault)
        if self._profile is not None:
            self._profile(*event)

    def hook(self) -> Callable[[], None]:
        """Have all modules tell when their forward begins and ends, before other hooks do; return what undoes it."""
        before = torch_modules.register_module_forward_pre_hook(self._enter_module)
        after = torch_modules.register_module_forward_hook(self._leave_module, with_kwargs=True, always_call=True)
        torch_modules._global_forward_hooks.move_to_end(after.id, last=False)  # type: ignore[attr-defined]

        def remove() -> None:
            before.remove()
            after.remove()
            # The handle forgets this, and torch.compile warns of global hooks for as long as it is there.
            torch_modules._global_forward_hooks_with_kwargs.pop(after.id, None)

        return remove

    def _enter_module(self, module: torch.nn.Module, args: Any) -> None:
        try:
            self.here().enter_module(module, args, sys._getframe(1))  # what calls the hook
        except Exception as fault:
            self._end(fault)

    def _leave_module(self, module: torch.nn.Module, args: Any, *rest: Any) -> None:
        """Take a module away; of one that failed neither keyword arguments nor an output come."""
        try:
            self.here().leave_module(module, (args, *rest) if len(rest) == 2 else None)
        except Exception as fault:
            self._end(fault)

    def _end(self, fault: Exception) -> None:
        """End the watch, which lost sight of where the program is: a mode that stays on changes its last bits."""
        self.is_on = False
        self.here().leave_all()
        self.notes.failed(fault)


@contextmanager
def watching(
    on_call: Callable[[AttentionCall], object],
    module: torch.nn.Module | None = None,
    notes: Notes | None = None,
    listener: CallListener | None = None,
) -> Iterator[Watch]:
    """Hand over every attention that runs inside.

    Args:
        on_call: takes each call while the program waits, from any of its threads, one at a time. What it computes is
            neither watched nor recorded by autograd; it must not draw random numbers. What it raises is a note.
        module: whose attention alone is handed over; None is all.
        notes: takes what the calls do not say; None is a list of the watch's own.
        listener: takes likewise what losses, the inputs of modules and outputs say of the calls.
    """
    watch = Watch(on_call, module, notes, listener)
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
    with ExitStack() as stances:

        def settle() -> None:
            stances.enter_context(torch.compiler.set_stance("force_eager"))
            # What it says of hooks is about ours.
            warnings.filterwarnings(
                "ignore", "Using `torch.compile\\(module\\)` when there are global hooks", UserWarning
            )
            stances.callback(_no_longer, warnings.filters[0])

        # Importing it here would take a second from programs that compile nothing.
        stances.enter_context(when_imported("torch._dynamo", settle))
        yield


def _no_longer(ignored: Any) -> None:
    with suppress(ValueError):  # the program may have set all filters anew
        warnings.filters.remove(ignored)  # type: ignore[attr-defined]


# A process that the program forks is not watched: what it computes is its own to tell.
_FORGET_IN_A_CHILD: list[Callable[[], None]] = []


def _after_fork() -> None:
    for forget in reversed(_FORGET_IN_A_CHILD):
        forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@dataclass
class _Running:
    """A module whose forward runs.

    Attributes:
        module: it.
        frame: what runs it.
        was_seen: whether functions were seen before it began.
        begun: what had been handed over when it began.
        called: the first module that it called, if it called one.
    """

    module: torch.nn.Module
    frame: FrameType
    was_seen: bool
    begun: tuple[int, int] | None = None
    called: list[torch.nn.Module] = field(default_factory=list)


class _Thread(TorchFunctionMode):
    """Watches one thread; it is the context of its readers."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch
        self._running: list[_Running] = []
        self._sees_functions = True
        self._is_here = False  # in the stack of modes
        self.origins = Origins()
        self._known = self.origins.known
        self._inputs = None if watch.listener is None else Inputs(watch.listener)
        self.windows: dict[int, int] = {}
        self.calls: deque[Lineage] = deque(maxlen=_MOST_LINEAGES)
        readers = [reader(self) for reader in READERS]
        self._attention = {each for reader in readers if reader.is_attention for each in reader.functions}
        self._handlers = _handlers([reader.functions for reader in readers])
        self._wants = {function: wants for reader in readers for function, wants in reader.wants.items()}
        self._follows = next((reader.follows for reader in readers if reader.follows is not None), None)
        self._begins = {function: begins for reader in readers for function, begins in reader.begins.items()}
        self._wanted = {*self._handlers, *self._begins, *watch.making.functions}
        self._by_code = {
            function.__code__: function
            for function in (*self._handlers, *self._begins)
            if isinstance(function, FunctionType)
        }
        self._modules: Mapping[Callable[..., Any], ModuleHandler] = {
            forward: handler for reader in readers for forward, handler in reader.modules.items()
        }
        self._seen_all = {function for reader in readers if reader.sees_all for function in reader.functions}
        self._making = watch.making
        self._operators = _one_after_another([reader.operators for reader in readers if reader.operators is not None])

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """See torch.overrides."""
        kwargs = kwargs or {}
        is_builtin = type(func) in BUILTIN
        own = func if is_builtin else as_torch_runs(func, sys._getframe(1))
        result = own(*args, **kwargs)
        # Most calls are of nothing that is followed: this is what watching costs.
        known = self._known.keys()
        is_followed = bool(known) and not (
            known.isdisjoint(map(id, args))
            and (not args or type(args[0]) not in (tuple, list) or known.isdisjoint(map(id, args[0])))
            and (not kwargs or known.isdisjoint(map(id, kwargs.values())))
        )
        if not is_followed and func not in self._wanted and (is_builtin or own is func) and not _is_operator(func):
            return result
        try:
            if self._sees_functions and self._watch.is_on:
                self._see(func, own, args, kwargs, result, is_followed and self._follows is not None)
        except Exception as fault:
            self._watch.notes.failed(fault)
        return result

    def _see(
        self,
        func: Callable[..., Any],
        own: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        is_followed: bool,
    ) -> None:
        """Let readers look at a function that ran, if it is one of theirs, or given a tensor that is followed."""
        if own is not func and func not in self._wanted:
            # Else it stood in torch's place when the watch began.
            func = self._by_code.get(getattr(own, "__code__", None), own)  # type: ignore[arg-type]
        if func in self._making.functions and self._making.wants(func, args) and may_look():
            self._quietly(self._making.take, func, args, kwargs, result)
        handler = self._handlers.get(func)
        if func in self._wants and not self._wants[func](args, result):
            handler = None
        if handler is None and _is_operator(func):
            handler = self._operators
        if not is_followed and (begins := self._begins.get(func)) is not None:
            is_followed = begins(args, result)
        for each in (handler, self._follows if is_followed else None):
            if each is not None and self._is_told(func):
                self._quietly(each, func, args, kwargs, result)

    def enter_module(self, module: torch.nn.Module, args: Any, frame: FrameType) -> None:
        """Begin with a module; inside of a fused one no function is seen, but the modules that it calls are."""
        self._forget_what_ended(frame)
        if self._running:
            if not self._running[-1].called:
                self._running[-1].called.append(module)
        elif not self._is_here:
            self._sees_functions = False  # a thread that began before the watch is seen inside of modules
        running = _Running(module, frame, self._sees_functions)
        self._running.append(running)
        self._see_functions(not is_fused(module))
        if isinstance(module, torch.jit.ScriptModule):
            self.note(_SCRIPTED)
        if self._inputs is not None:
            try:
                running.begun = self._inputs.enter([each.module for each in self._running], args, frame)
            except Exception as fault:
                self._watch.notes.failed(fault)

    def leave_module(self, module: torch.nn.Module, seen: tuple[Any, ...] | None) -> None:
        """End with a module, which was seen with its arguments and its output if it did not fail."""
        if not self._running or self._running[-1].module is not module:
            if not any(each.module is module for each in self._running):
                return
            while self._running[-1].module is not module:
                self._leave()
        handler = self._modules.get(forward_of(module))
        if handler is not None and seen is not None and self._is_told():
            self._quietly(handler, module, self._running[-1].called, *seen)
        if self._inputs is not None and (begun := self._running[-1].begun) is not None:
            try:
                self._inputs.leave(begun, seen)
            except Exception as fault:
                self._watch.notes.failed(fault)
        self._leave()

    def enter(self) -> None:
        """Begin to see functions."""
        self.__enter__()  # type: ignore[no-untyped-call]
        self._is_here = True

    def leave_all(self) -> None:
        """End with what is left when nothing is watched any more."""
        while self._running:
            self._leave()
        if self._is_here:
            self._step_out()

    def place(self) -> CallSite:
        """See ThreadContext."""
        if "torch._dynamo" in sys.modules and _EAGERLY not in self._watch.notes and is_in_compiled_region():
            self.note(_EAGERLY)
        return CallSite(*user_line(self._watch.start), self._watch.names.name([each.module for each in self._running]))

    def module(self) -> torch.nn.Module | None:
        """See ThreadContext."""
        return self._running[-1].module if self._running else None

    def is_training(self) -> bool | None:
        """See ThreadContext."""
        return self._running[-1].module.training if self._running else None

    def emit(self, call: AttentionCall) -> None:
        """See ThreadContext."""
        if not all(call.shape) or (call.q is not None and is_of_nothing(call.q)):
            return
        call = self._making.named(call) if call.masks or call.ignored_masks else call
        if (windows := self.windows.get(call.shape[0])) is not None:
            call = replace(call, windows=windows)
        if call.lineage is not None:
            self.calls.append(call.lineage)
        kind = call.device.partition(":")[0]
        if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
            with torch.autocast(kind, enabled=False), self._watch.lock:
                self._watch.on_call(call)
        else:
            with self._watch.lock:
                self._watch.on_call(call)

    def learn(self, loss: Loss) -> None:
        """See ThreadContext."""
        if self._watch.listener is not None:
            with self._watch.lock:
                self._watch.listener.here().learn(loss)

    def emit_late(self, place: CallSite, finding: Finding) -> None:
        """See ThreadContext."""
        if self._watch.listener is not None:
            with self._watch.lock:
                self._watch.listener.notice(place, finding)

    def lose(self, shape: tuple[int, ...]) -> CallSite:
        """See ThreadContext."""
        place = self.place()
        with self._watch.lock:
            self._watch.unfollowed.count(place, shape)
        return place

    def find(self, place: CallSite) -> None:
        """See ThreadContext."""
        with self._watch.lock:
            self._watch.unfollowed.forget(place)

    def note(self, text: str) -> None:
        """See ThreadContext."""
        self._watch.notes.add(text)

    def _is_told(self, function: Callable[..., Any] | None = None) -> bool:
        if not self._watch.is_on or not may_look():
            if function in self._attention and torch._C._functorch.peek_interpreter_stack() is not None:
                self.note(_TRANSFORMED)
            return False
        only = self._watch.only
        return only is None or function in self._seen_all or any(each.module is only for each in self._running)

    def _quietly(self, handler: Callable[..., None], *seen: Any) -> None:
        """Let a reader look, seen by no mode, of ours or the program's, and recorded by no autograd."""
        if torch._C._len_torch_dispatch_stack():
            if any(torch._C._get_dispatch_mode(kind) is not None for kind in _WITHOUT_NUMBERS):
                return
            with _disable_current_modes():
                self._quietly(handler, *seen)
            return
        with torch._C.DisableTorchFunction():
            had_grad = torch.is_grad_enabled()
            torch._C._set_grad_enabled(False)
            try:
                if _has_numbers(seen[-1]):
                    handler(*seen)
            except Exception as fault:
                self._watch.notes.failed(fault)
            finally:
                torch._C._set_grad_enabled(had_grad)

    def _forget_what_ended(self, frame: FrameType) -> None:
        """Drop modules that were left without their hook: by a KeyboardInterrupt or another such exception."""
        while self._running:
            outer: FrameType | None = frame
            while outer is not None and outer is not self._running[-1].frame:
                outer = outer.f_back
            if outer is not None:
                return
            self._leave()

    def _leave(self) -> None:
        self._see_functions(self._running.pop().was_seen)

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


def _is_operator(function: Any) -> bool:
    return isinstance(function, _OPERATORS)


def _has_numbers(result: Any) -> bool:
    """Return whether a function gave tensors that have numbers, and do not only stand for them, or changed one."""
    first = result[0] if isinstance(result, tuple | list) and result else result  # also what torch.max returns
    return first is None or (isinstance(first, torch.Tensor) and not first.is_meta)


def _innermost_mode() -> object:
    depth = torch._C._len_torch_function_stack()
    return torch._C._get_function_stack_at(depth - 1) if depth else None


def _handlers(maps: list[Mapping[Callable[..., Any], Handler]]) -> Mapping[Callable[..., Any], Handler]:
    """Return one map of several, whose readers may want the same function."""
    wanted: dict[Callable[..., Any], list[Handler]] = {}
    for functions in maps:
        for function, handler in functions.items():
            wanted.setdefault(function, []).append(handler)
    return {function: _one_after_another(handlers) for function, handlers in wanted.items()}


def _one_after_another(handlers: list[Handler]) -> Handler:
    if len(handlers) == 1:
        return handlers[0]

    def each(*seen: Any) -> None:
        for handler in handlers:
            handler(*seen)

    return each
