"""What the keys of a call show: a prompt in front of a mask, heads that share keys and values in another order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from attncli.analysis.calls.masks import CallMask
from attncli.files import to_numpy
from attncli.masks.findings import Finding
from attncli.recording.call import AttentionCall

if TYPE_CHECKING:
    from jaxtyping import Float, Int


def findings_of_keys(call: AttentionCall, mask: CallMask) -> Iterator[Finding]:
    """Yield what is wrong with keys, while the program waits."""
    differs = mask.shape[0] > 3 and bool((mask.rule.tokens != mask.rule.tokens[:1]).any())
    if mask.shape[2] == 1 and not differs:  # a step of a generation, whose prompt has shown it
        return
    k = call.k if call.project is None else call.project()[1]
    if k is not None and differs:
        yield from _repeated_otherwise(k, mask)
    if k is not None and (prompt := _prompt_taken_for_words(k, mask)):
        keys = "key is" if prompt == 1 else f"{prompt} keys are"
        message = f"the mask takes key 0 for the first word, but the first {keys} a prompt, alike in every row"
        yield Finding("padding-side", "error", message, prompt, advice="prepend ones for the prompt to the mask")
    orders = [_order_of_heads(call.k), _order_of_heads(call.v)]
    if {*orders} == {"tiled", "side by side"}:
        message = "keys and values are repeated for the heads in different orders"
        yield Finding("heads", "error", message, call.shape[1], advice="repeat_interleave both")
    elif {*orders} == {"tiled"}:
        message = "keys are repeated as a whole, so that heads far apart share them"
        yield Finding("heads", "note", message, call.shape[1], advice="correct if the model was trained this way")


def _repeated_otherwise(k: Float[Any, "B Hkv K D"], mask: CallMask) -> Iterator[Finding]:
    """Yield that a batch is repeated as a whole, and its padding row by row, or the other way round, as for beams."""
    batch, tokens = len(k), mask.rule.tokens
    for rows in (each for each in range(2, batch // 2 + 1) if batch % each == 0 and len(tokens) == batch):
        times = batch // rows
        at = np.arange(batch)
        ways = at % rows, at // times * times  # the row that each one repeats
        for own, other in (ways, ways[::-1]):
            is_of_padding = (tokens == tokens[other]).all() and not (tokens == tokens[own]).all()
            if is_of_padding and _are_alike(k[:, :1, :1], own) and _are_alike(k, own) and not _are_alike(k, other):
                one = int(np.flatnonzero((tokens != tokens[own]).any(axis=1))[0])
                message = f"batch rows {own[one]} and {one} have the same keys and different padding: one is repeated "
                message += "as a whole, the other row by row"
                yield Finding("batch", "error", message, batch, advice="use repeat_interleave for both")
                return


def _are_alike(k: Float[Any, "B H K D"], rows: Int[np.ndarray, " B"]) -> bool:
    """Return whether keys are those of other rows but for rounding."""
    return bool(((k - k[rows]).abs() <= 1e-5 * k.abs().amax()).all())


def _prompt_taken_for_words(k: Float[Any, "B Hkv K D"], mask: CallMask) -> int:
    """Return how many keys of a prompt stand before words whose mask begins before them; 0 where none does.

    Keys of a prompt are the same in all rows of a batch. Then the mask hides the last words in place of the padding
    behind them, which is alike in the rows that have it.
    """
    batch, _, queries, keys = mask.shape
    hidden = ~np.any(mask.allowed, axis=(1, 2))
    if hidden.shape != (batch, keys) or len(k) != batch or hidden[:, 0].any() or mask.rule.varies == "heads":
        return 0
    padded = np.flatnonzero(hidden.any(axis=1)).tolist()
    if len(padded) < 2 or (hidden[:, 1:] & ~hidden[:, :-1]).sum(axis=1).max() > 1:
        return 0
    behind = hidden[padded, ::-1].argmax(axis=1)  # keys behind the last one that is hidden
    more, gap = int(behind[0]), int(hidden[padded].sum(axis=1).min())
    if not more or (behind != more).any() or queries not in (keys, keys - more):
        return 0

    def are_alike(rows: Any, part: slice) -> bool:
        return bool((rows[..., part, :] == rows[:1, ..., part, :]).all())

    last = slice(keys - min(more, gap), keys)
    return more if are_alike(k, slice(0, more)) and are_alike(k[padded], last) and not are_alike(k, last) else 0


def _order_of_heads(tensor: Float[Any, "B H K D"] | None) -> Literal["tiled", "side by side"] | None:
    """Return how heads share what they have, by their first or last position; None where they do not."""
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
