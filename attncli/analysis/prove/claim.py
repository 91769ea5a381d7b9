"""What a mask expression claims of a forward: which position may move which output, and what to change to see it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attncli.masks.expressions import Atom, Expression, Numbers, Pad, is_padding, leaves, with_lengths, with_numbers
from attncli.masks.mask_grid import MaskSize, materialise
from attncli.masks.parser import parse

if TYPE_CHECKING:
    from jaxtyping import Bool


class Probe(NamedTuple):
    """What to change, to see what moves: one token, or the padding of a row.

    Attributes:
        row: of the batch.
        positions: in the row.
        sequence: which sequence of the model it is in, where there are several: 0 is the one that the claim is about.
        is_padding: whether it is padding of another sequence, which nothing may read.
    """

    row: int
    positions: tuple[int, ...]
    sequence: int = 0
    is_padding: bool = False


def parsed(expression: str) -> Expression:
    """Return a claim's expression, in which `docs`, `window`, `chunk` and `prefix` may stand without numbers.

    Raises:
        UsageError: it is none.
    """
    return parse(expression, allow_rows=True, allow_unnumbered=True)


class Claim:
    """Which outputs a position may move.

    Args:
        expression: which key each query may see in a layer.
        tokens: which positions are no padding, `[B, T]`.
        past: how many keys stand in a cache before the first position.
        numbers: gives those of an atom that has none, as of `docs`, in a row; None where nothing does.
        shown: which positions the masks of the forward show to each query.

    Raises:
        UsageError: nothing says a number that is left out, or it does not fit so many positions.
    """

    def __init__(
        self,
        expression: Expression,
        tokens: Bool[np.ndarray, "B T"],
        past: int,
        numbers: Callable[[int, str], Numbers | None],
        shown: Bool[np.ndarray, "B T T"],
    ) -> None:
        self.tokens, self.past = tokens, past
        self._expressions = [with_numbers(expression, partial(numbers, row)) for row in range(len(tokens))]
        self.direct = np.stack([self._cells(row) for row in range(len(tokens))])
        self._wrong = shown & ~self.direct & tokens[:, :, None] & tokens[:, None]
        self._moved: dict[tuple[int, tuple[int, ...], int], Bool[np.ndarray, " T"]] = {}
        self.is_padded = any(map(is_padding, leaves(expression)))

    def _cells(self, row: int) -> Bool[np.ndarray, "T T"]:
        """Return which positions each output of a row may read in one layer, its own among them."""
        expression, length = self._expressions[row], self.tokens.shape[1]
        if any(isinstance(leaf, Pad) and leaf.lengths is None for leaf in leaves(expression)):
            keys = np.concatenate([np.ones((1, self.past), bool), self.tokens[row : row + 1]], axis=1)
            expression = with_lengths(expression, keys)
        cells: Any = materialise(expression, MaskSize(length, self.past + length, self.past))
        own: Bool[np.ndarray, "T T"] = cells.reshape(-1, length, self.past + length).any(axis=0)[:, self.past :]
        return own | np.eye(length, dtype=bool)

    @property
    def is_causal(self) -> bool:
        """Whether no output may read a later position."""
        return not np.triu(self.direct, 1).any()

    def may_move(self, row: int, positions: tuple[int, ...], layers: int) -> Bool[np.ndarray, " T"]:
        """Return which outputs positions may move after so many layers of attention; 0 is any number of them."""
        if (key := (row, positions, layers)) not in self._moved:
            direct = self.direct[row]
            moved = np.isin(np.arange(len(direct)), positions)
            for _ in range(layers or len(direct)):
                before, moved = moved, direct[:, moved].any(axis=1)
                if np.array_equal(before, moved):
                    break
            self._moved[key] = moved
        return self._moved[key]

    def sees_all(self, row: int) -> Bool[np.ndarray, " T"]:
        """Return which outputs may read every token of their row."""
        return self.direct[row][:, self.tokens[row]].all(axis=1)

    def probes(self) -> Iterator[Probe]:
        """Yield what to change: as little as holds each output against what it must not read, before and after it.

        The last token, and one in the middle of another row; the end of each document; the padding of each row; where
        outputs are left that none of these was hidden from, what is hidden from most of them; and what the masks of
        the forward show and must not, if none of these asks it.
        """
        words = [np.flatnonzero(row) for row in self.tokens]
        other = min(1, len(words) - 1)
        chosen = [Probe(0, (int(words[0][-1]),)), Probe(other, (int(words[other][len(words[other]) // 2]),))]
        for leaf in leaves(self._expressions[0]):
            if isinstance(leaf, Atom) and leaf.name == "docs":
                ends = np.cumsum(leaf.arguments)[:-1] - 1
                chosen += [Probe(0, (int(end),)) for end in ends if self.tokens[0, end]]
        for row, tokens in enumerate(self.tokens):
            chosen += [Probe(row, padding)] if self.is_padded and (padding := padding_of(tokens)) else []
        for row in {0, other}:
            alike = [each for each in range(len(words)) if np.array_equal(self.direct[each], self.direct[row])]
            chosen += self._further(row, [at for one in chosen if one.row in alike for at in one.positions])
        if self._wrong.any() and not any(self._wrong[one.row][:, one.positions].any() for one in chosen):
            row, position = np.unravel_index(self._wrong.sum(axis=1).argmax(), self.tokens.shape)
            chosen.append(Probe(int(row), (int(position),)))
        yield from dict.fromkeys(chosen)

    def _further(self, row: int, positions: Sequence[int]) -> Iterator[Probe]:
        tokens = self.tokens[row]
        hidden = ~self.direct[row] & tokens[:, None] & tokens
        for side in (np.tril(hidden, -1), np.triu(hidden, 1)):
            left = side.any(axis=1) & ~side[:, list(positions)].any(axis=1)
            if left.sum() > len(tokens) // 8:
                yield Probe(row, (int(side[left].sum(axis=0).argmax()),))


def padding_of(tokens: Bool[np.ndarray, " T"]) -> tuple[int, ...]:
    """Return the positions of the padding of a row."""
    return tuple(map(int, np.flatnonzero(~tokens)))
