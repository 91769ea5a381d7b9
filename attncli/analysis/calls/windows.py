"""What is wrong with the masks of windows of pictures: they count rows in another order, or there are none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from attncli.analysis.calls.masks import CallMask
from attncli.masks.findings import Finding
from attncli.recording.call import AttentionCall

if TYPE_CHECKING:
    from jaxtyping import Bool, Int


def findings_of_windows(call: AttentionCall, mask: CallMask) -> Iterator[Finding]:
    """Yield what is wrong with the mask of windows that are in the batch, one picture after another."""
    windows, rows = call.windows, mask.shape[0]
    if windows is None or rows % windows.number:
        return
    if not call.masks:
        if windows.are_shifted and not mask.is_causal:
            message = "the windows of a shifted picture have no mask, so that its opposite edges see each other"
            yield Finding("missing", "note", message, rows, advice="right where a picture goes on at its other edge")
        return
    pictures, allowed = rows // windows.number, mask.allowed
    if len(allowed) != rows or _is_same(allowed, np.arange(rows) % windows.number):
        return
    if _is_same(allowed, np.arange(rows) // pictures * pictures):
        message = (
            f"the mask of each window is that of {pictures} rows one after another, where the {windows.number} windows "
            "of a picture follow one another"
        )
        yield Finding("batch", "error", message, rows, advice="repeat the mask as a whole for each picture")


def _is_same(allowed: Bool[np.ndarray, "B _ _ _"], rows: Int[np.ndarray, " B"]) -> bool:
    return bool((allowed == allowed[rows]).all())
