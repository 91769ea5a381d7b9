"""What the values of a mask say, and how the same mask is written for another API.

Three conventions are in use, and a mask read in the wrong one is wrong everywhere without an error:

- `additive`: 0 allows, a very negative number forbids (transformers' eager attention, float masks of PyTorch);
- `attend`: True allows (`scaled_dot_product_attention`, flex attention, transformers' `attention_mask`);
- `masked`: True forbids (`nn.MultiheadAttention`'s `attn_mask`, every `key_padding_mask`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from attncli.attention import FORBIDDEN_BELOW
from attncli.blocks import row_blocks
from attncli.errors import InputError, UsageError

if TYPE_CHECKING:
    from jaxtyping import Bool

Convention = Literal["additive", "attend", "masked"]

_MOST_FILLS = 16

# The least finite number of every float type; NumPy has no bfloat16, the upper half of a float32.
LEAST = {name: float(np.finfo(name).min) for name in ("float16", "float32", "float64")}
LEAST["bfloat16"] = float(np.array([0xFF7F0000], np.uint32).view(np.float32)[0])

WRITTEN = {
    "additive": "additive (0 = attend)",
    "attend": "True = attend, as scaled_dot_product_attention reads it",
    "masked": "True = masked, as nn.MultiheadAttention reads it",
}


class Reading(NamedTuple):
    """A mask's values, understood.

    Attributes:
        convention: what the values mean.
        why: how that is known.
        allowed: True = attend, in the shape of the values.
        fills: the numbers that an additive mask forbids with, the smallest first.
        is_ambiguous: whether another convention is as likely.
    """

    convention: Convention
    why: str
    allowed: Bool[np.ndarray, "*P Q K"]
    fills: tuple[float, ...] = ()
    is_ambiguous: bool = False


def read_convention(
    values: np.ndarray[Any, Any],
    name: str,
    true: Literal["attend", "masked"] | None = None,
    past: int | None = None,
    expected: Callable[[], Bool[np.ndarray, "*#P Q K"]] | None = None,
) -> Reading:
    """Return what the values of a mask say.

    Booleans and 0/1 do not say what True means, so it is read from their shape: in nearly every mask a query may
    attend to its own position, and in a causal one no future cell is allowed while some past one is.

    Args:
        values: `[…, Q, K]`: booleans, 0/1 or additive numbers.
        name: of the mask, for errors.
        true: what True and 1 mean; None is to be found out.
        past: how many keys stand before the first query; None is as many as there are more keys than queries.
        expected: gives what the mask should say, which decides where its shape does not; it broadcasts to the values,
            or they to it.

    Raises:
        InputError: the values are those of no mask.
        UsageError: `true` is given for values that are neither booleans nor 0/1.
    """
    if _is_additive(values):
        if true is not None:
            raise UsageError(f"--true {true} does not apply to {name}, whose values are additive; leave it out")
        return Reading("additive", "0 and very negative numbers", values == 0, _fills(values))
    if not _is_boolean(values):
        raise InputError(_no_mask(values, name))
    is_true = values.astype(bool, copy=False)
    if true is not None:
        return _as_read(is_true, true, f"--true {true}")
    if values.dtype.kind == "f" and not is_true.any():
        why = "0.0 everywhere forbids nothing if it is additive, and everything if 1 means attend"
        return Reading("additive", why, ~is_true, is_ambiguous=True)
    votes = _votes(is_true, values.shape[-1] - values.shape[-2] if past is None else past)
    if len(set(votes.values())) == 1:
        return _as_read(is_true, next(iter(votes.values())), ", ".join(votes))
    if expected is not None:
        return _nearer(is_true, expected())
    return Reading("attend", "nothing in the cells tells it from True = masked", is_true, is_ambiguous=True)


def read_added(values: np.ndarray[Any, Any]) -> Reading:
    """Return what the values of a mask say that is added to the scores, a bias beside it or not.

    Args:
        values: `[P, Q, K]`, numbers; NaN forbids nothing.
    """
    allowed = ~(values <= FORBIDDEN_BELOW)
    return Reading("additive", "it is added to the scores", allowed, _fills(np.where(allowed, 0, values)))


def as_allowed(values: np.ndarray[Any, Any], name: str) -> Bool[np.ndarray, "*H Q K"]:
    """Return a mask as `True` = attend, from booleans and 0/1 that say so or from additive floats.

    Raises:
        InputError: its values are none of these.
    """
    if values.dtype == bool:
        return values
    if values.dtype.kind == "f" and not values.any():
        raise InputError(
            f"the mask {name} is all 0.0, which forbids nothing if it is additive and everything if 1 means attend; "
            "write it with booleans"
        )
    if _is_boolean(values):
        return values == 1
    if _is_additive(values):
        return values == 0
    raise InputError(_no_mask(values, f"the mask {name}"))


def encoded(
    allowed: Bool[np.ndarray, "*P Q K"], to: Literal["bool", "inverted", "additive"], dtype: str
) -> np.ndarray[Any, Any]:
    """Return a mask as an API expects it.

    Args:
        allowed: True = attend.
        to: `bool` (True = attend), `inverted` (True = masked) or `additive` (0, and the least number of `dtype`,
            as transformers fills its masks: unlike −inf it turns no row into NaN).
        dtype: of an additive mask; bfloat16 comes as float32, which holds it exactly.
    """
    if to != "additive":
        return allowed if to == "bool" else ~allowed
    return np.where(allowed, 0.0, LEAST[dtype]).astype("float32" if dtype == "bfloat16" else dtype)


def _is_boolean(values: np.ndarray[Any, Any]) -> bool:
    return values.dtype == bool or bool(((values == 0) | (values == 1)).all())


def _is_additive(values: np.ndarray[Any, Any]) -> bool:
    if values.dtype.kind not in "if" or not values.any():
        return False
    return bool(((values == 0) | (values <= FORBIDDEN_BELOW)).all())


def _fills(values: np.ndarray[Any, Any]) -> tuple[float, ...]:
    """Return the distinct forbidding numbers; sorting all cells of a large mask for them would take seconds."""
    left = values[values != 0]
    found: list[float] = []
    while left.size and len(found) < _MOST_FILLS:
        found.append(left[0].item())
        left = left[left != left[0]]
    return tuple(sorted(found))


def _no_mask(values: np.ndarray[Any, Any], name: str) -> str:
    shown = ", ".join(f"{value:g}" for value in np.unique(values)[:5])
    return (
        f"{name} holds the values {shown}…; expected booleans, 0/1 (1 = attend) or an additive mask of "
        "0 and −inf (or another very negative number)"
    )


def _as_read(is_true: Bool[np.ndarray, "*P Q K"], true: Convention, why: str) -> Reading:
    return Reading(true, why, is_true if true == "attend" else ~is_true)


def _votes(is_true: Bool[np.ndarray, "*P Q K"], past: int) -> dict[str, Convention]:
    """Return what the cells say about True: by the queries' own positions, and by the future."""
    votes: dict[str, Convention] = {}
    if not 0 <= past < is_true.shape[-1]:
        return votes
    own = np.diagonal(is_true, past, axis1=-2, axis2=-1)
    if own.all():
        votes["every query attends to itself"] = "attend"
    elif not own.any():
        votes["every query attends to itself"] = "masked"
    future, before = _found(is_true, past)
    if future == {False} and True in before:
        votes["none attends to the future"] = "attend"
    if future == {True} and False in before:
        votes["none attends to the future"] = "masked"
    return votes


def _found(is_true: Bool[np.ndarray, "*P Q K"], past: int) -> tuple[set[bool], set[bool]]:
    """Return which values there are among the future cells, and among the past ones, the queries' own left out."""
    queries, keys = is_true.shape[-2:]
    future: set[bool] = set()
    before: set[bool] = set()
    position = np.arange(keys)[None, :]
    for rows in row_blocks(np.arange(queries), is_true.size // queries):
        block, own = is_true[..., rows[0] : rows[-1] + 1, :], rows[:, None] + past
        for found, side in ((future, position > own), (before, position < own)):
            if (block & side).any():
                found.add(True)
            if (~block & side).any():
                found.add(False)
    return future, before


def _nearer(is_true: Bool[np.ndarray, "*P Q K"], expected: Bool[np.ndarray, "*#P Q K"]) -> Reading:
    """Return the reading that is nearer to what is expected; it is certain only where it is exactly that."""
    differs = is_true ^ expected
    wrong = int(np.count_nonzero(differs))
    if wrong in (0, differs.size):
        return _as_read(is_true, "attend" if wrong == 0 else "masked", "only so is it what --expect says")
    nearer: Convention = "attend" if 2 * wrong <= differs.size else "masked"
    reading = _as_read(is_true, nearer, "nearer to --expect; nothing else in the cells tells what True means")
    return Reading(reading.convention, reading.why, reading.allowed, is_ambiguous=True)
