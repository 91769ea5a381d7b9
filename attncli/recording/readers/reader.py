"""The context of the readers of attention, and what readers of whole functions share.

After a function of torch ran, `recording/watch.py` hands a reader the thread, the function, its arguments and its
result, while the program waits: no function that the reader calls is watched, and none is recorded by autograd.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from attncli.recording.call import Api, AttentionCall, CallSite, MaskArgument
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
        and not (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())  # type: ignore[no-untyped-call]
    )


def is_of_nothing(*tensors: Tensor) -> bool:
    """Return whether an attention has no rows, heads, queries, keys or width."""
    return not all(each.numel() for each in tensors)


def emit(context: ThreadContext, api: Api, query: Tensor, key: Tensor, scale: float, **parts: Any) -> None:
    """Emit the call of a function that does everything itself; `scale` is what it multiplies q·k with."""
    if "scale_factors" not in parts and not query.is_nested:
        parts["scale_factors"] = *(context.origins.factor(each).scale for each in (query, key)), scale
    place, is_training = parts.pop("place", None) or context.place(), parts.pop("is_training", context.is_training())
    dtype = parts.pop("dtype", None) or str(query.dtype).removeprefix("torch.")
    shape = parts.pop("shape")
    context.emit(AttentionCall(
        api, place, shape, dtype, str(query.device), scale=scale, is_training=is_training, **parts
    ))  # fmt: skip


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
