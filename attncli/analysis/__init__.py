"""Traces in, plain results out; one module a question. Here are the metrics of heads by name, without NumPy."""

from __future__ import annotations

Metric = str

# The meaning of each, and its unit where it is no weight.
_METRICS: dict[Metric, tuple[str, str]] = {
    "entropy": ("of a row in nats, mean over rows", "nats"),
    "effective_keys": ("mean of exp(entropy)", "keys"),
    "distance": ("mean of Σ weight · |query − key|, in positions", "positions"),
    "self": ("mean weight on the query's own position", ""),
    "previous": ("mean weight on the position before the query's", ""),
    "next": ("mean weight on the position after the query's", ""),
    "sink": ("mean weight on the first position, of the other positions", ""),
    "duplicate": ("mean weight on earlier positions with the same token", ""),
    "induction": ("mean weight on positions just after an earlier occurrence of the same token", ""),
    "special": ("mean weight on special tokens", ""),
    "separator": ("mean weight on special tokens behind the first position", ""),
    "max_weight": ("mean of the rows' largest weights", ""),
    "max_score": ("the largest allowed score", "score"),
    "image": ("mean weight on pictures, over the rows of text", ""),
    "spatial_entropy": ("of the last row's regions in pictures, in nats", "nats"),
    "region": ("the last row's weight on its heaviest region of a picture", ""),
    "visual_sink": ("the largest mean weight on one cell of a picture", ""),
}
NAMES = tuple(_METRICS)
OF_ANY_TEXT = NAMES[: NAMES.index("image")]
OF_PICTURES = NAMES[NAMES.index("image") :]  # of heads whose keys are cells of pictures
MEANINGS = {name: meaning for name, (meaning, _) in _METRICS.items()}
UNITS = {name: unit for name, (_, unit) in _METRICS.items() if unit}


def names_for(has_pictures: bool) -> tuple[Metric, ...]:
    """Return the metrics of heads that look at pictures, or at text alone."""
    return NAMES if has_pictures else OF_ANY_TEXT
