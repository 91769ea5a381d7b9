"""Pictures that are rolled and put into windows, as Swin does it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from attncli.recording.readers.reader import Reader, ThreadContext


class Rolling(Reader):
    """Sees pictures that are rolled, and views that put their windows into the batch."""

    def __init__(self, context: ThreadContext) -> None:
        super().__init__(context)
        views = torch.Tensor.view, torch.Tensor.reshape, torch.reshape
        self.functions = dict.fromkeys((torch.roll, torch.Tensor.roll), self._rolled)
        self.functions |= dict.fromkeys(views, self._reshaped)

    def _rolled(self, _: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        shifts = args[1] if len(args) > 1 else kwargs.get("shifts")
        dims = args[2] if len(args) > 2 else kwargs.get("dims")
        if isinstance(shifts, tuple | list) and isinstance(dims, tuple | list) and 0 not in dims and result.ndim > 3:
            self.context.folds.roll(len(result), all(each < 0 for each in shifts))

    def _reshaped(self, _: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if _may_fold(args, result):
            self.context.folds.fold(args[0].shape, len(result))


def _may_fold(args: tuple[Any, ...], result: Any) -> bool:
    return bool(args) and 0 < result.ndim < args[0].ndim and args[0].ndim > 4
