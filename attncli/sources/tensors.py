"""From torch to NumPy, in one way for every source that has live tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch


def to_numpy(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return a copy; half precision is widened to float32, which changes no number."""
    is_half = tensor.is_floating_point() and tensor.element_size() < 4
    return np.array((tensor.float() if is_half else tensor).detach().cpu().numpy())
