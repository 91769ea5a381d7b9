"""Which few of many heads show the most of what the heads do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from attncli.analysis.diff import jensen_shannon
from attncli.trace.layer import stages_of

if TYPE_CHECKING:
    from jaxtyping import Float

    from attncli.trace.layer import LayerTrace

_CELLS = 2**21  # weights that are compared; of longer texts fewer rows of each head
_LEAST = 4  # rows of each head


def most_different(layers: Sequence[LayerTrace], rows: Sequence[int], count: int) -> tuple[tuple[int, int], ...]:
    """Return so many heads, each unlike those before it, in the order of the layers and their heads.

    The first is the one farthest from the mean of all; every further one is the one whose nearest of those chosen is
    farthest away (farthest-point clustering, Gonzalez 1985). How far two heads are apart is the Jensen-Shannon
    divergence of their rows, in bits, in the mean over the rows that sum to more than zero in both. Of a long text
    that is over rows in equal steps, the last one among them, which sees most keys.

    Args:
        layers: their heads that were asked for are chosen among; all of one number of queries and keys.
        rows: the query rows that count.
        count: how many heads.

    Returns:
        Pairs of the place of a layer and the index of the head in it.
    """
    heads = [(place, head) for place, layer in enumerate(layers) for head in layer.heads]
    if count >= len(heads):
        return tuple(heads)
    most = max(_CELLS // (len(heads) * layers[0].num_keys), _LEAST)
    step = -(-len(rows) // most)
    sampled = np.array(rows[::-1][::step])
    shares = np.stack([share for layer in layers for share in _shares(layer, sampled)])
    chosen = [int(np.argmax(_apart(shares, shares.mean(axis=0))))]
    nearest = np.full(len(heads), np.inf)
    while len(chosen) < count:
        nearest = np.minimum(nearest, _apart(shares, shares[chosen[-1]]))
        nearest[chosen] = -1
        chosen.append(int(np.argmax(nearest)))
    return tuple(heads[place] for place in sorted(chosen))


def _shares(layer: LayerTrace, rows: np.ndarray[tuple[int], np.dtype[np.intp]]) -> Iterator[Float[np.ndarray, "R K"]]:
    """Yield the weights of heads as shares of their row; a row without any, or with NaN, is zero everywhere."""
    for head in layer.heads:
        weights = np.concatenate([stages.weights[0] for stages in stages_of(layer, [head], rows)])
        finite = np.where(np.isfinite(weights), np.abs(weights), 0)
        total = finite.sum(axis=-1, keepdims=True)
        yield np.divide(finite, total, out=np.zeros_like(finite), where=total > 0)


def _apart(heads: Float[np.ndarray, "H R K"], one: Float[np.ndarray, "R K"]) -> Float[np.ndarray, " H"]:
    """Return how far each head is from one, 0 to 1 bit; a row that is zero, of which nothing is known, adds nothing."""
    return np.array([jensen_shannon(head, one).mean() for head in heads])
