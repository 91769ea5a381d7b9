"""Metrics of the heads of a layer in a step of training, from the sums of its calls; without torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float

METRICS = ("max_score", "entropy", "effective_keys", "sink", "previous", "distance")
# Beside them: how many keys a row may attend to, and of the head with the most similar weights the cosine and the index.
COLUMNS = (*METRICS, "keys", "similarity", "twin")
MEANS = 6  # of the columns, from entropy to keys


class LayerMetrics(NamedTuple):
    """Metrics of the heads of a layer in a step."""

    layer: int  # in the order in which attention ran first
    place: str  # in the program, `train.py:12`
    module: str  # as its model names it; empty for the model, and outside of modules
    values: Float[np.ndarray, "C H"]  # the `COLUMNS`; NaN where one is not defined


def head_metrics(sums: Sequence[Float[np.ndarray, "13+H H"]]) -> Float[np.ndarray, "C H"]:
    """Return the `COLUMNS` of a layer over all of its calls, given the `head_sums` of each."""
    total, highest = np.sum(sums, axis=0, dtype=float), np.max([one[2 * MEANS] for one in sums], axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        means = total[:MEANS] / total[MEANS : 2 * MEANS]
        products = total[2 * MEANS + 1 :]
        sizes = np.sqrt(products.diagonal())
        alike = products / sizes / sizes[:, None]
    np.fill_diagonal(alike, -1)
    twin, similarity = alike.argmax(0).astype(float), alike.max(0)
    twin[~(similarity >= 0)] = similarity[~(similarity >= 0)] = np.nan  # the only head of its layer
    highest = np.where(np.isneginf(highest), np.nan, highest)
    return np.vstack([highest, means, similarity, twin]).astype(np.float32)
