"""Specification of a model: all differences between families of transformers, and its tensors by their names.

Names of tensors in a specification are those within a layer, without `.weight`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attncli.checkpoints.checkpoint_folder import UnsupportedError
from attncli.checkpoints.tensors import wrong_shape
from attncli.files import to_float32
from attncli.masks.expressions import Atom
from attncli.text import visible

if TYPE_CHECKING:
    from jaxtyping import Float, Shaped

    from attncli.checkpoints.tensors import Store
    from attncli.engines.numpy.ops import Rope


Hidden = np.ndarray[Any, np.dtype[np.float32]]
Frequencies = np.ndarray[Any, np.dtype[np.float32]]


class Norm(NamedTuple):
    """A normalization."""

    function: Callable[..., Hidden]  # `layer_norm` or `rms_norm`
    eps: float  # what keeps it from dividing by zero
    has_bias: bool = False  # whether it shifts too
    offset: float = 0.0  # what is added to its weights (Gemma's are stored as their distance from 1)


class LookupTable(NamedTuple):
    """A table of rows."""

    name: str
    rows: int  # how many it has


class Embedding(NamedTuple):
    """Tables whose rows add up to the first hidden states."""

    tokens: LookupTable  # a row for each id
    positions: LookupTable | None = None  # a row for each position
    # the padding's id, after which positions begin (RoBERTa); None: positions are 0, 1, 2, …
    padding_id: int | None = None
    segments: LookupTable | None = None  # a row for each of two texts
    segment: int | None = None  # the text of tokens where the tokenizer gives none; None adds no row
    norm: str | None = None  # normalizes the sum
    scale: float = 1.0  # multiplies the tokens' rows


class Residual(NamedTuple):
    """Normalizations around a sublayer: `x + after(f(before(x)))`, or `post_norm(x + f(x))`."""

    before: str | None = None
    after: str | None = None
    post_norm: str | None = None


class Projections(NamedTuple):
    """Matrices between hidden states and heads."""

    output: str  # multiplied with the concatenated heads
    has_bias: bool  # whether queries, keys and values have biases
    output_has_bias: bool
    query: str = ""
    key: str = ""
    value: str = ""
    joint: str = ""  # one tensor in place of these three, a third of its rows each
    interleaved_qkv: bool = False  # whether each head has its own thirds there
    # whether tensors are stored as `[in, out]` (GPT-2's Conv1D), as in the feed-forward network
    is_transposed: bool = False
    query_norm: str = ""  # normalizes the queries, each head by itself, before they are rotated
    key_norm: str = ""  # the same of the keys


class FeedForward(NamedTuple):
    """`down(activation(up(x)))`, or `down(activation(gate(x)) * up(x))`."""

    width: int  # of the hidden layer
    up: str
    down: str
    activation: Callable[[Hidden], Hidden]
    has_bias: bool
    gate: str = ""


class Unembedding(NamedTuple):
    """Matrix that makes a logit for each token of the vocabulary of the last hidden states."""

    norm: str  # normalizes them
    matrix: tuple[str, ...]  # its names, by the version that saved it
    is_tied: bool  # whether it is that of the tokens' embeddings
    softcap: float | None = None  # c in c·tanh(logits/c)


@dataclass(frozen=True)
class HeadSpec:
    """Heads of every layer."""

    count: int  # of the queries
    kv_heads: int  # of the keys and values, each of which as many query heads share
    width: int  # of one


class AttentionSpec(NamedTuple):
    """Attention of one layer."""

    scale: float  # what multiplies q·k
    mask: Atom  # which query may attend to which key
    rope: Rope | None = None  # rotates queries and keys


class ModelSpec(NamedTuple):
    """A model without its weights."""

    prefix: str  # of the names of its tensors where the checkpoint was saved with a head on top
    layer: str  # of the names of a layer's tensors, after that; `{}` is its index
    width: int  # E, of the hidden states
    positions: int  # how many tokens it reads
    heads: HeadSpec
    embedding: Embedding
    norm: Norm
    projections: Projections
    feed_forward: FeedForward
    attention_residual: Residual
    feed_forward_residual: Residual
    layers: tuple[AttentionSpec, ...]
    is_parallel: bool = False  # both sublayers read the same hidden states (GPT-J, GPT-NeoX)
    softcap: float | None = None  # c in c·tanh(scores/c)
    unembedding: Unembedding | None = None  # how it predicts the next token; None: it is no causal language model

    def tensors(self, layers: int) -> Iterator[str]:
        """Yield the names of all tensors of the embedding and of the first layers, at least one."""
        how = self.embedding
        yield from (table.name + ".weight" for table in (how.tokens, how.positions, how.segments) if table is not None)
        yield from self.read_whole(layers - 1)
        yield from self._in_layer(layers - 1, self._after_attention())

    def read_whole(self, last: int) -> Iterator[str]:
        """Yield the names of the tensors that lead to the queries, keys and values of a layer, but for the tables."""
        yield from _tensors(self.embedding.norm, self.norm.has_bias)
        how, before = self.projections, list[tuple[str | None, bool]]()
        before += [(name, how.has_bias) for name in (how.query, how.key, how.value, how.joint)]
        norms = how.query_norm, how.key_norm, self.attention_residual.before
        before += [(name, self.norm.has_bias) for name in norms]
        for index in range(last):
            yield from self._in_layer(index, [*before, *self._after_attention()])
        yield from self._in_layer(last, before)

    def _after_attention(self) -> list[tuple[str | None, bool]]:
        """Return the names of the rest of a layer's tensors, without their ends, and whether each has a bias."""
        how, mlp = self.projections, self.feed_forward
        norms = (*self.attention_residual[1:], *self.feed_forward_residual)
        matrices = [(how.output, how.output_has_bias), *((name, mlp.has_bias) for name in (mlp.gate, mlp.up, mlp.down))]
        return [*matrices, *((name, self.norm.has_bias) for name in norms)]

    def _in_layer(self, index: int, tensors: Iterable[tuple[str | None, bool]]) -> Iterator[str]:
        for name, has_bias in tensors:
            yield from _tensors(name and self.layer.format(index) + name, has_bias)


def _tensors(name: str | None, has_bias: bool) -> Iterator[str]:
    if name:
        yield from (name + ".weight", name + ".bias") if has_bias else (name + ".weight",)


# --- tensors -----------------------------------------------------------------------------------------------
# Nothing of them is kept, for reading one again costs little. Where one is read very often, `held` keeps it.


class ModelWeights:
    """A model's tensors in a store, by their names without a prefix; UnsupportedError if there are none.

    They have one where the checkpoint was saved with a head on top, as the tensor `first` shows.
    """

    def __init__(self, model: str, store: Store, prefix: str, first: str) -> None:
        self._model = model
        self._store = store
        self._held: dict[str, np.ndarray[Any, Any]] | None = None
        prefixes = [stored_name for stored_name in ("", prefix) if stored_name + first in store.names]
        if len(prefixes) != 1:
            raise UnsupportedError(f"its weights have no {first}" if store.names else "it has no safetensors weights")
        self.prefix = prefixes[0]

    def __contains__(self, name: str) -> bool:
        return self.prefix + name in self._store.names

    def check_readable(self, names: Iterable[str]) -> None:
        """Raise UnsupportedError for a tensor that is missing, or stored as no float of 16 or 32 bits."""
        for name in names:
            self._check(self.prefix + name)

    def unread(self, expected: Iterable[str]) -> set[str]:
        """Return the names, as in the checkpoint, of the tensors that are not expected."""
        return set(self._store.names) - {self.prefix + name for name in expected}

    def prepare(self, names: Iterable[str]) -> None:
        """Get tensors that are about to be read; see `Store.prepare`."""
        self._store.prepare([self.prefix + name for name in names])

    def vector(self, name: str, length: int) -> Float[np.ndarray, " E"]:
        """Return a norm's weights or a bias in float32; UnsupportedError without, LoadError of another shape."""
        return to_float32(self.read(self.prefix + name, (length,)))

    def matrix(self, name: str, *shape: int) -> Shaped[np.ndarray, "F E"]:
        """Return a matrix as it is stored, in 16 or 32 bits; see `vector` and `ops.linear`."""
        return self.read(self.prefix + name, shape)

    def rows(self, name: str, indices: Sequence[int], *shape: int) -> Float[np.ndarray, "T E"]:
        """Return some rows of a table in float32, without reading the others; see `vector`."""
        if max(indices) >= shape[0]:
            raise UnsupportedError(f"{name} has {shape[0]} rows, and no row {max(indices)}")
        self._check(self.prefix + name, shape)
        return to_float32(self._store.rows(self.prefix + name, indices))

    def head(self, names: Sequence[str]) -> str:
        """Return the stored name of the head on top of the model, by its possible names; UnsupportedError without."""
        endings = tuple(f".{name}.weight" for name in names)
        matching = [stored_name for stored_name in self._store.names if f".{stored_name}".endswith(endings)]
        if len(matching) != 1:
            raise UnsupportedError(f"its weights have no {names[0]}, which predicts the next token")
        return matching[0]

    def types(self) -> dict[str, str]:
        """Return the type of each tensor, whose rounding it has; see `Store.precision`."""
        return {name.removeprefix(self.prefix): self._store.precision(name) for name in self._store.names}

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold in float32 what is read within, which is read again and again: the tensors of a layer."""
        self._held = {}
        try:
            yield
        finally:
            self._held = None

    def release(self) -> None:
        """Release the memory of what was read; see `Store.release`."""
        self._store.release()

    def read(self, name: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        """Return a tensor by its name in the checkpoint; see `vector`."""
        self._check(name, shape)
        if self._held is None:
            return np.asarray(self._store.read(name))
        if name not in self._held:
            self._held[name] = to_float32(self._store.read(name))
        return self._held[name]

    def _check(self, name: str, shape: tuple[int, ...] | None = None) -> None:
        stored = self._store.stored(name) if name in self._store.names else None
        if stored is None or stored.type not in ("F32", "F16", "BF16"):
            raise UnsupportedError(f"its weights have no {visible(name)} that it reads")
        if shape is not None and stored.shape != shape:
            raise wrong_shape(self._model, name, stored.shape, shape)
