"""A checkpoint run in the several ways that `attn check` compares, and audited layer by layer.

Everything here runs the model that was loaded, on tokens that its own tokenizer made; nothing is judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from attncli.analysis.check.states import states, states_with_cache
from attncli.encoding.encode import EncodedInput
from attncli.engines.torch.attention_backend import set_backend
from attncli.engines.torch.batch import padded
from attncli.engines.torch.expected_masks import ExpectedMask, implied_masks
from attncli.engines.torch.load import first_position
from attncli.engines.torch.recorder import PaddedBatch, Recorder, Span, Sublayer
from attncli.engines.torch.run_recorded import run
from attncli.errors import NotExposedError
from attncli.files import to_numpy
from attncli.masks.expressions import Grid
from attncli.recording.readers.transformers import EAGER_MASKS, MASK
from attncli.trace.layer import LayerTrace

if TYPE_CHECKING:
    from jaxtyping import Float

    from attncli.analysis.check.states import States
    from attncli.engines.torch.engine import Checkpoint


@dataclass(frozen=True)
class CapturedLayer:
    """One layer's attention to one sentence, which stands in a batch with its padding.

    Attributes:
        trace: over all rows and columns of the batch.
        implied: the mask that the configuration implies.
        queries: which rows are tokens of the sentence, and no padding.
        keys: which columns are.
        has_mask: whether a mask reached the layer; true where the softmax was watched and nothing else is known.
        mask: the values that reached it, `[1 or H, Q, K]`; None if there are none, or they are not known.
        sums: of the weights that the model itself computed, for every row.
    """

    trace: LayerTrace
    implied: ExpectedMask
    queries: slice
    keys: slice
    has_mask: bool
    mask: Any
    sums: Float[np.ndarray, "H Q"]


class ModelRunner:
    """A loaded checkpoint, to be run in several ways."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.model = checkpoint.model
        self.first_position = first_position(self.model)
        self.implied = implied_masks(self.model)
        self.dtype = str(self.model.dtype).removeprefix("torch.")
        self.recorded: list[Sublayer] = []  # what was audited last
        is_exchangeable = self.model._can_set_attn_implementation()
        self.backends = ("sdpa", "eager") if is_exchangeable and self.model._supports_sdpa else ("eager",)

    @property
    def known_padding(self) -> int | None:
        """The id by which the model itself tells padding from tokens, to count their positions; None if it does not."""
        return self.first_position - 1 if self.first_position else None

    def read(self, text: str, target: str | None) -> EncodedInput:
        """Return a sentence as the model reads it; without a target, a decoder is given the sentence itself."""
        return self.checkpoint.read_for_both(text, None, target)

    # --- layer by layer ---

    def audited(self, sentences: Sequence[EncodedInput], side: str) -> Iterator[dict[Sublayer, CapturedLayer]]:
        """Run sentences in one batch, padded on a side, and yield every layer of each."""
        takes_mask = "attention_mask" in self.checkpoint.parameters
        for some in [sentences] if takes_mask else [[sentence] for sentence in sentences]:
            yield from self._audited(self._padded(some, side))

    def _audited(self, batch: PaddedBatch) -> Iterator[dict[Sublayer, CapturedLayer]]:
        """Yield the layers of each sentence."""
        set_backend(self.model, EAGER_MASKS)
        request = replace(self.checkpoint.request, audits=True)
        rows = batch._replace(spans=[batch.whole] * len(batch.spans))
        recorded = run(self.model, self.model, rows, request, self.checkpoint.kinds)
        self.recorded = list(recorded.layers[0])
        masks: dict[tuple[int, int], Any] = {}  # layers share them
        for number, span in enumerate(batch.spans):
            yield {place: self._seen(recorded, number, place, span, masks) for place in recorded.layers[number]}

    def _seen(
        self, recorded: Recorder, number: int, place: Sublayer, span: Span, masks: dict[tuple[int, int], Any]
    ) -> CapturedLayer:
        layer = recorded.layers[number][place]
        rows, columns = span.of(place[1])
        call = recorded.calls[place]
        mask = None
        if call.weight_sums is None:  # the softmax was traced: the weights are the model's own
            sums = np.stack([layer.head(head).weights.sum(axis=-1) for head in range(layer.num_heads)])
        else:
            sums = to_numpy(call.weight_sums[number])
            if (values := next((one.values for one in call.masks if one.name == MASK), None)) is not None:
                own = number if len(values) > 1 else 0
                if (id(values), own) not in masks:
                    masks[id(values), own] = to_numpy(values[own])
                mask = masks[id(values), own]
        has_mask = call.weight_sums is None or mask is not None
        return CapturedLayer(layer, self.implied[place], rows, columns, has_mask, mask, sums)

    # --- in one way and another ---

    def alone(self, sentence: EncodedInput) -> States:
        """Return the hidden states of one sentence."""
        return self._states(self._padded([sentence], "right"))[0]

    def alone_in_eager(self, sentence: EncodedInput) -> States:
        """Return the hidden states of one sentence, computed by the other one of two `backends`."""
        if len(self.backends) == 1:
            raise NotExposedError(f"it has {self.backends[0]} attention alone")
        return self._states(self._padded([sentence], "right"), self.backends[1])[0]

    def together(self, sentences: Sequence[EncodedInput], side: str) -> list[States]:
        """Return the hidden states of each sentence of a padded batch."""
        if "attention_mask" not in self.checkpoint.parameters:
            raise NotExposedError("it takes no attention mask")
        return self._states(self._padded(sentences, side))

    def with_cache(self, sentence: EncodedInput) -> States:
        """Return a sentence's hidden states when it runs with a cache: half of it, all but its last token, that token.

        The second step has several queries and more keys, which a mask that is aligned at the wrong corner shows.
        Recurrent layers beside the attention continue by one token at a time.
        """
        count = len(sentence.query_tokens)
        half = max(count // 2, 1)
        steps = range(half, count + 1) if self.checkpoint.other_layers else sorted({half, max(count - 1, half), count})
        return self._in_steps(self._padded([sentence], "right"), list(steps))[0]

    def with_cache_together(self, sentences: Sequence[EncodedInput]) -> list[States]:
        """Return the hidden states of a padded batch whose last tokens run one by one with a cache, as in generation.

        A decoder alone is padded on its left, so that all sentences end together; beside an encoder it is the
        encoder's text that is padded, or the sound. Recurrent layers go on by one token at a time here too.
        """
        side = "right" if self.is_beside_encoder else "left"
        batch = self._padded(sentences, side)
        shortest = min(len(sentence.query_tokens) for sentence in sentences)
        count = batch.whole.target.stop
        first = max(count - max(shortest - 1, 1), 1)
        single = first if self.checkpoint.other_layers else max(count - 2, first)
        return self._in_steps(batch, sorted({first, *range(single, count + 1)}))

    @property
    def is_beside_encoder(self) -> bool:
        """Whether what writes texts is a decoder beside an encoder, which may be left out."""
        return "decoder" in self.checkpoint.kinds

    @property
    def looks_back(self) -> bool:
        """Whether some layers are causal: their queries see no later key."""
        ahead = Grid(np.zeros((1, 1), int), 2, 0, 1)  # the first of two positions
        return any(not implied.expression.allowed(ahead)[..., 0, 1].any() for implied in self.implied.values())

    def packed(self, sentences: Sequence[EncodedInput]) -> list[States]:
        """Return the hidden states of documents packed into one sequence."""
        batch = self._packed(sentences)
        (found,) = self._states(batch._replace(spans=[batch.whole]))
        return [{place: state[span.text] for place, state in found.items()} for span in batch.spans]

    # --- inputs ---

    def _states(self, batch: PaddedBatch, backend: str | None = None) -> list[States]:
        set_backend(self.model, backend or self.backends[0])
        return self._by_kind(states(self.model, batch.inputs, batch.spans))

    def _in_steps(self, batch: PaddedBatch, steps: list[int]) -> list[States]:
        if not self.looks_back:
            raise NotExposedError("its tokens see those after them")
        set_backend(self.model, self.backends[0])
        inputs, spans, whole = batch
        if self.checkpoint.takes_positions and "position_ids" not in inputs and not self.checkpoint.is_encoder_decoder:
            inputs["position_ids"] = torch.arange(whole.text.stop).expand(len(spans), -1)
        return self._by_kind(states_with_cache(self.model, inputs, spans, steps))

    def _by_kind(self, found: list[States]) -> list[States]:
        """Return hidden states under the kind of their attention, which is not `self` in a decoder that runs alone."""
        own = {"self": self.checkpoint.kinds[0]}
        return [{(layer, own.get(kind, kind)): state for (layer, kind), state in one.items()} for one in found]

    def _padded(self, sentences: Sequence[EncodedInput], side: str) -> PaddedBatch:
        inputs = [sentence.inputs for sentence in sentences]
        return padded(inputs, self.checkpoint.encoder.padding_id, side, self.checkpoint.takes_positions)

    def _packed(self, sentences: Sequence[EncodedInput]) -> PaddedBatch:
        """Return one sequence of several sentences, where each stands, and the whole of it.

        A model that looks back is told by positions that begin again, as in training.
        """
        if self.checkpoint.is_encoder_decoder or not self.looks_back:
            raise NotExposedError("its documents are told apart by a mask alone")
        if "position_ids" not in self.checkpoint.parameters:
            raise NotExposedError("it takes no position ids, which tell packed documents apart")
        ids = [token for sentence in sentences for token in sentence.inputs["input_ids"]]
        positions = [self.first_position + i for sentence in sentences for i in range(len(sentence.tokens))]
        inputs = {"input_ids": torch.tensor([ids]), "position_ids": torch.tensor([positions])}
        ends = list(accumulate(len(sentence.tokens) for sentence in sentences))
        own, whole = [slice(*both) for both in pairwise([0, *ends])], slice(0, ends[-1])
        return PaddedBatch(inputs, [Span(one, one) for one in own], Span(whole, whole))
