"""The metrics of a head by name, in the order of every table; the command line knows them without NumPy."""

from __future__ import annotations

from typing import Literal, get_args

Metric = Literal[
    "entropy", "effective_keys", "distance", "self", "previous", "next", "sink", "duplicate", "induction", "special",
    "separator", "max_weight", "max_score", "image", "spatial_entropy", "region", "visual_sink",
]  # fmt: skip
NAMES: tuple[Metric, ...] = get_args(Metric)
OF_PICTURES = NAMES[NAMES.index("image") :]
"""Those that only heads have whose keys are cells of pictures."""
OF_ANY_TEXT = NAMES[: NAMES.index("image")]


def names_for(has_pictures: bool) -> tuple[Metric, ...]:
    """Return the metrics of heads that look at pictures, or at text alone."""
    return NAMES if has_pictures else OF_ANY_TEXT


MEANINGS: dict[Metric, str] = {
    "entropy": "of a row in nats, mean over rows",
    "effective_keys": "mean of exp(entropy)",
    "distance": "mean of Σ weight · |query − key|, in positions",
    "self": "mean weight on the query's own position",
    "previous": "mean weight on the position before the query's",
    "next": "mean weight on the position after the query's",
    "sink": "mean weight on the first position, of the other positions",
    "duplicate": "mean weight on earlier positions with the same token",
    "induction": "mean weight on positions just after an earlier occurrence of the same token",
    "special": "mean weight on special tokens",
    "separator": "mean weight on special tokens behind the first position",
    "max_weight": "mean of the rows' largest weights",
    "max_score": "the largest allowed score",
    "image": "mean weight on pictures, over the rows of text",
    "spatial_entropy": "of the last row's regions in pictures, in nats",
    "region": "the last row's weight on its heaviest region of a picture",
    "visual_sink": "the largest mean weight on one cell of a picture",
}

UNITS = {
    "entropy": "nats", "effective_keys": "keys", "distance": "positions", "max_score": "score",
    "spatial_entropy": "nats",
}  # fmt: skip
"""Of the metrics that are no weights."""
