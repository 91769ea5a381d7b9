"""Predictions of a causal language model, as numbers, with parts of the model cut or whole.

Wang et al. 2022, "Interpretability in the Wild" (<https://arxiv.org/abs/2211.00593>), for heads; Geva et al. 2023,
"Dissecting Recall of Factual Associations" (<https://arxiv.org/abs/2304.14767>), for edges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from attncli.trace.tokens import NextToken, Token, decode_pieces

if TYPE_CHECKING:
    from jaxtyping import Float

    from attncli.encoding.encode import EncodedInput, InputEncoder
    from attncli.masks.expressions import Expression
    from attncli.trace.trace import Provenance

Kind = Literal["logprob", "difference", "loss"]
Cut = Mapping[int, tuple[int, ...]]
"""The heads that are cut together, by their layers."""
Logits = Callable[[slice], "Float[np.ndarray, 'n V']"]
"""Returns the logits of some rows."""

_NUMBERS = 2**22  # logits in memory


class Measure(NamedTuple):
    """The number that a prediction is measured by."""

    next: int | None = None  # id of the next token; None is the model's own first choice
    # id of the token whose logit is subtracted from that of the next one; None measures its log-probability
    against: int | None = None
    targets: tuple[int, ...] = ()  # positions, but for 0, of the tokens whose mean loss is measured instead

    @property
    def tokens(self) -> list[int]:
        """The ids of the next token and of the one it is compared with, as far as there are any."""
        return [token for token in (self.next, self.against) if token is not None]

    @property
    def kind(self) -> Kind:
        """Kind of number: a log-probability in nats, a difference of two logits, or a loss in nats."""
        return "loss" if self.targets else "logprob" if self.against is None else "difference"

    def values(self, logits: Logits, ids: Sequence[int], count: int, vocabulary: int) -> list[float]:
        """Return the number for each of `count` runs, whose rows predict `ids` each."""
        wanted, values = np.tile(ids, count), np.empty(count * len(ids))
        step = max(_NUMBERS // vocabulary, 1)
        for start in range(0, len(values), step):
            block = slice(start, min(start + step, len(values)))
            rows = logits(block)
            if self.against is None:
                rows = rows - rows.max(axis=-1, keepdims=True)
                other = np.log(np.exp(rows).sum(axis=-1, dtype=np.float64))
            else:
                other = rows[:, self.against].astype(np.float64)
            values[block] = np.take_along_axis(rows, wanted[block, None], axis=-1)[:, 0] - other
        means = values.reshape(count, -1).mean(axis=1)
        return (-means if self.targets else means).tolist()


class Replacement(NamedTuple):
    """Replacement of the outputs of heads that are cut."""

    # zero, the head's own mean over the positions, its outputs in another text, or those over fewer edges
    by: Literal["zero", "mean", "text", "edges"] = "zero"
    reference: EncodedInput | None = None  # the other text, of as many tokens
    edges: Expression | None = None  # the keys that remain for each query, of those of the model's own mask


class CutLogits(NamedTuple):
    """Logits of R rows of a sentence, with nothing cut and with some cuts."""

    cuts: Sequence[int]  # the indices of the cuts
    logits: Logits  # of R rows with nothing cut, then of R rows with each cut
    # of R rows for each cut, less what its heads add to the final hidden states: through the output projection, the
    # final norm with its scale held, and the unembedding; None where that is not defined
    direct: Logits | None = None


class Effects(NamedTuple):
    """Effects of cuts on the prediction of a sentence."""

    measure: Measure  # with the measured next token
    before: float  # the number with nothing cut
    after: list[float]  # with each cut
    direct: list[float | None]  # the direct effect of the heads of each cut, less that of their replacement


# Yields the logits after some positions of a sentence, for all cuts. Raises InputError where the sentence or the
# expression does not fit the model, NotExposedError for a replacement that the engine does not support.
Run = Callable[["EncodedInput", Sequence[Cut], Replacement, Sequence[int]], Iterator[CutLogits]]


@dataclass(frozen=True)
class Predictor:
    """A causal language model with its tokenizer, whose heads can be cut."""

    source: Provenance
    encoder: InputEncoder
    layers: int  # number of layers
    heads: int  # number of heads of each layer
    run: Run  # the engine
    masks: Sequence[Expression] = ()  # of each layer, where the engine cuts edges

    def next_tokens(self, sentence: EncodedInput, count: int = 10) -> tuple[NextToken, ...]:
        """Return the likeliest next tokens, the likeliest first."""
        (uncut,) = self.run(sentence, [], Replacement(), [len(sentence.tokens) - 1])
        logits = uncut.logits(slice(0, 1))[0].astype(np.float64)
        total = logits.max() + np.log(np.exp(logits - logits.max()).sum())
        best = np.argsort(-logits)[:count].tolist()
        return tuple(
            NextToken(self.token(sentence, id_), float(logits[id_]), float(logits[id_] - total)) for id_ in best
        )

    def token(self, sentence: EncodedInput, id_: int) -> Token:
        """Return a next token, spelled as the tokens of a sentence are."""
        following = self.encoder.tokens_of_ids([id_], len(sentence.tokens))
        return decode_pieces([*sentence.tokens, *following], sentence.text, sentence.pair)[-1]

    def effects(
        self, sentence: EncodedInput, cuts: Sequence[Cut], replacement: Replacement, measure: Measure
    ) -> Effects:
        """Return the effect of each cut on the prediction of a sentence; see `run` for the errors."""
        rows = [target - 1 for target in measure.targets] or [len(sentence.tokens) - 1]
        before, after, direct = np.nan, dict[int, float](), dict[int, float]()
        for run in self.run(sentence, cuts, replacement, rows):
            first = run.logits(slice(0, 1))[0]
            if not measure.targets and measure.next is None:
                measure = measure._replace(next=int(first.argmax()))
            ids = [sentence.inputs["input_ids"][target] for target in measure.targets] or measure.tokens[:1]
            before, *values = measure.values(run.logits, ids, 1 + len(run.cuts), len(first))
            after |= zip(run.cuts, values, strict=True)
            if run.direct is not None:
                without = measure.values(run.direct, ids, len(run.cuts), len(first))
                direct |= zip(run.cuts, (before - value for value in without), strict=True)
        places = range(len(cuts))
        return Effects(measure, before, [after[index] for index in places], [direct.get(index) for index in places])
