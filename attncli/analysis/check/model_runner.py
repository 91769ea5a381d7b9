"""Runs of a checkpoint in the several ways that `attn check` compares, and its layers as they attend."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from attncli.attention import FORBIDDEN_BELOW
from attncli.encoding.encode import EncodedInput
from attncli.engines.torch.batch import padded
from attncli.engines.torch.expected_masks import ExpectedMask, implied_masks
from attncli.engines.torch.load import first_position, set_backend
from attncli.engines.torch.recorder import PaddedBatch, Recorder, Span, Sublayer, record, translate_model_errors
from attncli.errors import NotExposedError
from attncli.files import to_numpy
from attncli.masks.expressions import Grid
from attncli.masks.findings import Finding
from attncli.trace.layer import LayerTrace

if TYPE_CHECKING:
    from jaxtyping import Float

    from attncli.engines.torch.engine import Checkpoint


class RunFailedError(NotExposedError):
    """The model runs, but not in this way."""


class SentenceRun(NamedTuple):
    """A sentence in the hidden states of one forward, or of several with a cache."""

    steps: Sequence[dict[Sublayer, torch.Tensor]]
    row: int  # of the batch
    span: Span  # where it stands there


@dataclass(frozen=True)
class CapturedLayer:
    """Attention of one layer to one sentence of a padded batch."""

    trace: LayerTrace  # over all rows and columns of the batch
    implied: ExpectedMask
    queries: slice  # the rows that are tokens of the sentence, and no padding
    keys: slice  # the columns that are
    has_mask: bool  # whether a mask reached the layer
    mask: Any  # the values that reached it, `[1 or H, Q, K]`; None if there are none, or they are not known
    sums: Float[np.ndarray, "H Q"]  # of the weights that the model itself computed
    findings: tuple[Finding, ...]  # of the reader of its call


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

    def read(self, text: str, target: str | None) -> EncodedInput:
        """Return a sentence as the model reads it; without a target, a decoder is given the sentence itself."""
        return self.checkpoint.read_for_both(text, None, target)

    def captured(self, sentences: Sequence[EncodedInput], side: str) -> Iterator[dict[Sublayer, CapturedLayer]]:
        """Run sentences in one batch, padded on a side, and yield the layers of each."""
        takes_mask = "attention_mask" in self.checkpoint.parameters
        request = replace(self.checkpoint.request, keeps_calls=True)
        for batched in [sentences] if takes_mask else [[sentence] for sentence in sentences]:
            batch = self._padded(batched, side)
            set_backend(self.model, "eager")
            rows = batch._replace(spans=[batch.whole] * len(batch.spans))
            recorded = record(self.model, self.model, rows, request, self.checkpoint.kinds)
            self.recorded = list(recorded.layers[0])
            for number, span in enumerate(batch.spans):
                yield {layer: self._captured(recorded, number, layer, span) for layer in recorded.layers[number]}

    def _captured(self, recorded: Recorder, number: int, sublayer: Sublayer, span: Span) -> CapturedLayer:
        layer = recorded.layers[number][sublayer]
        rows, columns = span.of(sublayer[1])
        sums = np.stack([layer.head(head).weights.sum(axis=-1) for head in range(layer.num_heads)])
        masks = recorded.calls[sublayer].masks
        # Values that hide keys are audited as they are; several masks are known by their cells alone.
        hiding = [m.values for m in masks if m.convention != "additive" or (m.values <= FORBIDDEN_BELOW).any()]
        mask = None
        if len(hiding) == 1 and hiding[0].is_floating_point():
            mask = to_numpy(hiding[0][number if len(hiding[0]) > 1 else 0])
        findings = recorded.calls[sublayer].findings
        return CapturedLayer(layer, self.implied[sublayer], rows, columns, bool(masks), mask, sums, findings)

    def changes(self, alone: SentenceRun, other: SentenceRun) -> Iterator[tuple[Sublayer, float]]:
        """Yield the largest change of a token's vector, relative to its length, in each layer; −1 is the embeddings."""
        for sublayer, before in alone.steps[0].items():
            pieces = [step[sublayer] for step in other.steps if sublayer in step]
            if len(before) > 1:  # several streams, and then rows
                before, *pieces = (states.movedim(0, 2) for states in (before, *pieces))
            positions = other.span.of(sublayer[1])[0]
            length = positions.stop - positions.start
            if before.shape[1] >= length and len(pieces) == len(other.steps):
                row = torch.cat(pieces, 1)[other.row, positions].flatten(1)
                single = before[0, :length].flatten(1)  # which a module may have made longer
                if row.shape == single.shape:
                    precise = torch.promote_types(single.dtype, torch.float32)
                    row, single = row.to(precise), single.to(precise)
                    size = single.norm(dim=-1).clamp_min(torch.finfo(torch.float32).tiny)
                    yield sublayer, float(((row - single).norm(dim=-1) / size).max())  # NaN stays

    def _hidden_states(self, output: Any) -> dict[Sublayer, torch.Tensor]:
        """Return the hidden states after each layer, from the embeddings on; at least those of the last one."""
        main = "decoder" if self.is_beside_encoder else self.checkpoint.kinds[0]
        names = {(main, "hidden_states"), ("encoder", "encoder_hidden_states"), ("decoder", "decoder_hidden_states")}
        states = {
            (number, kind): tensor
            for kind, name in names
            for number, tensor in enumerate(output.get(name) or (), -1)
            if isinstance(tensor, torch.Tensor)
        }
        last = max((layer for layer, kind in self.implied if kind == main), default=0)
        return states if any(kind == main for _, kind in states) else states | {(last, main): output[0]}

    def alone(self, sentence: EncodedInput) -> SentenceRun:
        """Run one sentence."""
        return self._runs(self._padded([sentence], "right"))[0]

    def alone_in_eager(self, sentence: EncodedInput) -> SentenceRun:
        """Run one sentence in the other one of two `backends`."""
        if len(self.backends) == 1:
            raise NotExposedError(f"it has {self.backends[0]} attention alone")
        return self._runs(self._padded([sentence], "right"), backend=self.backends[1])[0]

    def together(self, sentences: Sequence[EncodedInput], side: str) -> list[SentenceRun]:
        """Run a padded batch."""
        if "attention_mask" not in self.checkpoint.parameters:
            raise NotExposedError("it takes no attention mask")
        return self._runs(self._padded(sentences, side))

    def with_cache(self, sentence: EncodedInput) -> SentenceRun:
        """Run a sentence with a cache: half of it, all but its last token, that token.

        The second step has several queries and more keys, which shows a mask that is aligned at the wrong corner.
        """
        half = max(len(sentence.query_tokens) // 2, 1)
        return self._in_steps(self._padded([sentence], "right"), half, 1)[0]

    def with_cache_together(self, sentences: Sequence[EncodedInput]) -> list[SentenceRun]:
        """Run a padded batch whose last tokens run one by one with a cache, as in generation.

        A decoder alone is padded on its left, so that all sentences end together; else an encoder's text on its right.
        """
        batch = self._padded(sentences, "right" if self.is_beside_encoder else "left")
        shortest = min(len(sentence.query_tokens) for sentence in sentences)
        return self._in_steps(batch, max(batch.whole.target.stop - max(shortest - 1, 1), 1), 2)

    @property
    def is_beside_encoder(self) -> bool:
        """Whether texts are written by a decoder that attends to an encoder."""
        return "decoder" in self.checkpoint.kinds

    @property
    def looks_back(self) -> bool:
        """Whether some layers are causal: their queries see no later key."""
        ahead = Grid(np.zeros((1, 1), int), 2, 0, 1)  # the first of two positions
        return any(not implied.expression.allowed(ahead)[..., 0, 1].any() for implied in self.implied.values())

    def packed(self, sentences: Sequence[EncodedInput]) -> list[SentenceRun]:
        """Run documents packed into one sequence, which a model that looks back tells apart by their positions."""
        if self.checkpoint.is_encoder_decoder or not self.looks_back:
            raise NotExposedError("its documents are told apart by a mask alone")
        if "position_ids" not in self.checkpoint.parameters:
            raise NotExposedError("it takes no position ids, which tell packed documents apart")
        ids = [token for sentence in sentences for token in sentence.inputs["input_ids"]]
        positions = [self.first_position + i for sentence in sentences for i in range(len(sentence.tokens))]
        inputs = {"input_ids": torch.tensor([ids]), "position_ids": torch.tensor([positions])}
        ends = [0, *accumulate(len(sentence.tokens) for sentence in sentences)]
        spans, total = [slice(*both) for both in pairwise(ends)], slice(0, ends[-1])
        batch = PaddedBatch(inputs, [Span(span, span) for span in spans], Span(total, total))
        return [run._replace(row=0) for run in self._runs(batch)]

    def _runs(self, batch: PaddedBatch, backend: str | None = None, ends: Sequence[int] = ()) -> list[SentenceRun]:
        """Run a batch at once, or with a cache in pieces that end at `ends`, as generation does.

        Raises:
            RunFailedError: the model does not run on it.
            NotExposedError: it keeps no keys and values.
        """
        set_backend(self.model, backend or self.backends[0])
        inputs = {name: value.to(self.model.device) for name, value in batch.inputs.items()}
        prefix, start = "decoder_" if self.is_beside_encoder else "", 0
        more: dict[str, Any] = {"return_dict": True, "output_hidden_states": True}
        more |= {"use_cache": True, "past_key_values": None} if ends else {}
        steps = []
        with translate_model_errors("the texts", "it does not run", RunFailedError):
            if ends and prefix:
                text = {name: value for name, value in inputs.items() if not name.startswith(prefix)}
                more["encoder_outputs"] = self.model.get_encoder()(**text, return_dict=True)
            for end in ends or [batch.whole.target.stop]:
                piece = dict(inputs)  # masks are of all positions before it too, and an encoder's inputs stay whole
                for name in (name for name in inputs if ends and name.startswith(prefix)):
                    piece[name] = inputs[name][:, None if name.endswith("attention_mask") else start : end]
                output = self.model(**piece, **more)
                steps.append(self._hidden_states(output))
                start, cache = end, output.get("past_key_values")
                if ends and cache is None:
                    raise NotExposedError("it keeps no cache")
                more |= {"past_key_values": cache} if ends else {}
        return [SentenceRun(steps, row, span) for row, span in enumerate(batch.spans)]

    def _in_steps(self, batch: PaddedBatch, first: int, singles: int) -> list[SentenceRun]:
        """Run a batch with a cache; recurrent layers run one token at a time after the first step."""
        if not self.looks_back:
            raise NotExposedError("its tokens see those after them")
        inputs, spans, total = batch
        if self.checkpoint.takes_positions and "position_ids" not in inputs and not self.checkpoint.is_encoder_decoder:
            inputs["position_ids"] = torch.arange(total.text.stop).expand(len(spans), -1)
        count = total.target.stop
        single = first if self.checkpoint.other_layers else max(count - singles, first)
        return self._runs(batch, ends=sorted({first, *range(single, count + 1)}))

    def _padded(self, sentences: Sequence[EncodedInput], side: str) -> PaddedBatch:
        inputs = [sentence.inputs for sentence in sentences]
        return padded(inputs, self.checkpoint.encoder.padding_id, side, self.checkpoint.takes_positions)
