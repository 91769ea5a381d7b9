"""Two sequences of tokens side by side: which tokens they share, in order."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property
from itertools import zip_longest

from attncli.trace.tokens import Token, Tokens

Texts = tuple[str, str | None]  # what the tokens of segment 0 and of segment 1 are pieces of


@dataclass(frozen=True)
class Alignment:
    """Which tokens of two sequences correspond.

    Attributes:
        first: the one sequence.
        second: the other one.
        pairs: the positions in both of every token that they share; they rise in both.
    """

    first: Tokens
    second: Tokens
    pairs: tuple[tuple[int, int], ...]

    @cached_property
    def is_whole(self) -> bool:
        """Whether all tokens of both are shared."""
        return len(self.pairs) == len(self.first) == len(self.second)

    def columns(self) -> Iterator[tuple[int | None, int | None]]:
        """Yield the positions in both from left to right; tokens between shared ones stand across from each other.

        Those of a column are shared where it is one of `pairs`.
        """
        ends = (len(self.first), len(self.second))
        done = (0, 0)
        for pair in (*self.pairs, ends):
            yield from zip_longest(range(done[0], pair[0]), range(done[1], pair[1]))
            if pair != ends:
                yield pair
                done = pair[0] + 1, pair[1] + 1


def align(first: Tokens, second: Tokens, texts: Texts | None = None) -> Alignment:
    """Return which tokens two sequences share, in order.

    Tokens are the same if they are spelled the same, but for the mark of a space before them, or, in one text that
    two tokenizers have split, if they are the same characters of it. The longest stretch that both have is matched
    first, the one that begins earliest in the first sequence, then what stands left and right of it (Ratcliff and
    Obershelp 1988, as difflib has it); where words have changed places, another order may keep others of them.

    Args:
        first: the one sequence.
        second: the other one.
        texts: what both are pieces of, if that is the same.
    """
    named = [[_identity(token, texts) for token in tokens] for tokens in (first, second)]
    return Alignment(first, second, tuple(_matched(*named)))


def _matched(first: Sequence[Hashable], second: Sequence[Hashable]) -> Iterator[tuple[int, int]]:
    if first == second:
        yield from zip(range(len(first)), range(len(second)), strict=True)
        return
    for start, other, length in SequenceMatcher(None, first, second, autojunk=False).get_matching_blocks():
        yield from zip(range(start, start + length), range(other, other + length), strict=True)


def _identity(token: Token, texts: Texts | None) -> Hashable:
    """Return what a token shares with its counterpart: a place in the text, or its spelling."""
    text = None if texts is None else texts[token.segment]
    if text is None or token.start is None or token.end is None or token.start >= token.end:
        return token.segment, token.spelling
    # Some tokenizers count the space before a word to its characters.
    return token.segment, token.end - len(text[token.start : token.end].lstrip()), token.end
