"""The toy layer: one attention layer over the words of a sentence, with weights drawn from a seed.

With NumPy's random numbers a word's embedding depends on the word and the seed alone. With torch's, the whole table is
drawn from the seed, as notebooks do, so that published ones come out digit for digit. The weights are drawn from the
seed again: W_q, W_k, W_v of each head, then W_o.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attncli.checkpoints.options import PROJECTS, ToyOptions, checked_options
from attncli.encoding.encode import check_texts, unknown_notes
from attncli.encoding.vocabulary import Vocabulary, open_vocabulary
from attncli.engines.source import PARALLEL_FROM, OpenModel
from attncli.engines.toy_init import INITS, RNGS, Linear
from attncli.errors import UsageError
from attncli.masks.expressions import Atom, RuleMask
from attncli.text import as_list, visible
from attncli.trace.layer import LayerTrace
from attncli.trace.tokens import Tokens
from attncli.trace.trace import Provenance, Trace

if TYPE_CHECKING:
    from jaxtyping import Float

    from attncli.masks.expressions import Expression
    from attncli.trace.selection import Indices


class ToyLayer(OpenModel):
    """One attention layer with drawn weights, for sentences that each have a vocabulary of their own."""

    can_batch = False
    parallel_from = PARALLEL_FROM
    name = "the toy layer"
    attention_layers = (0,)

    def __init__(
        self, layers: Indices, heads: Indices, *, kind: str | None, mask: str | None, special: bool, **options: Any
    ) -> None:
        self.options = checked_options(options, ToyOptions, "the toy layer; give --model, or leave it out")
        layers.resolve(1, self.name)
        self._heads, self._mask, self._kind = heads.resolve(self.options.heads, self.name), _parsed(mask), kind
        vocab, size = self.options.vocab, self.options.vocab_size
        self._vocabulary_of = open_vocabulary(vocab, special, self.options.offline, size)

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in vars(self.options).items() if value is not None)

    def traces(self, texts: Sequence[str], pair: str | None = None, target: str | None = None) -> Iterator[Trace]:
        """Yield the attention of each sentence, in order; see `Source.traces`."""
        return (self._trace(text, pair, target) for text in as_list(texts))

    def tokens(self, text: str, pair: str | None = None, target: str | None = None) -> tuple[Tokens, Tokens]:
        """Return the tokens of a sentence's queries and keys; see `OpenModel.tokens`."""
        return self._read(text, pair, target)[1:]

    def with_mask(self, mask: str | None) -> ToyLayer:
        """Return the layer under another mask; see `OpenModel.with_mask`."""
        other = copy(self)
        other._mask = _parsed(mask)
        return other

    def _trace(self, text: str, pair: str | None, target: str | None) -> Trace:
        options, weights = self.options, self.weights
        vocabulary, query_tokens, key_tokens = self._read(text, pair, target)
        kind = "self" if target is None else "cross"
        if self._kind not in (None, kind):
            raise UsageError(f"--kind {visible(str(self._kind))}: the toy layer has {kind} attention here")
        x_keys = self.embedded(key_tokens, vocabulary.size)
        x_queries = x_keys if target is None else self.embedded(query_tokens, vocabulary.size)
        mask = self._mask or Atom("causal" if target is None else "full")
        layer = LayerTrace(
            layer=0,
            kind=kind,
            q=weights.project("q", x_queries),
            k=weights.project("k", x_keys),
            v=weights.project("v", x_keys),
            scale=options.scale_factor,
            mask=RuleMask(mask, len(query_tokens), len(key_tokens), options.heads),
            heads=self._heads,
            inputs=x_queries,
            out_projection=None if weights.out is None else weights.out.weight,
            out_bias=None if weights.out is None else weights.out.bias,
        )
        layer.mask.rows([0], np.arange(0))  # refuses a mask that does not fit this sentence
        details = {name: getattr(options, name) for name in ("rng", "project", "positions", "d_model")}
        details |= {"init": options.weights, "vocab_size": vocabulary.size, "parameters": weights.size}
        source = Provenance("toy", seed=options.seed, details=details)
        notes = unknown_notes((text, pair), key_tokens, vocabulary.unknown_pieces(key_tokens))
        if target is not None:
            notes += unknown_notes((target, None), query_tokens, vocabulary.unknown_pieces(query_tokens))
        return Trace(source, query_tokens, key_tokens, (layer,), text, pair, target, notes)

    def _read(self, text: str, pair: str | None, target: str | None) -> tuple[Vocabulary, Tokens, Tokens]:
        check_texts(text, pair, target)
        vocabulary = self._vocabulary_of((text, pair, target))
        keys = vocabulary.encode(text, pair)
        return vocabulary, keys if target is None else vocabulary.encode(target, None), keys

    @cached_property
    def weights(self) -> ToyWeights:
        """The weights of the layer, the same for every sentence."""
        return ToyWeights.draw(self.options)

    def embedded(self, tokens: Tokens, size: int) -> Float[np.ndarray, "T E"]:
        """Return the embeddings of some tokens, out of a vocabulary of that size."""
        options = self.options
        embedded = RNGS[options.rng](options.seed).embedding(tokens, size, options.d_model)
        if options.positions == "sinusoidal":
            embedded = embedded + _sinusoidal_positions(len(tokens), options.d_model)
        return embedded


def _parsed(mask: str | None) -> Expression | None:
    if mask is None:
        return None
    from attncli.masks.parser import parse  # not needed for the default mask

    return parse(mask)


class ToyWeights(NamedTuple):
    """The weights of the layer, which a real model learns and which are drawn here."""

    # for each head, those of W_q, W_k and W_v that the layer has, by the names `q`, `k` and `v`
    heads: list[dict[str, Linear]]
    out: Linear | None  # W_o, if there is one

    @classmethod
    def draw(cls, options: ToyOptions) -> ToyWeights:
        """Draw the weights of a layer, in the order of the module's docstring."""
        draws, init, width = RNGS[options.rng](options.seed), INITS[options.weights], options.d_model
        columns = {"q": options.key_width, "k": options.key_width, "v": options.value_width}
        projected = PROJECTS[options.project]
        heads = [{name: init(draws, width, columns[name], width) for name in projected} for _ in range(options.heads)]
        rows = options.heads * options.value_width
        return cls(heads, init(draws, rows, width, width) if options.has_out_projection else None)

    @property
    def size(self) -> int:
        """Number of parameters: 3 · d_model · width · heads with equal widths, and W_o."""
        drawn = [linear for head in self.heads for linear in head.values()] + ([self.out] if self.out else [])
        return sum(linear.size for linear in drawn)

    def project(self, name: str, x: Float[np.ndarray, "T E"]) -> Float[np.ndarray, "H T D"]:
        """Return q, k or v of every head; without a projection, its input."""
        return np.stack([head[name].apply(x) if name in head else x for head in self.heads])


def _sinusoidal_positions(length: int, width: int) -> Float[np.ndarray, "T E"]:
    """Return the position encoding of Vaswani et al. 2017, section 3.5: sine in even, cosine in odd columns."""
    columns = np.arange(width)
    angles = np.arange(length)[:, None] / 10_000 ** (2 * (columns // 2) / width)
    return np.where(columns % 2 == 0, np.sin(angles), np.cos(angles)).astype(np.float32)
