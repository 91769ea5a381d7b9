"""Which process of a distributed program this is: by torch.distributed, or as its launcher says in the environment."""

from __future__ import annotations

import os
import sys
from typing import NamedTuple


class Rank(NamedTuple):
    """One process of several.

    Attributes:
        number: from 0 on.
        of: how many there are.
    """

    number: int
    of: int

    def __str__(self) -> str:
        return f"rank {self.number} of {self.of}"


def rank() -> Rank | None:
    """Return which process this is; None where there is one alone, or nobody says that there are more."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        found = Rank(distributed.get_rank(), distributed.get_world_size())
    else:
        said = [os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE")]  # torchrun's and accelerate's
        if not all(each.isdecimal() for each in said):
            return None
        found = Rank(*map(int, said))
    return found if found.of > 1 else None
