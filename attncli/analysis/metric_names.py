"""The metrics of a head by name, in the order of every table; the command line knows them without NumPy."""

from __future__ import annotations

from typing import Literal, get_args

_OfText = Literal[
    "entropy", "effective_keys", "distance", "self", "previous", "next", "sink", "duplicate", "induction", "special",
    "separator", "max_weight", "max_score",
]  # fmt: skip
_Detector = Literal["induction_head", "previous_token_head", "duplicate_token_head"]
Metric = Literal[_OfText, _Detector]

NAMES: tuple[Metric, ...] = get_args(_OfText)  # of every sentence
DETECTORS: tuple[Metric, ...] = get_args(_Detector)  # of repeated random tokens besides; TransformerLens's names

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
DETECTED: dict[Metric, str] = {
    "induction_head": "on positions just after an earlier occurrence of the query's token",
    "previous_token_head": "on the position before the query's",
    "duplicate_token_head": "on earlier positions with the query's token",
}
