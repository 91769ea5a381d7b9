"""A sentence whose tokens have the colours of their weights, a line for each head."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from rich.cells import cell_len
from rich.segment import Segment

from attncli.analysis.metrics import HeadKey, Label, strongest
from attncli.render.block import Block, block, padded, shortened, trimmed
from attncli.render.matrix import DIGITS, number_text
from attncli.render.palette import BOLD, DIM, Palette, Scale
from attncli.trace.layer import LayerTrace
from attncli.trace.tokens import Token

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

QUERY = "▸"  # before the token that attends
_LONGEST = 24  # cells of a token


class SentenceLine(NamedTuple):
    """The weights that one head gives to each token."""

    name: str  # of the head, such as `L3H2`
    weights: Float[np.ndarray, " K"]
    allowed: Bool[np.ndarray, " K"]  # the tokens that the query may attend to; others are dim
    label: str = ""  # what the head does; empty where that is unknown


class _TokenText(NamedTuple):
    """A token in a line: the gap or mark before it, and its text; a `place` of -1 is an ellipsis."""

    place: int
    gap: str
    text: str


def head_lines(
    layers: Iterable[LayerTrace],
    query: int,
    keys: Sequence[int],
    labels: Mapping[HeadKey, Sequence[Label]] | None = None,
) -> list[SentenceLine]:
    """Return a line for each head, those first that give most weight to one of some keys.

    Where these weigh the same, those come first whose weights are farthest from uniform over the allowed keys: their
    Kullback-Leibler divergence, in bits. The layers are of one kind, so that all have the same keys.
    """
    ranked: list[tuple[float, float, int, SentenceLine]] = []
    for layer in layers:
        for head in layer.heads:
            row = layer.head(head, [query])
            label = strongest(labels or {}, (layer.layer, layer.kind, head))
            line = SentenceLine(head_name(layer, head), row.weights[0], row.drawn[0], label)
            counted = np.where(line.allowed & np.isfinite(line.weights), line.weights, 0)[list(keys)]
            ranked.append((-float(counted.max(initial=0)), -_bits_from_uniform(line), len(ranked), line))
    return [line for *_, line in sorted(ranked, key=lambda each: each[:3])]


def head_name(layer: LayerTrace, head: int) -> str:
    """Return a head as `--head` takes it: `L3H2`; a derived one by what it is."""
    places = layer.label, layer.head_label(head)
    if all(isinstance(place, int) for place in places):
        return f"L{places[0]}H{places[1]}"
    return " ".join(
        f"{what}{place}" if isinstance(place, int) else place for what, place in zip("LH", places, strict=True)
    )


def distant_keys(tokens: Sequence[Token], query: int | None) -> list[int]:
    """Return the keys on which weight tells heads apart: none is special, first, the query or next to it.

    A query of None is in another sequence, where only special tokens do not count.
    """
    common = set() if query is None else {0, query - 1, query, query + 1}
    return [place for place, token in enumerate(tokens) if not token.special and place not in common]


def _bits_from_uniform(line: SentenceLine) -> float:
    weights = line.weights[line.allowed & (line.weights > 0) & np.isfinite(line.weights)].astype(np.float64)
    shares = weights / weights.sum() if weights.size else weights
    return float((shares * np.log2(shares * line.allowed.sum())).sum())


def _margins(lines: Sequence[SentenceLine], width: int) -> tuple[int, int]:
    names = max((cell_len(line.name) + 2 for line in lines if line.name), default=0)
    labels = max((cell_len(line.label) + 2 for line in lines if line.label), default=0)
    return names, names + labels if names + labels <= width // 2 else min(names, width // 2)


def height(tokens: Sequence[Token], line: SentenceLine, width: int, marks: Mapping[int, str]) -> int:
    """Return in how many lines `sentence` would wrap all tokens for one head."""
    return len(_shown(tokens, [line], width - _margins([line], width)[1], marks, None))


def sentence(
    tokens: Sequence[Token],
    lines: Sequence[SentenceLine],
    palette: Palette,
    scale: Scale,
    width: int,
    marks: Mapping[int, str] | None = None,
    most: int | None = None,
) -> Block:
    """Return the sentence, wrapped to a width, behind the name of each head.

    `marks` stand before tokens, by their places, such as `QUERY`. A sentence that takes more than `most` lines shows
    its heaviest tokens.
    """
    marks = marks or {}
    names, margin = _margins(lines, width)
    shown = _shown(tokens, lines, width - margin, marks, most)

    def name_of(line: SentenceLine) -> list[Segment]:
        name = padded(shortened(line.name, margin), min(names, margin), BOLD, "<")
        return [name, padded(line.label, margin - names, DIM, "<")] if margin > names else [name]

    drawn: list[list[Segment]] = []
    for line in lines:
        (cells,) = palette.cells(line.weights[None], line.allowed[None], scale, 1)
        styles = [*(palette.swatch(glyph.strip(), scale.is_signed) or style for glyph, style in cells), DIM]
        figures = [Segment(f" {number_text(line.weights[0], DIGITS)}")] if len(tokens) == 1 else []
        for number, pieces in enumerate(shown):
            colored = [(Segment(gap, BOLD), Segment(text, styles[place])) for place, gap, text in pieces]
            before = [Segment(" " * margin)] if number else name_of(line)
            drawn.append([*before, *chain.from_iterable(colored), *figures])
    return block(map(trimmed, drawn))


def _texts(tokens: Sequence[Token], width: int, marks: Mapping[int, str]) -> Iterator[_TokenText]:
    """Yield the tokens; pieces of a word have no gap."""
    longest = max(min(_LONGEST, width - 3), 1)
    for index, token in enumerate(tokens):
        previous = tokens[index - 1] if index else None
        is_piece = previous is not None and continues(token, previous)
        text = token.label.removeprefix("##") if is_piece else token.label
        text = shortened(text[1:] if len(text) > 1 and text.startswith("␣") else text, longest)
        bar = " │" if previous is not None and token.segment == 1 and previous.segment == 0 else ""
        yield _TokenText(index, bar + marks.get(index, "" if is_piece else " "), text)


def continues(token: Token, previous: Token) -> bool:
    """Return whether a token is a further piece of the word of the one before it."""
    if token.special or previous.special or token.segment != previous.segment:
        return False
    return token.text.startswith("##") or (token.word is not None and token.word == previous.word)


def _shown(
    tokens: Sequence[Token], lines: Sequence[SentenceLine], width: int, marks: Mapping[int, str], most: int | None
) -> list[list[_TokenText]]:
    """Return the tokens in lines: all, or as many of the heaviest ones as fit."""
    heaviest = np.max([np.where(line.allowed, line.weights, -1) for line in lines], axis=0)
    heaviest[list(marks)] = np.inf
    ranked = np.argsort(-heaviest, kind="stable").tolist()
    texts = [*_texts(tokens, width, marks), _TokenText(-1, " ", "…")]
    sizes = [cell_len(one.gap + one.text) for one in texts]

    def wrapped(count: int) -> list[list[_TokenText]]:
        """Return the heaviest tokens in lines, with an ellipsis where others are left out."""
        places: list[int] = []
        for before, index in pairwise((-1, *sorted(ranked[:count]), len(tokens))):
            places += [-1] * (index > before + 1) + [index]
        rows: list[list[_TokenText]] = [[]]
        used = 0
        for place in places[:-1]:
            if rows[-1] and used + sizes[place] > width:
                rows.append([])
                used = 0
            rows[-1].append(texts[place])
            used += sizes[place]
        return rows

    every = len(tokens)
    if most is None or len(wrapped(every)) <= most:
        return wrapped(every)
    return wrapped(bisect_left(range(2, every), True, key=lambda count: len(wrapped(count)) > most) + 1)
