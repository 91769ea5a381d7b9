"""Whether the masks of shifted windows are in the order in which the windows are in the batch."""

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
    """Yield that masks follow one another in another order than the windows of a picture."""
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
