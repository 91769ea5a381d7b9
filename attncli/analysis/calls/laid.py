"""Padding masks that are laid on the wrong axis, on heads in place of rows, or on the wrong keys, behind a prompt."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from attncli.analysis.calls.masks import CallMask
from attncli.masks.findings import Finding
from attncli.recording.call import AttentionCall

if TYPE_CHECKING:
    from jaxtyping import Bool


def wrongly_laid(call: AttentionCall, mask: CallMask) -> Iterator[Finding]:
    """Yield padding that is hidden from the wrong heads or at the wrong keys, while the program waits."""
    yield from _on_heads(mask)
    prompt = _hidden_as_words(call, mask)
    if prompt:
        keys = "key is" if prompt == 1 else f"{prompt} keys are"
        message = f"hides keys as if words began at key 0, where the first {keys} the same in every row, as a prompt is"
        yield Finding("padding-side", "error", message, prompt, advice="put the ones of the prompt before the mask")


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


def _hidden_as_words(call: AttentionCall, mask: CallMask) -> int:
    """Return how many keys of a prompt stand before the words, where a mask takes them for words; 0 where none does.

    Keys of a prompt are the same in all rows of a batch. The mask of words that begin before them hides the first ones
    of some rows, or the last words in place of the padding behind them, which is alike in rows that have it.
    """
    batch, _, queries, keys = mask.shape
    if batch < 2:
        return 0
    hidden = ~np.any(mask.allowed, axis=(1, 2))
    if hidden.shape != (batch, keys) or not hidden.any() or mask.rule.varies == "heads":
        return 0
    everywhere, padded = [*range(batch)], np.flatnonzero(hidden.any(axis=1)).tolist()
    if hidden[:, 0].any():
        is_prompt = queries == keys and bool(hidden[:, :2].all(axis=1).any()) and not hidden[:, 0].all()
        is_prompt = is_prompt and _are_alike(call, everywhere, slice(0, 2))
        return 2 if is_prompt and not _are_alike(call, everywhere, slice(keys - 1, keys)) else 0
    behind = hidden[padded, ::-1].argmax(axis=1)  # keys behind the last one that is hidden
    more, gap = int(behind[0]), int(hidden[padded].sum(axis=1).min())
    gaps = (hidden[:, 1:] & ~hidden[:, :-1]).sum(axis=1)
    if not more or len(padded) < 2 or (behind != more).any() or gaps.max() > 1 or queries not in (keys, keys - more):
        return 0
    last = slice(keys - min(more, gap), keys)
    is_prompt = _are_alike(call, everywhere, slice(0, more)) and _are_alike(call, padded, last)
    return more if is_prompt and not _are_alike(call, everywhere, last) else 0


def _are_alike(call: AttentionCall, rows: list[int], part: slice) -> bool:
    """Return whether some keys are the same in some rows of the batch."""
    k = call.k if call.k is not None else None if call.project is None else call.project()[1]
    return k is not None and len(k) > max(rows) and bool((k[rows, ..., part, :] == k[rows[:1], ..., part, :]).all())
