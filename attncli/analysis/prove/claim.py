"""Claim of a mask expression about a forward: which position may move which output."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.masks.expressions import Expression, Numbers, Pad, is_padding, leaves, with_lengths, with_numbers
from attncli.masks.mask_grid import MaskSize, materialise
from attncli.masks.parser import parse

if TYPE_CHECKING:
    from jaxtyping import Bool


def parsed(expression: str) -> Expression:
    """Return a claim's expression, in which `docs`, `window`, `chunk` and `prefix` may stand without numbers.

    Raises:
        UsageError: it is none.
    """
    return parse(expression, allow_rows=True, allow_unnumbered=True)


class Claim:
    """Outputs that a position may move.

    Args:
        expression: which key each query may see in a layer.
        tokens: which positions are no padding, `[B, T]`.
        past: how many keys of a cache come before the first position.
        numbers: gives those of an atom that has none, as of `docs`, in a row; None where nothing does.

    Attributes:
        direct: which positions each output may read in one layer, its own among them, `[B, T, T]`.
        is_padded: whether padding is claimed not to be read.

    Raises:
        UsageError: a number that is left out is not known, or it does not fit so many positions.
    """

    def __init__(
        self,
        expression: Expression,
        tokens: Bool[np.ndarray, "B T"],
        past: int,
        numbers: Callable[[int, str], Numbers | None],
    ) -> None:
        self.tokens, self.past = tokens, past
        self.is_padded = any(map(is_padding, leaves(expression)))
        rows = range(len(tokens))
        self.direct = np.stack([self._cells(with_numbers(expression, partial(numbers, row)), row) for row in rows])
        self._first_alike = [int((self.direct == cells).all(axis=(1, 2)).argmax()) for cells in self.direct]
        self._moved: dict[tuple[int, tuple[int, ...], int], Bool[np.ndarray, " T"]] = {}

    def _cells(self, expression: Expression, row: int) -> Bool[np.ndarray, "T T"]:
        length = self.tokens.shape[1]
        if any(isinstance(leaf, Pad) and leaf.lengths is None for leaf in leaves(expression)):
            keys = np.concatenate([np.ones((1, self.past), bool), self.tokens[row : row + 1]], axis=1)
            expression = with_lengths(expression, keys)
        cells: Any = materialise(expression, MaskSize(length, self.past + length, self.past))
        shown: Bool[np.ndarray, "T T"] = cells.reshape(-1, length, self.past + length).any(axis=0)[:, self.past :]
        return shown | np.eye(length, dtype=bool)

    @property
    def is_causal(self) -> bool:
        """Whether no output may read a later position."""
        return not np.triu(self.direct, 1).any()

    def may_move(self, row: int, positions: tuple[int, ...], layers: int) -> Bool[np.ndarray, " T"]:
        """Return which outputs positions may move after a number of layers of attention; 0 is any number of them."""
        row = self._first_alike[row]
        if (key := (row, positions, layers)) not in self._moved:
            direct = self.direct[row]
            moved = np.isin(np.arange(len(direct)), positions)
            for _ in range(layers or len(direct)):
                before, moved = moved, direct[:, moved].any(axis=1)
                if np.array_equal(before, moved):
                    break
            self._moved[key] = moved
        return self._moved[key]
