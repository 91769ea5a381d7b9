"""Sentences side by side: padded to one length, and which tokens of the batch are whose."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from attncli.sources.pretrained.recording import Span

_MOST_TOKENS = 4096  # of a batch, padding included: more gains nothing on a CPU
_TARGET = "decoder_"  # what the names of a decoder's inputs begin with

Encoded = Mapping[str, Sequence[int]]


def batches(encoded: Sequence[Encoded]) -> Iterator[list[int]]:
    """Yield the indices of sentences that run together, of nearly one length so that there is little padding."""
    lengths = [sum(map(len, one.values())) for one in encoded]
    batch: list[int] = []
    for index in sorted(range(len(encoded)), key=lengths.__getitem__):
        longest = len(encoded[index]["input_ids"])
        if batch and (len(batch) + 1) * longest > _MOST_TOKENS:
            yield batch
            batch = []
        batch.append(index)
    yield batch


def padded(
    encoded: Sequence[Encoded], pad_id: int, side: str, parameters: Mapping[str, Any]
) -> tuple[dict[str, torch.Tensor], list[Span]]:
    """Return the inputs of a batch, `[B, longest]` each, and where its sentences stand.

    Args:
        encoded: what the tokenizer gave for each sentence.
        pad_id: the id that fills up.
        side: `right` or `left`, where padding goes.
        parameters: names that the model's forward pass takes.
    """
    if len(encoded) == 1:
        inputs = {name: torch.tensor([ids]) for name, ids in encoded[0].items()}
        return inputs, [Span(slice(None), slice(None))]
    inputs = {}
    for name in encoded[0]:
        fill = pad_id if name.endswith("input_ids") else 0
        rows = [torch.tensor(one[name]) for one in encoded]
        inputs[name] = torch.nn.utils.rnn.pad_sequence(rows, True, fill, side)
        mask = name.replace("input_ids", "attention_mask")
        if name.endswith("input_ids") and mask not in encoded[0]:
            ones = [torch.ones_like(row) for row in rows]
            inputs[mask] = torch.nn.utils.rnn.pad_sequence(ones, True, 0, side)
    if side == "left" and "position_ids" in parameters:
        inputs["position_ids"] = (inputs["attention_mask"].cumsum(-1) - 1).clamp(min=0)
    texts = _slices(encoded, "input_ids", side)
    targets = _slices(encoded, _TARGET + "input_ids", side) if _TARGET + "input_ids" in inputs else texts
    return inputs, [Span(*both) for both in zip(texts, targets, strict=True)]


def _slices(encoded: Sequence[Encoded], name: str, side: str) -> list[slice]:
    lengths = [len(one[name]) for one in encoded]
    longest = max(lengths)
    return [slice(0, n) if side == "right" else slice(longest - n, longest) for n in lengths]
