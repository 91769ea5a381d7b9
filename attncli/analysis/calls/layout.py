"""What lies on the wrong axis, or in the wrong order: padding on heads, masks of windows, keys that heads share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from attncli.analysis.calls.masks import CallMask
from attncli.files import to_numpy
from attncli.masks.findings import Finding
from attncli.recording.call import AttentionCall

if TYPE_CHECKING:
    from jaxtyping import Bool, Int


def findings_of_layout(call: AttentionCall, mask: CallMask) -> Iterator[Finding]:
    """Yield what lies wrongly, while the program waits."""
    yield from _on_heads(mask)
    yield from _of_windows(call, mask)
    if prompt := _prompt_taken_for_words(call, mask):
        keys = "key is" if prompt == 1 else f"{prompt} keys are"
        message = f"hides keys as if words began at key 0, where the first {keys} the same in every row, as a prompt is"
        yield Finding("padding-side", "error", message, prompt, advice="put the ones of the prompt before the mask")
    if call.shape[2] > 1:  # else a step of a generation, whose prompt has shown it
        yield from _shared(call)


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
    if (lengths == 0).any() or (lengths < rows.shape[1]).sum() < 2:
        return False
    real = np.arange(rows.shape[1]) < lengths[:, None]
    return bool((rows == real).all() or (rows[:, ::-1] == real).all())


def _of_windows(call: AttentionCall, mask: CallMask) -> Iterator[Finding]:
    """Yield masks that follow one another in another order than the windows of a picture."""
    windows, rows, allowed = call.windows, mask.shape[0], mask.allowed
    if windows is None or rows % windows or len(allowed) != rows or _is_same(allowed, np.arange(rows) % windows):
        return
    pictures = rows // windows
    if _is_same(allowed, np.arange(rows) // pictures * pictures):
        message = (
            f"the mask of each window is that of {pictures} rows one after another, where the {windows} windows of a "
            "picture follow one another"
        )
        yield Finding("batch", "error", message, rows, advice="repeat the mask as a whole for each picture")


def _is_same(allowed: Bool[np.ndarray, "B _ _ _"], rows: Int[np.ndarray, " B"]) -> bool:
    return bool((allowed == allowed[rows]).all())


def _prompt_taken_for_words(call: AttentionCall, mask: CallMask) -> int:
    """Return how many keys of a prompt stand before words whose mask begins before them; 0 where none does.

    Keys of a prompt are the same in all rows of a batch. Then the mask hides the last words in place of the padding
    behind them, which is alike in the rows that have it.
    """
    batch, _, queries, keys = mask.shape
    hidden = ~np.any(mask.allowed, axis=(1, 2))
    if hidden.shape != (batch, keys) or hidden[:, 0].any() or mask.rule.varies == "heads":
        return 0
    everywhere, padded = [*range(batch)], np.flatnonzero(hidden.any(axis=1)).tolist()
    if len(padded) < 2 or (hidden[:, 1:] & ~hidden[:, :-1]).sum(axis=1).max() > 1:
        return 0
    behind = hidden[padded, ::-1].argmax(axis=1)  # keys behind the last one that is hidden
    more, gap = int(behind[0]), int(hidden[padded].sum(axis=1).min())
    if not more or (behind != more).any() or queries not in (keys, keys - more):
        return 0
    last = slice(keys - min(more, gap), keys)
    is_prompt = _are_alike(call, everywhere, slice(0, more)) and _are_alike(call, padded, last)
    return more if is_prompt and not _are_alike(call, everywhere, last) else 0


def _are_alike(call: AttentionCall, rows: list[int], part: slice) -> bool:
    """Return whether some keys are the same in some rows of the batch."""
    k = call.k if call.k is not None else None if call.project is None else call.project()[1]
    return k is not None and len(k) > max(rows) and bool((k[rows, ..., part, :] == k[rows[:1], ..., part, :]).all())


def _shared(call: AttentionCall) -> Iterator[Finding]:
    """Yield keys that heads share in another order than values; or, as a note, both of heads far apart."""
    keys, values = _order(call.k), _order(call.v)
    if {keys, values} == {"tiled", "side by side"}:
        message = "heads that share keys do not share their values: one of the two is repeated in another order"
        yield Finding("heads", "error", message, call.shape[1], advice="repeat_interleave both")
    elif keys == values == "tiled":
        message = "heads far apart share their keys: they are repeated as a whole, and not one by one"
        yield Finding("heads", "note", message, call.shape[1], advice="right where the model was trained so")


def _order(tensor: Any) -> Literal["tiled", "side by side"] | None:
    """Return how heads `[B, H, K, D]` share what they have, by their first or last position; None where they do not."""
    if tensor is None or tensor.shape[1] < 4 or tensor.shape[3] < 2:
        return None
    heads = tensor.shape[1]
    for own in (to_numpy(tensor[0, :, position]) for position in (0, -1)):
        several = len(np.unique(own, axis=0))  # heads that differ
        if 1 < several < heads and heads % several == 0:
            if (own == np.tile(own[:several], (heads // several, 1))).all():
                return "tiled"
            if (own == own[:: heads // several].repeat(heads // several, axis=0)).all():
                return "side by side"
    return None
