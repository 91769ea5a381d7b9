"""How a model is put together: everything that tells one family of transformers from another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from attncli.masks.expressions import Atom

Hidden = np.ndarray[Any, np.dtype[np.float32]]
Frequencies = np.ndarray[Any, np.dtype[np.float32]]


class Norm(NamedTuple):
    """A normalization."""

    function: Callable[..., Hidden]  # `layer_norm` or `rms_norm`
    eps: float  # what keeps it from dividing by zero
    has_bias: bool = False  # whether it shifts too
    offset: float = 0.0  # what is added to its weights (Gemma's are stored as their distance from 1)


class LookupTable(NamedTuple):
    """A tensor of which a row is taken."""

    name: str  # without `.weight`
    rows: int  # how many it has


class Embedding(NamedTuple):
    """From token ids to the first hidden states."""

    tokens: LookupTable  # a row for each id
    positions: LookupTable | None = None  # a row for each position
    # the padding's id, after which positions begin (RoBERTa); None: positions are 0, 1, 2, …
    padding_id: int | None = None
    segments: LookupTable | None = None  # a row for each of two texts
    segment: int | None = None  # the text that tokens belong to where the tokenizer does not say; None adds no row
    norm: str | None = None  # name of the tensors that normalize the sum
    scale: float = 1.0  # a number that the tokens' rows are multiplied by


class Residual(NamedTuple):
    """Where the normalizations of a sublayer stand: `x + after(f(before(x)))`, or `post_norm(x + f(x))`."""

    before: str | None = None
    after: str | None = None
    post_norm: str | None = None


class Projections(NamedTuple):
    """From hidden states to queries, keys and values, and back."""

    output: str  # name of the tensor that is multiplied with the concatenated heads, in its layer, without `.weight`
    has_bias: bool  # whether queries, keys and values have biases
    output_has_bias: bool  # whether the output has one
    query: str = ""  # name of the tensor that makes the queries
    key: str = ""  # the same of the keys
    value: str = ""  # the same of the values
    joint: str = ""  # name of one tensor in place of these three, a third of its rows each
    interleaved_qkv: bool = False  # whether each head has its own thirds there
    # whether tensors are stored as `[in, out]` (GPT-2's Conv1D), as in the feed-forward network
    is_transposed: bool = False
    query_norm: str = ""  # name of the tensors that normalize the queries, each head by itself, before they are rotated
    key_norm: str = ""  # the same of the keys


class FeedForward(NamedTuple):
    """`down(activation(up(x)))`, or `down(activation(gate(x)) * up(x))`."""

    width: int  # of the hidden layer
    up: str  # name of the tensor that leads there
    down: str  # name of the tensor that leads back
    activation: Callable[[Hidden], Hidden]  # a function
    has_bias: bool  # whether all of them have biases
    gate: str = ""  # name of the tensor whose product is multiplied with that of `up`


class Unembedding(NamedTuple):
    """From the hidden states that leave the last layer to a logit for each token of the vocabulary."""

    norm: str  # name of the tensors that normalize them
    matrix: tuple[str, ...]  # what the matrix is called, by the version that saved it, without `.weight`
    is_tied: bool  # whether the matrix is that of the tokens' embeddings
    softcap: float | None = None  # c in c·tanh(logits/c)


@dataclass(frozen=True)
class HeadSpec:
    """The heads of every layer."""

    count: int  # of the queries
    kv_heads: int  # of the keys and values, each of which as many query heads share
    width: int  # of one


class AttentionSpec(NamedTuple):
    """The attention of one layer."""

    scale: float  # what multiplies q·k
    mask: Atom  # which query may attend to which key
    # the frequencies by which queries and keys are rotated; None: they are not. See `rope`
    rope: Frequencies | None = None


class ModelSpec(NamedTuple):
    """A model without its weights."""

    prefix: str  # what the names of its tensors begin with where the checkpoint was saved with a head on top
    layer: str  # what the names of a layer's tensors begin with, after that; `{}` is its index
    width: int  # E, of the hidden states
    positions: int  # how many tokens it reads
    heads: HeadSpec  # of every layer
    embedding: Embedding  # how it begins
    norm: Norm  # the kind of all its normalizations
    projections: Projections  # around the attention
    feed_forward: FeedForward  # the other sublayer
    attention_residual: Residual  # normalizations around the attention
    feed_forward_residual: Residual  # normalizations around the feed-forward network
    layers: tuple[AttentionSpec, ...]  # the attention of each layer
    is_parallel: bool = False  # both sublayers read the same hidden states (GPT-J, GPT-NeoX)
    softcap: float | None = None  # c in c·tanh(scores/c)
    unembedding: Unembedding | None = None  # how it predicts the next token; None: it is no causal language model

    def tensors(self, layers: int) -> Iterator[str]:
        """Yield the names of all tensors of the embedding and of the first layers, at least one."""
        how = self.embedding
        yield from (table.name + ".weight" for table in (how.tokens, how.positions, how.segments) if table is not None)
        yield from self.read_whole(layers - 1)
        yield from self._in_layer(layers - 1, self._passing_on())

    def read_whole(self, last: int) -> Iterator[str]:
        """Yield the names of the tensors that lead to the queries, keys and values of a layer, but for the tables."""
        yield from _tensors(self.embedding.norm, self.norm.has_bias)
        for index in range(last):
            yield from self._in_layer(index, [*self._projecting(), *self._passing_on()])
        yield from self._in_layer(last, self._projecting())

    def _in_layer(self, index: int, tensors: Iterable[tuple[str | None, bool]]) -> Iterator[str]:
        for name, has_bias in tensors:
            yield from _tensors(name and self.layer.format(index) + name, has_bias)

    def _projecting(self) -> list[tuple[str | None, bool]]:
        """Return what the names begin with of what makes queries, keys and values, and whether there is a bias too."""
        how, norm = self.projections, self.norm
        norms = (how.query_norm, how.key_norm, self.attention_residual.before)
        own = ((name, how.has_bias) for name in (how.query, how.key, how.value, how.joint))
        return [*own, *((name, norm.has_bias) for name in norms)]

    def _passing_on(self) -> list[tuple[str | None, bool]]:
        """Return the same of what leads from there to the next layer."""
        how, fed, norm = self.projections, self.feed_forward, self.norm
        own = ((name, fed.has_bias) for name in (fed.gate, fed.up, fed.down))
        norms = (*self.attention_residual[1:], *self.feed_forward_residual)
        return [(how.output, how.output_has_bias), *own, *((name, norm.has_bias) for name in norms)]


def _tensors(name: str | None, has_bias: bool) -> Iterator[str]:
    if name:
        yield name + ".weight"
        if has_bias:
            yield name + ".bias"
