"""Padding masks that are laid on the wrong axis, on heads in place of rows, or on the wrong keys, behind a prompt."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from attncli.analysis.calls.masks import CallMask
from attncli.masks.findings import Finding
from attncli.sources.live.call import Call
from attncli.sources.live.inputs import Told

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Bool


def wrongly_laid(call: Call, mask: CallMask, words: Sequence[Told]) -> Iterator[Finding]:
    """Yield padding that is hidden from the wrong heads or at the wrong keys.

    Args:
        call: while the program waits.
        mask: what its masks hide together.
        words: which of fewer positions than the call has keys are words.
    """
    yield from _on_heads(mask)
    for told in words:
        if _is_before_the_prompt(call, mask, told.values.astype(bool)):
            more = mask.shape[3] - told.size
            message = (
                f"hides the padding of the words as if they began at key 0, although {more} "
                f"{'key stands' if more == 1 else 'keys stand'} before them, the same in every batch row"
            )
            count = int(np.count_nonzero(told.values == 0))
            yield Finding("padding-side", "error", message, count, advice="put the ones of the prompt before the mask")
            return


def _on_heads(mask: CallMask) -> Iterator[Finding]:
    """Yield a mask of rows that lies on the heads: they have the padding of one row after another."""
    batch, heads, _, keys = mask.shape
    if mask.rule.varies != "heads" or batch < 2:
        return
    allowed = np.any(mask.allowed, axis=2)
    seen = np.broadcast_to(allowed, (batch, heads, keys)).reshape(batch * heads, keys)
    if heads % batch and len(allowed) < batch:
        return
    rows = seen[:batch]
    if not np.array_equal(seen, np.tile(rows, (heads, 1))) or not _are_padded_alike(rows):
        return
    message = f"heads have the padding of batch rows: head {heads - 1} of row 0 that of row {(heads - 1) % batch}"
    advice = "a mask of keys has shape [B, 1, 1, K]; for [B·H, Q, K] repeat it by repeat_interleave(heads, 0)"
    yield Finding("batch", "error", message, batch * heads, advice=advice)


def _are_padded_alike(rows: Bool[np.ndarray, "B K"]) -> bool:
    """Return whether two rows or more have padding, all at the same end, as windows of one sequence do not have."""
    lengths = rows.sum(axis=1)
    if (lengths == 0).any() or ((lengths > 0) & (lengths < rows.shape[1])).sum() < 2:
        return False
    places = np.arange(rows.shape[1])
    is_right = (rows == (places < lengths[:, None])).all()
    return bool(is_right or (rows == (places >= rows.shape[1] - lengths[:, None])).all())


def _is_before_the_prompt(call: Call, mask: CallMask, words: Bool[np.ndarray, "B T"]) -> bool:
    """Return whether the words are taken for the first keys, though those are the same in all rows, as a prompt is."""
    batch, _, _, keys = mask.shape
    more = keys - words.shape[1]
    if len(words) != batch or batch < 2 or more < 1:
        return False
    seen = np.any(mask.allowed, axis=(1, 2))
    if not np.array_equal(seen, np.pad(words, ((0, 0), (0, more)), constant_values=True)):
        return False
    k = call.k if call.k is not None else None if call.project is None else call.project()[1]
    if k is None or len(k) != batch:
        return False
    first, last = (k[..., part, :] for part in (slice(None, more), slice(-more, None)))
    return bool((first == first[:1]).all()) and not bool((last == last[:1]).all())
