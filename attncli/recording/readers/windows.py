"""Windows of pictures in the batch, as Swin puts them there.

Swin rolls pictures `[B, H, W, C]`, divides them into windows and folds these into the batch: `[B, h, w, …]` becomes
`[B·h·w, …]` by a view. Each row of a shifted window's mask belongs to one window, so their order has to be the batch's.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch

from attncli.recording.readers.reader import Reader, ThreadContext

_MOST_SIZES = 8  # of batches that are remembered


class WindowReader(Reader):
    """Remembers how many windows of one picture follow one another in a batch of so many rows."""

    def __init__(self, context: ThreadContext) -> None:
        super().__init__(context)
        views = torch.Tensor.view, torch.Tensor.reshape, torch.reshape
        self.functions = dict.fromkeys((torch.roll, torch.Tensor.roll), self._rolled) | dict.fromkeys(views, self._fold)
        self.wants = dict.fromkeys(views, _has_fewer_axes)
        self._pictures: int | None = None  # that were rolled last

    def _rolled(self, _: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        dims = args[2] if len(args) > 2 else kwargs.get("dims")
        if isinstance(dims, tuple | list) and 0 not in dims and result.ndim > 3:
            self._pictures = len(result)

    def _fold(self, _: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        before, sizes = args[0].shape, self.context.windows
        count = next((n for n in range(2, len(before) - 1) if prod(before[:n]) == len(result)), 0)
        # As many windows along a side as pictures: either may come first.
        if count and before[0] == self._pictures and self._pictures not in before[1:count]:
            if len(sizes) >= _MOST_SIZES:
                sizes.clear()
            sizes[len(result)] = prod(before[1:count])


def _has_fewer_axes(args: tuple[Any, ...], result: Any) -> bool:
    return bool(args) and args[0].ndim > 4 and 0 < result.ndim < args[0].ndim
