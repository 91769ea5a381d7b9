"""The metrics of a head by name, in the order of every table; the command line knows them without NumPy."""

from __future__ import annotations

from typing import Literal, get_args

Metric = Literal[
    "entropy", "effective_keys", "distance", "self", "previous", "next", "sink", "duplicate", "induction", "special",
    "separator", "max_weight", "max_score",
]  # fmt: skip
NAMES: tuple[Metric, ...] = get_args(Metric)

MEANINGS: dict[Metric, str] = {
    "entropy": "of a row in nats, mean over rows",
    "effective_keys": "mean of exp(entropy)",
    "distance": "mean of Σ weight · |query − key|, in positions",
    "self": "mean weight on the query's own position",
    "previous": "mean weight on the position before the query's",
    "next": "mean weight on the position after the query's",
    "sink": "mean weight on the first position",
    "duplicate": "mean weight on earlier positions with the same token",
    "induction": "mean weight on positions just after an earlier occurrence of the same token",
    "special": "mean weight on special tokens",
    "separator": "mean weight on special tokens behind the first position",
    "max_weight": "mean of the rows' largest weights",
    "max_score": "the largest allowed score",
}

UNITS = {"entropy": "nats", "effective_keys": "keys", "distance": "positions", "max_score": "score"}
"""Of the metrics that are no weights."""
