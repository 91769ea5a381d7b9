"""Conventions of mask values, how that of a mask is inferred, and the same mask written for another API.

A mask that is read in the wrong convention is wrong everywhere without an error. Additive numbers are unambiguous.
Booleans and 0/1 are not: `[[1, 1, 1, 0]]` is a sentence of three tokens in one convention and of one in another.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from attncli.attention import FORBIDDEN_BELOW
from attncli.errors import InputError, UsageError

if TYPE_CHECKING:
    from jaxtyping import Bool

# 0 allows and a very negative number forbids (transformers' eager attention); True allows (flex attention, sdpa, the
# `attention_mask` of transformers); True forbids (`nn.MultiheadAttention`, every `key_padding_mask`).
Convention = Literal["additive", "attend", "masked"]

# The API that reads a mask, and the meaning of True there; an `additive` mask is added to the scores.
Reader = Literal["sdpa", "mha", "additive"]
CONVENTIONS: dict[Reader, Convention] = {"sdpa": "attend", "mha": "masked", "additive": "additive"}

_MOST_FILLS = 16
LITTLE = 1e-6  # of the weight that a key would have: one with less is masked
_LITTLE_ADDED = math.log(LITTLE)

# The least finite number of every float type; NumPy has no bfloat16, the upper half of a float32.
LEAST = {name: float(np.finfo(name).min) for name in ("float16", "float32", "float64")}
LEAST["bfloat16"] = float(np.array([0xFF7F0000], np.uint32).view(np.float32)[0])

WRITTEN = {
    "additive": "additive (0 = attend)",
    "attend": "True = attend, as scaled_dot_product_attention reads it",
    "masked": "True = masked, as nn.MultiheadAttention reads it",
}


class Reading(NamedTuple):
    """A mask's values, read in a convention."""

    convention: Convention  # the meaning of the values
    why: str  # how the convention is known
    allowed: Bool[np.ndarray, "*P Q K"]  # True = attend, in the shape of the values
    fills: tuple[float, ...] = ()  # the numbers that an additive mask forbids with, the smallest first
    is_ambiguous: bool = False  # whether nothing decided, and the convention is a guess


def read_convention(
    values: np.ndarray[Any, Any], name: str, reader: Reader | None = None, past: int | None = None
) -> Reading:
    """Read the values of a mask `[…, Q, K]`: the meaning of True, 0 and numbers, and the keys that are allowed.

    Additive numbers are unambiguous; floats that are 0.0 everywhere are additive. Of booleans and 0/1 `reader`
    decides; without it the one reading with causal structure, in which there are future cells and none is allowed,
    three queries or more attend to their own positions, only those before all of them attend to nothing (padding on
    the left), and some query attends to an earlier key. Otherwise it is ambiguous. No mask whose rows are all alike,
    and no padding of sentences that have a token, has it in its wrong reading. `past` is by default keys − queries.

    Raises:
        InputError: the values are those of no mask.
        UsageError: `reader` adds numbers, and the values are booleans or 0/1.
    """
    if values.dtype.kind == "f" and not values.any():
        return Reading("additive", "0.0 everywhere", values == 0)
    if values.dtype != bool and values.any() and bool(((values == 0) | (values <= _LITTLE_ADDED)).all()):
        return Reading("additive", "0 and very negative numbers", values == 0, _fills(values))
    if values.dtype != bool and not bool(((values == 0) | (values == 1)).all()):
        shown = ", ".join(f"{value:g}" for value in np.unique(values)[:5])
        raise InputError(
            f"{name} holds the values {shown}…; expected booleans, 0/1 (1 = attend) or an additive mask of "
            "0 and -inf (or another very negative number)"
        )
    is_true = values.view(bool) if values.itemsize == 1 else values.astype(bool)
    if reader == "additive":
        raise UsageError(f"--for additive does not apply to {name}, whose values are booleans, or 0 and 1")
    convention, why = None if reader is None else CONVENTIONS[reader], f"--for {reader}"
    if convention is None:
        before = values.shape[-1] - values.shape[-2] if past is None else past
        convention, why = _causal(is_true, before), "the only causal reading"
    if convention is None:
        why = "the cells do not tell whether True attends or masks"
        return Reading("attend", why, is_true, is_ambiguous=True)
    return Reading(convention, why, is_true if convention == "attend" else ~is_true)


def read_as(values: np.ndarray[Any, Any], convention: Convention) -> Reading:
    """Return the reading of values in the convention of the API that reads them.

    An additive mask may have a bias in it, and NaN forbids nothing.
    """
    if convention != "additive":
        return Reading(convention, "the API that reads it", values.astype(bool) == (convention == "attend"))
    allowed = ~(values <= _forbidden_below(values))
    fills = _fills(np.where(allowed, 0, values))
    has_bias = bool((values[allowed] != 0).any())  # a bias is added to the fill too, and makes many numbers of one
    return Reading("additive", "it is added to the scores", allowed, fills[:1] if has_bias else fills)


def encode_mask(allowed: Bool[np.ndarray, "*P Q K"], to: Reader, dtype: str) -> np.ndarray[Any, Any]:
    """Write a mask (True = attend) as an API expects it: booleans or additive numbers.

    `additive` is 0, and the least number of `dtype`, as transformers fills its masks: unlike -inf it turns no row into
    NaN. bfloat16 comes as float32, which holds it exactly.
    """
    if to != "additive":
        return allowed if to == "sdpa" else ~allowed
    return np.where(allowed, 0.0, LEAST[dtype]).astype("float32" if dtype == "bfloat16" else dtype)


def _forbidden_below(values: np.ndarray[Any, Any]) -> float:
    """Return the additive value up to which a key is masked, as little of its weight is left.

    Between the fill and a bias there is a gap: a bias that grows with the distance of two positions
    takes as much from far ones, but by small steps.
    """
    if not ((values <= _LITTLE_ADDED) & (values > FORBIDDEN_BELOW)).any():
        return FORBIDDEN_BELOW
    levels = np.sort(values[(values > FORBIDDEN_BELOW) & (values < np.inf)])
    levels = np.append(levels, max(levels[-1], 0.0))  # a key to which nothing is added has its whole weight
    steps = np.diff(levels)
    widest = int(steps.argmax())
    return float(levels[widest]) if steps[widest] >= -_LITTLE_ADDED else FORBIDDEN_BELOW


def _fills(values: np.ndarray[Any, Any]) -> tuple[float, ...]:
    """Return the distinct forbidding numbers; sorting all cells of a large mask for them would take seconds."""
    fills: list[float] = []
    left = values[values != 0]
    while left.size and len(fills) < _MOST_FILLS:
        fills.append(left[0].item())
        left = left[left != left[0]]
    return tuple(sorted(fills))


def _causal(is_true: Bool[np.ndarray, "*P Q K"], past: int) -> Literal["attend", "masked"] | None:
    """Return the convention that has causal structure, as `read_convention` defines it; None where neither has.

    In every plane no future cell is allowed; one of them has to show the rest.
    """
    queries, keys = is_true.shape[-2:]
    if queries < 2 or not 0 <= past <= keys - queries:
        return None
    planes = is_true.reshape(-1, queries, keys)
    forbids: bool = planes[0, 0, -1].item()  # a future cell
    allowed = planes != forbids
    if (allowed & ~np.tri(queries, keys, past, dtype=bool)).any():
        return None
    owns, lives = np.diagonal(allowed, past, axis1=1, axis2=2), allowed.any(axis=2)
    reaches = (allowed & np.tri(queries, keys, past - 1, dtype=bool)).any(axis=(1, 2))
    # Dead rows at the end do not count as padding: batches padded on the left have them in their wrong reading.
    only_the_first_are_dead = (owns == lives).all(axis=1) & (owns[:, :-1] <= owns[:, 1:]).all(axis=1)
    is_causal = reaches & only_the_first_are_dead & (owns.sum(axis=1) > 2)
    return ("masked" if forbids else "attend") if is_causal.any() else None
