"""Ways of running the same text that should give the same numbers, compared."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import accumulate, chain, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from attncli.analysis.check.report import Invariance
from attncli.attention import HALF, noise_floor
from attncli.engines.torch.expected_masks import implied_masks
from attncli.engines.torch.load import first_position, set_backend
from attncli.engines.torch.recorder import PaddedBatch, Span, Sublayer, translate_model_errors
from attncli.errors import NotExposedError
from attncli.masks.expressions import Grid
from attncli.masks.findings import Finding
from attncli.text import visible

if TYPE_CHECKING:
    from attncli.encoding.encode import EncodedInput
    from attncli.engines.torch.engine import Checkpoint

HiddenStates = dict[Sublayer, torch.Tensor]  # of a sentence, `[T, F]` after each layer; −1 is the embeddings


_ADVICE = {  # by the code of a change
    "batch": "the rest of the batch changes a sentence: the attention mask does not reach every layer",
    "padding-side": "derive position ids from the attention mask, as generate() does: cumsum − 1",
    "cache": "the mask of a later step begins at the wrong key: query i stands at position past + i",
    "backend": "one implementation leaves out a mask or a bias",
    "packing": "documents of one sequence attend to each other; give a mask of the documents",
}


class RunFailedError(NotExposedError):
    """The model runs, but not in this way."""


class ModelRunner:
    """A loaded checkpoint, to be run in several ways."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint, self.model = checkpoint, checkpoint.model
        self.first_position = first_position(self.model)
        self.implied = implied_masks(self.model)
        self.dtype = str(self.model.dtype).removeprefix("torch.")
        self.has_decoder = "decoder" in checkpoint.kinds  # which attends to an encoder
        is_exchangeable = self.model._can_set_attn_implementation()
        self.backends = ("sdpa", "eager") if is_exchangeable and self.model._supports_sdpa else ("eager",)
        self._streamed: set[Sublayer] = set()  # hidden states that are several streams, `[S, B, T, F]`

    def read(self, text: str, target: str | None) -> EncodedInput:
        """Return a sentence as the model reads it; without a target, a decoder is given the sentence itself."""
        has_target = target is not None or not self.checkpoint.is_encoder_decoder
        return self.checkpoint.encode(text, None, target if has_target else text)

    def alone(self, sentence: EncodedInput) -> HiddenStates:
        """Run one sentence."""
        return self._runs(self.checkpoint.batched([sentence]))[0]

    def alone_in_eager(self, sentence: EncodedInput) -> HiddenStates:
        """Run one sentence in the other one of two `backends`."""
        if len(self.backends) == 1:
            raise NotExposedError(f"it has {self.backends[0]} attention alone")
        return self._runs(self.checkpoint.batched([sentence]), backend=self.backends[1])[0]

    def together(self, sentences: Sequence[EncodedInput], side: str) -> list[HiddenStates]:
        """Run a padded batch."""
        if "attention_mask" not in self.checkpoint.parameters:
            raise NotExposedError("it takes no attention mask")
        return self._runs(self.checkpoint.batched(sentences, side))

    def with_cache(self, sentence: EncodedInput) -> HiddenStates:
        """Run a sentence with a cache: half of it, all but its last token, that token.

        The second step has several queries and more keys, which shows a mask that is aligned at the wrong corner.
        """
        half = max(len(sentence.query_tokens) // 2, 1)
        return self._in_steps(self.checkpoint.batched([sentence]), half, 1)[0]

    def with_cache_together(self, sentences: Sequence[EncodedInput]) -> list[HiddenStates]:
        """Run a padded batch whose last tokens run one by one with a cache, as in generation.

        A decoder alone is padded on its left, so that all sentences end together; else an encoder's text on its right.
        """
        batch = self.checkpoint.batched(sentences, "right" if self.has_decoder else "left")
        shortest = min(len(sentence.query_tokens) for sentence in sentences)
        return self._in_steps(batch, max(batch.whole.target.stop - max(shortest - 1, 1), 1), 2)

    def _in_steps(self, batch: PaddedBatch, first: int, singles: int) -> list[HiddenStates]:
        """Run a batch with a cache; recurrent layers run one token at a time after the first step."""
        if not self._looks_back:
            raise NotExposedError("its tokens attend to later ones")
        inputs, spans, total = batch
        if self.checkpoint.takes_positions and "position_ids" not in inputs and not self.checkpoint.is_encoder_decoder:
            inputs["position_ids"] = torch.arange(total.text.stop).expand(len(spans), -1)
        count = total.target.stop
        single = first if self.checkpoint.other_layers else max(count - singles, first)
        return self._runs(batch, ends=sorted({first, *range(single, count + 1)}))

    def packed(self, sentences: Sequence[EncodedInput]) -> list[HiddenStates]:
        """Run documents packed into one sequence, which a model that looks back tells apart by their positions."""
        if self.checkpoint.is_encoder_decoder or not self._looks_back:
            raise NotExposedError("its documents are told apart by a mask alone")
        if "position_ids" not in self.checkpoint.parameters:
            raise NotExposedError("it takes no position ids, which tell packed documents apart")
        ids = [token for sentence in sentences for token in sentence.inputs["input_ids"]]
        positions = [self.first_position + i for sentence in sentences for i in range(len(sentence.tokens))]
        inputs = {"input_ids": torch.tensor([ids]), "position_ids": torch.tensor([positions])}
        ends = [0, *accumulate(len(sentence.tokens) for sentence in sentences)]
        spans, total = [slice(*both) for both in pairwise(ends)], slice(0, ends[-1])
        return self._runs(PaddedBatch(inputs, [Span(span, span) for span in spans], Span(total, total)))

    @property
    def _looks_back(self) -> bool:
        """Whether some layers are causal: their queries see no later key."""
        ahead = Grid(np.zeros((1, 1), int), 2, 0, 1)  # the first of two positions
        return any(not implied.expression.allowed(ahead)[..., 0, 1].any() for implied in self.implied.values())

    def _runs(self, batch: PaddedBatch, backend: str | None = None, ends: Sequence[int] = ()) -> list[HiddenStates]:
        """Run a batch at once, or with a cache in pieces that end at `ends`, and return the states of each sentence.

        Raises:
            RunFailedError: the model does not run on it.
            NotExposedError: it keeps no keys and values.
        """
        set_backend(self.model, backend or self.backends[0])
        inputs = {name: value.to(self.model.device) for name, value in batch.inputs.items()}
        prefix, start = "decoder_" if self.has_decoder else "", 0
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
                steps.append(self._hidden_states(output, len(inputs["input_ids"])))
                start, cache = end, output.get("past_key_values")
                if ends and cache is None:
                    raise NotExposedError("it keeps no cache")
                more |= {"past_key_values": cache} if ends else {}
        common = [sublayer for sublayer in steps[0] if all(sublayer in step for step in steps)]
        whole = {sublayer: torch.cat([step[sublayer] for step in steps], dim=1) for sublayer in common}
        rows = [0] * len(batch.spans) if len(inputs["input_ids"]) == 1 else range(len(batch.spans))
        return [
            {sublayer: states[row, span.of(sublayer[1])[0]].flatten(1) for sublayer, states in whole.items()}
            for row, span in zip(rows, batch.spans, strict=True)
        ]

    def _hidden_states(self, output: Any, rows: int) -> HiddenStates:
        """Return hidden states `[B, T, …]` after each layer, from the embeddings on; at least those of the last one."""
        main = "decoder" if self.has_decoder else self.checkpoint.kinds[0]
        names = {(main, "hidden_states"), ("encoder", "encoder_hidden_states"), ("decoder", "decoder_hidden_states")}
        states = {
            (number, kind): tensor
            for kind, name in names
            for number, tensor in enumerate(output.get(name) or (), -1)
            if isinstance(tensor, torch.Tensor)
        }
        last = max((layer for layer, kind in self.implied if kind == main), default=0)
        states = states if any(kind == main for _, kind in states) else states | {(last, main): output[0]}
        if rows == 1:
            self._streamed |= {sublayer for sublayer, tensor in states.items() if len(tensor) > 1}
        return {key: tensor.movedim(0, 2) if key in self._streamed else tensor for key, tensor in states.items()}


def changes(alone: HiddenStates, other: HiddenStates) -> Iterator[tuple[Sublayer, float]]:
    """Yield the largest change of a token's vector, relative to its length, in each layer."""
    for sublayer in (sublayer for sublayer in alone if sublayer in other):
        precise = torch.promote_types(alone[sublayer].dtype, torch.float32)
        before, after = (states[sublayer].to(precise) for states in (alone, other))
        if before.shape == after.shape:
            size = before.norm(dim=-1).clamp_min(torch.finfo(torch.float32).tiny)
            yield sublayer, float(((after - before).norm(dim=-1) / size).max())  # NaN stays


def invariances(runner: ModelRunner, sentences: Sequence[EncodedInput]) -> Iterator[Invariance]:
    """Run sentences of different lengths in every way, and yield how far they are from each sentence alone."""
    floor = noise_floor(runner.dtype)

    @cache
    def alone() -> list[HiddenStates]:
        return [runner.alone(sentence) for sentence in sentences]

    def compare(name: str, ways: str, other: Callable[[], Iterable[HiddenStates]]) -> Invariance:
        result = Invariance(name, ways, floor=floor)
        runs_alone, sizes = False, dict[tuple[int, str], float]()
        try:
            runs_alone = bool(alone())
            for sublayer, size in chain.from_iterable(map(changes, alone(), other())):
                sizes[sublayer] = float(np.maximum(sizes.get(sublayer, 0.0), size))  # NaN stays
        except RunFailedError as error:
            # What does not run alone either is said once, of the implementations.
            reason, has_failed = (str(error), True) if runs_alone else (f"alone {error}", name == "backend")
            return replace(result, reason=reason, has_failed=has_failed)
        except NotExposedError as error:
            return replace(result, reason=str(error))
        if not sizes:
            return replace(result, reason="there is nothing to compare")
        sizes = dict(sorted(sizes.items(), key=lambda item: (item[0][1] == "decoder", item[0][0])))
        sublayer, change = max(sizes.items(), key=lambda item: (np.isnan(item[1]), item[1]))
        first = next((place for place, size in sizes.items() if not size <= floor), None)
        return replace(result, change=change, layer=sublayer, first=first, changes=sizes)

    right = compare("batch", "alone, padded right", lambda: runner.together(sentences, "right"))
    left = compare("padding-side", "alone, padded left", lambda: runner.together(sentences, "left"))
    in_steps = compare("cache", "whole, in steps", lambda: map(runner.with_cache, sentences))
    # Where padding alone makes no difference, a padded batch is generated too.
    if in_steps.change is not None and (right if runner.has_decoder else left).first is None:
        padded = compare("cache", "whole, padded in steps", lambda: runner.with_cache_together(sentences))
        in_steps = padded if padded.has_failed or not (padded.change or 0) <= in_steps.change else in_steps
    yield from (right, left, in_steps)
    yield compare("backend", ", ".join(runner.backends), lambda: map(runner.alone_in_eager, sentences))
    yield compare("packing", "alone, packed by positions", lambda: runner.packed(sentences))


def findings_of(
    runner: ModelRunner, compared: Iterable[Invariance], reported: Collection[tuple[int | None, str | None]]
) -> Iterator[Finding]:
    """Yield a finding for every comparison whose change is more than rounding.

    The layers that have findings already are `reported`, with their kinds.
    """
    for one in compared:
        is_note = one.name == "packing"  # no program says that they are packed
        if one.has_failed:
            yield Finding(one.name, "note" if is_note else "error", f"{one.ways}: {one.reason}")
        if one.first is None:
            continue
        layer, kind = one.first
        advice, others = _ADVICE[one.name], runner.checkpoint.other_layers
        if one.name == "padding-side" and layer < 0 and "position_ids" not in runner.checkpoint.parameters:
            is_note = True
            advice = "its positions are absolute and it takes no position ids; pad on the right"
        elif one.first in reported:
            advice = "see the other findings in this layer"
        elif one.change is not None and np.isnan(one.change):
            advice = "the model itself gives NaN"
        elif runner.dtype in HALF:  # where one rounding moves a choice, as of experts, there is no floor
            is_note = True
            advice = f"rounding of {runner.dtype} may change as much; --dtype float32 tells"
        elif layer in others:
            advice = f"layer {layer} has {visible(others[layer])}, which reads the tokens before"
        where = f"{'the ' + kind if kind != 'self' else 'the'} embeddings" if layer < 0 else f"{kind} layer {layer}"
        message = f"{one.ways}: hidden states change by {one.change:.2g} of their length, from {where} on"
        index = None if layer < 0 else layer
        yield Finding(one.name, "note" if is_note else "error", message, layer=index, kind=kind, advice=advice)
