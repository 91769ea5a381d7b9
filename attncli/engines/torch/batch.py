"""Batches of sentences, padded to one length, with the positions of each sentence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

import torch
from torch.nn.utils.rnn import pad_sequence

from attncli.engines.torch.recorder import PaddedBatch, Span

MOST_TOKENS = 4096  # of a batch, padding included: more gains nothing on a CPU
ROOM = 2**28  # bytes of the traces of sentences that wait for others
_IDS = ("input_ids", "decoder_input_ids")

Encoded = Mapping[str, Sequence[int]]


def batches(encoded: Sequence[Encoded], limit: int = MOST_TOKENS, size: float = 0) -> Iterator[list[int]]:
    """Yield the indices of sentences that run together, of one length, neighbours that fit into `ROOM` first.

    A model that mixes neighbours (a convolution, landmarks) would see the padding between others. A batch has at most
    `limit` tokens; `size` is the bytes of a trace for each pair of tokens.
    """
    lengths = [tuple(len(row[name]) for name in _IDS if name in row) for row in encoded]
    start = 0
    while start < len(encoded):
        stop, room = start, float(ROOM)
        while stop < len(encoded) and (stop == start or room >= size * max(lengths[stop]) ** 2):
            room -= size * max(lengths[stop]) ** 2
            stop += 1
        for length, same in groupby(sorted(range(start, stop), key=lengths.__getitem__), lengths.__getitem__):
            indices, step = list(same), max(limit // max(length), 1)
            yield from (indices[first : first + step] for first in range(0, len(indices), step))
        start = stop


def padded(encoded: Sequence[Encoded], pad_id: int, side: str, takes_positions: bool) -> PaddedBatch:
    """Pad sentences on a side, `right` or `left`, to the length of the longest.

    `takes_positions` is whether the model takes the positions of the tokens, which padding has moved.
    """
    first, inputs = encoded[0], {}
    for name in first:
        rows, is_ids = [torch.tensor(sentence[name]) for sentence in encoded], name.endswith("input_ids")
        inputs[name] = pad_sequence(rows, True, pad_id if is_ids else 0, side)
        mask = name.replace("input_ids", "attention_mask")
        if is_ids and mask not in first and len(rows) > 1:
            inputs[mask] = pad_sequence([torch.ones_like(row) for row in rows], True, 0, side)
    if side == "left" and len(encoded) > 1 and takes_positions:
        inputs["position_ids"] = (inputs["attention_mask"].cumsum(-1) - 1).clamp(min=0)
    sides = []  # of the text, then of its target
    for name in (name for name in _IDS if name in inputs):
        lengths, longest = [len(sentence[name]) for sentence in encoded], inputs[name].shape[1]
        starts = [0 if side == "right" else longest - length for length in lengths]
        sides.append([slice(start, start + length) for start, length in zip(starts, lengths, strict=True)])
    texts, targets = sides[0], sides[-1]
    span = Span(*(slice(0, max(part.stop for part in slices)) for slices in (texts, targets)))
    return PaddedBatch(inputs, [Span(*both) for both in zip(texts, targets, strict=True)], span)
