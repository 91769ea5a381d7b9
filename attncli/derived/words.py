"""Word pieces merged to words: what a word gets is what its pieces get, what it gives is the mean of theirs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from attncli.blocks import row_blocks
from attncli.derived.layer import DerivedLayer, Lazy, collected, derived_from
from attncli.errors import UsageError
from attncli.layer import HeadTrace, LayerTrace
from attncli.tokens import Token, Tokens, Word
from attncli.trace import Trace

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

RULE = "words: the weight on a word is the sum over its pieces, the weight from a word the mean over its pieces"


def words_of(tokens: Tokens, text: str, pair: str | None) -> tuple[Tokens, bool]:
    """Return the words of a text, and whether they are the tokenizer's own.

    A tokenizer that splits a text into words before it splits these into pieces says which piece belongs to which
    word. Where it splits nothing, or where words hold spaces, pieces that touch in the text are one word. A special
    token is a word of its own.

    Raises:
        UsageError: the tokens have no places in the text.
    """
    texts = (text, pair or "")
    if any(not token.special and (token.start is None or token.end is None) for token in tokens):
        raise UsageError("--words needs to know where each token stands in the text, which this trace does not say")
    own = [_word(group, texts) for group in _grouped(tokens, _is_next_own)]
    knows_words = all(token.special or token.word is not None for token in tokens)
    is_own = knows_words and not any(word.text.split()[1:] for word in own)
    words = own if is_own else [_word(group, texts) for group in _grouped(tokens, _touching(texts))]
    first: dict[tuple[int, ...], int] = {}
    numbered = []
    for index, word in enumerate(words):
        id_ = first.setdefault(tuple(tokens[piece].id for piece in word.pieces), index)
        numbered.append(replace(word, index=index, id=id_))
    return Tokens(numbered), is_own


def with_words(layer: LayerTrace, rows: Tokens, columns: Tokens) -> DerivedLayer:
    """Return the layer with words as its queries and keys: sums over key pieces, means over query pieces.

    Merged so, the rows of a softmax still sum to 1 (Clark et al. 2019, "What Does BERT Look At?"). A cell is masked
    where each of its pieces is.

    Args:
        layer: over pieces.
        rows: the words of its queries.
        columns: the words of its keys.
    """
    (starts, sizes), (key_starts, _) = _spans(rows), _spans(columns)

    def merged(head: int, queries: Int[np.ndarray, " Q"]) -> Float[np.ndarray, "Q K"]:
        whole = HeadTrace(layer, head, _pieces(queries, starts, sizes))
        with np.errstate(invalid="ignore"):
            summed = np.concatenate([np.add.reduceat(part.weights, key_starts, axis=1) for part in whole.blocks()])
            total = np.add.reduceat(summed, _boundaries(sizes[queries]), axis=0)
            return total / sizes[queries, None].astype(total.dtype)

    def allowed(queries: Int[np.ndarray, " Q"]) -> Bool[np.ndarray, "#H Q K"]:
        pieces = layer.mask.rows(list(range(layer.num_heads)), _pieces(queries, starts, sizes))
        columns_merged = np.logical_or.reduceat(pieces, key_starts, axis=2)
        return np.logical_or.reduceat(columns_merged, _boundaries(sizes[queries]), axis=1)

    shape = (layer.num_heads, len(rows), len(columns))
    longest = int(sizes.max()) * layer.num_keys  # cells that one word's rows may have
    mask = collected(allowed, layer.num_heads, row_blocks(np.arange(len(rows)), longest))
    return derived_from(layer, Lazy(shape, merged), mask=mask)


def sides_of(trace: Trace) -> tuple[Tokens, Tokens, str]:
    """Return the words of a trace's queries and keys, and how they were found.

    Raises:
        UsageError: the tokens have no places in the text, or the model wrote some of them.
    """
    if trace.generated:
        raise UsageError("--words merges pieces by their places in the text, and what the model wrote has none")
    keys, is_own = words_of(trace.key_tokens, trace.text, trace.pair)
    queries = keys
    if trace.query_tokens != trace.key_tokens:
        of_queries = (trace.text, trace.pair) if trace.target is None else (trace.target, None)
        queries, is_also = words_of(trace.query_tokens, *of_queries)
        is_own &= is_also
    return queries, keys, RULE if is_own else RULE + "; a word is what no space divides"


def _grouped(tokens: Tokens, continues: Callable[[Token, Token], bool]) -> list[list[Token]]:
    groups: list[list[Token]] = []
    for token in tokens:
        previous = groups[-1][-1] if groups else token
        both_text = groups and not token.special and not previous.special and token.segment == previous.segment
        if both_text and continues(previous, token):
            groups[-1].append(token)
        else:
            groups.append([token])
    return groups


def _is_next_own(previous: Token, token: Token) -> bool:
    return previous.word == token.word


def _touching(texts: Sequence[str]) -> Callable[[Token, Token], bool]:
    """Return what tells whether no space stands between two pieces of a text, nor at the front of the second one."""

    def touches(previous: Token, token: Token) -> bool:
        text, start = texts[token.segment], token.start or 0
        return not any(character.isspace() for character in text[previous.end : start] + text[start : token.end][:1])

    return touches


def _word(pieces: Sequence[Token], texts: Sequence[str]) -> Word:
    first = pieces[0]
    ends = [piece.end for piece in pieces if piece.end is not None]
    covered = texts[first.segment][first.start : max(ends)] if first.start is not None and ends else first.text
    spelling = covered.strip() or covered or first.text
    return Word(
        index=0,
        id=0,
        text=spelling,
        start=first.start,
        end=max(ends, default=None),
        special=first.special,
        segment=first.segment,
        pieces=tuple(piece.index for piece in pieces),
    )


def _spans(words: Tokens) -> tuple[Int[np.ndarray, " W"], Int[np.ndarray, " W"]]:
    """Return the first piece of every word, and how many it has."""
    sizes = np.array([len(word.pieces) for word in words if isinstance(word, Word)])
    return _boundaries(sizes), sizes


def _boundaries(sizes: Int[np.ndarray, " W"]) -> Int[np.ndarray, " W"]:
    """Return where parts of these sizes begin that follow each other."""
    return np.cumsum(sizes) - sizes


def _pieces(
    words: Int[np.ndarray, " W"], starts: Int[np.ndarray, " W"], sizes: Int[np.ndarray, " W"]
) -> Int[np.ndarray, " Q"]:
    """Return the pieces of some words, in order."""
    return np.concatenate([np.arange(starts[word], starts[word] + sizes[word]) for word in words])
