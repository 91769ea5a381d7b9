"""Masks near another one: the rules that differ from it at some query rows alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from attncli.errors import AttnError
from attncli.masks.expressions import RuleMask
from attncli.masks.parser import parse
from attncli.masks.recognition import rule_of

if TYPE_CHECKING:
    from jaxtyping import Bool, Int

    Planes = Bool[np.ndarray, "#H T T"]
    Rows = Int[np.ndarray, " R"]

_MOST_WINDOW, _MOST_DOCUMENTS, _MOST_PADDING = 64, 8, 64


def mask_name(mask: Planes) -> str:
    """Return the rule of a mask, in the mask language where it has one."""
    return _name_of_cells(mask.tobytes(), mask.shape)


@lru_cache(maxsize=4)  # the mask that others are near to is named with each of them
def _name_of_cells(cells: bytes, shape: tuple[int, ...]) -> str:
    return rule_of(np.frombuffer(cells, bool).reshape(1, *shape)).text


def masks_near(mask: Planes, rows: Rows, differing: Callable[[Planes], Rows]) -> Iterator[tuple[str, Planes]]:
    """Yield masks with their names: those that differ from one at the given rows, the likeliest first.

    Documents begin one after the other, each at the first row that still differs with those before.

    Args:
        mask: the one that they differ from.
        rows: the query rows, in order.
        differing: a mask → the rows that differ with it in place.
    """
    name, tokens, first = mask_name(mask), mask.shape[-1], int(rows[0])
    for text in _rules(name, first, int(rows[-1]), tokens):
        try:
            near = _planes(text, tokens)
        except AttnError:
            continue
        yield mask_name(near), near
    sizes: list[int] = []
    while sum(sizes) < first < tokens and len(sizes) < _MOST_DOCUMENTS:
        sizes.append(first - sum(sizes))
        near = mask & _planes(f"docs({','.join(map(str, [*sizes, tokens - first]))})", tokens)
        # Padding on the left whose queries see each other hides the same cells as a first document.
        yield mask_name(near) + (f" or pad(left={first})" if len(sizes) == 1 else ""), near
        first = next((int(row) for row in differing(near) if row > first), tokens)


def _planes(text: str, tokens: int) -> Planes:
    return RuleMask(parse(text), tokens, tokens, 1).rows([0], np.arange(tokens))


def _rules(name: str, first: int, last: int, tokens: int) -> Iterator[str]:
    if window := re.fullmatch(r"window\((\d+)\)", name):
        yield from (f"window({int(window[1]) + 1})", f"window({max(int(window[1]) - 1, 1)})")
    yield from ("causal", "full", f"window({max(first, 1)})", f"window({first + 1})")
    if first:
        yield f"{name} & pad(right={tokens - first})"
    else:  # padding that attends to nothing may get any output
        counts = range(1, min(tokens, _MOST_PADDING))
        yield from (f"{name} & pad({side}={count})" for side in ("left", "right") for count in counts)
    yield from (f"causal | prefix({last + 2})", f"chunk({first})", f"causal & chunk({first})")
    yield from (f"window({width})" for width in range(1, min(tokens, _MOST_WINDOW)))
