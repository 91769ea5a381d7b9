"""What the readers of attention know of the thread that they read, and what they hand over.

After a function of torch ran, `recording/watch.py` hands a reader the thread, the function, its arguments and its
result, while the program waits: no function that the reader calls is watched, and none is recorded by autograd.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from attncli.masks.findings import Finding
from attncli.recording.call import AttentionCall, CallSite
from attncli.recording.readers.origins import Origins


class ThreadContext(Protocol):
    """The thread of the program that runs; `origins` are those of its tensors."""

    origins: Origins

    def place(self) -> CallSite:
        """Return where the program stands."""

    def line(self) -> str | None:
        """Return the line of the user's own code that called torch, `train.py:40`; None where a library did."""

    def module(self) -> torch.nn.Module | None:
        """Return the innermost module that runs; None outside of modules."""

    def is_training(self) -> bool | None:
        """Return whether the innermost module that runs is in training mode; None outside of modules."""

    def emit(self, call: AttentionCall) -> None:
        """Hand over an attention."""

    def find_late(self, place: CallSite, finding: Finding) -> None:
        """Hand over what became of the output of the last attention at a place."""

    def count_lost(self, shape: tuple[int, ...]) -> None:
        """Count a softmax whose weights could not be followed from scores to values."""

    def note(self, text: str) -> None:
        """Say once what a reader of the whole should know."""


# Takes a thread, a function that ran there, its arguments, keyword arguments and result.
Reader = Callable[[ThreadContext, Callable[..., Any], tuple[Any, ...], dict[str, Any], Any], None]
# Takes a thread, a module whose forward ended, the first module that it called, its arguments, and its output.
ModuleReader = Callable[[ThreadContext, Any, list[torch.nn.Module], tuple[Any, ...], dict[str, Any], Any], None]


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
