"""Word pieces merged to words: what a word gets is what its pieces get, what it gives is the mean of theirs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from attncli.analysis.derive.layer import derived_layer
from attncli.attention import row_blocks
from attncli.errors import UsageError
from attncli.masks.expressions import smallest
from attncli.trace.layer import LayerTrace, Stages
from attncli.trace.tokens import Tokens
from attncli.trace.trace import Trace, texts_of
from attncli.trace.words import words_of

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from attncli.analysis.derive.layer import Rows

RULE = "words: the weight on a word is the sum over its pieces, the weight from a word the mean over its pieces"


def with_words(layer: LayerTrace, rows: Tokens, columns: Tokens) -> LayerTrace:
    """Return the layer with words as its queries and keys: sums over key pieces, means over query pieces.

    Merged so, the rows of a softmax still sum to 1 (Clark et al. 2019, "What Does BERT Look At?"). A cell is masked
    where each of its pieces is. The words of the queries are the rows, those of the keys the columns.
    """
    sizes, key_sizes = (np.array([len(word.pieces) for word in words]) for words in (rows, columns))
    starts, key_starts = _boundaries(sizes), _boundaries(key_sizes)

    def pieces(words: Int[np.ndarray, " N"]) -> Int[np.ndarray, " Q"]:
        return np.concatenate([np.arange(starts[word], starts[word] + sizes[word]) for word in words])

    def merged(heads: Sequence[int], words: Rows) -> Float[np.ndarray, "H Q K"]:
        blocks = row_blocks(pieces(words), layer.num_keys * len(heads))
        with np.errstate(invalid="ignore"):
            weights = (Stages(layer, tuple(heads), block).weights for block in blocks)
            summed = np.concatenate([np.add.reduceat(each, key_starts, axis=2) for each in weights], axis=1)
            total = np.add.reduceat(summed, _boundaries(sizes[words]), axis=1)
            return total / sizes[words, None].astype(total.dtype)

    cells = layer.mask.rows([*range(layer.num_heads)], np.arange(layer.num_queries))
    allowed = np.logical_or.reduceat(np.logical_or.reduceat(cells, key_starts, axis=2), starts, axis=1)
    shape = (layer.num_heads, len(rows), len(columns))
    return derived_layer([layer], merged, smallest(allowed, layer.num_heads), layer.heads, shape=shape)


def sides_of(trace: Trace) -> tuple[Tokens, Tokens, str]:
    """Return the words of a trace's queries and keys, and how they were found.

    Raises:
        UsageError: the tokens have no places in the text, or the model wrote some of them.
    """
    if trace.generated:
        raise UsageError("--words needs positions in the text, and generated tokens have none; drop one of them")
    of_queries, of_keys = texts_of(trace.text, trace.pair, trace.target)
    keys, is_own = words_of(trace.key_tokens, *of_keys)
    queries = keys
    if trace.query_tokens != trace.key_tokens:
        queries, is_also = words_of(trace.query_tokens, *of_queries)
        is_own &= is_also
    return queries, keys, RULE if is_own else RULE + "; a word is what no space divides"


def _boundaries(sizes: Int[np.ndarray, " W"]) -> Int[np.ndarray, " W"]:
    """Return where each part begins, given the sizes of parts that follow each other."""
    return np.cumsum(sizes) - sizes
