"""The toy layer: one attention layer over the words of a sentence, with weights drawn from a seed.

With NumPy's random numbers a word's embedding depends on the word and the seed alone. With torch's, the whole table is
drawn from the seed, as notebooks do, so that published ones come out digit for digit. The weights are drawn from the
seed again: W_q, W_k, W_v of each head, then W_o.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attncli.checkpoints.options import PROJECTS, ToyOptions
from attncli.encoding.encode import check_texts, unknown_notes
from attncli.encoding.vocabulary import Vocabulary, open_vocabulary
from attncli.engines.source import PARALLEL_FROM, ModelRequest, OpenModel
from attncli.errors import UsageError, require
from attncli.masks.expressions import Atom, RuleMask
from attncli.text import as_list, visible
from attncli.trace.layer import LayerTrace
from attncli.trace.tokens import Token, Tokens
from attncli.trace.trace import Provenance, Trace

if TYPE_CHECKING:
    from jaxtyping import Float


class ToyLayer(OpenModel):
    """One attention layer with drawn weights, for sentences that each have a vocabulary of their own."""

    can_batch = False
    parallel_from = PARALLEL_FROM
    name = "the toy layer"
    attention_layers = (0,)

    def __init__(self, request: ModelRequest, options: ToyOptions) -> None:
        request.layers.resolve(1, self.name)
        self.options, self._heads = options, request.heads.resolve(options.heads, self.name)
        self.mask, self._kind = request.mask, request.kind
        self._vocabulary_of = open_vocabulary(options.vocab, request.special, options.offline, options.vocab_size)

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in vars(self.options).items() if value is not None)

    def traces(self, texts: Sequence[str], pair: str | None = None, target: str | None = None) -> Iterator[Trace]:
        """Yield the attention of each sentence, in order; see `Source.traces`."""
        return (self._trace(text, pair, target) for text in as_list(texts))

    def tokens(self, text: str, pair: str | None = None, target: str | None = None) -> tuple[Tokens, Tokens]:
        """Return the tokens of a sentence's queries and keys; see `OpenModel.tokens`."""
        return self._read(text, pair, target)[1:]

    def _trace(self, text: str, pair: str | None, target: str | None) -> Trace:
        options, weights = self.options, self.weights
        vocabulary, query_tokens, key_tokens = self._read(text, pair, target)
        kind = "self" if target is None else "cross"
        if self._kind not in (None, kind):
            raise UsageError(f"--kind {visible(str(self._kind))}: the toy layer has {kind} attention here")
        x_keys = self.embedded(key_tokens, vocabulary.size)
        x_queries = x_keys if target is None else self.embedded(query_tokens, vocabulary.size)
        mask = self.mask or Atom("causal" if target is None else "full")
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
        details |= {"init": options.init or "scaled", "vocab_size": vocabulary.size, "parameters": weights.size}
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
            embedded = embedded + sinusoidal_positions(len(tokens), options.d_model)
        return embedded


class ToyWeights(NamedTuple):
    """The weights of the layer, which a real model learns and which are drawn here."""

    # for each head, those of W_q, W_k and W_v that the layer has, by the names `q`, `k` and `v`
    heads: list[dict[str, Linear]]
    out: Linear | None  # W_o, if there is one

    @classmethod
    def draw(cls, options: ToyOptions) -> ToyWeights:
        """Draw the weights of a layer, in the order of the module's docstring."""
        draws, init, width = RNGS[options.rng](options.seed), INITS[options.init or "scaled"], options.d_model
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


def sinusoidal_positions(length: int, width: int) -> Float[np.ndarray, "T E"]:
    """Return the position encoding of Vaswani et al. 2017, section 3.5: sine in even, cosine in odd columns."""
    columns = np.arange(width)
    angles = np.arange(length)[:, None] / 10_000 ** (2 * (columns // 2) / width)
    return np.where(columns % 2 == 0, np.sin(angles), np.cos(angles)).astype(np.float32)


# --- random numbers ---


class Linear(NamedTuple):
    """x·weight + bias."""

    weight: Float[np.ndarray, "E D"]
    bias: Float[np.ndarray, " D"] | None = None

    @property
    def size(self) -> int:
        """Number of parameters."""
        return self.weight.size + (0 if self.bias is None else self.bias.size)

    def apply(self, x: Float[np.ndarray, "T E"]) -> Float[np.ndarray, "T D"]:
        """Return the projection of every row, which does not depend on the other rows, not even in its last bit."""
        # A product in float32 is rounded otherwise when it has another number of rows.
        projected = x.astype(np.float64) @ self.weight
        return (projected if self.bias is None else projected + self.bias).astype(np.float32)


class _NumpyDraws:
    """Float32 arrays of NumPy's default generator."""

    def __init__(self, seed: int) -> None:
        self._seed, self._generator = seed, np.random.default_rng(seed)

    def normal(self, rows: int, columns: int) -> Float[np.ndarray, "R C"]:
        return self._generator.standard_normal((rows, columns), dtype=np.float32)

    def uniform(self, rows: int, columns: int) -> Float[np.ndarray, "R C"]:
        return self._generator.random((rows, columns), dtype=np.float32)

    def embedding(self, tokens: Sequence[Token], size: int, width: int) -> Float[np.ndarray, "T E"]:
        """Draw each by the seed and the word alone, not by the other words."""

        def draw(text: str) -> Float[np.ndarray, " E"]:
            digest = int.from_bytes(sha256(text.encode()).digest(), "big")
            return np.random.default_rng([self._seed, digest]).standard_normal(width, dtype=np.float32)

        drawn = {text: draw(text) for text in dict.fromkeys(token.text for token in tokens)}
        return np.stack([drawn[token.text] for token in tokens])

    def default_linear(self, fan_in: int, fan_out: int) -> Linear:
        """Draw weight and bias as nn.Linear does by default, U(-1/√fan_in, 1/√fan_in)."""
        bound = np.float32(1 / math.sqrt(fan_in))
        weight = (2 * self.uniform(fan_out, fan_in) - 1) * bound  # drawn as nn.Linear stores it
        return Linear(weight.T, (2 * self.uniform(1, fan_out)[0] - 1) * bound)


class _TorchDraws:
    """The same of torch's generator on the CPU, seeded like that of a notebook, whose own it leaves alone."""

    def __init__(self, seed: int) -> None:
        require("--rng torch", "torch")
        import torch

        self._torch, self._generator = torch, torch.Generator().manual_seed(seed)
        # Whatever default dtype and device the process has set.
        self._options: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}

    def normal(self, rows: int, columns: int) -> Float[np.ndarray, "R C"]:
        return self._torch.randn(rows, columns, generator=self._generator, **self._options).numpy()

    def uniform(self, rows: int, columns: int) -> Float[np.ndarray, "R C"]:
        return self._torch.rand(rows, columns, generator=self._generator, **self._options).numpy()

    def embedding(self, tokens: Sequence[Token], size: int, width: int) -> Float[np.ndarray, "T E"]:
        """Draw the whole table as nn.Embedding does, a row for each id."""
        table = self._torch.empty(size, width, **self._options).normal_(generator=self._generator)
        return table.numpy()[[token.id for token in tokens]]

    def default_linear(self, fan_in: int, fan_out: int) -> Linear:
        weight, bias = (self._torch.empty(*shape, **self._options) for shape in ((fan_out, fan_in), (fan_out,)))
        self._torch.nn.init.kaiming_uniform_(weight, math.sqrt(5), generator=self._generator)
        bound = 1 / math.sqrt(fan_in)
        return Linear(weight.numpy().T, bias.uniform_(-bound, bound, generator=self._generator).numpy())


Draws = _NumpyDraws | _TorchDraws
RNGS: dict[str, Callable[[int], Draws]] = {"numpy": _NumpyDraws, "torch": _TorchDraws}

# How a matrix of `rows` inputs and `columns` outputs is drawn in a layer of the given width.
INITS: dict[str, Callable[[Draws, int, int, int], Linear]] = {
    "scaled": lambda draws, rows, columns, width: Linear(draws.normal(rows, columns) / np.float32(math.sqrt(width))),
    "normal": lambda draws, rows, columns, _: Linear(draws.normal(rows, columns)),
    "uniform": lambda draws, rows, columns, _: Linear(draws.uniform(rows, columns)),
    "linear": lambda draws, rows, columns, _: draws.default_linear(rows, columns),
    "zeros": lambda _, rows, columns, __: Linear(np.zeros((rows, columns), np.float32)),
}
