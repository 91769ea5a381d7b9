"""What every reader of live attention has in common: what it is told, and what it may ask.

A reader is made anew for each thread of the program. After a function of torch ran, `watching` gives it function,
arguments and result, while the program waits: no function that the reader calls is watched, and none is recorded by
autograd. What it makes of them it hands to `ThreadContext.tell`, at once or when it has seen more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import torch

from attncli.masks.findings import Finding
from attncli.recording.call import AttentionCall, CallSite
from attncli.recording.lineage import Lineage
from attncli.recording.readers.origins import Origins

if TYPE_CHECKING:
    from attncli.recording.losses import Loss

# Takes function, arguments, keyword arguments and result.
Handler = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any], Any], None]
# Takes arguments and result.
Begins = Callable[[tuple[Any, ...], Any], bool]
# Takes a module whose forward ended, the first module that it called, its arguments, keyword arguments and output.
ModuleHandler = Callable[[Any, list[torch.nn.Module], tuple[Any, ...], dict[str, Any], Any], None]


def may_look() -> bool:
    """Return whether values of tensors can be read now.

    They cannot while a program is traced, a CUDA graph is captured or a function runs inside of `torch.func`. And what
    runs in a backward pass was seen forward: it is computed again for the gradients.
    """
    return (
        torch._C._current_graph_task_id() < 0
        and not torch._C._get_tracing_state()
        and torch._C._functorch.peek_interpreter_stack() is None
        and not (
            torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
            and torch.cuda.is_current_stream_capturing()
        )
    )


def is_of_nothing(*tensors: torch.Tensor) -> bool:
    """Return whether an attention of these has no rows, heads, queries, keys or width, so that there is none to see."""
    return not all(each.numel() for each in tensors)


class ThreadContext(Protocol):
    """The thread of the program that runs.

    Attributes:
        origins: of its tensors.
        calls: what the last attention was computed from, where autograd records it.
        windows: how many windows of a picture follow one another in a batch of so many rows.
    """

    origins: Origins
    calls: deque[Lineage]
    windows: dict[int, int]

    def place(self) -> CallSite:
        """Return where the program stands."""

    def module(self) -> torch.nn.Module | None:
        """Return the innermost module that runs; None outside of modules."""

    def is_training(self) -> bool | None:
        """Return whether the innermost module that runs is in training mode; None outside of modules."""

    def emit(self, call: AttentionCall) -> None:
        """Hand over an attention."""

    def learn(self, loss: Loss) -> None:
        """Hand over a loss."""

    def emit_late(self, place: CallSite, finding: Finding) -> None:
        """Say what is wrong with an attention that was handed over before."""

    def lose(self, shape: tuple[int, ...]) -> CallSite:
        """Count a softmax whose weights could not be followed; return where that was."""

    def find(self, place: CallSite) -> None:
        """Take one back that was counted, as its weights met values."""

    def note(self, text: str) -> None:
        """Say once what a reader of the whole should know."""


class Reader:
    """A reader that wants to see nothing.

    Attributes:
        functions: what takes the calls of which function of torch.
        wants: which calls of some of these functions it takes, by arguments and result; all of the others.
        follows: what takes the calls of any function that is given a tensor whose origin is known,
        begins: and of these functions, if this says of arguments and result that an origin begins here.
        modules: what takes the modules that have which forward.
        operators: what takes the calls of all operators of torch, which libraries register, or None.
        is_attention: whether its functions compute attention.
        sees_all: whether its functions are also those that run outside of a module that alone is watched.
    """

    functions: Mapping[Callable[..., Any], Handler] = {}
    wants: Mapping[Callable[..., Any], Begins] = {}
    follows: Handler | None = None
    begins: Mapping[Callable[..., Any], Begins] = {}
    modules: Mapping[Callable[..., Any], ModuleHandler] = {}
    operators: Handler | None = None
    is_attention: bool = False
    sees_all: bool = False

    def __init__(self, context: ThreadContext) -> None:
        self.context = context
