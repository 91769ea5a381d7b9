"""The toy layer: one attention layer over the words of a sentence, with weights drawn from a seed.

Every draw is in a stated order (seed, embedding; seed again, then W_q, W_k, W_v of each head, then W_o), so that
published notebooks come out digit for digit with torch's random numbers, and NumPy's need no torch.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attncli.errors import UsageError
from attncli.masks.expressions import Atom, RuleMask
from attncli.masks.parser import parse
from attncli.sources.draws import INITS, RNGS, Linear
from attncli.sources.groups import OneByOne
from attncli.sources.options import refuse_unknown
from attncli.sources.texts import check_texts
from attncli.sources.vocabulary import Trained, Vocabulary, Words, open_vocabulary
from attncli.text import visible
from attncli.trace.layer import LayerTrace
from attncli.trace.tokens import Tokens
from attncli.trace.trace import Source, Trace

if TYPE_CHECKING:
    from jaxtyping import Float

    from attncli.trace.selection import Indices

PROJECTS = {"qkv": ("q", "k", "v"), "qk": ("q", "k"), "none": ()}
POSITIONS = ("none", "sinusoidal")

_LARGEST = 100_000_000  # numbers in one weight matrix; a typing slip should not fill the memory


@dataclass(frozen=True)
class ToyOptions:
    """How the toy layer is made; the fields are the command's options.

    Attributes:
        d_model: width of the embeddings.
        num_heads: heads; None is 4, or 1 without projections, where all heads would be the same.
        d_k: query/key width of each head; None is d_model / num_heads.
        d_v: value width of each head; None is d_model / num_heads.
        init: how weights are drawn; None is `scaled`: N(0, 1/d_model), `normal` N(0, 1), `uniform` U[0, 1), `linear`
            nn.Linear's default with its bias, `zeros`.
        project: which of Q, K, V are projected; the rest are the embeddings themselves.
        positions: `sinusoidal` adds the encoding of Vaswani et al. 2017, section 3.5.
        scale: `sqrt` is 1/√d_k, `none` is 1, or a number.
        seed: seed of the draws.
        rng: whose random numbers.
        vocab: `words`, or a tokenizer (a tokenizer.json, a folder that holds one, or a hub name).
        vocab_size: rows of the embedding; None is the number of words, or of the tokenizer's tokens.
        out_proj: whether the concatenated heads are projected by W_o; None is yes, unless nothing is projected.
        offline: look for a tokenizer's name in the local cache only.
    """

    d_model: int = 32
    num_heads: int | None = None
    d_k: int | None = None
    d_v: int | None = None
    init: str | None = None
    project: str = "qkv"
    positions: str = "none"
    scale: str | float = "sqrt"
    seed: int = 0
    rng: str = "numpy"
    vocab: str = "words"
    vocab_size: int | None = None
    out_proj: bool | None = None
    offline: bool = False

    def __post_init__(self) -> None:
        """Refuse what makes no layer, before anything is drawn."""
        if not isinstance(self.vocab, str):
            raise UsageError("--vocab: expected words, or a tokenizer.json, its folder or its hub name")
        choices: dict[str, Collection[str]] = {"init": INITS, "project": PROJECTS, "positions": POSITIONS, "rng": RNGS}
        for name, allowed in choices.items():
            value = getattr(self, name)
            if value not in allowed and not (name == "init" and value is None):
                raise UsageError(f"--{name} '{visible(str(value))}': expected one of {', '.join(allowed)}")
        for name in ("d_model", "num_heads", "d_k", "d_v", "vocab_size"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise UsageError(f"--{name.replace('_', '-')} {value}: expected 1 or more")
        if not isinstance(self.seed, int) or not 0 <= self.seed < 2**63:
            raise UsageError(f"--seed {self.seed}: expected 0 to 2^63 - 1")
        for name, is_projected in (("d_k", self.project != "none"), ("d_v", self.project == "qkv")):
            if getattr(self, name) not in (None, self.d_model) and not is_projected:
                option = "--" + name.replace("_", "-")
                raise UsageError(
                    f"{option} does not apply to --project {self.project}: there it is d_model, {self.d_model}"
                )
        is_split = (self.d_k is None and self.project != "none") or (self.d_v is None and self.project == "qkv")
        if is_split and self.d_model % self.heads:
            raise UsageError(
                f"--d-model {self.d_model} does not divide into {self.heads} heads; give --d-k and --d-v, "
                "or another --num-heads"
            )
        if self.init is not None and self.project == "none" and not self.has_out_projection:
            raise UsageError("--init does not apply to --project none, which has no weights; drop one of them")
        rows = max(self.vocab_size or 1, self.heads * self.key_width, self.heads * self.value_width)
        if rows * self.d_model > _LARGEST:
            raise UsageError(f"these sizes make a matrix of over {_LARGEST:,} numbers; make them smaller")
        self.scale_factor  # noqa: B018  a scale that is no number is refused here

    @property
    def weights(self) -> str:
        """How weights are drawn."""
        return self.init or "scaled"

    @property
    def heads(self) -> int:
        """`H`."""
        return self.num_heads or (1 if self.project == "none" else 4)

    @property
    def key_width(self) -> int:
        """`D`."""
        return self.d_model if self.project == "none" else self.d_k or self.d_model // self.heads

    @property
    def value_width(self) -> int:
        """`Dv`."""
        return self.d_v or self.d_model // self.heads if self.project == "qkv" else self.d_model

    @property
    def has_out_projection(self) -> bool:
        """Whether there is a W_o."""
        return self.project != "none" if self.out_proj is None else self.out_proj

    @property
    def scale_factor(self) -> float:
        """What multiplies q·k."""
        if self.scale == "sqrt":
            return 1 / math.sqrt(self.key_width)
        if self.scale == "none":
            return 1.0
        try:
            factor = float(self.scale)
        except (TypeError, ValueError):
            factor = math.nan
        if not abs(factor) <= float(np.finfo(np.float32).max):
            raise UsageError(
                f"--scale '{visible(str(self.scale))}': expected sqrt, none or a number that float32 holds"
            )
        return factor


class ToyLayer(OneByOne):
    """One attention layer with drawn weights; every sentence draws embeddings afresh, for its own vocabulary."""

    def __init__(
        self,
        layers: Indices,
        heads: Indices,
        *,
        kind: str | None,
        mask: str | None,
        special: bool,
        **options: Any,
    ) -> None:
        refuse_unknown(options, ToyOptions, "the toy layer; give --model, or leave it out")
        self.options = ToyOptions(**options)
        layers.among(1, "the toy layer")
        self.heads = heads.among(self.options.heads, "the toy layer")
        self.mask = None if mask is None else parse(mask, states_true=False)
        self.kind = kind
        self.special = special
        self._tokenizer = open_vocabulary(self.options.vocab, special, self.options.offline)

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in vars(self.options).items() if value is not None)

    def trace(self, text: str, pair: str | None = None, target: str | None = None) -> Trace:
        """Return the attention of one sentence; see `Source.trace`."""
        options = self.options
        check_texts(text, pair, target)
        kind = "self" if target is None else "cross"
        if self.kind not in (None, kind):
            raise UsageError(f"--kind {visible(str(self.kind))}: the toy layer has {kind} attention here")
        vocabulary = self._vocabulary(text, pair, target)
        key_tokens = vocabulary.encode(text, pair)
        query_tokens = key_tokens if target is None else vocabulary.encode(target, None)
        embedding = RNGS[options.rng](options.seed).embedding(vocabulary.size, options.d_model)
        x_keys = self._embed(embedding, key_tokens)
        x_queries = x_keys if target is None else self._embed(embedding, query_tokens)
        weights = self._weights
        default = Atom("causal") if target is None else Atom("full")
        layer = LayerTrace(
            layer=0,
            kind=kind,
            q=weights.project("q", x_queries),
            k=weights.project("k", x_keys),
            v=weights.project("v", x_keys),
            scale=options.scale_factor,
            mask=RuleMask(self.mask or default, len(query_tokens), len(key_tokens), options.heads),
            heads=self.heads,
            inputs=x_queries,
            out_projection=None if weights.out is None else weights.out.weight,
            out_bias=None if weights.out is None else weights.out.bias,
        )
        layer.mask.rows([0], np.arange(0))  # a mask that does not fit this sentence is refused here
        details = {name: getattr(options, name) for name in ("rng", "project", "positions", "d_model")}
        details |= {"init": options.weights, "vocab_size": vocabulary.size, "parameters": weights.size}
        source = Source("toy", seed=options.seed, details=details)
        notes = vocabulary.notes((text, pair), key_tokens)
        if target is not None:
            notes += vocabulary.notes((target, None), query_tokens)
        return Trace(source, query_tokens, key_tokens, (layer,), text, pair, target, notes)

    @cached_property
    def _weights(self) -> _Weights:
        return _Weights.draw(self.options)

    def _vocabulary(self, *texts: str | None) -> Vocabulary:
        if self._tokenizer is None:
            return Words([text for text in texts if text is not None], self.options.vocab_size)
        return Trained(self._tokenizer, self.special, self.options.vocab_size)

    def _embed(self, embedding: Float[np.ndarray, "V E"], tokens: Tokens) -> Float[np.ndarray, "T E"]:
        embedded = embedding[tokens.ids]
        if self.options.positions == "sinusoidal":
            embedded = embedded + sinusoidal_positions(len(tokens), self.options.d_model)
        return embedded


class _Weights(NamedTuple):
    """What the layer learns in a real model; here it is drawn."""

    heads: list[dict[str, Linear]]  # for each head, those of W_q, W_k, W_v that the layer has
    out: Linear | None

    @classmethod
    def draw(cls, options: ToyOptions) -> _Weights:
        draws = RNGS[options.rng](options.seed)
        width = options.d_model

        def linear(rows: int, columns: int) -> Linear:
            return INITS[options.weights](draws, rows, columns, width)

        columns = {"q": options.key_width, "k": options.key_width, "v": options.value_width}
        projected = PROJECTS[options.project]
        heads = [{name: linear(width, columns[name]) for name in projected} for _ in range(options.heads)]
        out = linear(options.heads * options.value_width, width) if options.has_out_projection else None
        return cls(heads, out)

    @property
    def size(self) -> int:
        """How many parameters: 3 · d_model · width · heads with equal widths, and W_o."""
        drawn = [linear for head in self.heads for linear in head.values()] + ([self.out] if self.out else [])
        return sum(linear.size for linear in drawn)

    def project(self, name: str, x: Float[np.ndarray, "T E"]) -> Float[np.ndarray, "H T D"]:
        return np.stack([head[name].apply(x) if name in head else x for head in self.heads])


def sinusoidal_positions(length: int, width: int) -> Float[np.ndarray, "T E"]:
    """Return the position encoding of Vaswani et al. 2017, section 3.5: sine in even, cosine in odd columns."""
    columns = np.arange(width)
    angles = np.arange(length)[:, None] / 10_000 ** (2 * (columns // 2) / width)
    return np.where(columns % 2 == 0, np.sin(angles), np.cos(angles)).astype(np.float32)
