"""How far two rows of attention weights are apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float, Int

# A row of a softmax that was rounded to bfloat16 sums to 1 within this; what lacks more has gone to a sink.
_ROUNDING = 1e-2


def jensen_shannon(first: Float[np.ndarray, "R O"], second: Float[np.ndarray, "R O"]) -> Float[np.ndarray, " R"]:
    """Return the Jensen-Shannon divergence of each row of two matrices, in bits.

    0 where the distributions are the same, 1 where nothing that one gives weight to has weight in the other, and the
    same either way round. It is the mean of the divergences (Kullback and Leibler, base 2) of both from their
    mean (Lin 1991, "Divergence measures based on the Shannon entropy").

    Args:
        first: a distribution over `O` outcomes for each of `R` rows; it sums to 1.
        second: what it is compared with.
    """
    middle = (first + second) / 2
    return np.clip((_bits(first, middle) + _bits(second, middle)) / 2, 0.0, 1.0)


def _bits(given: Float[np.ndarray, "R O"], middle: Float[np.ndarray, "R O"]) -> Float[np.ndarray, " R"]:
    # 0·log 0 is 0: an outcome without weight adds nothing.
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(given == 0, 0.0, given * np.log2(given / middle)).sum(axis=-1)


def shared_outcomes(
    weights: Float[np.ndarray, "R K"], shared: Int[np.ndarray, " S"], has_sink: bool
) -> Float[np.ndarray, "R O"]:
    """Return rows of weights as distributions over the shared keys and one outcome more: everything else.

    Everything else is the weight on the keys that are not shared, and what a sink takes of a row that sums to less
    than 1.

    Args:
        weights: the rows.
        shared: the keys that have a counterpart, `S` of the `K`; `O` is S + 1.
        has_sink: whether the softmax had a logit more than there are keys.
    """
    whole = weights.astype(np.float64)
    lacking = 1 - whole.sum(axis=-1)
    others = np.ones(whole.shape[1], bool)
    others[shared] = False
    elsewhere = whole[:, others].sum(axis=-1) + np.where(lacking > (0 if has_sink else _ROUNDING), lacking, 0)
    outcomes = np.column_stack([whole[:, shared], elsewhere])
    return outcomes / outcomes.sum(axis=-1, keepdims=True)
