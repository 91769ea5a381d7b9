"""The masks that a checkpoint's own code builds for some sentences, from its configuration and tokenizer alone."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.encoding.encode import EncodedInput
from attncli.engines.torch.batch import padded
from attncli.engines.torch.configuration import instead, layer_types
from attncli.engines.torch.engine import Checkpoint
from attncli.engines.torch.expected_masks import selected_keys
from attncli.engines.torch.run_recorded import run
from attncli.engines.torch.weightless_model import SkipProducts, blank_model
from attncli.errors import InputError, NotExposedError
from attncli.masks.recognition import recognise_plane
from attncli.text import visible
from attncli.trace.layer import LayerTrace
from attncli.trace.tokens import Token, Tokens
from attncli.trace.trace import sequences

if TYPE_CHECKING:
    from jaxtyping import Bool

_TYPE = re.compile(r"(\w+)_attention")


@dataclass(frozen=True)
class LayerMask:
    """One mask of one sentence, and the layers that have it."""

    kind: str  # what the configuration calls these layers, or what they are seen to do
    layers: tuple[int, ...]  # their indices
    allowed: Bool[np.ndarray, "P Q K"]  # True = attend; a plane for all heads, or one for each
    queries: Tokens  # the tokens of the rows, padding included
    keys: Tokens  # the tokens of the columns


@dataclass(frozen=True)
class SentenceMasks:
    """A sentence with its masks."""

    sentence: EncodedInput
    masks: tuple[LayerMask, ...]


class BlankCheckpoint(Checkpoint):
    """A checkpoint without its weights, which can be asked for its masks alone."""

    def _load(self, writes: bool) -> tuple[Any, tuple[str, ...], str]:
        self.request = replace(self.request, is_blank=True)
        return blank_model(self.name, self.part, self.options), (), ""

    def masks(
        self, texts: Sequence[str], pair: str | None = None, target: str | None = None, pad: str | None = None
    ) -> tuple[list[SentenceMasks], list[str]]:
        """Return the masks of sentences that run side by side, and what the user should know of them.

        Args:
            texts: the sentences.
            pair: a second text in the sequence of each one.
            target: of an encoder-decoder, the decoder's text; None is the sentence itself.
            pad: `left` or `right`, where the shorter ones are padded; None is where the tokenizer does it.

        Raises:
            UsageError: a target does not apply.
            InputError: a text cannot be read.
            NotExposedError: the model does not show its masks, or cannot do what is asked.
        """
        sentences = [self.read_for_both(text, pair, target) for text in texts]
        self._check_room(sentences)
        side = pad or self.encoder.tokenizer.padding_side
        fill = self.encoder.padding_id
        padding = Token(0, fill, str(self.encoder.tokenizer.convert_ids_to_tokens(fill)), None, None, special=True)
        batch = padded([one.inputs for one in sentences], padding.id, side, self.takes_positions)
        rows = batch._replace(spans=[batch.whole] * len(sentences))
        with SkipProducts():
            recorded = run(self.model, self.model, rows, self.request, self.kinds).traces()
        text_end, target_end = batch.whole.text.stop, batch.whole.target.stop
        filled = [
            (_filled(one.tokens, text_end, padding, side), _filled(one.query_tokens, target_end, padding, side))
            for one in sentences
        ]
        masks = self._grouped(recorded, filled)
        notes = list(self._notes(sentences, pad, side, padding))
        return [SentenceMasks(*both) for both in zip(sentences, masks, strict=True)], notes

    def _check_room(self, sentences: Sequence[EncodedInput]) -> None:
        """Raise unless the sentences can run side by side."""
        longest = max(max(len(one.tokens), len(one.query_tokens)) for one in sentences)
        if self.room_for(longest) < len(sentences):
            raise InputError(f"{len(sentences)} × {longest} tokens do not fit into memory; give fewer sentences")
        name = visible(self.name)
        if len(sentences) > 1 and "attention_mask" not in self.parameters:
            raise NotExposedError(f"{name} takes no attention mask, so padding would be seen; give one sentence")
        most = selected_keys(self.model.config)
        if most is not None and most < longest:
            raise NotExposedError(
                f"a query of {name} attends to the {most} keys that it ranks first, so its mask depends on the "
                f"weights; give at most {most} tokens"
            )

    def _notes(self, sentences: Sequence[EncodedInput], pad: str | None, side: str, padding: Token) -> Iterator[str]:
        for kind, count in Counter(self.other_layers.values()).items():
            layers = f"{count} of {self.num_layers} layers" if count > 1 else "1 layer"
            yield f"{layers}: {instead(kind)} and no mask"
        yield from (note for one in sentences for note in one.notes)
        is_padded = len({(len(one.tokens), len(one.query_tokens)) for one in sentences}) > 1
        if pad is None and is_padded:
            yield f"padded on the {side}, as the tokenizer does it"
        if is_padded and self.encoder.tokenizer.pad_token_id is None:
            yield f"the tokenizer has no pad token; padded with {padding.label}"

    def _grouped(
        self, recorded: Sequence[tuple[LayerTrace, ...]], filled: Sequence[tuple[Tokens, Tokens]]
    ) -> list[tuple[LayerMask, ...]]:
        """Return the masks of each sentence; layers of one kind that have the same mask share it.

        `filled` is each sentence's text and target, with their padding.
        """
        groups: dict[Any, tuple[str, list[np.ndarray[Any, Any]], list[int]]] = {}
        for layers in zip(*recorded, strict=True):
            cells = [each.mask.rows(list(range(each.num_heads)), np.arange(each.num_queries)) for each in layers]
            kind = self._kind(layers[0], cells)
            key = (kind, *((each.shape, each.tobytes()) for each in cells))
            groups.setdefault(key, (layers[0].kind, cells, []))[2].append(layers[0].layer)
        masks: list[list[LayerMask]] = [[] for _ in filled]
        for (kind, *_), (side, cells, indices) in groups.items():
            for own, (text, target), allowed in zip(masks, filled, cells, strict=True):
                own.append(LayerMask(kind, tuple(indices), allowed, *sequences(side, target, text)))
        return [tuple(own) for own in masks]

    def _kind(self, layer: LayerTrace, cells: Sequence[Bool[np.ndarray, "P Q K"]]) -> str:
        """Return what the configuration calls a layer, or what its masks say of it."""
        if layer.kind != "self":
            return layer.kind
        types = layer_types(self.model.config, "layer_types")
        if types and (named := _TYPE.fullmatch(types[layer.layer])):
            return named[1]
        if any(np.triu(each, 1).any() for each in cells):
            return "bidirectional"
        rules = {str(recognise_plane(plane, 0)) for each in cells for plane in each}
        if any("window" in rule for rule in rules):
            return "sliding"
        return "chunked" if any("chunk" in rule for rule in rules) else "full"


def _filled(tokens: Tokens, count: int, padding: Token, side: str) -> Tokens:
    """Return a sentence's tokens with its padding."""
    more = [padding] * (count - len(tokens))
    both = [*more, *tokens] if side == "left" else [*tokens, *more]
    return Tokens(replace(token, index=index) for index, token in enumerate(both))
