"""Attention that is computed in blocks of its queries or keys, and attention whose parts are whole."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, HEADS, T, SIZE = 32, 4, 12, 4


class Layer(nn.Module):
    def __init__(self, attend) -> None:
        super().__init__()
        self.qkv, self.out, self.attend = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), attend

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each.unflatten(2, (HEADS, -1)).transpose(1, 2) for each in self.qkv(x).chunk(3, 2))
        return self.out(self.attend(q, k, v).transpose(1, 2).flatten(2))


@torch.no_grad()
def run(attend) -> list[Tensor]:
    model = nn.Sequential(Layer(attend), Layer(attend))
    return [model(torch.randn(2, T, WIDTH)) for _ in range(2)]


def block(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """The output of a block of keys, and how much its scores come to."""
    scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~mask, float("-inf"))
    return scores.softmax(-1) @ v, scores.logsumexp(-1, keepdim=True)


def merged(parts: list[tuple[Tensor, Tensor]]) -> Tensor:
    outputs, sums = (torch.stack(each) for each in zip(*parts, strict=True))
    return (outputs * sums.softmax(0)).sum(0)


CAUSAL = torch.ones(T, T, dtype=torch.bool).tril()


def ring(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A loop over the keys that queries may see, from the first block on."""
    rows = []
    for at in range(0, T, SIZE):
        mine = slice(at, at + SIZE)
        keys = [slice(start, start + SIZE) for start in range(0, at + 1, SIZE)]
        rows.append(merged([block(q[:, :, mine], k[:, :, one], v[:, :, one], CAUSAL[mine, one]) for one in keys]))
    return torch.cat(rows, 2)


def scaled_before(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Queries that are slices no more, as each was multiplied."""
    rows = []
    for at in range(0, T, SIZE):
        mine = slice(at, at + SIZE)
        own, parts = q[:, :, mine] * 1.0, []
        for start in range(0, T, SIZE):
            one = slice(start, start + SIZE)
            if start <= at:
                parts.append(block(own, k[:, :, one], v[:, :, one], CAUSAL[mine, one]))
        rows.append(merged(parts))
    return torch.cat(rows, 2)


def other_ranks(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The last rank of a ring, which is sent the keys of others."""
    own, masks = q[:, :, -SIZE:].clone(), CAUSAL[-SIZE:].split(SIZE, 1)
    sent = zip(k.split(SIZE, 2), v.split(SIZE, 2), masks, strict=True)
    parts = [block(own, key.clone(), value.clone(), mask) for key, value, mask in sent]
    return merged(parts).repeat(1, 1, T // SIZE, 1)


def split_keys(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Flash decoding: one query, and its keys in parts."""
    everything = torch.ones(1, SIZE, dtype=torch.bool)
    parts = zip(k.split(SIZE, 2), v.split(SIZE, 2), strict=True)
    return merged([block(q[:, :, -1:].clone(), *part, everything) for part in parts]).expand_as(q)


def query_slices(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Some queries at a time against all keys, with their rows of the mask, to save memory."""
    rows = (slice(at, at + SIZE) for at in range(0, T, SIZE))
    return torch.cat([F.scaled_dot_product_attention(q[:, :, own], k, v, attn_mask=CAUSAL[own]) for own in rows], 2)


def two_lines(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Blocks on the diagonal and below it at lines of their own."""
    rows = []
    for at in range(0, T, SIZE):
        mine, parts = slice(at, at + SIZE), []
        for start in range(0, at, SIZE):
            one = slice(start, start + SIZE)
            parts.append(block(q[:, :, mine], k[:, :, one], v[:, :, one], CAUSAL[T - SIZE :, :SIZE]))
        parts.append(block(q[:, :, mine], k[:, :, mine], v[:, :, mine], CAUSAL[:SIZE, :SIZE]))
        rows.append(merged(parts))
    return torch.cat(rows, 2)


def documents(q: Tensor, k: Tensor, v: Tensor, is_causal: bool = True) -> Tensor:
    """Documents of one sequence, each an attention of its own."""
    parts = (slice(0, 5), slice(5, 9), slice(9, 12))
    whole = (F.scaled_dot_product_attention(q[:, :, i], k[:, :, i], v[:, :, i], is_causal=is_causal) for i in parts)
    return torch.cat([*whole], 2)


def rows_of_the_batch(q: Tensor, k: Tensor, v: Tensor, is_causal: bool = True) -> Tensor:
    """A row of the batch after another, to save memory."""
    return torch.cat(
        [
            F.scaled_dot_product_attention(*each, is_causal=is_causal)
            for each in zip(q[:, None], k[:, None], v[:, None], strict=True)
        ]
    )


def halves_of_the_heads(q: Tensor, k: Tensor, v: Tensor, is_causal: bool = True) -> Tensor:
    """Some heads after others."""
    parts = zip(*(each.chunk(2, 1) for each in (q, k, v)), strict=True)
    return torch.cat([F.scaled_dot_product_attention(*each, is_causal=is_causal) for each in parts], 1)


def cached(q: Tensor, k: Tensor, v: Tensor, is_causal: bool = True) -> Tensor:
    """Steps behind a static cache, of which each sees the keys that are written."""
    first = F.scaled_dot_product_attention(q[:, :, :8], k[:, :, :8], v[:, :, :8], is_causal=is_causal)
    steps = [
        F.scaled_dot_product_attention(q[:, :, i : i + 1], k[:, :, : i + 1], v[:, :, : i + 1]) for i in range(8, T)
    ]
    return torch.cat([first, *steps], 2)
