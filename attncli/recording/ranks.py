"""Which process of a distributed program this is: by torch.distributed, or as its launcher says in the environment."""

from __future__ import annotations

import os
import sys


def rank() -> tuple[int, int] | None:
    """Return which process this is, from 0 on, and of how many; None where there is one alone, or nobody says."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        number, count = distributed.get_rank(), distributed.get_world_size()
    else:
        said = [os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE")]  # torchrun's and accelerate's
        number, count = map(int, said) if all(each.isdecimal() for each in said) else (0, 1)
    return (number, count) if count > 1 else None
