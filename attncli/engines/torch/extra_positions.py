"""Positions that are no tokens of the text: what the queries and the keys of some architectures are besides.

Most layers have a query and a key for each token. Here stands which have others: keys that were made of several tokens,
queries that were pooled, positions that the model puts in itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from attncli.trace.tokens import Token, Tokens
from attncli.trace.trace import sequences

Position = range | str  # the tokens that it stands for; what it is called where it stands for none
Sides = tuple[list[Position] | None, list[Position] | None]  # of queries and keys; None is the tokens


class Sublayer(NamedTuple):
    """Which layer of which kind, over how many tokens of each side."""

    layer: int
    kind: str
    queries: int
    keys: int


def adds_to_its_mask(config: Any) -> bool:
    """Return whether a model puts numbers of its own beside those of the mask, which booleans are none of."""
    return bool(config.model_type == "deepseek_v4")


def ahead(config: Any) -> int:
    """Return how many positions the model itself puts before the tokens of every text."""
    return int(config.prompt_length) if config.model_type == "cpmant" else 0


def with_prompts(tokens: Tokens, count: int) -> Tokens:
    """Return a sentence's tokens behind so many positions of the model's own."""
    if not count:
        return tokens
    prompts = [Token(index, -1 - index, f"prompt {index}", None, None, special=True) for index in range(count)]
    return Tokens([*prompts, *(replace(token, index=token.index + count) for token in tokens)])


def has_own_positions(config: Any) -> bool:
    """Return whether some layers have other queries or keys than the tokens, or the model puts some before these."""
    return config.model_type in _SIDES or ahead(config) > 0


def sides_of(config: Any, layer: int, kind: str, queries: int, keys: int) -> Sides:
    """Return what a layer's queries and keys are, given how many tokens there are of each side."""
    known = _SIDES.get(config.model_type)
    return (None, None) if known is None else known(config, Sublayer(layer, kind, queries, keys))


def own_tokens(
    config: Any, layer: int, kind: str, query_tokens: Tokens, key_tokens: Tokens
) -> tuple[Tokens | None, Tokens | None]:
    """Return what a layer's queries and keys are; None is the tokens of the trace that it stands in."""
    both = sequences(kind, query_tokens, key_tokens)
    sides = sides_of(config, layer, kind, *map(len, both))
    queries, keys = (None if side is None else _named(side, of) for side, of in zip(sides, both, strict=True))
    return queries, keys


def _named(positions: Sequence[Position], tokens: Tokens) -> Tokens:
    """Return positions as tokens; those of the same tokens have the same id."""
    first: dict[tuple[int, ...], int] = {}
    found = []
    for index, position in enumerate(positions):
        if isinstance(position, str):
            found.append(Token(index, -1 - index, position, None, None, special=True))
        elif len(position) == 1:
            found.append(replace(tokens[position[0]], index=index))
        else:
            own = first.setdefault(tuple(tokens[piece].id for piece in position), -1 - index)
            found.append(_group(index, own, [tokens[piece] for piece in position]))
    return Tokens(found)


def _group(index: int, id_: int, pieces: Sequence[Token]) -> Token:
    """Return the position that stands for several tokens, from the first character of theirs to the last."""
    segment = next((token.segment for token in pieces if not token.special), pieces[0].segment)
    places = [token for token in pieces if token.segment == segment and not token.special]
    return Token(
        index,
        id_,
        f"tokens {pieces[0].index}-{pieces[-1].index}",
        start=min((token.start for token in places if token.start is not None), default=None),
        end=max((token.end for token in places if token.end is not None), default=None),
        special=all(token.special for token in pieces),
        segment=segment,
        pieces=tuple(token.index for token in pieces),
    )


def _each(count: int) -> list[Position]:
    return [range(index, index + 1) for index in range(count)]


def _deepseek_v4(config: Any, place: Sublayer) -> Sides:
    """Return the tokens, and behind them the blocks that a compressor made of so many tokens each."""
    kind = config.layer_types[place.layer]
    if kind == "sliding_attention":
        return None, None
    size = config.compress_rates[kind]
    # In the sparse kind a block takes in the tokens of the one before it.
    overlap = size if kind == "compressed_sparse_attention" else 0
    starts = range(0, place.keys - place.keys % size, size)
    return None, [*_each(place.keys), *(range(max(start - overlap, 0), start + size) for start in starts)]


def _funnel(config: Any, place: Sublayer) -> Sides:
    """Return groups of tokens: each block but the first pools its queries by two; a decoder has the tokens again."""
    groups = _each(place.keys)
    layers: list[Sides] = []
    for block, (size, repeats) in enumerate(zip(config.block_sizes, config.block_repeats, strict=True)):
        before = groups
        if block > 0 and len(groups) > (2 if config.separate_cls else 1):
            groups = _pooled(groups, config.separate_cls, config.truncate_seq)
        first = groups, before if config.pool_q_only else groups
        layers += [first, *[(groups, groups)] * (size * repeats - 1)]
    tokens = _each(place.keys)
    sides = layers[place.layer] if place.layer < len(layers) else (tokens, tokens)
    queries, keys = (None if side == tokens else side for side in sides)
    return queries, keys


def _canine(config: Any, place: Sublayer) -> Sides:
    """Return the first character and groups of characters in the deep layers, which leave out the last group."""
    if not 1 <= place.layer <= config.num_hidden_layers:
        return None, None
    size = config.downsampling_rate
    starts = range(0, place.keys - place.keys % size - size, size)
    groups = [*_each(1), *(range(start, start + size) for start in starts)]
    return groups, groups


def _pegasus_x(config: Any, place: Sublayer) -> Sides:
    """Return the tokens of an encoder, and behind them the global positions, which see everything."""
    if place.kind != "encoder":
        return None, None
    found = [*_each(place.keys), *(f"global {index}" for index in range(config.num_global_tokens))]
    return found, found


def _longt5(config: Any, place: Sublayer) -> Sides:
    """Return the tokens, and behind them the sums of whole blocks; the last one takes in the tokens behind it."""
    size = config.global_block_size
    count = place.keys // size
    if place.kind != "encoder" or config.encoder_attention_type != "transient-global" or not count:
        return None, None
    ends = [*range(size, count * size, size), place.keys]
    return None, [*_each(place.keys), *(range(block * size, end) for block, end in enumerate(ends))]


def _pooled(groups: list[Position], has_separate_first: bool, is_cut: bool) -> list[Position]:
    """Return groups of two groups that follow each other; the first one may stay alone, the last one be left out."""
    alone, others = (groups[:1], groups[1:]) if has_separate_first else ([], groups)
    others = others[:-1] if has_separate_first and is_cut else others
    return [*alone, *(_joined(others[start : start + 2]) for start in range(0, len(others), 2))]


def _joined(groups: Sequence[Position]) -> Position:
    ranges = [group for group in groups if isinstance(group, range)]
    return range(ranges[0].start, ranges[-1].stop)


_SIDES: dict[str, Callable[[Any, Sublayer], Sides]] = {
    "canine": _canine,
    "deepseek_v4": _deepseek_v4,
    "funnel": _funnel,
    "longt5": _longt5,
    "pegasus_x": _pegasus_x,
}
