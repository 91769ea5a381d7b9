"""Slices of longer queries and keys that a program attends to block by block, as ring or flash attention does."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torch.multiprocessing.reductions import StorageWeakRef

if TYPE_CHECKING:
    import torch
    from jaxtyping import Float


class BaseLayout(NamedTuple):
    """Layout in memory of the tensor that another one is a view of."""

    offset: int
    axes: tuple[tuple[int, int], ...]  # sizes and strides

    @classmethod
    def of(cls, tensor: torch.Tensor) -> BaseLayout | None:
        """Return the layout of the base of a view; None of another tensor."""
        base = tensor._base
        if base is None:
            return None
        return cls(int(base.storage_offset()), tuple(zip(base.shape, base.stride(), strict=True)))


class PositionSlice(NamedTuple):
    """The positions of a tensor in the one that it is a view of."""

    storage: StorageWeakRef  # equal where the memory is the same; it keeps no numbers alive
    start: int
    stop: int
    length: int  # of the whole

    @classmethod
    def of(cls, tensor: Float[torch.Tensor, "... T D"], base: BaseLayout | None) -> PositionSlice:
        """Return the positions of queries or keys in the base that they are a view of; without, they are a whole."""
        size, stride = tensor.shape[-2], tensor.stride(-2)
        storage = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
        length = max((n for n, step in base.axes if step == stride), default=0) if base is not None else 0
        if base is None or length <= size or not stride:
            return cls(storage, 0, size, size)
        start = (int(tensor.storage_offset()) - base.offset) // stride % length
        return cls(storage, start, start + size, length)


class CallSlices(NamedTuple):
    """The queries and keys of a call as slices."""

    q: PositionSlice
    k: PositionSlice
    forward: int = 0  # which run of a module made them, counted in its thread

    def blocks(self, other: CallSlices, is_same_line: bool) -> tuple[bool, bool]:
        """Return whether this call and another one of the same forward are blocks of one attention.

        Queries meet keys at other positions of one tensor then, or other queries the same keys. A call that ends at its
        last query and its last key may be the whole attention of a document.
        """
        if self.forward != other.forward:
            return False, False
        has_queries, has_keys = self.q.storage == other.q.storage, self.k.storage == other.k.storage
        is_at_queries, is_at_keys = self.q.start == other.q.start, self.k.start == other.k.start
        if has_queries and is_at_queries and not has_keys:
            return is_same_line, is_same_line
        if not has_keys or (is_at_keys and (is_at_queries or not has_queries)):
            return False, False
        return not self._is_aligned, not other._is_aligned

    @property
    def _is_aligned(self) -> bool:
        return self.q.length == self.k.length and self.q.stop == self.k.stop
