"""Batches of sentences, padded to one length, with the positions of each sentence."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate

import torch

from attncli.engines.torch.recorder import PaddedBatch, Span

MOST_TOKENS = 4096  # of a batch, padding included: more gains nothing on a CPU
_TARGET = "decoder_"  # prefix of a decoder's inputs

ROOM = 2**28  # bytes of the traces of sentences that wait for others
Encoded = Mapping[str, Sequence[int]]


def batches(
    encoded: Sequence[Encoded], limit: int = MOST_TOKENS, size_of: Callable[[int], float] = lambda tokens: 0
) -> Iterator[list[int]]:
    """Yield the indices of sentences that run together, all of one length, neighbours that fit into `ROOM` first.

    A model that mixes neighbours (a convolution, landmarks) would see the padding between others.

    Args:
        encoded: the sentences.
        limit: the most tokens of a batch.
        size_of: the bytes of the trace of a sentence with this many tokens.
    """
    lengths = [tuple(len(row[name]) for name in ("input_ids", _TARGET + "input_ids") if name in row) for row in encoded]
    sums = list(accumulate(size_of(max(pair)) for pair in lengths))
    start = 0
    while start < len(encoded):
        before = sums[start - 1] if start else 0.0
        stop = max(bisect(sums, before + ROOM), start + 1)
        batch: list[int] = []
        for index in sorted(range(start, stop), key=lengths.__getitem__):
            if batch and (lengths[index] != lengths[batch[0]] or (len(batch) + 1) * max(lengths[index]) > limit):
                yield batch
                batch = []
            batch.append(index)
        yield batch
        start = stop


def padded(encoded: Sequence[Encoded], pad_id: int, side: str, takes_positions: bool) -> PaddedBatch:
    """Pad sentences to the length of the longest.

    Args:
        encoded: output of the tokenizer for each sentence.
        pad_id: the id of padding.
        side: `right` or `left`, the side of the padding.
        takes_positions: whether the model takes the positions of the tokens, which padding has moved.
    """
    inputs = {}
    for name in encoded[0]:
        fill = pad_id if name.endswith("input_ids") else 0
        rows = [torch.tensor(one[name]) for one in encoded]
        inputs[name] = torch.nn.utils.rnn.pad_sequence(rows, True, fill, side)
        mask = name.replace("input_ids", "attention_mask")
        if name.endswith("input_ids") and mask not in encoded[0] and len(rows) > 1:
            ones = [torch.ones_like(row) for row in rows]
            inputs[mask] = torch.nn.utils.rnn.pad_sequence(ones, True, 0, side)
    if side == "left" and len(encoded) > 1 and takes_positions:
        inputs["position_ids"] = (inputs["attention_mask"].cumsum(-1) - 1).clamp(min=0)
    sides = [_slices(encoded, name, side) for name in ("input_ids", _TARGET + "input_ids") if name in inputs]
    both = sides[0], sides[-1]  # of a text and its target; without targets they are the same
    text, target = (slice(0, max(one.stop for one in slices)) for slices in both)
    return PaddedBatch(inputs, [Span(*slices) for slices in zip(*both, strict=True)], Span(text, target))


def _slices(encoded: Sequence[Encoded], name: str, side: str) -> list[slice]:
    lengths = [len(inputs[name]) for inputs in encoded]
    longest = max(lengths)
    return [slice(0, n) if side == "right" else slice(longest - n, longest) for n in lengths]
