"""Predictions of a causal language model, as numbers, with parts of the model cut or whole.

Wang et al. 2022, "Interpretability in the Wild" (<https://arxiv.org/abs/2211.00593>), for heads; Geva et al. 2023,
"Dissecting Recall of Factual Associations" (<https://arxiv.org/abs/2304.14767>), for edges.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from attncli.engines.source import Source
from attncli.trace.byte_pieces import decode_pieces
from attncli.trace.tokens import NextToken, Token

if TYPE_CHECKING:
    from jaxtyping import Float

    from attncli.encoding.encode import EncodedInput, InputEncoder
    from attncli.masks.expressions import Expression
    from attncli.trace.trace import Provenance, Trace

Kind = Literal["logprob", "difference", "loss"]
Cut = Mapping[int, tuple[int, ...]]
"""The heads that are cut together, by their layers."""


class Measure(NamedTuple):
    """The number that a prediction is measured by.

    Attributes:
        next: id of the next token; None is the model's own first choice.
        against: id of the token whose logit is subtracted from that of the next one; None measures its log-probability.
        targets: positions of the tokens whose mean loss is measured instead; none of them is 0.
    """

    next: int | None = None
    against: int | None = None
    targets: tuple[int, ...] = ()

    @property
    def tokens(self) -> list[int]:
        """The ids of the next token and of the one it is compared with, as far as there are any."""
        return [token for token in (self.next, self.against) if token is not None]

    @property
    def kind(self) -> Kind:
        """Kind of number: a log-probability in nats, a difference of two logits, or a loss in nats."""
        return "loss" if self.targets else "logprob" if self.against is None else "difference"


class Replacement(NamedTuple):
    """Replacement of the outputs of heads that are cut.

    Attributes:
        by: zero, the head's own mean over the positions, its outputs in another text, or those over fewer edges.
        reference: the other text, of as many tokens.
        edges: the keys that remain for each query, of those that the model's own mask allows.
    """

    by: Literal["zero", "mean", "text", "edges"] = "zero"
    reference: EncodedInput | None = None
    edges: Expression | None = None


class Effects(NamedTuple):
    """Effects of cuts on the prediction of a sentence.

    Attributes:
        measure: with the measured next token.
        before: the number with nothing cut.
        after: the number with each cut.
        direct: the direct effect of the heads of each cut: through the output projection, the final norm with its scale
            held, and the unembedding; less that of their replacement. None where that is not defined.
    """

    measure: Measure
    before: float
    after: list[float]
    direct: list[float | None]


class Predictor(ABC):
    """A causal language model with its tokenizer, whose heads can be cut."""

    source: Provenance
    encoder: InputEncoder
    layers: int  # number of layers
    heads: int  # number of heads of each layer
    masks: Sequence[Expression] = ()  # of each layer, where the engine cuts edges

    @abstractmethod
    def next_logits(self, sentence: EncodedInput) -> Float[np.ndarray, " V"]:
        """Return the logit of every token of the vocabulary, next after a sentence."""

    def next_tokens(self, sentence: EncodedInput, count: int = 10) -> tuple[NextToken, ...]:
        """Return the likeliest next tokens, the likeliest first."""
        logits = self.next_logits(sentence).astype(np.float64)
        total = logits.max() + np.log(np.exp(logits - logits.max()).sum())
        best = np.argsort(-logits)[:count].tolist()
        return tuple(
            NextToken(self.token(sentence, id_), float(logits[id_]), float(logits[id_] - total)) for id_ in best
        )

    def token(self, sentence: EncodedInput, id_: int) -> Token:
        """Return a next token, spelled as the tokens of a sentence are."""
        piece = self.encoder.tokenizer.convert_ids_to_tokens(id_)
        text = f"<id {id_}>" if piece is None else piece  # vocabularies may have more rows than names
        token = Token(len(sentence.tokens), id_, text, None, None, id_ in self.encoder.special_ids)
        return decode_pieces([*sentence.tokens, token], sentence.text, sentence.pair)[-1]

    @abstractmethod
    def effects(
        self, sentence: EncodedInput, cuts: Sequence[Cut], replacement: Replacement, measure: Measure
    ) -> Effects:
        """Return the effect of each cut on the prediction of a sentence.

        Raises:
            InputError: the sentence or the expression does not fit the model.
            NotExposedError: the engine does not support the replacement.
        """


class PredictingSource(Source):
    """A source whose traces have the likeliest next tokens too; of a text alone."""

    def __init__(self, source: Source, predictor: Predictor) -> None:
        self._source, self._predictor = source, predictor
        self.can_batch, self.parallel_from = source.can_batch, source.parallel_from

    def traces(self, texts: Sequence[str], pair: str | None = None, target: str | None = None) -> Iterator[Trace]:
        """Yield the attention of each sentence with its next tokens; see `Source.traces`."""
        for text, trace in zip(texts, self._source.traces(texts, pair, target), strict=False):
            sentence = self._predictor.encoder.encode(text, pair, None)
            yield replace(trace, next_tokens=self._predictor.next_tokens(sentence))
