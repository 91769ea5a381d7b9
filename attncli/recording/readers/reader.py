"""The context of the readers of attention: the thread that they read, and where they hand calls over.

After a function of torch ran, `recording/watch.py` hands a reader the thread, the function, its arguments and its
result, while the program waits: no function that the reader calls is watched, and none is recorded by autograd.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from attncli.recording.call import AttentionCall, CallSite
from attncli.recording.readers.origins import Origins


class ThreadContext(Protocol):
    """The thread of the program that runs; `origins` are those of its tensors."""

    origins: Origins

    def place(self) -> CallSite:
        """Return the place in the program that runs."""

    def line(self) -> str | None:
        """Return the line of the user's own code that called torch, `train.py:40`; None where a library did."""

    def module(self) -> torch.nn.Module | None:
        """Return the innermost module that runs; None outside of modules."""

    def is_training(self) -> bool | None:
        """Return whether the innermost module that runs is in training mode; None outside of modules."""

    def emit(self, call: AttentionCall) -> None:
        """Hand over an attention."""

    def count_lost(self, shape: tuple[int, ...]) -> None:
        """Count a softmax whose weights could not be followed from scores to values."""

    def note(self, text: str) -> None:
        """Add a note, once."""


# Takes a thread, a function that ran there, its arguments, keyword arguments and result.
Reader = Callable[[ThreadContext, Callable[..., Any], tuple[Any, ...], dict[str, Any], Any], None]
# Takes a thread, a module whose forward ended, the first module that it called, its arguments, and its output.
ModuleReader = Callable[[ThreadContext, Any, list[torch.nn.Module], tuple[Any, ...], dict[str, Any], Any], None]


def can_read_values() -> bool:
    """Return whether values of tensors can be read now.

    They cannot while a program is traced, a CUDA graph is captured or a function runs inside of `torch.func`. A
    backward pass computes again what was read in the forward.
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
    """Return whether an attention has no rows, heads, queries, keys or width."""
    return not all(each.numel() for each in tensors)
