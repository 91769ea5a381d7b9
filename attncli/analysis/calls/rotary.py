"""Rotary positions of queries and keys: by how much pairs of numbers turn between a projection and the product.

A rotation keeps the length of each pair, and turns it by a frequency times the position, however it is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attncli.files import to_numpy

if TYPE_CHECKING:
    from jaxtyping import Complex, Float, Int

    from attncli.recording.call import AttentionCall

_ROWS = 8  # the last ones of a call, which are measured
_MOST_POSITIONS = 1 << 14
_ALIKE, _SAME, _OTHER = 1e-4, 0.02, 0.1  # lengths of a pair; turns that are equal, and that are not


class Rotation(NamedTuple):
    """The rotary embedding of a module, as a call showed it."""

    frequencies: Float[np.ndarray, " P"]  # radians a position, of each pair
    last: int  # the position of the last row


def turns_of(call: AttentionCall) -> dict[str, Complex[np.ndarray, "R P"]]:
    """Return how much the last queries and the keys at their places turn, where projections show it.

    Of half precision too few digits are left.
    """
    found: dict[str, Complex[np.ndarray, "R P"]] = {}
    if call.q is None or call.k is None or not call.projections or call.dtype not in ("float32", "float64"):
        return found
    if call.shape[2] > call.shape[3]:
        return found  # of another sequence
    rows = min(call.shape[2], _ROWS)
    for row in {0, len(call.q) - 1}:  # of which one may be padded
        before = [each for one in call.projections for each in _by_position(one, row, call.shape[2])]
        for name, after in (("queries", call.q), ("keys", call.k)):
            own = to_numpy(after[min(row, len(after) - 1), 0, -rows:])
            turns = (_turns(own, to_numpy(one[-rows:])) for one in before)
            if (first := next((each for each in turns if each is not None), None)) is not None:
                found[f"{name} of batch row {row}" if row else name] = first
    return found


def rotation_of(turns: Complex[np.ndarray, "R P"], queries: int) -> Rotation | None:
    """Return the rotary embedding that the last rows of a first call show; None where they show none."""
    if len(turns) < 2:
        return None
    frequencies = np.angle(turns[-1] * turns[-2].conj())
    if (np.abs(frequencies) < _ALIKE).all():
        return None
    last = positions_of(turns[-1:], frequencies, queries - 1)
    if last is None:
        return None
    position = int(last[0])  # many positions on, the frequencies are known better
    rest = np.angle(turns[-1] * np.exp(-1j * position * frequencies))
    return Rotation(frequencies + rest / max(position, 1), position)


def positions_of(
    turns: Complex[np.ndarray, "R P"], frequencies: Float[np.ndarray, " P"], expected: int
) -> Int[np.ndarray, " R"] | None:
    """Return the positions of rows, of which the last is expected at one; None where no whole numbers fit."""
    if turns.shape[1:] != frequencies.shape:
        return None
    predicted = expected + 1 - len(turns) + np.arange(len(turns))
    if (_distances(turns, frequencies, predicted) < _OTHER).all():
        return predicted
    at = np.arange(_MOST_POSITIONS)
    found = np.array([_distances(row, frequencies, at).argmin() for row in turns])
    return found if (_distances(turns, frequencies, found) < _SAME).all() else None


def _distances(
    turns: Complex[np.ndarray, "*N P"], frequencies: Float[np.ndarray, " P"], positions: Int[np.ndarray, " N"]
) -> Float[np.ndarray, " N"]:
    """Return how far turns are from those of positions; pairs too small to show one are 0."""
    distances = np.abs(turns - np.exp(1j * positions[:, None] * frequencies))
    return np.where(turns == 0, 0, distances).max(axis=-1)


def _by_position(projection: Any, row: int, queries: int) -> Iterator[Float[Any, "Q E"]]:
    """Yield a batch row of the output of a module, a vector for each query; heads may come before queries."""
    if row >= len(projection):
        return
    first = projection[row]
    if first.shape[0] == queries:
        yield first.flatten(1)
    if first.dim() == 3 and first.shape[1] == queries:
        yield first.transpose(0, 1).flatten(1)


def _turns(after: Float[np.ndarray, "R D"], before: Float[np.ndarray, "R E"]) -> Complex[np.ndarray, "R P"] | None:
    """Return how much the pairs of one head turn; None where none of the heads before has pairs of these lengths."""
    rows, width = after.shape
    if width % 2 or before.shape[1] % width:
        return None
    heads = before.reshape(rows, -1, width)
    for pairs in _pairings(width):
        one, others = (each[..., pairs[0]] + 1j * each[..., pairs[1]] for each in (after, heads))
        lengths = np.abs(others)
        # What multiplies the queries is the same everywhere.
        scales = np.linalg.norm(one) / np.maximum(np.linalg.norm(lengths, axis=(0, 2)), 1e-12)
        wrong = np.abs(np.abs(one)[:, None] - lengths * scales[:, None]).max(axis=(0, 2))
        head = int(wrong.argmin())
        most = float(np.abs(one).max())
        if wrong[head] <= _ALIKE * most and (np.abs(others[:, head]) > 0).any():
            turned = one * others[:, head].conj()
            return np.where(np.abs(one) > 0.01 * most, turned / np.maximum(np.abs(turned), 1e-30), 0)
    return None


def _pairings(width: int) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """Yield which numbers of a head turn together: neighbours, or those of two halves, of a part that turns."""
    yield range(0, width, 2), range(1, width, 2)
    for part in (width, width // 2, width // 4):
        if part % 2 == 0 and part:
            yield range(part // 2), range(part // 2, part)
