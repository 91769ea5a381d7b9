"""The metrics of a head by name, in the order of every table; the command line knows them without NumPy."""

from __future__ import annotations

from typing import Literal, get_args

Metric = Literal[
    "entropy", "effective_keys", "distance", "self", "previous", "next", "sink", "duplicate", "induction", "special",
    "max_weight", "max_score",
]  # fmt: skip

NAMES: tuple[Metric, ...] = get_args(Metric)
