"""Which inputs change together, so that few forwards show what each one moves."""

from __future__ import annotations

from math import ceil, log2

_MOST_TOKENS = 2048  # of a forward that holds the rows of a batch several times
MOST_SEEDS = 4  # with which the same inputs change: a router shows for some numbers alone what moves its outputs
_MOST_ALONE = 64  # forwards of a batch that cannot be repeated, one for each position


def bit_groups(count: int) -> list[list[int]]:
    """Return groups of so many numbers, of which one holds each without each other: those with a bit set, and the rest.

    A single number has no group.
    """
    bits = range((count - 1).bit_length())
    return [[one for one in range(count) if (one >> bit & 1) == value] for bit in bits for value in (1, 0)]


def blocks(length: int, room: int) -> list[range]:
    """Return blocks of positions that change together: each position alone where there is room for it.

    Otherwise they cover the row twice, the second time half a block further on.

    Args:
        length: how many positions there are.
        room: how many blocks there may be.
    """
    if length <= room:
        return [range(at, at + 1) for at in range(length)]
    size = ceil(2 * length / max(room - 1, 1))
    starts = [*range(0, length, size), *range(size // 2, length, size)]
    return [range(start, min(start + size, length)) for start in starts]


def most_copies(rows: int, length: int, tries: int) -> int:
    """Return how often one forward may hold the rows of a batch, where each of some tries has one."""
    return max(min(_MOST_TOKENS // (rows * length), tries * MOST_SEEDS), 1)


def room_for_blocks(length: int, copies: int) -> int:
    """Return how many blocks are tried: as many as 2·log2 of the positions forwards hold."""
    forwards = 2 * ceil(log2(max(length, 2)))
    return forwards * copies if copies > 1 else max(forwards, _MOST_ALONE)
