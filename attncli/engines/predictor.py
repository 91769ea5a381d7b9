"""What an engine offers of a causal language model's prediction: a number for it, with parts of the model cut or whole.

Wang et al. 2022, "Interpretability in the Wild" (<https://arxiv.org/abs/2211.00593>), for heads; Geva et al. 2023,
"Dissecting Recall of Factual Associations" (<https://arxiv.org/abs/2304.14767>), for edges.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from attncli.encoding.encode import EncodedInput, InputEncoder
    from attncli.masks.expressions import Expression
    from attncli.trace.trace import Provenance

Kind = Literal["logprob", "difference", "loss"]
Cut = Mapping[int, tuple[int, ...]]
"""The heads that are cut together, by their layers."""


class Measure(NamedTuple):
    """The number that a prediction is measured by.

    Attributes:
        next: id of the next token; None is the model's own first choice.
        against: id of the token whose logit is subtracted from that of the next one; None: its log-probability counts.
        targets: positions of the tokens whose mean loss counts in place of both; none of them is 0.
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
        """What it is: a log-probability in nats, a difference of two logits, or a loss in nats."""
        return "loss" if self.targets else "logprob" if self.against is None else "difference"


class Replacement(NamedTuple):
    """What stands in the place of the outputs of heads that are cut.

    Attributes:
        by: zero, the head's own mean over the positions, its outputs in another text, or those over fewer edges.
        reference: the other text, as many tokens long.
        edges: the keys that are left to each query, of those that the model's own mask allows.
    """

    by: Literal["zero", "mean", "text", "edges"] = "zero"
    reference: EncodedInput | None = None
    edges: Expression | None = None


class Effects(NamedTuple):
    """What cuts do to the prediction of a sentence.

    Attributes:
        measure: with the next token that was measured.
        before: the number with nothing cut.
        after: the number with each cut.
        direct: what the heads of each cut add to the number by themselves: through the output projection, the final
            norm with its scale held, and the unembedding; less what their replacement would. None where that is not
            defined.
    """

    measure: Measure
    before: float
    after: list[float]
    direct: list[float | None]


class Predictor(ABC):
    """A causal language model with its tokenizer, whose heads can be cut."""

    source: Provenance  # what it is
    encoder: InputEncoder  # its tokenizer, and what it can read
    layers: int  # how many it has
    heads: int  # how many each of them has

    @abstractmethod
    def effects(
        self, sentence: EncodedInput, cuts: Sequence[Cut], replacement: Replacement, measure: Measure
    ) -> Effects:
        """Return what each cut does to the prediction of a sentence.

        Raises:
            InputError: the sentence or the expression does not fit the model.
            NotExposedError: the engine cannot put this change into the model.
        """
