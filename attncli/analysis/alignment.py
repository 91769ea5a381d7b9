"""Two traces side by side: which tokens, layers, heads, rows and keys of one answer to which of the other."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property
from itertools import zip_longest
from typing import TYPE_CHECKING

import numpy as np

from attncli.attention import row_blocks
from attncli.errors import UsageError
from attncli.text import as_ranges, layers_named, plural, visible
from attncli.trace.layer import HeadTrace, LayerTrace
from attncli.trace.tokens import Token, Tokens
from attncli.trace.trace import Texts, Trace, texts_of

if TYPE_CHECKING:
    from jaxtyping import Int

Pairs = tuple[tuple[int, int], ...]  # positions in A and in B
NAMES = ("A", "B")  # of the two, in this order


@dataclass(frozen=True)
class Alignment:
    """Tokens of two sequences that correspond."""

    first: Tokens
    second: Tokens
    pairs: Pairs  # the positions in both of every token that they share; they rise in both

    @cached_property
    def is_whole(self) -> bool:
        """Whether all tokens of both are shared."""
        return len(self.pairs) == len(self.first) == len(self.second)

    def columns(self) -> Iterator[tuple[int | None, int | None]]:
        """Yield the positions in both from left to right; tokens between shared ones are across from each other."""
        first, second = 0, 0
        for left, right in self.pairs:
            yield from zip_longest(range(first, left), range(second, right))
            yield left, right
            first, second = left + 1, right + 1
        yield from zip_longest(range(first, len(self.first)), range(second, len(self.second)))


def align(first: Tokens, second: Tokens, texts: Texts | None = None) -> Alignment:
    """Return the tokens that two sequences share, in order.

    Tokens are the same if they are spelled the same, but for the mark of a space before them, or, in the same `texts`,
    if they are the same characters. The longest common stretch is matched first (Ratcliff and Obershelp 1988).
    """
    mine, theirs = ([_identity(token, texts) for token in tokens] for tokens in (first, second))
    if mine == theirs:  # without a search
        return Alignment(first, second, tuple((index, index) for index in range(len(mine))))
    blocks = SequenceMatcher(None, mine, theirs, autojunk=False).get_matching_blocks()
    return Alignment(first, second, tuple((i + step, j + step) for i, j, length in blocks for step in range(length)))


def alignments(first: Trace, second: Trace) -> tuple[Alignment, Alignment]:
    """Return which query tokens and which key tokens two traces share; in the same texts, by their characters."""
    texts, second_texts = (texts_of(trace.text, trace.pair, trace.target) for trace in (first, second))
    of_queries, of_keys = texts if texts == second_texts and texts[1][0] else (None, None)
    queries = align(first.query_tokens, second.query_tokens, of_queries)
    return queries, align(first.key_tokens, second.key_tokens, of_keys)


def _identity(token: Token, texts: Texts | None) -> Hashable:
    """Return what a token shares with its counterpart: a place in the text, or its spelling."""
    text = None if texts is None else texts[token.segment]
    if text is None or token.start is None or token.end is None or token.start >= token.end:
        return token.segment, token.spelling
    # Some tokenizers count the space before a word to its characters.
    return token.segment, token.end - len(text[token.start : token.end].lstrip()), token.end


@dataclass(frozen=True)
class LayerPair:
    """A layer that both traces have, and which of its cells are compared."""

    first: LayerTrace  # the layer of A
    second: LayerTrace  # the layer of B
    rows: Alignment  # the tokens of the queries of both
    chosen: Pairs  # the shared ones of them that are compared
    columns: Alignment  # the tokens of the keys of both

    @property
    def layer_kind(self) -> tuple[int, str]:
        """The index and the kind of the layer, in both."""
        return self.first.layer, self.first.kind

    @property
    def heads(self) -> list[int]:
        """The heads that were asked for of both."""
        return [head for head in self.first.heads if head in self.second.heads]

    @property
    def keys(self) -> tuple[Int[np.ndarray, " S"], Int[np.ndarray, " S"]]:
        """Positions of the shared keys in A and in B."""
        first, second = np.array(self.columns.pairs).T
        return first, second

    def blocks(self, head: int) -> Iterator[tuple[HeadTrace, HeadTrace]]:
        """Yield the compared rows of a head in A and in B, a block of rows at a time."""
        first, second = np.array(self.chosen).T
        for places in row_blocks(np.arange(len(first)), max(self.first.num_keys, self.second.num_keys)):
            yield self.first.head(head, first[places].tolist()), self.second.head(head, second[places].tolist())


def chosen_rows(aligned: Alignment, names: Sequence[str | int]) -> Pairs:
    """Return the shared query tokens with one of these names, by default all; UsageError where A alone has it."""
    shared = dict(aligned.pairs)
    chosen: dict[int, int] = {} if names else shared
    for name in names:
        rows = [index for index in aligned.first.find(name, "query") if index in shared]
        if not rows:
            labels = " ".join([*dict.fromkeys(aligned.first[index].label for index in shared)][:40])
            why = f"only {NAMES[0]} has it; the tokens that both have are: {labels}"
            raise UsageError(f"--query '{visible(str(name))}': {why}")
        chosen |= {index: shared[index] for index in rows}
    return tuple(sorted(chosen.items()))


def layer_pairs(
    first: Trace, second: Trace, aligned: tuple[Alignment, Alignment], chosen: Pairs
) -> Iterator[LayerPair]:
    """Yield the layers that both have; with an encoder and a decoder, the chosen queries are the decoder's."""
    of_queries, of_keys = aligned
    has_target = first.target is not None or second.target is not None
    layers = {(layer.layer, layer.kind): layer for layer in second.layers}
    for layer in first.layers:
        if (other := layers.get((layer.layer, layer.kind))) is None:
            continue
        if layer.kind == "encoder":
            yield LayerPair(layer, other, of_keys, of_keys.pairs if has_target else chosen, of_keys)
        else:
            yield LayerPair(layer, other, of_queries, chosen, of_queries if layer.kind == "decoder" else of_keys)


_ROWS = 32  # at most, of the weights that are compared head by head
_BY_CHANCE = 0.01  # the probability with which all heads match by chance, above which matches tell nothing


def unmatched_heads(first: Trace, second: Trace, pairs: Sequence[LayerPair]) -> Iterator[str]:
    """Yield why a head of one model is not the head of the same number of another one, if it is not.

    Of a model and another one made of it, a head is most alike the head of its number in the layer. Where the number
    of such heads is nearer to that of chance than to all, the two were trained apart.
    """
    if len({(source.kind, source.model, source.seed) for source in (first.source, second.source)}) == 1:
        return
    traces = dict(zip(NAMES, (first, second), strict=True))
    sizes = {name: {layer.num_heads for layer in trace.layers} for name, trace in traces.items()}
    matches = [match for pair in pairs for match in _is_most_alike(pair)]
    by_chance = len([pair for pair in pairs if pair.heads])  # of each layer one
    can_tell = (by_chance / max(len(matches), 1)) ** len(matches) <= _BY_CHANCE
    names, why = [trace.source.architecture for trace in traces.values()], ""
    if sizes["A"] != sizes["B"] or first.source.layers != second.source.layers:
        heads = {name: " or ".join(map(str, sorted(counts))) for name, counts in sizes.items()}
        layers = {name: plural(trace.source.layers, "layer") for name, trace in traces.items()}
        why = ", ".join(f"{name} has {layers[name]} of {heads[name]} heads" for name in NAMES)
    elif can_tell and 2 * sum(matches) < len(matches) + by_chance:
        why = f"{sum(matches)} of {len(matches)} heads match the head of their number best; by chance {by_chance} would"
    elif not can_tell and names[0] != names[1]:
        why = f"A is {names[0]}, B {names[1]}"
    if why:
        yield f"the heads of the two models do not correspond: head 3 of A is not head 3 of B; {why}"


def _is_most_alike(pair: LayerPair) -> list[bool]:
    """Return for each head of A whether its affinity (Bhattacharyya, Σ √(p·q)) is largest with that of its number."""
    if not pair.heads:
        return []
    chosen = np.array(pair.chosen)[:: -(-len(pair.chosen) // _ROWS)]
    sides = []
    for layer, rows, keys in zip((pair.first, pair.second), chosen.T, pair.keys, strict=True):
        weights = [layer.head(head, rows.tolist()).weights[:, keys].ravel() for head in pair.heads]
        roots = np.sqrt(np.nan_to_num(np.array(weights, np.float64), posinf=0.0))
        sides.append(roots / np.maximum(np.linalg.norm(roots, axis=-1, keepdims=True), 1e-30))
    affinity = sides[0] @ sides[1].T
    is_most: list[bool] = (affinity.diagonal() >= affinity.max(axis=1) - 1e-9).tolist()
    return is_most


def not_compared(first: Trace, second: Trace) -> Iterator[str]:
    """Yield which layers and heads only one of the two has, a sentence each."""
    sides = [{(layer.kind, layer.layer): frozenset(layer.heads) for layer in trace.layers} for trace in (first, second)]
    for name, mine, other in zip(NAMES, sides, reversed(sides), strict=True):
        lacking: dict[str, list[int]] = {}
        only: dict[frozenset[int], dict[int, None]] = {}
        for (kind, index), heads in mine.items():
            if (kind, index) not in other:
                lacking.setdefault(kind, []).append(index)
            elif left := heads - other[kind, index]:
                only.setdefault(left, {})[index] = None
        for kind, layers in lacking.items():
            yield f"only {name} has {layers_named(layers, None if kind == 'self' else kind)}"
        for left, of_layers in sorted(only.items(), key=lambda item: sorted(item[0])):
            yield f"only {name} has head{'s' * (len(left) > 1)} {as_ranges(left)} of {layers_named(of_layers)}"
