"""The tensors in a .bin file, by torch's restricted unpickler, which runs no code of the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from attncli.errors import LoadError
from attncli.files import to_numpy
from attncli.text import visible


def tensors_in(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Return the tensors of a file by their names, in float32.

    Raises:
        LoadError: it holds anything else, or is damaged.
    """
    try:
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=False)
        return {str(name): to_numpy(tensor) for name, tensor in found.items()}
    except MemoryError:
        raise
    except Exception:  # torch and pickle raise nearly everything
        raise LoadError(
            f"the pickle {visible(str(path))} holds more than tensors or is damaged; nothing in it was run"
        ) from None
